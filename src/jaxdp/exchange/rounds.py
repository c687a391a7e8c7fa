"""Training in rounds: all workers compute with the same parameters, and what they found is joined
in the order of the slices.
"""

import abc
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from jaxdp.exchange import leaves
from jaxdp.exchange.plan import Counts, Plan
from jaxdp.exchange.pool import Finished, Joined, Lost, Pool, Unserved
from jaxdp.exchange.servers import ServerLost
from jaxdp.exchange.worker import Job, needed
from jaxdp.sharding.single import Single
from jaxdp.step import step
from jaxdp.step.state import Constants, TrainState


class Rounds(Single):
    """A strategy whose batches are computed by workers, while this process holds the state and
    evaluates it.

    Args:
        recipe, devices: as for `Single`.
        pool: the workers.
        slices: of a round.
    """

    runs_ahead = False

    def __init__(self, recipe: step.Recipe, devices: Any, pool: Pool, slices: int) -> None:
        super().__init__(recipe, devices)
        self.pool, self.plan, self._slices, self._version = pool, Plan(), slices, 0

    def _build(self) -> None:
        super()._build()
        self.train_step = self._train_step

    @abc.abstractmethod
    def _train_step(
        self, state: TrainState, batch: range, constants: Constants
    ) -> tuple[TrainState, dict[str, Any]]:
        """Returns the state after the steps `batch`, and their metric sums."""

    def gather(self, tree: Any) -> Any:
        return jax.tree.map(np.array, tree)

    def _check_servers(self) -> None:
        """Raises ServerLost if there are servers and one has died."""

    @property
    def counts(self) -> Counts:
        """What became of the work that was given out."""
        return self.plan.counts

    def _published(self, tree: Any) -> tuple[Any, ...]:
        return (self.pool.put(leaves.of(tree)),)

    def _round(
        self, steps: range, parts: tuple[Any, ...]
    ) -> Iterator[tuple[dict[str, Any], list[Any]]]:
        """Has the workers compute all slices of some steps, and yields what was found in the order
        of the slices.

        Args:
            parts: references to what workers compute with.
        """
        self._version += 1
        job = Job(steps, 0, self._slices, self._version, parts)
        self.plan.begin(self._slices)
        found: dict[int, Finished] = {}
        for number in range(self._slices):
            while number not in found:
                for worker, ticket in self.plan.assign(time.monotonic()):
                    self.pool.submit(worker, ticket, job._replace(slice=ticket.slice))
                for news in self.pool.poll():
                    match news:
                        case Joined(worker):
                            self.plan.join(worker)
                        case Lost(worker):
                            self.plan.leave(worker)
                        case Unserved(worker):
                            self.plan.leave(worker)
                            self.plan.join(worker)
                            self._check_servers()
                        case Finished(worker, ticket) if self.plan.finished(
                            worker, ticket, time.monotonic()
                        ):
                            found[ticket.slice] = news
            done = found.pop(number)
            yield done.found, done.arrays


class Exact(Rounds):
    """Adds the gradients of fixed slices in their order, so that who computed them changes no bit,
    and updates once a batch.
    """

    name = "exact"

    def _build(self) -> None:
        super()._build()
        recipe = self.recipe

        def update(state: TrainState, means: Any, sums: Any, constants: Constants) -> Any:
            grads, batch_stats, weight = means
            return step.update_state(
                state, grads, batch_stats, weight, sums, constants, recipe=recipe
            )

        self._update = jax.jit(update, donate_argnums=0)

    def _train_step(
        self, state: TrainState, batch: range, constants: Constants
    ) -> tuple[TrainState, dict[str, Any]]:
        total: Any = None
        for found, (grads,) in self._round(batch, self._published(needed(state))):
            new = (grads, found["batch_stats"], found["weight"]), found["sums"]
            total = new if total is None else jax.tree.map(np.add, total, new)
        means, sums = total
        grads, batch_stats, weight = jax.tree.map(
            lambda leaf: leaf / np.float32(self._slices), means
        )
        grads = jax.tree.unflatten(jax.tree.structure(state.params), grads)
        return self._update(state, (grads, batch_stats, weight), sums, constants)


class OnServers(Rounds):
    """Rounds whose state is at servers, and comes here to be evaluated or saved.

    When a server dies, all go back to the state that came here last, and the rounds since are done
    again: the same bits.
    """

    def __init__(
        self, recipe: step.Recipe, devices: Any, pool: Pool, slices: int, servers: Any
    ) -> None:
        super().__init__(recipe, devices, pool, slices)
        self._servers = servers
        # The one that the loop has, which the servers have taken over.
        self._state: TrainState | None = None
        self._snapshot: Any = None  # a step, and the state after it
        self._since: list[range] = []  # the steps of each round after it

    def collect(self, state: TrainState) -> TrainState:
        if state is not self._state:
            return state
        try:
            whole = self._servers.collect(state)
        except ServerLost:
            self._go_back()
            whole = self._servers.collect(state)
        self._state = self.restore(whole)
        self._snapshot, self._since = (
            (self._since[-1].stop if self._since else self._snapshot[0], whole),
            [],
        )
        return self._state

    def _check_servers(self) -> None:
        self._servers.check()

    def _train_step(
        self, state: TrainState, batch: range, constants: Constants
    ) -> tuple[TrainState, dict[str, Any]]:
        if state is not self._state:
            self._state, self._snapshot, self._since = state, (batch.start, self.gather(state)), []
            self._install(state, constants)
        try:
            sums = self._do_round(batch)
        except ServerLost:
            self._go_back()
            sums = self._do_round(batch)
        self._since.append(batch)
        return state, sums

    def _go_back(self) -> None:
        first, whole = self._snapshot
        self.pool.changes.append(("server lost", {"to_step": first}))
        self._servers.restart()
        self._install(whole, None)
        for batch in self._since:
            self._do_round(batch)

    @abc.abstractmethod
    def _install(self, state: TrainState, constants: Constants | None) -> None:
        """Gives the servers a state; without constants they are those of the last call."""

    @abc.abstractmethod
    def _do_round(self, batch: range) -> dict[str, Any]:
        """Has workers and servers do the steps of a batch, and returns their metric sums."""


class ExactOnServers(OnServers):
    """`Exact` with the state at parameter servers, each of which adds and updates its share."""

    name = "exact"

    def _install(self, state: TrainState, constants: Constants | None) -> None:
        if constants is not None:
            self._rates = np.asarray(constants.learning_rates)
        self.pool.read_bytes = sum(
            leaf.nbytes for leaf in jax.tree.leaves((state.params, state.batch_stats))
        )
        self._servers.install(state, self._rates)

    def _do_round(self, batch: range) -> dict[str, Any]:
        total: Any = None
        for found, grads in self._round(batch, self._servers.pull()):
            self._servers.add(grads)
            new = (found["batch_stats"], found["weight"]), found["sums"]
            total = new if total is None else jax.tree.map(np.add, total, new)
        means, sums = total
        batch_stats, weight = jax.tree.map(lambda leaf: leaf / np.float32(self._slices), means)
        norm = self._servers.mean_norm(self._slices) / max(
            float(weight), float(np.finfo(np.float32).tiny)
        )
        self._servers.apply_mean({"batch_stats": batch_stats, "weight": weight}, norm)
        return sums | {"gradient_norm": np.float32(norm), "updates": np.float32(1)}


class Local(OnServers):
    """Lets replicas train alone for some steps, each on its slice of the batches, and averages
    their states.

    Averaged are parameters, batch statistics, moving averages and the optimizer's state, so that
    any worker can go on with any replica, and a checkpoint is that of one model.

    Args:
        servers: take what is averaged: `Averages`, or `AverageHere`.
        stacks: whether the metric sums of a round are those of its steps, one after the other.

    Source: Stich 2019, Local SGD Converges Fast and Communicates Little.
    """

    name = "local"

    def __init__(
        self,
        recipe: step.Recipe,
        devices: Any,
        pool: Pool,
        slices: int,
        servers: Any,
        *,
        stacks: bool,
    ) -> None:
        super().__init__(recipe, devices, pool, slices, servers)
        self._stacks = stacks

    def _install(self, state: TrainState, constants: Constants | None) -> None:
        if constants is not None:
            self._rates = self._published(
                (jax.tree.map(lambda _: None, state), constants.learning_rates)
            )
        self.pool.read_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
        self._servers.install(state)

    def _do_round(self, batch: range) -> dict[str, Any]:
        sums: Any = None
        for found, replica in self._round(batch, (*self._servers.pull(), *self._rates)):
            self._servers.add(replica)
            sums = found["sums"] if sums is None else jax.tree.map(np.add, sums, found["sums"])
        self._servers.apply(self._slices)
        # What is no sum over examples is the same for each replica, or a mean of them.
        each = [
            {
                name: value / self._slices if name in ("gradient_norm", "updates") else value
                for name, value in of.items()
            }
            for of in sums
        ]
        return (
            {name: np.stack([of[name] for of in each]) for name in each[0]}
            if self._stacks
            else each[0]
        )
