"""Finds losses of one's own that compare examples without saying so."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import tasks
from jaxdp.build.inputs import Inputs
from jaxdp.data import pipeline
from jaxdp.data.split import Split
from jaxdp.errors import ConfigError
from jaxdp.tasks.loss_function import OVER_BATCH

# With the same values, rounding alone changes a loss by less.
_TOLERANCES = {np.dtype(np.float64): 1e-9}
_TOLERANCE = 1e-3  # of a loss that computes in 32 bits or fewer


def check_losses(task: tasks.Task, inputs: Inputs, source: Split, outputs: Any) -> None:
    """Raises ConfigError if the loss of an example changes with the other examples of its batch.

    Such a loss would depend on the number of devices and microbatches. Random outputs for two
    examples are evaluated with their targets alone, and together with the same targets once more.

    Args:
        outputs: shapes of the model's outputs for one image.
    """
    if task.over_batch or not inputs.has_own_task:
        return
    batch = pipeline.load(source, np.array([0, 1, 0, 1]) % len(source))
    rng = np.random.default_rng(0)
    drawn = jax.tree.map(lambda leaf: rng.normal(size=(4, *leaf.shape[1:])), outputs)

    def losses(count: int) -> np.ndarray:
        given = jax.tree.map(lambda array: jnp.asarray(array[:count]), (drawn, batch))
        return np.asarray(jax.jit(task.losses)(*given))

    try:
        with jax.enable_x64(True):
            together, alone = losses(4), losses(2)
    except Exception:  # whatever a loss raises; tracing the step says it with more about its cause
        return
    tolerance = _TOLERANCES.get(alone.dtype, _TOLERANCE)
    if not np.allclose(together[:2], alone, rtol=tolerance, atol=tolerance, equal_nan=True):
        problem = "its loss of an example changes with the other examples that a device computes"
        raise ConfigError("task", task.name, f"{problem}; {OVER_BATCH}")
