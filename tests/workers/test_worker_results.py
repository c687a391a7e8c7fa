"""How the session applies the reports of several workers; Ray is not started."""

from typing import Any

import jax
import numpy as np
import pytest
from small_runs import SMALL

from jaxdp.build.setup import Setup, create_setup
from jaxdp.config import TrainConfig
from jaxdp.sharding import slices
from jaxdp.step.state import TrainState
from jaxdp.workers.pool import Finished, Joined, Lost, Pool
from jaxdp.workers.scheduler import SliceId, Work
from jaxdp.workers.session import WorkerSession
from jaxdp.workers.worker import Job, SliceResult

CONFIG = TrainConfig.of(model="cnn", batch_norm="group:8", strategy="single", devices=1, **SMALL)


@pytest.fixture(scope="module")
def setup() -> Setup:
    return create_setup(CONFIG)


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


def test_an_exact_update_has_the_mean_over_the_slices(setup: Setup) -> None:
    state = setup.create_state()
    pool = Workers(2, [reported(state, amount) for amount in (1.0, 0.25, 0.5, 0.25)])
    session = WorkerSession(pool, Work(), update_of(setup), 4)
    read = [np.array(leaf) for leaf in jax.tree.leaves(slices.read_by_gradients(state))]
    state, sums = session.step(state, 0, setup.constants)
    assert float(sums["examples"]) == 4
    for leaf in jax.tree.leaves(state.batch_stats):
        np.testing.assert_array_equal(leaf, np.full(leaf.shape, 0.5))
    assert len(pool.given) == 1  # all workers read the same arrays
    jax.tree.map(np.testing.assert_array_equal, pool.given[0], read)
