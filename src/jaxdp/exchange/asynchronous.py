"""Asynchronous training: workers push gradients to parameter servers and pull parameters at a pace
of their own.

This process decides the order of the updates and moves references; the arrays go between workers
and servers. Every server gets the same calls in the same order, so that a worker never pulls a
mixture of versions.
"""

import collections
import heapq
from typing import Any

import jax
import numpy as np

from jaxdp.exchange.plan import Counts, StalenessBound, Ticket
from jaxdp.exchange.pool import Finished, Joined, Lost, Pool, Unserved
from jaxdp.exchange.servers import Servers
from jaxdp.exchange.worker import Job
from jaxdp.sharding.single import Single
from jaxdp.step import step
from jaxdp.step.state import Constants, TrainState


class Asynchronous(Single):
    """A strategy whose state is at parameter servers, to which workers push the gradients of whole
    batches.

    The learning rate of an update is divided by 1 and the staleness of its gradient.

    Args:
        recipe, devices: as for `Single`.
        pool: the workers.
        servers: hold the state.
        bound: the largest staleness; None for no bound.
        total_steps: of the run, each of which is one batch.

    Attributes:
        counts: work done twice or in vain.
        staleness: of each update since somebody cleared it.

    Source: Dean et al. 2012, Large Scale Distributed Deep Networks, section 4.1; Zhang et al. 2016,
    Staleness-Aware Async-SGD for Distributed Deep Learning, equation 6, for the learning rate; Ho
    et al. 2013, More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server,
    for the bound.
    """

    name = "async"
    runs_ahead = False

    def __init__(
        self,
        recipe: step.Recipe,
        devices: Any,
        pool: Pool,
        servers: Servers,
        bound: int | None,
        total_steps: int,
    ) -> None:
        super().__init__(recipe, devices)
        self._pool, self._servers, self._limit, self._total_steps = (
            pool,
            servers,
            bound,
            total_steps,
        )
        self.counts, self.staleness = Counts(), list[int]()
        # The one that the loop has, which the servers have taken over.
        self._state: TrainState | None = None
        self._bound = StalenessBound(bound)
        self._idle = set[int]()
        self._finished: collections.deque[Finished] = collections.deque()
        self._again: list[int] = []  # a heap of batches whose workers were lost
        self._next = self._round = self._version = 0
        self._parts: tuple[Any, ...] | None = None

    def _build(self) -> None:
        super()._build()
        self.train_step = self._train_step

    def gather(self, tree: Any) -> Any:
        return jax.tree.map(np.array, tree)

    def collect(self, state: TrainState) -> TrainState:
        if state is not self._state:
            return state
        self._state = self.restore(self._servers.collect(state))
        return self._state

    def _train_step(
        self, state: TrainState, batch: range, constants: Constants
    ) -> tuple[TrainState, dict[str, Any]]:
        if state is not self._state:
            self._begin(state, batch.start, constants)
        while True:
            chosen = next(
                (each for each in self._finished if self._bound.may_apply(each.worker)), None
            )
            if chosen is not None:
                self._finished.remove(chosen)
                sums = self._apply(chosen)
                self._give()
                return state, sums
            self._give()
            for news in self._pool.poll():
                self._note(news)

    def _begin(self, state: TrainState, first: int, constants: Constants) -> None:
        """Gives the servers a state, at the start or after a rollback.

        What workers are computing now is of no use any more.
        """
        self._servers.install(state, np.asarray(constants.learning_rates))
        self._pool.read_bytes = sum(
            leaf.nbytes for leaf in jax.tree.leaves((state.params, state.batch_stats))
        )
        self._idle |= {each.worker for each in self._finished}
        self._finished.clear()
        self._state, self._bound, self._parts = state, StalenessBound(self._limit), None
        self._next, self._again, self._round = first, [], self._round + 1

    def _give(self) -> None:
        """Lets idle workers pull and begin with the next batches."""
        for worker in sorted(self._idle):
            if not self._bound.may_pull() or not (self._again or self._next < self._total_steps):
                return
            if self._parts is None:
                self._parts, self._version = self._servers.pull(), self._version + 1
            batch = heapq.heappop(self._again) if self._again else self._next
            self._next += batch == self._next
            self._bound.pull(worker)
            self._idle.remove(worker)
            self._pool.submit(
                worker,
                Ticket(self._round, batch),
                Job(range(batch, batch + 1), 0, 1, self._version, self._parts),
            )

    def _note(self, news: Joined | Lost | Unserved | Finished) -> None:
        match news:
            case Joined(worker):
                self._idle.add(worker)
            case Lost(worker, ticket):
                self._idle.discard(worker)
                self._give_up(worker, ticket)
            case Unserved(worker, ticket):
                self._idle.add(worker)
                self._give_up(worker, ticket)
                self._servers.check()
            case Finished(worker, ticket) if ticket.round == self._round:
                self._finished.append(news)
            case Finished(worker):  # begun before a rollback
                self._idle.add(worker)
                self.counts.dropped += 1

    def _give_up(self, worker: int, ticket: Ticket | None) -> None:
        self._bound.leave(worker)
        if ticket is not None and ticket.round == self._round:
            heapq.heappush(self._again, ticket.slice)
            self.counts.recomputed += 1

    def _apply(self, done: Finished) -> dict[str, Any]:
        staleness, found = self._bound.apply(done.worker), done.found
        self._idle.add(done.worker)
        self.staleness.append(staleness)
        norm = np.float32(found["squares"] ** 0.5) / np.maximum(
            found["weight"], np.finfo(np.float32).tiny
        )
        self._servers.apply(found, done.arrays, 1 / (1 + staleness), float(norm))
        self._parts = None
        return found["sums"] | {"gradient_norm": norm, "updates": np.float32(1)}
