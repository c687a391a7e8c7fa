"""One run on workers: its workers, and the steps that they take together."""

import dataclasses
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from jaxdp.sharding.slices import read_by_gradients
from jaxdp.step import combine
from jaxdp.step.state import Constants, TrainState
from jaxdp.workers.pool import Finished, Joined, Lost, Pool
from jaxdp.workers.scheduler import SliceScheduler, Work
from jaxdp.workers.worker import Job, SliceResult


@dataclasses.dataclass
class WorkerSession:
    """The workers of a run. They compute the slices of a batch. This process holds the state and
    updates it once all slices are added, as a parameter server does.

    Attributes:
        work: counts what workers did since the last row.
        update: the program of an update, `slices.update`.
        slices: of a batch.
        version: number of the parameters that workers get.
    """

    pool: Pool
    work: Work
    update: Any
    slices: int
    version: int = 0

    def __post_init__(self) -> None:
        self.scheduler = SliceScheduler(self.work)
        self._finished: dict[int, Finished] = {}

    def step(
        self, state: TrainState, batch: int, constants: Constants
    ) -> tuple[TrainState, dict[str, Any]]:
        """Returns the state after the step with a batch, counted from 0, and its metric sums."""
        results = self._in_order(state, batch)
        total = next(results)
        for result in results:
            total = combine.add_with_sums(total, result)
        return self.update(state, total, np.float32(self.slices), constants.learning_rates)

    def _in_order(self, state: TrainState, batch: int) -> Iterator[SliceResult]:
        """Makes the workers compute all slices of a batch, and yields their results in order."""
        leaves = self._publish(state)
        self.scheduler.begin(self.slices)
        self._finished.clear()
        for number in range(self.slices):
            while number not in self._finished:
                for worker, slice_id in self.scheduler.assign(time.monotonic()):
                    job = Job(batch, slice_id.slice, self.version, leaves)
                    self.pool.submit(worker, slice_id, job)
                self.listen()
            yield self._finished.pop(number).result

    def _publish(self, state: TrainState) -> Any:
        """Returns a reference with which workers read the arrays that gradients depend on."""
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(read_by_gradients(state))]
        self.version += 1
        return self.pool.put(leaves)

    def listen(self) -> None:
        """Waits a moment for news of the workers, and notes them."""
        for news in self.pool.poll():
            match news:
                case Joined(worker):
                    self.scheduler.join(worker)
                case Lost(worker):
                    self.scheduler.leave(worker)
                case Finished(worker, slice_id):
                    if self.scheduler.finished(worker, slice_id, time.monotonic()):
                        self._finished[slice_id.slice] = news
