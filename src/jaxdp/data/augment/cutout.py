"""Provides Cutout, the augmentation that erases a part of an image, and the random rectangle that
CutMix pastes.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Key

from jaxdp.data import augment
from jaxdp.data.augment.words import PIXELS, Example, Shape, check_side


@augment.register("cutout", PIXELS)
@dataclasses.dataclass(frozen=True)
class Cutout:
    """Paints a square of `size` x `size` pixels in the image's mean colour.

    Masks and dense targets stay as they are.

    The square's centre is any pixel with equal probability, so that a part of the square may lie
    outside the image.

    Source: DeVries and Taylor, Improved Regularization of Convolutional Neural Networks with
    Cutout, 2017, section 3.2. There the square is 0 after normalization, the mean of the training
    set; here, before normalization, it is the mean of the image.
    """

    size: float | int = 8

    def output_shape(self, image_shape: Shape) -> Shape:
        return check_side("cutout", self.size, image_shape)

    def __call__(self, example: Example, key: Key[Array, ""]) -> Example:
        image = example["images"]
        height, width, _ = image.shape
        sides = jnp.full(2, int(self.size))
        mean = jnp.mean(image, (0, 1))
        return example | {
            "images": jnp.where(rectangle(height, width, sides, key)[..., None], mean, image)
        }


def rectangle(
    height: int, width: int, sides: Array, key: Key[Array, ""]
) -> Bool[Array, "height width"]:
    """Returns which pixels lie in a rectangle with these sides, in whole pixels, around a random
    pixel of the image.
    """
    first = jax.random.randint(key, (2,), 0, jnp.array([height, width])) - sides // 2
    rows = jnp.arange(height) - first[0]
    columns = jnp.arange(width) - first[1]
    return ((rows >= 0) & (rows < sides[0]))[:, None] & ((columns >= 0) & (columns < sides[1]))
