"""What servers hold, and how they apply what several workers computed; Ray is not started."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest
from small_runs import SMALL

from jaxdp.build.inputs import NOTHING
from jaxdp.build.setup import Setup, create_setup
from jaxdp.config import TrainConfig
from jaxdp.workers import shares
from jaxdp.workers.server import Server
from jaxdp.workers.worker import Job, Worker, WorkerSpec

CONFIG = TrainConfig.of(model="cnn", batch_norm="group:8", strategy="single", devices=1, **SMALL)


@pytest.fixture(scope="module")
def setup() -> Setup:
    return create_setup(CONFIG)


@pytest.fixture(scope="module")
def worker(setup: Setup) -> Worker:
    owners = [0] * len(jax.tree.leaves(setup.shapes.params))
    return Worker(WorkerSpec(CONFIG, NOTHING, 1, tuple(owners)), 0)


def test_a_worker_reports_by_how_much_it_changed_batch_statistics(
    setup: Setup, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def computed() -> Any:
        return worker.run(Job(3, 0, worker._version, ()))[0].batch_stats

    new, before = computed(), setup.create_state().batch_stats
    monkeypatch.setattr(worker, "_spec", dataclasses.replace(worker._spec, returns_deltas=True))
    change = computed()
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
    server.install(state, setup.step_config, setup.learning_rates, adds_deltas=True)
    grads = shares.to_host(jax.tree.map(np.zeros_like, state.params))
    sums = {"loss": np.float32(1), "examples": np.float32(1)}
    for amount in (1.0, 0.25):  # both from the state that was installed
        change = jax.tree.map(
            lambda leaf, amount=amount: np.full_like(leaf, amount), state.batch_stats
        )
        server.add(grads)
        server.apply(change, np.float32(1), sums, 1.0)
    jax.tree.map(
        lambda old, new: np.testing.assert_allclose(new, old + 1.25, rtol=1e-6),
        state.batch_stats,
        server.state.batch_stats,
    )
    # `exact` brings the mean over all slices.
    server.install(state, setup.step_config, setup.learning_rates)
    server.add(grads)
    server.mean_squares(1)
    server.apply(state.batch_stats, np.float32(1), sums, 1.0)
    kept = shares.join(shares.structure(state), [server.collect()])
    jax.tree.map(np.testing.assert_array_equal, state.batch_stats, kept.batch_stats)


def test_servers_hold_about_as_much_each() -> None:
    sizes = [1000, 400, 300, 300, 200, 100, 100, 1, 1]
    owners = shares.balance(sizes, 3)
    held = [
        sum(size for size, owner in zip(sizes, owners, strict=True) if owner == server)
        for server in range(3)
    ]
    assert set(owners) == {0, 1, 2}
    assert max(held) <= 4 / 3 * max(max(sizes), -(-sum(sizes) // 3))
