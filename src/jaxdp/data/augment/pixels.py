"""Provides the augmentations that change pixel values and leave masks and dense targets unchanged.

Amounts are relative, so that they have the same meaning for digits of 0 to 16 and for photos of 0
to 255. Results are clipped at 0, which is black, but not above, because white is 16 for the digits
and 255 for the photos.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from jaxdp.data.augment.words import (
    FRACTION,
    PIXELS,
    Augmentation,
    Example,
    Number,
    RandomKey,
    Shape,
    check_side,
    register,
)


@register("brightness", FRACTION)
class Brightness(Augmentation):
    """Multiplies an image by a factor drawn uniformly from 1 - `amount` to 1 + `amount`."""

    amount: Number = 0.2

    def __call__(self, example: Example, key: RandomKey) -> Example:
        return example | {"images": example["images"] * _factor(self.amount, key)}


@register("contrast", FRACTION)
class Contrast(Augmentation):
    """Multiplies differences from the image's mean by a factor drawn uniformly from 1 - `amount` to
    1 + `amount`.

    The mean is over all pixels and channels.
    """

    amount: Number = 0.2

    def __call__(self, example: Example, key: RandomKey) -> Example:
        images = example["images"]
        mean = jnp.mean(images)
        changed = mean + _factor(self.amount, key) * (images - mean)
        return example | {"images": jnp.maximum(changed, 0.0)}


def _factor(amount: Number, key: RandomKey) -> Array:
    return jax.random.uniform(key, minval=1.0 - amount, maxval=1.0 + amount)


@register("cutout", PIXELS)
class Cutout(Augmentation):
    """Paints a square of `size` x `size` pixels in the image's mean colour.

    The square's centre is any pixel with equal probability, so that a part of the square may lie
    outside the image.

    Source: DeVries and Taylor, Improved Regularization of Convolutional Neural Networks with
    Cutout, 2017, section 3.2. In the paper, the square is 0 after normalization, the mean of the
    training set. Here, before normalization, it is the mean of the image.
    """

    size: int = 8

    def output_shape(self, image_shape: Shape) -> Shape:
        return check_side("cutout", self.size, image_shape)

    def __call__(self, example: Example, key: RandomKey) -> Example:
        image = example["images"]
        inside = rectangle(image.shape[:2], jnp.full(2, self.size), key)
        return example | {"images": jnp.where(inside[..., None], jnp.mean(image, (0, 1)), image)}


def rectangle(size: tuple[int, ...], sides: Array, key: RandomKey) -> Bool[Array, "height width"]:
    """Returns which pixels are in a rectangle with these sides, in whole pixels, around a random
    pixel of an image of this height and width.
    """
    first = jax.random.randint(key, (2,), 0, jnp.array(size)) - sides // 2
    rows, columns = (jnp.arange(size[dim]) - first[dim] for dim in (0, 1))
    return ((rows >= 0) & (rows < sides[0]))[:, None] & ((columns >= 0) & (columns < sides[1]))
