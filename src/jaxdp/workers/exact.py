"""Defines the strategy `exact` on workers, which compute the slices of `sharding/slices.py`."""

import dataclasses
import time
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from jaxdp.config import TrainConfig
from jaxdp.sharding import slices, strategy
from jaxdp.sharding.exact import Exact
from jaxdp.step import combine
from jaxdp.step.state import Constants, TrainState
from jaxdp.workers.pool import Finished, Joined, Lost
from jaxdp.workers.scheduler import SliceScheduler
from jaxdp.workers.session import WorkerSession
from jaxdp.workers.strategy import DEFAULT_WORKERS, OnWorkers
from jaxdp.workers.worker import Job, SliceResult


@dataclasses.dataclass
class ExactSession(WorkerSession):
    """Makes the workers compute the slices of a batch, and updates once all are added."""

    def __post_init__(self) -> None:
        self.scheduler = SliceScheduler(self.work)
        self._finished: dict[int, Finished] = {}

    def step(
        self, state: TrainState, batch: int, constants: Constants
    ) -> tuple[TrainState, dict[str, Any]]:
        results = self._in_order(state, batch)
        total = next(results)
        for result in results:
            total = combine.add_with_sums(total, result)
        return self.update(state, total, np.float32(self.slices), constants.learning_rates)

    def _in_order(self, state: TrainState, batch: int) -> Iterator[SliceResult]:
        """Makes the workers compute all slices of a batch, and yields their results in order."""
        leaves = self.publish(state)
        self.scheduler.begin(self.slices)
        self._finished.clear()
        for number in range(self.slices):
            while number not in self._finished:
                for worker, slice_id in self.scheduler.assign(time.monotonic()):
                    job = Job(batch, slice_id.slice, self.version, leaves)
                    self.pool.submit(worker, slice_id, job)
                self.listen()
            yield self._finished.pop(number).result

    def _note(self, news: Joined | Lost | Finished) -> None:
        match news:
            case Joined(worker):
                self.scheduler.join(worker)
            case Lost(worker):
                self.scheduler.leave(worker)
            case Finished(worker, slice_id):
                if self.scheduler.finished(worker, slice_id, time.monotonic()):
                    self._finished[slice_id.slice] = news


@strategy.register_on_workers("exact")
class ExactOnWorkers(OnWorkers, Exact):
    """The strategy `exact` on workers: those that computed a slice change no bit."""

    name = "exact"
    session_class = ExactSession
    settings: ClassVar[Mapping[str, Any]] = {
        "workers": DEFAULT_WORKERS,
        "slices": None,
        "ray_address": None,
    }

    def number_of_slices(self, config: TrainConfig, shapes: TrainState) -> int:
        return slices.number_of_slices(config, shapes)
