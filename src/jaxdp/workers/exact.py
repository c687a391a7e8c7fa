"""Defines the strategy `exact`, in which all workers compute with the same parameters, and their
gradients are added in the order of the slices.
"""

import time
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import jax
import numpy as np

from jaxdp.config import TrainConfig
from jaxdp.errors import ConfigError
from jaxdp.sharding import strategy
from jaxdp.sharding.strategy import divisors, nearest_divisor
from jaxdp.step import combine
from jaxdp.step.state import Constants, TrainState
from jaxdp.workers.pool import Finished, Joined, Lost
from jaxdp.workers.scheduler import SliceScheduler
from jaxdp.workers.session import WorkerSession
from jaxdp.workers.strategy import DEFAULT_WORKERS, OnWorkers
from jaxdp.workers.worker import Job, SliceResult

# The default, which suffices for workers of different speed, with slices that are worth sending.
_MOST_SLICES = 16


class ExactSession(WorkerSession):
    """Makes the workers compute the slices of a batch, and updates once all are added."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.scheduler = SliceScheduler(self.work)
        self._finished: dict[int, Finished] = {}

    def step(
        self, state: TrainState, batch: int, constants: Constants
    ) -> tuple[TrainState, dict[str, Any]]:
        results = self._in_order(state, batch)
        total = next(results)
        for result in results:
            total = combine.add_with_sums(total, result)
        means, sums = total
        means = combine.divide(means, np.float32(self.slices))
        return self.update(state, means, sums, constants.learning_rates)

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


@strategy.register("exact")
class Exact(OnWorkers):
    """Adds the gradients of fixed slices in order, so that the workers that computed them change no
    bit, and updates once per batch.
    """

    name = "exact"
    session_class = ExactSession
    settings: ClassVar[Mapping[str, Any]] = {
        "workers": DEFAULT_WORKERS,
        "slices": None,
        "ray_address": None,
    }

    def number_of_slices(self, config: TrainConfig, shapes: TrainState) -> int:
        size, mode = int(config.global_batch_size or 0), config.batch_norm
        has_statistics = bool(jax.tree.leaves(shapes.batch_stats))
        unit = (mode.group_size if mode is not None and has_statistics else None) or 1
        possible = divisors(size // unit)
        slices = config.slices
        if slices is None:
            return max(count for count in possible if count <= _MOST_SLICES)
        if slices in possible:
            return slices
        whole = f"whole groups of {unit}" if unit > 1 else "equal parts"
        near = nearest_divisor(size // unit, slices)
        remedy = f"slices must be {whole} of the {size} examples of a batch; use {near}"
        raise ConfigError("slices", slices, remedy)
