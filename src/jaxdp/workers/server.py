"""A server: it holds some of a model's arrays, or all of them, and applies their gradients."""

from typing import Any

import jax
import numpy as np

from jaxdp.step import combine, step
from jaxdp.step.state import Constants, TrainState
from jaxdp.workers import shares


class Server:
    """Holds a share of a state, in this process or in one of its own.

    All servers get the same calls in the same order, so that what is read from all of them between
    two updates is of one version.

    Attributes:
        state: in which the arrays of other servers are None.
    """

    state: TrainState

    def install(
        self,
        state: TrainState,
        step_config: step.StepConfig,
        learning_rates: np.ndarray,
        adds_deltas: bool = False,
    ) -> None:
        """Begins with a state, which the first update consumes.

        Args:
            state: the arrays that it holds.
            step_config: the settings of a step.
            learning_rates: one for each update.
            adds_deltas: whether workers report by how much they changed batch statistics.
        """

        def update(
            state: TrainState, means: Any, sums: dict[str, Any], rates: Any
        ) -> tuple[TrainState, dict[str, Any]]:
            grads, batch_stats, weight = means
            constants = Constants({}, rates, ())
            return step.update_state(
                state, grads, batch_stats, weight, sums, constants, step_config=step_config
            )

        self._update = jax.jit(update, donate_argnums=0)
        self.state, self._rates = jax.device_put(state), learning_rates
        self._params = shares.structure(state.params)
        self._adds_deltas = adds_deltas
        self._added: Any = None  # leaves, with None for one of another server

    def add(self, grads: list[Any]) -> None:
        """Adds the gradient of a slice to those before it."""
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
        """Applies the gradients that were added, and returns the metric sums.

        Args:
            batch_stats: running statistics, or by how much a worker has changed them: other workers
                have changed them since it got them, which its own statistics would undo.
            weight: mean weight of the examples.
            sums: metric sums.
            factor: by which the learning rate is multiplied.
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
        """Returns the leaves of what gradients are computed with."""
        return shares.to_host(shares.needed(self.state))

    def collect(self) -> list[Any]:
        """Returns the leaves of the whole state."""
        return shares.to_host(self.state)
