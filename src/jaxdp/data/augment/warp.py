"""Provides the augmentations that move pixels by fractions: shifts, rotations, affine and elastic
deformations.

Each augmentation maps a pixel of the result to a position in the original. Images and dense targets
are interpolated bilinearly between the four pixels around the position. Masks, and the weights of
their pixels, use the nearest pixel. The area outside the border is black, or the mirrored image if
pixels have targets.
"""

import abc
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped

from jaxdp.data.augment.words import (
    DEGREES,
    FRACTION,
    Augmentation,
    Example,
    Number,
    RandomKey,
    Shape,
    check_side,
    is_dense,
    map_grid,
    register,
    require,
)

# Rows, or columns, in the original, in pixels.
Coordinates = Float[Array, "h w"]
Positions = tuple[Coordinates, Coordinates]


class Warp(Augmentation):
    """An augmentation that reads each pixel from a position in the original."""

    @abc.abstractmethod
    def positions(self, height: int, width: int, key: RandomKey) -> Positions:
        """Returns the position in the original of each pixel."""

    def __call__(self, example: Example, key: RandomKey) -> Example:
        height, width = example["images"].shape[:2]
        rows, columns = self.positions(height, width, key)

        def move(pixels: Array) -> Array:
            # Masks and the weights of their pixels have no channels.
            sample = sample_bilinear if pixels.ndim == 3 else sample_nearest
            return sample(pixels, rows, columns)

        out = map_grid(example, move)
        if is_dense(example):
            return out
        # The half pixel around the outermost centres still belongs to the image.
        down, right = jnp.abs(rows - (height - 1) / 2), jnp.abs(columns - (width - 1) / 2)
        inside = (down <= height / 2) & (right <= width / 2)
        return out | {"images": jnp.where(inside[..., None], out["images"], 0.0)}


@register("shift")
class Shift(Warp):
    """Moves an image by up to `pixels`, including fractions, drawn uniformly for each direction.

    Crops by whole pixels are more usual, but remove at least an eighth of an 8x8 digit.
    """

    pixels: Number = 1.0

    def output_shape(self, image_shape: Shape) -> Shape:
        return check_side("shift", self.pixels, image_shape)

    def positions(self, height: int, width: int, key: RandomKey) -> Positions:
        offset = jax.random.uniform(key, (2,), minval=-self.pixels, maxval=self.pixels)
        rows, columns = jnp.indices((height, width), float)
        return rows - offset[0], columns - offset[1]


@register("rotate", DEGREES)
class Rotate(Warp):
    """Rotates an image about its centre by an angle drawn uniformly from -`degrees` to
    `degrees`.
    """

    degrees: Number = 15

    def positions(self, height: int, width: int, key: RandomKey) -> Positions:
        bound = math.radians(self.degrees)
        angle = jax.random.uniform(key, minval=-bound, maxval=bound)
        return _map_affine(height, width, _rotation(angle), jnp.zeros(2))


@register("affine", FRACTION)
class Affine(Warp):
    """Scales, shears, rotates and translates an image about its centre, each by a random amount up
    to a limit set by `strength`.

    At 0.1, height and width are each divided or multiplied by up to 1.1, uniformly in the
    logarithm. The image is sheared by up to 0.1 pixels per pixel, and rotated by up to 0.1 right
    angles (9 degrees). It is moved by up to 0.1 of its height and width.
    """

    strength: Number = 0.1

    def positions(self, height: int, width: int, key: RandomKey) -> Positions:
        draws = jax.random.uniform(key, (6,), minval=-1.0, maxval=1.0)
        scale = jnp.diag(jnp.exp(draws[:2] * math.log1p(self.strength)))
        shear = jnp.eye(2).at[1, 0].set(draws[2] * self.strength)
        matrix = _product(_product(_rotation(draws[3] * self.strength * math.pi / 2), shear), scale)
        offset = draws[4:] * self.strength * jnp.array([height, width])
        return _map_affine(height, width, matrix, offset)


@register("elastic")
class Elastic(Warp):
    """Deforms an image by random displacements at 3 x 3 points from corner to corner, interpolated
    smoothly in between.

    Both components of a displacement are drawn from a Gaussian with a standard deviation of
    `pixels`, for images of any size.

    Source: Ronneberger et al., U-Net, 2015, section 3.1, with 10 pixels for images of 512 x 512.
    The paper does not state which bicubic interpolation it uses. This is Keys's (Cubic Convolution
    Interpolation for Digital Image Processing, 1981), with weights that are scaled to sum to 1 at
    the border.
    """

    pixels: Number = 10

    def output_shape(self, image_shape: Shape) -> Shape:
        remedy = "needs images of at least 2 x 2 pixels"
        require(min(image_shape[:2]) > 1, f"elastic:{self.pixels}", remedy)
        return image_shape

    def positions(self, height: int, width: int, key: RandomKey) -> Positions:
        coarse = self.pixels * jax.random.normal(key, (3, 3, 2))
        down, right = _cubic_weights(height).T, _cubic_weights(width).T
        # Term by term, because a matrix product rounds differently in batches of another size, and
        # rounding can flip a pixel of a mask.
        nothing = jnp.zeros(())
        stripes = sum((down[i, :, None, None] * coarse[i] for i in range(3)), nothing)
        fine = sum((right[i, :, None] * stripes[:, None, i] for i in range(3)), nothing)
        rows, columns = jnp.indices((height, width), float)
        return rows + fine[..., 0], columns + fine[..., 1]


def sample_bilinear(
    image: Float[Array, "height width channels"], rows: Coordinates, columns: Coordinates
) -> Float[Array, "h w channels"]:
    """Interpolates an image at fractional positions.

    Outside its border, the image is mirrored, with the edge pixels repeated.
    """
    height, width, channels = image.shape
    # One index gathers all channels, which is 7 times as fast as one channel at a time.
    pixels = image.reshape(height * width, channels)
    top, left = jnp.floor(rows), jnp.floor(columns)
    down, right = (rows - top)[..., None], (columns - left)[..., None]

    def tap(row: Coordinates, column: Coordinates) -> Float[Array, "h w channels"]:
        return pixels[_mirror(row, height) * width + _mirror(column, width)]

    upper = (1 - right) * tap(top, left) + right * tap(top, left + 1)
    lower = (1 - right) * tap(top + 1, left) + right * tap(top + 1, left + 1)
    return (1 - down) * upper + down * lower


def sample_nearest(
    mask: Shaped[Array, "height width"], rows: Coordinates, columns: Coordinates
) -> Shaped[Array, "h w"]:
    """Returns the pixels of a mask that are nearest to fractional positions.

    Outside its border, the mask is mirrored.
    """
    height, width = mask.shape
    return mask[_mirror(jnp.floor(rows + 0.5), height), _mirror(jnp.floor(columns + 0.5), width)]


def _mirror(index: Coordinates, size: int) -> Int[Array, "h w"]:
    """Maps whole numbers beyond 0 .. size - 1 back inside: -1 to 0, -2 to 1, size to size - 1."""
    index = index.astype(jnp.int32) % (2 * size)
    return jnp.minimum(index, 2 * size - 1 - index)


def _cubic_weights(size: int) -> Float[Array, "size 3"]:
    """Returns for each pixel the weights of three points, from the first pixel to the last."""
    # Pixel i is at point i / scale. JAX's function counts from the edges of pixels, half a pixel
    # before their centres.
    scale = jnp.full(1, (size - 1) / 2)
    return jax.image.scale_and_translate(
        jnp.eye(3), (size, 3), (0,), scale, 0.5 - scale / 2, "cubic", antialias=False
    )


def _map_affine(
    height: int, width: int, matrix: Float[Array, "2 2"], offset: Float[Array, "2"]
) -> Positions:
    """Multiplies each pixel's (row, column), counted from the centre of the image, by the matrix,
    and adds the offset.
    """
    rows, columns = jnp.indices((height, width), float)
    down, right = rows - (height - 1) / 2, columns - (width - 1) / 2
    moved_down = matrix[0, 0] * down + matrix[0, 1] * right + offset[0]
    moved_right = matrix[1, 0] * down + matrix[1, 1] * right + offset[1]
    return moved_down + (height - 1) / 2, moved_right + (width - 1) / 2


def _rotation(angle: Float[Array, ""]) -> Float[Array, "2 2"]:
    cosine, sine = jnp.cos(angle), jnp.sin(angle)
    return jnp.array([[cosine, -sine], [sine, cosine]])


def _product(left: Float[Array, "2 2"], right: Float[Array, "2 2"]) -> Float[Array, "2 2"]:
    # Accelerators round by default, which moves corners by whole pixels.
    return jnp.matmul(left, right, precision="highest")
