"""Convolves images with 3x3 kernels on a CPU, with a quarter of the multiplications.

The module cuts images into tiles of 6x6 pixels that overlap by two, and computes 4x4 outputs from
each tile. Along one side, a convolution is the transpose of a product of polynomials, which
requires one multiplication at each of five points and at infinity.

Source: Lavin and Gray 2016, Fast Algorithms for Convolutional Neural Networks, section 4, F(4x4,
3x3). The points determine the size of rounding errors (Barabasz et al. 2020, Error Analysis and
Improving the Accuracy of Winograd Convolution for Deep Neural Networks). The errors here are 1 to 5
times as large as XLA's in float32, measured for 16 to 256 channels; with the points 0, 1, -1, 2 and
-2 they are 2 to 11 times as large.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

_SIDE = 4  # outputs of a tile along a side
_POINTS = np.array([0, 0.5**0.5, -(0.5**0.5), 2**0.5, -(2**0.5)])
# With fewer channels, the transforms cost more than the products save, and compiling takes longer
# than a short training run gains.
_FEWEST_CHANNELS = 16
_FEWEST_PIXELS = 2**10  # of a batch
_FEWEST_PRODUCTS = 2**23  # pixels times channels in and out


def _powers(count: int) -> np.ndarray:
    """Returns the powers of each point that a polynomial of `count` coefficients has."""
    return np.concatenate([_POINTS[:, None] ** np.arange(count), np.eye(count)[-1:]])


_KERNEL = _powers(3)
_OUTPUT = _powers(_SIDE).T
_IMAGE = np.linalg.inv(_powers(_SIDE + 2)).T.round(12)  # some are 0


def is_faster(x: Array, kernel: Array, strides: Sequence[int], padding: Any) -> bool:
    """Returns whether Winograd's algorithm computes this convolution and its gradients faster on a
    CPU.
    """
    pixels = math.prod(x.shape[:3])
    return (
        isinstance(pixels, int)  # a symbol in an exported program
        and x.dtype == jnp.float32
        and kernel.shape[:2] == (3, 3)
        and (*strides, *padding) == (1, 1, (1, 1), (1, 1))
        and min(kernel.shape[2:]) >= _FEWEST_CHANNELS
        and pixels >= _FEWEST_PIXELS
        and pixels * math.prod(kernel.shape[2:]) >= _FEWEST_PRODUCTS
    )


def convolve(
    x: Float[Array, "batch height width in"], kernel: Float[Array, "3 3 in out"]
) -> Float[Array, "batch height width out"]:
    """Convolves images padded by one pixel on each side."""
    batch, height, width, _ = x.shape
    rows, columns = _count_tiles(height), _count_tiles(width)
    products = jax.lax.batch_matmul(_image_tiles(x), _transform(_KERNEL, kernel))
    y = _transform(_OUTPUT, products).reshape(_SIDE, _SIDE, batch, rows, columns, -1)
    y = y.transpose(2, 3, 0, 4, 1, 5).reshape(batch, rows * _SIDE, columns * _SIDE, -1)
    return y[:, :height, :width]


def image_gradient(
    kernel: Float[Array, "3 3 in out"], of_y: Float[Array, "batch height width out"]
) -> Float[Array, "batch height width in"]:
    """Returns the gradient of the images from the kernel and the gradient of the output."""
    return convolve(of_y, kernel[::-1, ::-1].swapaxes(2, 3))


def kernel_gradient(
    x: Float[Array, "batch height width in"], of_y: Float[Array, "batch height width out"]
) -> Float[Array, "3 3 in out"]:
    """Returns the gradient of the kernel from the images and the gradient of the output."""
    sum_over_tiles = (((1,), (1,)), ((0,), (0,)))
    of_kernel = jax.lax.dot_general(_image_tiles(x), _output_tiles(of_y), sum_over_tiles)
    return _transform(_KERNEL.T, of_kernel).reshape(3, 3, *of_kernel.shape[1:])


def _count_tiles(side: int) -> int:
    return -(-side // _SIDE)


def _tiles(x: Array, matrix: np.ndarray, before: int) -> Float[Array, "values tiles channels"]:
    """Cuts images into tiles and multiplies the sides of each tile by a matrix.

    Args:
        x: images.
        matrix: of shape (values, pixels of a tile) along a side.
        before: rows and columns of zeros before the first pixel.
    """
    size = matrix.shape[1]
    spans = [(_count_tiles(side) - 1) * _SIDE + 1 for side in x.shape[1:3]]
    after = [
        span + size - 1 - side - before for span, side in zip(spans, x.shape[1:3], strict=True)
    ]
    # Without a barrier, XLA:CPU would compute the values once for each part of a sum.
    x = jnp.pad(
        jax.lax.optimization_barrier(x), ((0, 0), *((before, end) for end in after), (0, 0))
    )
    # Operators of JAX's arrays take three times as long to trace as these functions.
    for span in reversed(spans):  # columns, then rows; each adds a dim in front
        parts = [
            jax.lax.slice_in_dim(x, start, start + span, _SIDE, axis=2) for start in range(size)
        ]
        values = [
            functools.reduce(jax.lax.add, (jax.lax.mul(parts[i], row[i]) for i in row.nonzero()[0]))
            for row in matrix.astype(np.float32)
        ]
        stacked = jax.lax.concatenate([jax.lax.expand_dims(value, (0,)) for value in values], 0)
        x = jax.lax.optimization_barrier(stacked)
    return x.reshape(len(matrix) ** 2, -1, x.shape[-1])


# Traced once for each shape. Layers of the same size share the trace, and so do a layer and its
# gradient.
_image_tiles = jax.jit(functools.partial(_tiles, matrix=_IMAGE, before=1))
_output_tiles = jax.jit(functools.partial(_tiles, matrix=_OUTPUT.T, before=0))


def _transform(matrix: np.ndarray, x: Array) -> Float[Array, "values m n"]:
    """Multiplies both sides of a small square by a matrix. The elements of the square are matrices
    (m, n).
    """
    both = np.kron(matrix, matrix).astype(np.float32)
    return jax.lax.dot(both, x.reshape(both.shape[1], -1)).reshape(-1, *x.shape[-2:])
