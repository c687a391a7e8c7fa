"""Defines a server, which holds some or all arrays of a model and applies their gradients."""

from typing import Any

import jax
import numpy as np

from jaxdp.step import combine, step
from jaxdp.step.state import Constants, TrainState
from jaxdp.workers import shares


class Server:
    """Holds a share of a state, in this process or in its own process.

    All servers get the same calls in the same order, so that data read from all servers between two
    updates have the same version.

    Attributes:
        state: the state, in which the arrays of other servers are None.
    """

    state: TrainState

    def install(
        self,
        state: TrainState,
        step_config: step.StepConfig,
        learning_rates: np.ndarray,
        adds_deltas: bool = False,
    ) -> None:
        """Starts with a state, which the first update consumes.

        Args:
            state: the arrays that it holds.
            step_config: the settings of a step.
            learning_rates: one for each update.
            adds_deltas: whether workers report changes of batch statistics.
        """

        def update(
            state: TrainState, means: Any, sums: dict[str, Any], rates: Any
        ) -> tuple[TrainState, dict[str, Any]]:
            constants = Constants({}, rates, ())
            return step.update_state(state, means, sums, constants, step_config=step_config)

        self._update = jax.jit(update, donate_argnums=0)
        self.state, self._rates = jax.device_put(state), learning_rates
        self._params = shares.structure(state.params)
        self._adds_deltas = adds_deltas
        self._added: Any = None  # leaves, with None for a leaf of another server

    def add(self, grads: list[Any]) -> None:
        """Adds the gradient of a slice to the sum."""
        added = self._added
        self._added = grads if added is None else jax.tree.map(np.add, added, grads)

    def mean_squares(self, slices: int) -> float:
        """Divides the sum of gradients by the number of slices, and returns its sum of squares."""
        assert self._added is not None
        self._added = jax.tree.map(lambda leaf: leaf / np.float32(slices), self._added)
        return float(sum(np.vdot(leaf, leaf) for leaf in jax.tree.leaves(self._added)))

    def apply(
        self, batch_stats: Any, weight: Any, sums: dict[str, Any], factor: float
    ) -> dict[str, Any]:
        """Applies the sum of the gradients, and returns the metric sums.

        Args:
            batch_stats: running statistics, or their changes by a worker. Other workers may have
                changed the statistics since this worker got them, and its own statistics would undo
                these changes.
            weight: mean weight of the examples.
            sums: metric sums.
            factor: factor by which the learning rate is multiplied.
        """
        grads, self._added = self._added, None
        assert grads is not None
        held = self.state.batch_stats
        if not jax.tree.leaves(held):
            batch_stats = held
        elif self._adds_deltas:
            batch_stats = combine.changed(held, batch_stats)
        means = shares.join(self._params, [grads]), batch_stats, weight
        rates = self._rates * np.float32(factor)
        self.state, sums = self._update(self.state, means, sums, rates)
        return sums

    def pull(self) -> list[Any]:
        """Returns the leaves on which gradients depend."""
        return shares.to_host(shares.needed(self.state))

    def collect(self) -> list[Any]:
        """Returns the leaves of the whole state."""
        return shares.to_host(self.state)
