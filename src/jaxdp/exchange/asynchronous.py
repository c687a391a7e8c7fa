"""Asynchronous training: workers push gradients to parameter servers and pull parameters at a pace of their own.

This process decides the order of the updates and moves references; the arrays go between workers and servers. Every server gets the
same calls in the same order, so that a worker never pulls a mixture of versions.
"""

import collections
import dataclasses
import heapq
from typing import Any

import jax
import numpy as np
import optax

from jaxdp.exchange import leaves
from jaxdp.exchange.plan import Counts, StalenessBound, Ticket
from jaxdp.exchange.pool import Finished, Joined, Lost, Pool
from jaxdp.exchange.worker import Job
from jaxdp.sharding.single import Single
from jaxdp.step import step
from jaxdp.step.state import Constants, TrainState

_UNCONFIRMED = 8  # updates that servers may be behind


class ServerLost(OSError):
    """A parameter server has died, and the state since the last checkpoint with it."""


class Asynchronous(Single):
    """A strategy whose state is at parameter servers, to which workers push the gradients of whole batches.

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

    Source: Dean et al. 2012, Large Scale Distributed Deep Networks, section 4.1; Zhang et al. 2016, Staleness-Aware Async-SGD for
    Distributed Deep Learning, equation 6, for the learning rate; Ho et al. 2013, More Effective Distributed ML via a Stale
    Synchronous Parallel Parameter Server, for the bound.
    """

    name = "async"
    runs_ahead = False

    def __init__(
        self, recipe: step.Recipe, devices: Any, pool: Pool, servers: "Servers", bound: int | None, total_steps: int
    ) -> None:
        super().__init__(recipe, devices)
        self._pool, self._servers, self._limit, self._total_steps = pool, servers, bound, total_steps
        self.counts, self.staleness = Counts(), list[int]()
        self._state: TrainState | None = None  # the one that the loop has, which the servers have taken over
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

    def _train_step(self, state: TrainState, batch: range, constants: Constants) -> tuple[TrainState, dict[str, Any]]:
        if state is not self._state:
            self._begin(state, batch.start, constants)
        while True:
            chosen = next((each for each in self._finished if self._bound.may_apply(each.worker)), None)
            if chosen is not None:
                self._finished.remove(chosen)
                sums = self._apply(chosen)
                self._give()
                return state, sums
            self._give()
            for news in self._pool.poll():
                self._note(news)

    def _begin(self, state: TrainState, first: int, constants: Constants) -> None:
        """Gives the servers a state, at the start or after a rollback; what workers are computing now is of no use any more."""
        self._servers.install(state, np.asarray(constants.learning_rates))
        self._pool.read_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves((state.params, state.batch_stats)))
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
            self._pool.submit(worker, Ticket(self._round, batch), Job(range(batch, batch + 1), 0, 1, self._version, self._parts))

    def _note(self, news: Joined | Lost | Finished) -> None:
        match news:
            case Joined(worker):
                self._idle.add(worker)
            case Lost(worker, ticket):
                self._idle.discard(worker)
                self._bound.leave(worker)
                if ticket is not None and ticket.round == self._round:
                    heapq.heappush(self._again, ticket.slice)
                    self.counts.recomputed += 1
            case Finished(worker, ticket) if ticket.round == self._round:
                self._finished.append(news)
            case Finished(worker):  # begun before a rollback
                self._idle.add(worker)
                self.counts.dropped += 1

    def _apply(self, done: Finished) -> dict[str, Any]:
        staleness, found = self._bound.apply(done.worker), done.found
        self._idle.add(done.worker)
        self.staleness.append(staleness)
        norm = np.float32(found["squares"] ** 0.5) / np.maximum(found["weight"], np.finfo(np.float32).tiny)
        self._servers.apply(found, done.arrays, 1 / (1 + staleness), float(norm))
        self._parts = None
        return found["sums"] | {"gradient_norm": norm, "updates": np.float32(1)}


class Servers:
    """The parameter servers as the driver sees them, each of which holds some of the leaves.

    Args:
        ray: the module, connected.
        recipe: the settings of a step; with several servers the optimizer must not clip.
        owners: which server holds which leaf of the parameters.
        clip_norm: to which several servers' gradients are clipped before they get there.
    """

    def __init__(
        self,
        ray: Any,
        recipe: step.Recipe,
        optimizer: optax.GradientTransformation,
        owners: tuple[int, ...],
        clip_norm: float | None,
    ) -> None:
        from jaxdp.exchange.server import Server

        self._ray, self._owners, self._clip_norm = ray, owners, clip_norm
        self._optimizer, self._recipe = optimizer, ray.put(recipe)
        self._actors = [ray.remote(Server).options(num_cpus=0).remote() for _ in range(max(owners) + 1)]
        self._unconfirmed: collections.deque[list[Any]] = collections.deque()

    def install(self, state: TrainState, learning_rates: np.ndarray) -> None:
        """Gives each server its share of a state."""
        host = dataclasses.replace(jax.tree.map(np.asarray, state), graphdef=None)
        shares = [self._share(host, server) for server in range(len(self._actors))]
        calls = [
            actor.install.remote(self._recipe, share, learning_rates) for actor, share in zip(self._actors, shares, strict=True)
        ]
        self._get(calls)

    def _share(self, state: TrainState, server: int) -> TrainState:
        owners = jax.tree.unflatten(jax.tree.structure(state.params), self._owners)

        def own(tree: Any) -> Any:
            return jax.tree.map(lambda leaf, owner: leaf if owner == server else None, tree, owners)

        def first(tree: Any) -> Any:
            return tree if server == 0 else jax.tree.map(lambda leaf: None, tree)

        opt_state = optax.tree_utils.tree_map_params(
            self._optimizer, lambda leaf, owner: leaf if owner == server else None, state.opt_state, owners
        )
        ema = (own(state.ema[0]), first(state.ema[1])) if state.ema is not None else None
        return dataclasses.replace(
            state, params=own(state.params), batch_stats=first(state.batch_stats), opt_state=opt_state, ema=ema
        )

    def apply(self, found: dict[str, Any], arrays: list[Any], factor: float, norm: float) -> None:
        """Has a gradient applied; does not wait for it.

        Args:
            arrays: a reference for each server.
            factor: by which the learning rate is multiplied.
            norm: of the whole gradient.
        """
        scale = self._clip_norm / norm if self._clip_norm is not None and norm > self._clip_norm else 1.0
        known = {name: found[name] for name in ("batch_stats", "weight")}
        calls = [actor.apply.remote(known, part, factor, scale) for actor, part in zip(self._actors, arrays, strict=True)]
        self._unconfirmed.append(calls)
        if len(self._unconfirmed) > _UNCONFIRMED:
            self._get(self._unconfirmed.popleft())

    def pull(self) -> tuple[Any, ...]:
        """Returns references to what gradients are computed with, of the version after all updates so far."""
        return tuple(actor.pull.remote() for actor in self._actors)

    def collect(self, state: TrainState) -> TrainState:
        """Returns the whole state after all updates so far, on the host."""
        parts = self._get([actor.collect.remote() for actor in self._actors])
        return leaves.joined(leaves.structure(state), parts)

    def _get(self, calls: list[Any]) -> Any:
        try:
            return self._ray.get(calls)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from error
        except self._ray.exceptions.RayError as error:
            raise ServerLost("a parameter server has died") from error

    def close(self) -> None:
        """Ends all servers."""
        for actor in self._actors:
            self._ray.kill(actor)


def owners_of(sizes: list[int], servers: int) -> tuple[int, ...]:
    """Returns which server holds which leaf, so that each has about as many elements: the largest first, to whoever has least.

    Source: Graham 1969, Bounds on Multiprocessing Timing Anomalies: at most a third more than the best division.
    """
    held, owners = [0] * servers, [0] * len(sizes)
    for number in sorted(range(len(sizes)), key=lambda each: -sizes[each]):
        owners[number] = min(range(servers), key=lambda server: held[server])
        held[owners[number]] += sizes[number]
    return tuple(owners)
