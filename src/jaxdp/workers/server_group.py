"""Distributes the state of a run over servers, and calls all servers."""

import collections
import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx

from jaxdp.build.setup import Setup
from jaxdp.data.augment import Preprocess
from jaxdp.step.state import TrainState
from jaxdp.tasks.classification import Classification
from jaxdp.workers import shares
from jaxdp.workers.actor import ServerLost, launch, results
from jaxdp.workers.server import Server
from jaxdp.workers.worker import WorkerSpec

_UNCONFIRMED = 8  # number of calls by which servers may be behind
_TINY = float(np.finfo(np.float32).tiny)  # instead of the weight of a batch without examples
_SERVER = "jaxdp.workers.server:Server"


class ServerGroup:
    """Servers on the machines of the workers, or a server in this process.

    Args:
        ray: the module, connected.
        setup: of the run.
        count: number of servers; 0 for a server in this process.
        spec: settings of the workers, including which server holds which leaf of the parameters.

    Attributes:
        here: whether this process holds the state.
    """

    def __init__(self, ray: Any, setup: Setup, count: int, spec: WorkerSpec) -> None:
        self._ray = ray
        self._count = count
        self._owners, self._adds_deltas = spec.owners, spec.returns_deltas
        self.here = count == 0
        step_config = setup.step_config
        self._optimizer = step_config.optimizer(setup.schedule)
        # Servers compute no losses, and import no plugins, which may define the task.
        step_config = dataclasses.replace(
            step_config, task=Classification(1), preprocess=Preprocess((), ())
        )
        self._step_config = step_config if self.here else ray.put(step_config)
        self._own = Server()
        self._actors = list[Any]()
        self._unconfirmed: collections.deque[list[Any]] = collections.deque()
        for _ in range(count):
            actor, started = launch(
                ray, _SERVER, setup.config.precision, num_cpus=0, scheduling_strategy="SPREAD"
            )
            self._actors.append(actor)
            self._unconfirmed.append([started])

    def install(self, state: TrainState, learning_rates: np.ndarray) -> None:
        """Passes each server its share of a state, which a server in this process consumes."""
        self._confirm(0)
        if self.here:
            shares_of_state = [state]
        else:
            # Servers run no model.
            host = dataclasses.replace(
                jax.tree.map(np.asarray, state), graphdef=nnx.graphdef(nnx.List([]))
            )
            shares_of_state = [self._share(host, server) for server in range(self._count)]
        arguments = self._step_config, learning_rates, self._adds_deltas
        self._get(self._call("install", *arguments, parts=shares_of_state))

    def _share(self, state: TrainState, server: int) -> TrainState:
        owners = jax.tree.unflatten(jax.tree.structure(state.params), self._owners)

        def keep(leaf: Any, owner: int) -> Any:
            return leaf if owner == server else None

        def first(tree: Any) -> Any:
            return tree if server == 0 else jax.tree.map(lambda leaf: None, tree)

        def own(tree: Any) -> Any:
            return jax.tree.map(keep, tree, owners)

        ema = (own(state.ema[0]), first(state.ema[1])) if state.ema is not None else None
        return dataclasses.replace(
            state,
            params=own(state.params),
            batch_stats=first(state.batch_stats),
            opt_state=optax.tree_utils.tree_map_params(
                self._optimizer, keep, state.opt_state, owners
            ),
            ema=ema,
        )

    def pull(self) -> tuple[Any, ...]:
        """Returns references to the parameters for workers, after all updates so far."""
        parts = self._call("pull")
        return tuple(self._ray.put(part) for part in parts) if self.here else tuple(parts)

    def add(self, grads: Sequence[Any]) -> None:
        """Adds the gradient of a slice to the sum. Does not wait for servers.

        Args:
            grads: a part for each server.
        """
        self._send(self._call("add", parts=grads))

    def mean_squares(self, slices: int) -> float:
        """Divides the sum of gradients by the number of slices, and returns its sum of squares."""
        return sum(self._get(self._call("mean_squares", slices)))

    def apply(
        self,
        batch_stats: Any,
        weight: Any,
        sums: dict[str, Any],
        squares: float,
        factor: float = 1.0,
    ) -> dict[str, Any]:
        """Applies the sum of the gradients, and returns the metric sums. Does not wait.

        Args:
            batch_stats: running statistics, or their changes by a worker.
            weight: mean weight of the examples.
            sums: metric sums.
            squares: sum of the squares of the gradients.
            factor: factor by which the learning rate is multiplied.
        """
        norm = math.sqrt(squares) / max(float(weight), _TINY)
        inside = sums if self.here else {name: sums[name] for name in ("loss", "examples")}
        calls = self._call("apply", batch_stats, weight, inside, factor)
        if self.here:
            return calls[0]
        self._send(calls)
        return sums | {"gradient_norm": np.float32(norm), "updates": np.float32(1)}

    def collect(self, state: TrainState) -> TrainState:
        """Returns the whole state after all updates so far, on the host, from the servers.

        Args:
            state: of the same structure.
        """
        if self.here:
            return self._own.state
        self._confirm(0)
        return shares.join(shares.structure(state), self._get(self._call("collect")))

    def close(self) -> None:
        """Ends all processes."""
        for actor in self._actors:
            self._ray.kill(actor)
        self._actors.clear()

    def _call(self, method: str, *arguments: Any, parts: Sequence[Any] | None = None) -> list[Any]:
        """Calls a method of each server.

        Args:
            method: its name.
            *arguments: arguments that are the same for all servers.
            parts: a first argument for each server.
        """
        firsts = [(part,) for part in parts] if parts is not None else [()] * max(self._count, 1)
        if self.here:
            return [getattr(self._own, method)(*firsts[0], *arguments)]
        return [
            actor.call.remote(method, *first, *arguments)
            for actor, first in zip(self._actors, firsts, strict=True)
        ]

    def _send(self, calls: list[Any]) -> None:
        self._unconfirmed.append(calls)
        self._confirm(_UNCONFIRMED)

    def _confirm(self, behind: int) -> None:
        """Waits until servers are behind by at most this number of calls, and raises the error of a
        failed call.
        """
        while len(self._unconfirmed) > behind:
            self._get(self._unconfirmed.popleft())

    def _get(self, calls: list[Any]) -> list[Any]:
        if self.here:
            return calls
        try:
            return results(self._ray, calls)
        except self._ray.exceptions.RayError as error:
            raise ServerLost from error
