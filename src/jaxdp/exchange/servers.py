"""The parameter servers as the driver sees them: which of them holds what, and calls to all of
them.
"""

import collections
import dataclasses
import itertools
import math
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx

from jaxdp.exchange import leaves
from jaxdp.exchange.average import Average
from jaxdp.exchange.pool import Pool
from jaxdp.exchange.server import Server
from jaxdp.runtime import ray_cluster
from jaxdp.step import step
from jaxdp.step.state import TrainState

_UNCONFIRMED = 8  # calls that servers may be behind


class ServerLost(OSError):
    """A parameter server has died, and its share of the state with it."""


class _Processes:
    """Processes each of which holds some of the leaves of a state, on the machines that have
    workers.
    """

    def __init__(self, ray: Any, kind: type, owners: tuple[int, ...], *arguments: Any) -> None:
        self._ray, self._kind, self._arguments, self._owners = ray, kind, arguments, owners
        self._count, self._actors = max(owners) + 1, list[Any]()
        self._unconfirmed: collections.deque[list[Any]] = collections.deque()
        self.restart()

    def restart(self) -> None:
        """Replaces all servers; `install` gives them a state."""
        self.close()
        self._unconfirmed.clear()
        affinity = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        # One after the other where workers are: Ray might start all of them on the machine of the
        # command, behind one cable.
        places: list[Any] = [
            affinity(node.id, soft=True) for node in ray_cluster.nodes() if node.alive and node.cpus
        ]
        for _, place in zip(
            range(self._count), itertools.cycle(places or ["DEFAULT"]), strict=False
        ):
            actor = self._ray.remote(self._kind).options(num_cpus=0, scheduling_strategy=place)
            self._actors.append(actor.remote(*self._arguments))

    def check(self) -> None:
        """Raises ServerLost if a server has died."""
        self._get([actor.check.remote() for actor in self._actors])

    def add(self, arrays: list[Any]) -> None:
        """Has what a slice or a replica has found added to what was before it.

        Does not wait for it.
        """
        self._note(
            [actor.add.remote(part) for actor, part in zip(self._actors, arrays, strict=True)]
        )

    def pull(self) -> tuple[Any, ...]:
        """Returns references to what workers compute with, of the version after all updates so
        far.
        """
        return tuple(actor.pull.remote() for actor in self._actors)

    def _note(self, calls: list[Any]) -> None:
        self._unconfirmed.append(calls)
        self._confirm(_UNCONFIRMED)

    def _confirm(self, behind: int = 0) -> None:
        """Waits until servers are behind so many calls at most.

        One that could not be done raises its error.
        """
        while len(self._unconfirmed) > behind:
            self._get(self._unconfirmed.popleft())

    def _get(self, calls: list[Any]) -> Any:
        try:
            return self._ray.get(calls)
        except self._ray.exceptions.RayError as error:
            cause = error.cause if isinstance(error, self._ray.exceptions.RayTaskError) else error
            if not isinstance(cause, self._ray.exceptions.RayError):
                raise cause from error
            # Or the machine that had what a worker found has died, before the server had read it.
            raise ServerLost("a parameter server has died") from error

    def close(self) -> None:
        """Ends all servers."""
        for actor in self._actors:
            self._ray.kill(actor)
        self._actors.clear()


class Servers(_Processes):
    """The parameter servers as the driver sees them, which apply gradients.

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
        self._clip_norm, self._optimizer, self._recipe = clip_norm, optimizer, ray.put(recipe)
        super().__init__(ray, Server, owners)

    def install(self, state: TrainState, learning_rates: np.ndarray) -> None:
        """Gives each server its share of a state."""
        # Servers run no model.
        host = dataclasses.replace(
            jax.tree.map(np.asarray, state), graphdef=nnx.graphdef(nnx.List([]))
        )
        shares = [self._share(host, server) for server in range(len(self._actors))]
        calls = [
            actor.install.remote(self._recipe, share, learning_rates)
            for actor, share in zip(self._actors, shares, strict=True)
        ]
        self._get(calls)

    def _share(self, state: TrainState, server: int) -> TrainState:
        owners = jax.tree.unflatten(jax.tree.structure(state.params), self._owners)

        def own(tree: Any) -> Any:
            return jax.tree.map(lambda leaf, owner: leaf if owner == server else None, tree, owners)

        def first(tree: Any) -> Any:
            return tree if server == 0 else jax.tree.map(lambda leaf: None, tree)

        opt_state = optax.tree_utils.tree_map_params(
            self._optimizer,
            lambda leaf, owner: leaf if owner == server else None,
            state.opt_state,
            owners,
        )
        ema = (own(state.ema[0]), first(state.ema[1])) if state.ema is not None else None
        return dataclasses.replace(
            state,
            params=own(state.params),
            batch_stats=first(state.batch_stats),
            opt_state=opt_state,
            ema=ema,
        )

    def mean_norm(self, slices: int) -> float:
        """Returns the norm of the mean of what was added."""
        return math.sqrt(
            sum(self._get([actor.mean_squares.remote(slices) for actor in self._actors]))
        )

    def apply_mean(self, found: dict[str, Any], norm: float) -> None:
        """Has the mean applied; does not wait for it.

        Args:
            norm: of the whole mean, divided by the mean weight.
        """
        known = {name: found[name] for name in ("batch_stats", "weight")}
        self._note(
            [actor.apply.remote(known, None, 1.0, self._scale(norm)) for actor in self._actors]
        )

    def apply(self, found: dict[str, Any], arrays: list[Any], factor: float, norm: float) -> None:
        """Has a gradient applied; does not wait for it.

        Args:
            arrays: a reference for each server.
            factor: by which the learning rate is multiplied.
            norm: of the whole gradient.
        """
        known, scale = {name: found[name] for name in ("batch_stats", "weight")}, self._scale(norm)
        self._note(
            [
                actor.apply.remote(known, part, factor, scale)
                for actor, part in zip(self._actors, arrays, strict=True)
            ]
        )

    def _scale(self, norm: float) -> float:
        return (
            self._clip_norm / norm
            if self._clip_norm is not None and norm > self._clip_norm
            else 1.0
        )

    def collect(self, state: TrainState) -> TrainState:
        """Returns the whole state after all updates so far, on the host."""
        self._confirm()
        parts = self._get([actor.collect.remote() for actor in self._actors])
        return leaves.joined(leaves.structure(state), parts)


class Averages(_Processes):
    """The servers that average replicas, each of them some of the arrays.

    Args:
        ray: the module, connected.
        owners: which server holds which leaf of what `leaves.of` makes of a state and nothing.
        learning_rate, momentum: as for `Average`.
    """

    def __init__(
        self, ray: Any, owners: tuple[int, ...], learning_rate: float, momentum: float
    ) -> None:
        super().__init__(ray, Average, owners, learning_rate, momentum)

    def install(self, state: TrainState) -> None:
        """Gives each server its share of a state."""
        arrays, steps = leaves.of((state, None)), takes_steps(state)
        shares = [
            [
                leaf if owner == server else None
                for leaf, owner in zip(arrays, self._owners, strict=True)
            ]
            for server in range(self._count)
        ]
        self._get(
            [
                actor.install.remote(share, steps)
                for actor, share in zip(self._actors, shares, strict=True)
            ]
        )

    def apply(self, replicas: int) -> None:
        """Has the average of what was added applied; does not wait for it."""
        self._note([actor.apply.remote(replicas) for actor in self._actors])

    def collect(self, state: TrainState) -> TrainState:
        """Returns the whole state after all updates so far, on the host."""
        self._confirm()
        whole, _ = leaves.joined(leaves.structure((state, None)), self._get([*self.pull()]))
        return whole


class AverageHere:
    """What `Averages` does, in this process.

    Args:
        pool: of the workers that read the average.
        learning_rate, momentum: as for `Average`.
    """

    def __init__(self, pool: Pool, learning_rate: float, momentum: float) -> None:
        self._pool, self._average = pool, Average(learning_rate, momentum)

    def install(self, state: TrainState) -> None:
        """Begins with a state."""
        self._average.install(leaves.of((state, None)), takes_steps(state))

    def add(self, arrays: list[Any]) -> None:
        """Adds a replica, a list of its arrays, to those before it."""
        self._average.add(*arrays)

    def apply(self, replicas: int) -> None:
        """Applies the average of what was added."""
        self._average.apply(replicas)

    def pull(self) -> tuple[Any, ...]:
        """Returns a reference to the state."""
        return (self._pool.put(self._average.pull()),)

    def collect(self, state: TrainState) -> TrainState:
        """Returns the state."""
        whole, _ = leaves.joined(leaves.structure((state, None)), [self._average.pull()])
        return whole

    def check(self) -> None:
        """There is no process that could have died."""


def takes_steps(state: TrainState) -> list[bool]:
    """Returns for each array of `leaves.of((state, None))` whether it is a parameter, to which an
    outer momentum applies.
    """
    nothing = jax.tree.map(lambda leaf: False, state)
    params = dataclasses.replace(nothing, params=jax.tree.map(lambda leaf: True, state.params))
    return [bool(leaf) for leaf in leaves.places((params, None))]


def owners_of(sizes: list[int], servers: int) -> tuple[int, ...]:
    """Returns which server holds which leaf, so that each has about as many elements: the largest
    first, to whoever has least.

    Source: Graham 1969, Bounds on Multiprocessing Timing Anomalies: at most a third more than the
    best division.
    """
    held, owners = [0] * servers, [0] * len(sizes)
    for number in sorted(range(len(sizes)), key=lambda each: -sizes[each]):
        owners[number] = min(range(servers), key=lambda server: held[server])
        held[owners[number]] += sizes[number]
    return tuple(owners)
