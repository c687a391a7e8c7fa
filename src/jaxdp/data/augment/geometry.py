"""Provides the augmentations that move whole pixels of an image and its dense targets: crops, flips
and quarter turns.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxdp.data.augment.words import (
    PIXELS,
    Augmentation,
    Example,
    RandomKey,
    Shape,
    check_side,
    create,
    is_dense,
    map_grid,
    register,
    require,
)
from jaxdp.data.dataset import IGNORE_LABEL

_FOREGROUND = 0.75  # share of the tiles around a pixel of the foreground
_TRIES = 10
_AREA = (0.08, 1.0)
_RATIO = 4 / 3


@register("pad_crop", PIXELS)
class PadCrop(Augmentation):
    """Pads each side by `pixels` and crops to the original size at one of (2 pixels + 1)^2
    positions, drawn uniformly.

    The padding is black, which is the stored 0 before normalization. If pixels have targets, it is
    mirrored.

    Source: He et al., Deep Residual Learning for Image Recognition, 2016, section 4.2.
    """

    pixels: int = 4

    def output_shape(self, image_shape: Shape) -> Shape:
        return check_side("pad_crop", self.pixels, image_shape)

    def __call__(self, example: Example, key: RandomKey) -> Example:
        pad = self.pixels
        height, width = example["images"].shape[:2]
        corner = jax.random.randint(key, (2,), 0, 2 * pad + 1)
        mode = "symmetric" if is_dense(example) else "constant"

        def move(pixels: Array) -> Array:
            padded = jnp.pad(pixels, [(pad, pad)] * 2 + [(0, 0)] * (pixels.ndim - 2), mode=mode)
            return _window(padded, corner, height, width)

        return map_grid(example, move)


@register("crop", PIXELS)
class Crop(Augmentation):
    """Crops a random tile of `size` x `size` pixels from a larger image.

    Evaluation uses whole images.

    Attributes:
        in_valid: whether the tile must be on pixels that the mask does not ignore, as far as they
            extend down and to the right. The rest is padding.
    """

    size: int
    in_valid: bool = dataclasses.field(default=False, kw_only=True)

    def output_shape(self, image_shape: Shape) -> Shape:
        size, (height, width, channels) = self.size, image_shape
        remedy = f"is larger than an image of {height} x {width} pixels; use a smaller crop"
        require(size <= min(height, width), f"crop:{size}", remedy)
        return size, size, channels

    def __call__(self, example: Example, key: RandomKey) -> Example:
        size, (height, width) = self.size, example["images"].shape[:2]
        low, high = jnp.zeros(2, int), jnp.array([height - size + 1, width - size + 1])
        if self.in_valid and "masks" in example:
            low, high = _valid_corners(example["masks"] != IGNORE_LABEL, size)
        corner = self.corner(example, low, high, key)
        return map_grid(example, lambda pixels: _window(pixels, corner, size, size))

    def corner(self, example: Example, low: Array, high: Array, key: RandomKey) -> Array:
        """Returns the first row and column of the tile, at least `low` and less than `high`."""
        return jax.random.randint(key, (2,), low, high)

    def within_valid(self) -> "Crop":
        """Returns the crop for images that were padded."""
        return dataclasses.replace(self, in_valid=True)


@register("crop_foreground", PIXELS)
class CropForeground(Crop):
    """Crops as `crop` does, with probability 3/4 around a random pixel of the foreground.

    The foreground consists of the pixels whose mask is not 0. The pixel is anywhere in the tile,
    as far as the border of the image allows.
    """

    def corner(self, example: Example, low: Array, high: Array, key: RandomKey) -> Array:
        require("masks" in example, f"crop_foreground:{self.size}", "needs masks; use crop")
        usual, coin, of_pixel, of_place = jax.random.split(key, 4)
        foreground = (example["masks"] > 0) & (example["masks"] != IGNORE_LABEL)
        ends = jnp.cumsum(jnp.sum(foreground, 1))  # pixels up to the end of each row
        number = jax.random.randint(of_pixel, (), 0, jnp.maximum(ends[-1], 1))
        row = jnp.searchsorted(ends, number, side="right")
        in_row = jnp.cumsum(foreground[row])
        column = jnp.searchsorted(in_row, number - (ends[row] - in_row[-1]), side="right")
        corner = jnp.stack([row, column]) - jax.random.randint(of_place, (2,), 0, self.size)
        around = jax.random.bernoulli(coin, _FOREGROUND) & (ends[-1] > 0)
        anywhere = jax.random.randint(usual, (2,), low, high)
        return jnp.where(around, jnp.clip(corner, low, high - 1), anywhere)


def crop_sides(given: Sequence[str] | None) -> list[int]:
    """Returns the sides of the crops among the words of an augmentation."""
    made = (create(word) for word in given or () if word != "none")
    return [each.size for each in made if isinstance(each, Crop)]


@register("random_resized_crop", PIXELS)
class RandomResizedCrop(Augmentation):
    """Crops a random part of an image and resizes it to `size` x `size` pixels, bilinearly and
    antialiased.

    The part has 0.08 to 1 of the area and a ratio of width to height of 3/4 to 4/3, uniform in the
    logarithm, at a uniform position. The first of ten draws that fits is used. If no draw fits, the
    largest part in the middle with a ratio in this range is used.

    Source: Szegedy et al., Going Deeper with Convolutions, 2015, section 6, as in torchvision's
    RandomResizedCrop.
    """

    size: int
    of_classes = True

    def output_shape(self, image_shape: Shape) -> Shape:
        return self.size, self.size, image_shape[2]

    def box(self, height: int, width: int, key: RandomKey) -> tuple[Array, Array]:
        """Returns the first row and column of the part, and its height and width, as whole
        floats.
        """
        of_area, of_ratio, of_place = jax.random.split(key, 3)
        least, most = _AREA
        area = height * width * jax.random.uniform(of_area, (_TRIES,), minval=least, maxval=most)
        bound = math.log(_RATIO)
        ratio = jnp.exp(jax.random.uniform(of_ratio, (_TRIES,), minval=-bound, maxval=bound))
        sides = jnp.round(jnp.stack([jnp.sqrt(area / ratio), jnp.sqrt(area * ratio)], -1))
        whole = jnp.array([height, width], float)
        fits = jnp.all((sides > 0) & (sides <= whole), -1)
        found = sides[jnp.argmax(fits)]
        middle = jnp.round(jnp.minimum(whole, whole[::-1] * _RATIO))
        sides = jnp.where(fits.any(), found, middle)
        free = whole - sides
        drawn = jnp.floor(jax.random.uniform(of_place, (2,)) * (free + 1))
        return jnp.where(fits.any(), jnp.minimum(drawn, free), jnp.floor(free / 2)), sides

    def __call__(self, example: Example, key: RandomKey) -> Example:
        image = example["images"]
        corner, sides = self.box(image.shape[0], image.shape[1], key)
        images = jax.lax.platform_dependent(
            image,
            corner,
            sides,
            cpu=functools.partial(_resized_by_taps, size=self.size),
            default=functools.partial(_resized_by_products, size=self.size),
        )
        return example | {"images": images}


@register("flip")
class Flip(Augmentation):
    """Swaps left and right with probability 1/2."""

    axis: ClassVar[int] = 1

    def __call__(self, example: Example, key: RandomKey) -> Example:
        coin = jax.random.bernoulli(key)
        return map_grid(
            example, lambda pixels: jnp.where(coin, jnp.flip(pixels, self.axis), pixels)
        )


@register("flip:alternating")
class AlternatingFlip(Augmentation):
    """Swaps left and right of half of the images in one epoch, and of the others in the next.

    Each image is thus seen from both sides in any two epochs. An example without `turn`, outside
    of training, is swapped with probability 1/2.

    Source: Jordan, 94% on CIFAR-10 in 3.29 Seconds on a Single GPU, 2024, arXiv:2404.00498.
    """

    takes_turns = True

    def __call__(self, example: Example, key: RandomKey) -> Example:
        turn = example["turn"] if "turn" in example else jax.random.bernoulli(key)
        return map_grid(example, lambda pixels: jnp.where(turn, pixels[:, ::-1], pixels))


@register("flip_vertical")
class FlipVertical(Flip):
    """Swaps top and bottom with probability 1/2."""

    axis = 0


@register("rotate90")
class Rotate90(Augmentation):
    """Rotates a square image by 0, 90, 180 or 270 degrees, each with probability 1/4."""

    def output_shape(self, image_shape: Shape) -> Shape:
        height, width, _ = image_shape
        remedy = f"needs square images, but they are {height} x {width} pixels; crop them first"
        require(height == width, "rotate90", remedy)
        return image_shape

    def __call__(self, example: Example, key: RandomKey) -> Example:
        quarter, half = jax.random.bernoulli(key, shape=(2,))

        def move(pixels: Array) -> Array:
            pixels = jnp.where(quarter, jnp.rot90(pixels), pixels)
            return jnp.where(half, pixels[::-1, ::-1], pixels)

        return map_grid(example, move)


def _window(pixels: Array, corner: Array, height: int, width: int) -> Array:
    """Returns `height` x `width` pixels of an array (rows, columns, ...) from a corner on."""
    starts = (corner[0], corner[1], *[0] * (pixels.ndim - 2))
    return jax.lax.dynamic_slice(pixels, starts, (height, width, *pixels.shape[2:]))


def _valid_corners(valid_mask: Bool[Array, "height width"], size: int) -> tuple[Array, Array]:
    """Returns the range of rows and columns, as first and one after the last, at which a tile holds
    the most valid pixels.
    """
    low, high = [], []
    for present in (valid_mask.any(1), valid_mask.any(0)):
        side = present.size
        first, end = jnp.argmax(present), side - jnp.argmax(present[::-1])
        low.append(jnp.minimum(first, side - size))
        high.append(jnp.maximum(end - size, low[-1]) + 1)
    return jnp.stack(low), jnp.stack(high)


def _resized_by_products(image: Array, corner: Array, sides: Array, *, size: int) -> Array:
    """Returns a part of an image at `size` x `size` pixels by two products of matrices that
    are mostly 0.
    """
    # Not jax.image.scale_and_translate, which would also read pixels outside the part.
    down, across = (
        _triangle(jnp.arange(length), size, corner[dim], sides[dim])
        for dim, length in enumerate(image.shape[:2])
    )
    return jnp.einsum("ih,hwc,jw->ijc", down, image, across, precision="highest")


def _resized_by_taps(image: Array, corner: Array, sides: Array, *, size: int) -> Array:
    """Returns the same, to float rounding, as sums of the few rows, then columns, that affect each
    pixel. On a CPU, the products take five to eight times as long.
    """
    for dim, length in enumerate(image.shape[:2]):
        start, scale = corner[dim], sides[dim] / size
        taps = min(math.ceil(2 * max(length / size, 1.0)) + 1, length)
        # The first pixel with its centre closer than the triangle's half width.
        first = start + (jnp.arange(size) + 0.5) * scale - jnp.maximum(scale, 1.0) - 0.5
        first = jnp.floor(first).astype(jnp.int32) + 1
        numbers = jnp.clip(first, 0, length - taps)[:, None] + jnp.arange(taps)
        # Behind barriers, because XLA:CPU would otherwise compute weights and rows again for each
        # value that uses them.
        numbers, weights = jax.lax.optimization_barrier(
            (numbers, _triangle(numbers, size, start, sides[dim]))
        )
        shape = [size if axis == dim else 1 for axis in range(3)]
        parts = [
            jnp.take(image, numbers[:, tap], dim, mode="clip") * weights[:, tap].reshape(shape)
            for tap in range(taps)
        ]
        image = jax.lax.optimization_barrier(sum(parts))
    return image


def _triangle(numbers: Array, size: int, start: Array, side: Array) -> Float[Array, "size numbers"]:
    """Returns the weight of each source pixel in each of `size` resized pixels. Only the `side`
    source pixels from `start` count.

    Args:
        numbers: numbers of the source pixels, the same for each resized pixel, or a row for each.
    """
    scale = side / size
    centres = start + (jnp.arange(size) + 0.5) * scale
    pixels = numbers + 0.5
    weights = jnp.maximum(1 - jnp.abs(pixels - centres[:, None]) / jnp.maximum(scale, 1.0), 0.0)
    weights = jnp.where((pixels > start) & (pixels < start + side), weights, 0.0)
    return weights / jnp.sum(weights, 1, keepdims=True)
