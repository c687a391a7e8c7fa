"""Finds losses of one's own that compare examples without saying so."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp.data import pipeline
from jaxdp.data.augment import Preprocess
from jaxdp.data.split import Split
from jaxdp.errors import ConfigError
from jaxdp.tasks import Task
from jaxdp.tasks.loss_function import OVER_BATCH
from jaxdp.text.console import say
from jaxdp.text.messages import one_line

_COUNT = 8  # examples
# In one program, a loss of an example does not even round differently with other examples. In a
# program for fewer examples it may.
_EXACT, _ROUNDED = 1e-7, 1e-3


def check_losses(task: Task, source: Split, preprocess: Preprocess, outputs: Any) -> None:
    """Raises ConfigError if the loss of an example changes with the other examples of its batch.

    Such a loss would depend on the number of devices and microbatches. Losses of random outputs are
    computed with some examples exchanged for others, and for half of the batch alone.

    Args:
        preprocess: as for evaluation.
        outputs: shapes and dtypes of the model's outputs for one image.
    """
    rng = np.random.default_rng(0)

    def draw(numbers: list[int], scale: float) -> Any:
        """Returns outputs and examples; the same example may occur several times."""
        batch = pipeline.load(source, np.array(numbers) % len(source))
        batch = preprocess(jax.tree.map(jnp.asarray, batch), None)
        drawn = jax.tree.map(
            lambda leaf: jnp.asarray(
                rng.normal(scale=scale, size=(_COUNT, *leaf.shape[1:])), leaf.dtype
            ),
            outputs,
        )
        return drawn, batch

    @jax.jit
    def compute(outputs: Any, batch: Any) -> Any:
        return task.losses(outputs, batch), task.divisors(outputs, batch)

    def differ(found: Any, expected: Any, kept: Any, tolerance: float) -> bool:
        pairs = zip(found, expected, strict=True)
        return not all(
            np.allclose(one, other[kept], tolerance, tolerance, equal_nan=True)
            for one, other in pairs
        )

    first, others = draw([0, 1] * 4, 1.0), draw([*range(2, 2 + _COUNT)], 3.0)
    try:
        whole = compute(*first)
        depends = False
        for kept in (np.arange(_COUNT) < _COUNT // 2, np.arange(_COUNT) % 2 == 0):
            mixed = jax.tree.map(
                lambda mine, other, kept=kept: jnp.where(
                    kept.reshape(-1, *[1] * (mine.ndim - 1)), mine, other
                ),
                first,
                others,
            )
            found = [each[kept] for each in compute(*mixed)]
            depends |= differ(found, whole, kept, _EXACT)
        half = slice(_COUNT // 2)
        alone = compute(*jax.tree.map(lambda array: array[half], first))
        depends |= differ(alone, whole, half, _ROUNDED)
    except ConfigError:
        raise
    except Exception as error:  # of this batch; tracing the step raises what holds for any
        say(f"note: whether {task.name} compares examples was not checked: {one_line(error)}")
        return
    if depends:
        problem = "its loss of an example changes with the other examples that a device computes"
        raise ConfigError("task", task.name, f"{problem}; {OVER_BATCH}")
