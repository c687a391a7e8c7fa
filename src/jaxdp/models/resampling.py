"""Provides pooling and resizing of feature maps, in NHWC layout."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped


def max_pool(
    x: Float[Array, "batch height width features"], size: int = 2, *, padding: int = 0
) -> Float[Array, "batch h w features"]:
    """Returns the maxima of `size` x `size` windows, 2 pixels apart.

    A side shorter than a window keeps its length.

    Rows are pooled first, then columns, each as a maximum of strided slices. On a CPU, the gradient
    takes a ninth of the time of Flax's pool. Among equal pixels, the first gets the gradient, as in
    PyTorch.

    Args:
        x: a feature map.
        size: rows and columns of a window.
        padding: rows and columns on each side, which never are a maximum.
    """
    for axis in (1, 2):
        windows = (x.shape[axis] + 2 * padding - size) // 2 + 1
        if windows < 1:
            continue
        pads = [(padding, padding) if dim == axis else (0, 0) for dim in range(4)]
        padded = jnp.pad(x, pads, constant_values=-jnp.inf)
        taps = [
            jax.lax.slice_in_dim(padded, tap, tap + 2 * windows - 1, 2, axis) for tap in range(size)
        ]
        x = functools.reduce(_maximum, taps)
    return x


def _maximum(x: Array, y: Array) -> Array:
    # The gradient of jnp.maximum goes to the side that equals the result. Neither side does if XLA
    # recomputes one side for the backward pass and rounds it differently.
    return jnp.where((x >= y) | jnp.isnan(x), x, y)


def adaptive_average_pool(
    x: Float[Array, "batch height width features"], size: int
) -> Float[Array, "batch size size features"]:
    """Averages over `size` x `size` windows that cover a map of any size evenly, as in PyTorch's
    layer with this name.

    Window i covers rows floor(i n / size) to ceil((i + 1) n / size) of n rows. Windows overlap if
    `size` does not divide n, and repeat rows if `size` is larger than n.
    """
    return _resample(x, _window_means(x.shape[1], size), _window_means(x.shape[2], size))


def center_crop(
    x: Shaped[Any, "batch height width *rest"], like: Shaped[Any, "batch h w *others"]
) -> Shaped[Any, "batch h w *rest"]:
    """Crops a map, of JAX or NumPy, to the height and width of another one, in its centre."""
    rows, columns = like.shape[1:3]
    top, left = (x.shape[1] - rows) // 2, (x.shape[2] - columns) // 2
    return x[:, top : top + rows, left : left + columns]


def resize_align_corners(
    x: Float[Array, "batch height width features"], size: tuple[int, int]
) -> Float[Array, "batch h w features"]:
    """Resizes bilinearly with the centres of the corner pixels aligned.

    `jax.image.resize` aligns the outer edges of pixels.
    """
    return _resample(x, _align_corners(x.shape[1], size[0]), _align_corners(x.shape[2], size[1]))


def _resample(x: Array, rows: np.ndarray, columns: np.ndarray) -> Array:
    # Matrix products instead of a gather, because the gradient of a gather is a scatter, which is
    # slow on every accelerator. They use full precision, as in jax.image.resize, because they are a
    # small share of the work and some accelerators round the factors by default.
    for matrix, spec in ((rows, "oi,niwc->nowc"), (columns, "oi,nhic->nhoc")):
        if not np.array_equal(matrix, np.eye(*matrix.shape)):
            x = jnp.einsum(
                spec, jnp.asarray(matrix, x.dtype), x, precision=jax.lax.Precision.HIGHEST
            )
    return x


def _window_means(size: int, windows: int) -> np.ndarray:
    matrix = np.zeros((windows, size))
    for index in range(windows):
        window = slice(index * size // windows, -(-(index + 1) * size // windows))
        matrix[index, window] = 1 / (window.stop - window.start)
    return matrix


def _align_corners(size: int, new_size: int) -> np.ndarray:
    positions = np.linspace(0, size - 1, new_size)
    return np.maximum(0, 1 - np.abs(positions[:, None] - np.arange(size)))
