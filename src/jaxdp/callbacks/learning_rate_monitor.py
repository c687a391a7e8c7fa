"""Records the hyperparameters of an optimizer object in the training rows."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp.callbacks import register
from jaxdp.events import Run, Started, StepEnd
from jaxdp.registry import ConfigError
from jaxdp.run_directory import Row


@register("learning_rate_monitor")
class LearningRateMonitor:
    """Adds what `optax.inject_hyperparams` exposes, such as `learning_rate`, to every training row.

    The rows of a run whose optimizer is given by name have a `learning_rate` without this callback.

    Raises:
        ConfigError: before the first step, if the optimizer exposes no hyperparameters.
    """

    def __init__(self) -> None:
        self._read: dict[int, dict[str, jax.Array]] = {}

    def on_start(self, run: Run, event: Started) -> None:
        if not _hyperparameters(run.setup.shapes.opt_state):
            remedy = "the optimizer exposes no hyperparameters; wrap it in optax.inject_hyperparams"
            raise ConfigError("callbacks", "learning_rate_monitor", remedy)

    def on_step_end(self, run: Run, event: StepEnd) -> None:
        """Copies the numbers on the device before the next step consumes them; nothing waits for them here."""
        intervals = run.setup.intervals
        if event.step % intervals.log_every == 0 or event.step == intervals.total_steps:
            hyperparameters = _hyperparameters(event.state.opt_state)
            self._read[event.step] = {name: jnp.copy(value) for name, value in hyperparameters.items()}

    def on_row(self, run: Run, row: Row) -> None:
        """Adds the numbers of the row's last step."""
        if row["split"] == "train" and row["step"] in self._read:
            row |= {name: float(np.asarray(value)) for name, value in self._read.pop(row["step"]).items()}


def _hyperparameters(opt_state: Any) -> dict[str, Any]:
    """Returns the numbers by name, or what stands for them in an abstract state."""
    found: dict[str, Any] = {}
    states = jax.tree.leaves(opt_state, is_leaf=lambda node: hasattr(node, "hyperparams"))
    for state in states:
        hyperparameters = getattr(state, "hyperparams", {})
        found |= {name: value for name, value in hyperparameters.items() if np.ndim(value) == 0}
    return found
