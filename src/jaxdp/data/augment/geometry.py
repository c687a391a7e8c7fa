"""Provides the augmentations that move whole pixels: crops, flips and quarter turns, of an image and its dense targets alike."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from jaxdp.data import augment
from jaxdp.data.augment import Example, Shape, is_dense, map_grid, require


@augment.register("pad_crop")
@dataclasses.dataclass(frozen=True)
class PadCrop:
    """Pads each side by `pixels` and crops to the original size at one of (2 pixels + 1)^2 places, drawn evenly.

    The padding is black, the stored 0 before normalization, or mirrored where pixels have targets.

    Source: He et al., Deep Residual Learning for Image Recognition, 2016, section 4.2.
    """

    pixels: float | int = 4

    def __post_init__(self) -> None:
        whole = isinstance(self.pixels, int) and self.pixels >= 1
        require(whole, f"pad_crop:{self.pixels}", "must be a whole number of pixels, 1 or more")

    def output_shape(self, image_shape: Shape) -> Shape:
        smallest = min(image_shape[:2])
        require(self.pixels < smallest, f"pad_crop:{self.pixels}", f"must be less than the {smallest} pixels of an image's side")
        return image_shape

    def __call__(self, example: Example, key: Key[Array, ""]) -> Example:
        pad = int(self.pixels)
        height, width = example["images"].shape[:2]
        corner = jax.random.randint(key, (2,), 0, 2 * pad + 1)
        mode = "symmetric" if is_dense(example) else "constant"

        def move(pixels: Array) -> Array:
            padded = jnp.pad(pixels, [(pad, pad)] * 2 + [(0, 0)] * (pixels.ndim - 2), mode=mode)
            return _window(padded, corner, height, width)

        return map_grid(example, move)


@augment.register("crop")
@dataclasses.dataclass(frozen=True)
class Crop:
    """Crops a random tile of `size` x `size` pixels from a larger image; evaluation sees whole images."""

    size: float | int

    def __post_init__(self) -> None:
        whole = isinstance(self.size, int) and self.size >= 1
        require(whole, f"crop:{self.size}", "must be a whole number of pixels, 1 or more")

    def output_shape(self, image_shape: Shape) -> Shape:
        size, (height, width, channels) = int(self.size), image_shape
        require(
            size <= min(height, width), f"crop:{size}", f"is larger than an image of {height} x {width} pixels; use a smaller crop"
        )
        return size, size, channels

    def __call__(self, example: Example, key: Key[Array, ""]) -> Example:
        size, (height, width) = int(self.size), example["images"].shape[:2]
        corner = jax.random.randint(key, (2,), 0, jnp.array([height - size + 1, width - size + 1]))
        return map_grid(example, lambda pixels: _window(pixels, corner, size, size))


@augment.register("flip")
@dataclasses.dataclass(frozen=True)
class Flip:
    """Swaps left and right with probability 1/2."""

    def __call__(self, example: Example, key: Key[Array, ""]) -> Example:
        coin = jax.random.bernoulli(key)
        return map_grid(example, lambda pixels: jnp.where(coin, pixels[:, ::-1], pixels))


@augment.register("flip_vertical")
@dataclasses.dataclass(frozen=True)
class FlipVertical:
    """Swaps top and bottom with probability 1/2."""

    def __call__(self, example: Example, key: Key[Array, ""]) -> Example:
        coin = jax.random.bernoulli(key)
        return map_grid(example, lambda pixels: jnp.where(coin, pixels[::-1], pixels))


@augment.register("rotate90")
@dataclasses.dataclass(frozen=True)
class Rotate90:
    """Rotates a square image by 0, 90, 180 or 270 degrees, each with probability 1/4."""

    def output_shape(self, image_shape: Shape) -> Shape:
        height, width, _ = image_shape
        require(height == width, "rotate90", f"needs square images, but they are {height} x {width} pixels; crop them first")
        return image_shape

    def __call__(self, example: Example, key: Key[Array, ""]) -> Example:
        quarter, half = jax.random.bernoulli(key, shape=(2,))

        def move(pixels: Array) -> Array:
            pixels = jnp.where(quarter, jnp.rot90(pixels), pixels)
            return jnp.where(half, pixels[::-1, ::-1], pixels)

        return map_grid(example, move)


def _window(pixels: Array, corner: Array, height: int, width: int) -> Array:
    starts = (corner[0], corner[1], *[0] * (pixels.ndim - 2))
    return jax.lax.dynamic_slice(pixels, starts, (height, width, *pixels.shape[2:]))
