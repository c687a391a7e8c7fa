"""Batch statistics that several workers change without waiting for each other."""

from typing import Any

import jax
import numpy as np
import pytest

from jaxdp.components import NOTHING
from jaxdp.config import TrainConfig
from jaxdp.exchange import leaves
from jaxdp.exchange.server import Server
from jaxdp.exchange.worker import Job, Task, Worker
from jaxdp.training.setup import Setup, create_setup

CONFIG = TrainConfig.of(
    model="cnn",
    model_kwargs={"width": 4, "hidden": 16},
    global_batch_size=32,
    batch_norm="group:8",
    strategy="single",
    devices=1,
)


@pytest.fixture(scope="module")
def setup() -> Setup:
    return create_setup(CONFIG)


def computed(*, alone: bool) -> Any:
    worker = Worker(Task(CONFIG, NOTHING, ".", False, 1, alone=alone), 0)
    worker._build()
    return worker.run(Job(range(3, 4), 0, 1, worker._version, ()))[0]["batch_stats"]


def test_a_worker_tells_by_how_much_it_changed_them(setup: Setup) -> None:
    before = setup.create_state().batch_stats
    new, change = (computed(alone=alone) for alone in (False, True))
    jax.tree.map(
        lambda a, b, c: np.testing.assert_allclose(a + b, c, rtol=1e-6, atol=1e-7),
        before,
        change,
        new,
    )
    # Or nothing was changed.
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(change)) > 1e-3


def test_a_server_keeps_the_changes_of_all(setup: Setup) -> None:
    state = jax.tree.map(np.asarray, setup.create_state())
    server = Server()
    server.install(setup.recipe, state, setup.learning_rates)
    grads = leaves.of(jax.tree.map(np.zeros_like, state.params))
    for amount in (1.0, 0.25):  # both from the state that was installed
        change = jax.tree.map(
            lambda leaf, amount=amount: np.full_like(leaf, amount), state.batch_stats
        )
        server.apply({"batch_stats": change, "weight": np.float32(1)}, grads, 1.0, 1.0)
    kept = leaves.joined(leaves.structure(state), [server.collect()])
    jax.tree.map(
        lambda old, new: np.testing.assert_allclose(new, old + 1.25, rtol=1e-6),
        state.batch_stats,
        kept.batch_stats,
    )
    server.add(grads)
    server.mean_squares(1)
    # The exact exchange brings what all have found.
    server.apply({"batch_stats": state.batch_stats, "weight": np.float32(1)}, None, 1.0, 1.0)
    kept = leaves.joined(leaves.structure(state), [server.collect()])
    jax.tree.map(np.testing.assert_array_equal, state.batch_stats, kept.batch_stats)
