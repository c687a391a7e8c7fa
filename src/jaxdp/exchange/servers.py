"""The parameter servers as the driver sees them: which of them holds what, and calls to all of them."""

import collections
import dataclasses
import math
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx

from jaxdp.exchange import leaves
from jaxdp.exchange.server import Server
from jaxdp.step import step
from jaxdp.step.state import TrainState

_UNCONFIRMED = 8  # calls that servers may be behind


class ServerLost(OSError):
    """A parameter server has died, and its share of the state with it."""


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
        self._ray, self._owners, self._clip_norm = ray, owners, clip_norm
        self._optimizer, self._recipe = optimizer, ray.put(recipe)
        self._count, self._actors = max(owners) + 1, list[Any]()
        self._unconfirmed: collections.deque[list[Any]] = collections.deque()
        self.restart()

    def install(self, state: TrainState, learning_rates: np.ndarray) -> None:
        """Gives each server its share of a state."""
        host = dataclasses.replace(jax.tree.map(np.asarray, state), graphdef=nnx.graphdef(nnx.List([])))  # servers run no model
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

    def restart(self) -> None:
        """Replaces all servers; `install` gives them a state."""
        self.close()
        self._unconfirmed.clear()
        self._actors = [self._ray.remote(Server).options(num_cpus=0).remote() for _ in range(self._count)]

    def check(self) -> None:
        """Raises ServerLost if a server has died."""
        self._get([actor.check.remote() for actor in self._actors])

    def add(self, arrays: list[Any]) -> None:
        """Has a slice's gradient added to those before it; does not wait for it."""
        self._note([actor.add.remote(part) for actor, part in zip(self._actors, arrays, strict=True)])

    def mean_norm(self, slices: int) -> float:
        """Returns the norm of the mean of what was added."""
        return math.sqrt(sum(self._get([actor.mean_squares.remote(slices) for actor in self._actors])))

    def apply_mean(self, found: dict[str, Any], norm: float) -> None:
        """Has the mean applied; does not wait for it.

        Args:
            norm: of the whole mean, divided by the mean weight.
        """
        known = {name: found[name] for name in ("batch_stats", "weight")}
        self._note([actor.apply.remote(known, None, 1.0, self._scale(norm)) for actor in self._actors])

    def apply(self, found: dict[str, Any], arrays: list[Any], factor: float, norm: float) -> None:
        """Has a gradient applied; does not wait for it.

        Args:
            arrays: a reference for each server.
            factor: by which the learning rate is multiplied.
            norm: of the whole gradient.
        """
        known, scale = {name: found[name] for name in ("batch_stats", "weight")}, self._scale(norm)
        self._note([actor.apply.remote(known, part, factor, scale) for actor, part in zip(self._actors, arrays, strict=True)])

    def _scale(self, norm: float) -> float:
        return self._clip_norm / norm if self._clip_norm is not None and norm > self._clip_norm else 1.0

    def _note(self, calls: list[Any]) -> None:
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
        self._actors.clear()


def owners_of(sizes: list[int], servers: int) -> tuple[int, ...]:
    """Returns which server holds which leaf, so that each has about as many elements: the largest first, to whoever has least.

    Source: Graham 1969, Bounds on Multiprocessing Timing Anomalies: at most a third more than the best division.
    """
    held, owners = [0] * servers, [0] * len(sizes)
    for number in sorted(range(len(sizes)), key=lambda each: -sizes[each]):
        owners[number] = min(range(servers), key=lambda server: held[server])
        held[owners[number]] += sizes[number]
    return tuple(owners)
