"""Provides the augmentations that change the brightness of pixels.

Masks and dense targets stay as they are.

Amounts are relative, so that they mean the same for digits of 0 to 16 as for photographs of 0 to
255. Results are clipped at 0, black, but not above: white is 16 for the former and 255 for the
latter.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from jaxdp.data import augment
from jaxdp.data.augment.words import FRACTION, Example


@augment.register("brightness", FRACTION)
@dataclasses.dataclass(frozen=True)
class Brightness:
    """Multiplies an image by a factor drawn evenly from 1 - `amount` to 1 + `amount`."""

    amount: float | int = 0.2

    def __call__(self, example: Example, key: Key[Array, ""]) -> Example:
        factor = jax.random.uniform(key, minval=1.0 - self.amount, maxval=1.0 + self.amount)
        return example | {"images": example["images"] * factor}


@augment.register("contrast", FRACTION)
@dataclasses.dataclass(frozen=True)
class Contrast:
    """Multiplies differences from the image's mean by a factor drawn evenly from 1 - `amount` to 1
    + `amount`.

    The mean is that over all pixels and channels.
    """

    amount: float | int = 0.2

    def __call__(self, example: Example, key: Key[Array, ""]) -> Example:
        factor = jax.random.uniform(key, minval=1.0 - self.amount, maxval=1.0 + self.amount)
        mean = jnp.mean(example["images"])
        return example | {"images": jnp.maximum(mean + factor * (example["images"] - mean), 0.0)}
