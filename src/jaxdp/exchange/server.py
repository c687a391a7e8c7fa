"""A parameter server: a process of its own that holds some of a model's arrays, and applies the
gradients of those.
"""

import dataclasses
import os
from collections.abc import Sequence
from typing import Any


class Server:
    """The process of one server.

    Ray calls its methods one after the other, in the order in which the driver made the calls.

    Since all servers get the same calls in the same order, what is read from all of them between
    two updates is of one version.
    """

    def __init__(self) -> None:
        self._added: list[Any] | None = None

    def install(self, recipe: Any, state: Any, learning_rates: Any) -> None:
        """Begins with a state.

        Args:
            recipe: the settings of a step.
            state: `TrainState` in which the arrays of other servers are None.
            learning_rates: one for each update.
        """
        os.environ.update({"JAX_PLATFORMS": "cpu", "NPROC": "1", "PJRT_NPROC": "1"})
        import jax

        from jaxdp.exchange import leaves
        from jaxdp.step import step
        from jaxdp.step.state import Constants

        def update(state: Any, grads: Any, batch_stats: Any, weight: Any, rates: Any) -> Any:
            new, _ = step.update_state(
                state, grads, batch_stats, weight, {}, Constants({}, rates, ()), recipe=recipe
            )
            return new

        self._update = jax.jit(update, donate_argnums=0)
        self._state, self._rates = jax.device_put(state), learning_rates
        self._params = leaves.structure(state.params)
        self._has_statistics = any(leaf is not None for leaf in leaves.of(state.batch_stats))

    def apply(self, found: Any, grads: Sequence[Any] | None, factor: float, scale: float) -> None:
        """Applies a gradient.

        Args:
            found: what the worker said of the slice; of batch statistics, with `grads`, by how much
                it changed them.
            grads: leaves, None for those of other servers; None for the mean of what was added.
            factor: by which the learning rate is multiplied.
            scale: by which the gradient is multiplied, to clip its norm over all servers.
        """
        import jax
        import numpy as np

        from jaxdp.exchange import leaves

        added = (self._added or []) if grads is None else grads
        self._added = None
        tree = leaves.joined(
            self._params, [[None if leaf is None else leaf * np.float32(scale) for leaf in added]]
        )
        batch_stats = self._state.batch_stats
        if self._has_statistics:
            # Others have changed them since the worker got them: its own would undo that.
            changed = found["batch_stats"]
            batch_stats = changed if grads is None else jax.tree.map(np.add, batch_stats, changed)
        self._state = self._update(
            self._state, tree, batch_stats, found["weight"], self._rates * np.float32(factor)
        )

    def check(self) -> None:
        """Answers."""

    def add(self, grads: Sequence[Any]) -> None:
        """Adds the gradient of a slice to those before it."""
        if self._added is None:
            self._added = list(grads)
        else:
            self._added = [
                None if leaf is None else total + leaf
                for total, leaf in zip(self._added, grads, strict=True)
            ]

    def mean_squares(self, slices: int) -> float:
        """Divides what was added by the number of slices, and returns the sum of its squares."""
        import numpy as np

        assert self._added is not None
        self._added = [None if leaf is None else leaf / np.float32(slices) for leaf in self._added]
        return float(sum(np.vdot(leaf, leaf) for leaf in self._added if leaf is not None))

    def pull(self) -> list[Any]:
        """Returns the leaves of what gradients are computed with."""
        from jaxdp.exchange import leaves

        return leaves.of(dataclasses.replace(self._state, opt_state=(), ema=None))

    def collect(self) -> list[Any]:
        """Returns the leaves of the whole state."""
        from jaxdp.exchange import leaves

        return leaves.of(self._state)
