"""What workers report, and how the session applies the reports of several workers; Ray is not
started.
"""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest
from small_runs import SMALL

from jaxdp.build.inputs import NOTHING
from jaxdp.build.setup import Setup, create_setup
from jaxdp.config import TrainConfig
from jaxdp.sharding import slices
from jaxdp.step.state import TrainState
from jaxdp.workers.asynchronous import AsynchronousSession
from jaxdp.workers.exact import ExactSession
from jaxdp.workers.pool import Finished, Joined, Lost, Pool
from jaxdp.workers.scheduler import SliceId, Work
from jaxdp.workers.worker import Job, SliceResult, Worker, WorkerSpec

CONFIG = TrainConfig.of(model="cnn", batch_norm="group:8", strategy="single", devices=1, **SMALL)


@pytest.fixture(scope="module")
def setup() -> Setup:
    return create_setup(CONFIG)


@pytest.fixture(scope="module")
def worker(setup: Setup) -> Worker:
    return Worker(WorkerSpec(CONFIG, NOTHING, 1), 0)


def test_a_worker_reports_by_how_much_it_changed_batch_statistics(
    setup: Setup, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def computed() -> Any:
        return worker.run(Job(3, 0, worker._version, None)).means[1]

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


class Workers(Pool):
    """A pool of workers that join at once, and answer each job with the next result."""

    def __init__(self, count: int, results: list[SliceResult]) -> None:
        self.news: list[Joined | Lost | Finished] = [Joined(worker) for worker in range(count)]
        self.results = iter(results)
        self.given: list[list[np.ndarray]] = []

    def put(self, leaves: list[np.ndarray]) -> int:
        self.given.append([np.array(leaf) for leaf in leaves])
        return len(self.given) - 1

    def submit(self, worker: int, slice_id: SliceId, job: Job) -> None:
        self.news.append(Finished(worker, slice_id, next(self.results)))

    def poll(self) -> list[Joined | Lost | Finished]:
        news, self.news = self.news, []
        return news


def update_of(setup: Setup) -> Any:
    return slices.update(setup.strategy.mesh, setup.step_config)


def reported(state: TrainState, amount: float) -> SliceResult:
    """Returns a result without gradients, with the same number as every batch statistic."""
    grads = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), state.params)
    stats = jax.tree.map(lambda leaf: np.full(leaf.shape, amount, leaf.dtype), state.batch_stats)
    sums = {"loss": np.float32(1), "examples": np.float32(1)}
    weight: Any = np.float32(1)
    return SliceResult((grads, stats, weight), sums)


def test_an_asynchronous_update_keeps_what_all_workers_changed(setup: Setup) -> None:
    state = setup.create_state()
    before = jax.tree.map(np.array, state.batch_stats)
    pool = Workers(2, [reported(state, amount) for amount in (1.0, 0.25, 0.0, 0.0)])
    session = AsynchronousSession(pool, Work(), update_of(setup), 1, 3, None)
    state, _ = session.step(state, 0, setup.constants)  # both workers started from this state
    state, sums = session.step(state, 1, setup.constants)
    assert float(sums["updates"]) == 1
    assert session.work.staleness == [0, 1]
    jax.tree.map(
        lambda old, new: np.testing.assert_allclose(new, old + 1.25, rtol=1e-6),
        before,
        state.batch_stats,
    )


def test_an_exact_update_has_the_mean_over_the_slices(setup: Setup) -> None:
    state = setup.create_state()
    pool = Workers(2, [reported(state, amount) for amount in (1.0, 0.25, 0.5, 0.25)])
    session = ExactSession(pool, Work(), update_of(setup), 4, 1, None)
    read = [np.array(leaf) for leaf in jax.tree.leaves(slices.read_by_gradients(state))]
    state, sums = session.step(state, 0, setup.constants)
    assert float(sums["examples"]) == 4
    for leaf in jax.tree.leaves(state.batch_stats):
        np.testing.assert_array_equal(leaf, np.full(leaf.shape, 0.5))
    assert len(pool.given) == 1  # all workers read the same arrays
    jax.tree.map(np.testing.assert_array_equal, pool.given[0], read)
