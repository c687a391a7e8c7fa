"""Defines the strategy `async`, in which workers push gradients to this process and pull parameters
from it at their own pace.
"""

import collections
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax
import numpy as np

from jaxdp.config import TrainConfig
from jaxdp.sharding import strategy
from jaxdp.sharding.single import Single
from jaxdp.sharding.slices import needs_groups
from jaxdp.step import combine
from jaxdp.step.state import Constants, TrainState
from jaxdp.workers.pool import Finished, Joined, Lost
from jaxdp.workers.scheduler import SliceId, StalenessBound
from jaxdp.workers.session import WorkerSession
from jaxdp.workers.strategy import DEFAULT_WORKERS, OnWorkers
from jaxdp.workers.worker import Job


@dataclasses.dataclass
class AsynchronousSession(WorkerSession):
    """Gives each worker the next batch once it is idle, and applies gradients as they come."""

    def __post_init__(self) -> None:
        self._state: TrainState | None = None  # after the last update
        self._idle = set[int]()
        self._finished: collections.deque[Finished] = collections.deque()
        self._round = 0

    def step(
        self, state: TrainState, batch: int, constants: Constants
    ) -> tuple[TrainState, dict[str, Any]]:
        if state is not self._state:
            self._begin(state, batch)
        while True:
            for done in self._finished:
                if self._bound.may_apply(done.worker):
                    self._finished.remove(done)
                    self._state, sums = self._apply(state, done, constants)
                    self._give()
                    return self._state, sums
            self._give()
            self.listen()

    def _begin(self, state: TrainState, batch: int) -> None:
        """Starts with another state. The current results of the workers are then useless."""
        self._state = state
        self._idle |= {done.worker for done in self._finished}
        self._finished.clear()
        self._bound = StalenessBound(self.staleness)
        self._round += 1
        self._next, self._again = batch, set[int]()  # batches of lost workers
        self._leaves: Any = None  # reference to the arrays of this version

    def _give(self) -> None:
        """Makes idle workers pull and start the next batches."""
        for worker in sorted(self._idle):
            if not self._bound.may_pull() or not (self._again or self._next < self.total_steps):
                return
            if self._leaves is None:
                assert self._state is not None
                self._leaves = self.publish(self._state)
            batch = min(self._again, default=self._next)
            self._again.discard(batch)
            self._next += batch == self._next
            self._bound.pull(worker)
            self._idle.remove(worker)
            job = Job(batch, 0, self.version, self._leaves)
            self.pool.submit(worker, SliceId(self._round, batch), job)

    def _note(self, news: Joined | Lost | Finished) -> None:
        match news:
            case Joined(worker):
                self._idle.add(worker)
            case Lost(worker, slice_id):
                self._idle.discard(worker)
                self._bound.leave(worker)
                if slice_id is not None and slice_id.round == self._round:
                    self._again.add(slice_id.slice)
                    self.work.recomputed += 1
            case Finished(worker, slice_id) if slice_id.round == self._round:
                self._finished.append(news)
            case Finished(worker):  # begun with another state
                self._idle.add(worker)
                self.work.dropped += 1

    def _apply(
        self, state: TrainState, done: Finished, constants: Constants
    ) -> tuple[TrainState, dict[str, Any]]:
        staleness = self._bound.apply(done.worker)
        self._idle.add(done.worker)
        self.work.staleness.append(staleness)
        self._leaves = None
        (grads, change, weight), sums = done.result
        # The worker's own statistics would undo what other workers have changed meanwhile.
        batch_stats = combine.changed(jax.tree.map(np.asarray, state.batch_stats), change)
        rates = np.asarray(constants.learning_rates) * np.float32(1 / (1 + staleness))
        means = (grads, batch_stats, weight)
        return self.update(state, (means, sums), np.float32(1), rates)


@strategy.register("async")
class Asynchronous(OnWorkers, Single):
    """Makes workers push the gradients of whole batches to this process, which holds the state.

    The learning rate of an update is divided by 1 and the staleness of its gradient.

    Source: Dean et al. 2012, Large Scale Distributed Deep Networks, section 4.1; Zhang et al. 2016,
    Staleness-Aware Async-SGD for Distributed Deep Learning, equation 6, for the learning rate; Ho
    et al. 2013, More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server,
    for the bound.
    """

    name = "async"
    session_class = AsynchronousSession
    settings: ClassVar[Mapping[str, Any]] = {
        "workers": DEFAULT_WORKERS,
        "staleness": None,
        "ray_address": None,
    }
    refuses: ClassVar[Mapping[str, str]] = {
        **OnWorkers.refuses,
        "accumulate_steps": "computes no microbatches; use 1",
    }
    returns_deltas = True

    def check(self, config: TrainConfig, shapes: Callable[[], TrainState]) -> None:
        super().check(config, shapes)
        mode = config.batch_norm
        if mode is not None and mode.kind == "replica" and jax.tree.leaves(shapes().batch_stats):
            raise needs_groups(config)
