"""How does a map of features become smaller or larger? Pools and resizing, NHWC."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


def max_pool(
    x: Float[Array, "batch height width features"], size: int = 2, *, padding: int = 0
) -> Float[Array, "batch h w features"]:
    """The maxima of `size` x `size` windows, 2 pixels apart; a side shorter than a window stays as it is.

    Rows first, then columns, each the maximum of strided slices: on CPU the gradient takes a ninth of the time of Flax's pool. Of
    equals the first gets the gradient, as in PyTorch.
    """
    for axis in (1, 2):
        windows = (x.shape[axis] + 2 * padding - size) // 2 + 1
        if windows < 1:
            continue
        pads = [(padding, padding) if dim == axis else (0, 0) for dim in range(4)]
        padded = jnp.pad(x, pads, constant_values=-jnp.inf)
        taps = [jax.lax.slice_in_dim(padded, tap, tap + 2 * windows - 1, 2, axis) for tap in range(size)]
        x = functools.reduce(_maximum, taps)
    return x


def _maximum(x: Array, y: Array) -> Array:
    # The gradient of jnp.maximum asks which of both equals the result: none does where XLA computes one anew for the backward
    # pass, and rounds it differently.
    return jnp.where((x >= y) | jnp.isnan(x), x, y)


def adaptive_average_pool(x: Float[Array, "batch height width features"], size: int) -> Float[Array, "batch size size features"]:
    """Averages over `size` x `size` windows that cover the map evenly, whatever its size, as PyTorch's layer of that name does.

    Window i runs from floor(i n / size) to ceil((i + 1) n / size) of n rows; windows overlap where `size` does not divide n, and
    repeat rows where it is larger.
    """
    return _resample(x, _window_means(x.shape[1], size), _window_means(x.shape[2], size))


def resize_align_corners(
    x: Float[Array, "batch height width features"], size: tuple[int, int]
) -> Float[Array, "batch h w features"]:
    """Resizes bilinearly so that corner pixels stay corners, where `jax.image.resize` aligns the pixels' outer edges."""
    return _resample(x, _align_corners(x.shape[1], size[0]), _align_corners(x.shape[2], size[1]))


def _resample(x: Array, rows: np.ndarray, columns: np.ndarray) -> Array:
    # Matrix products and no gather: the gradient of a gather is a scatter, which is slow on every accelerator. Full precision, as
    # in jax.image.resize: these products are a small share of the work, and the default rounds their factors on some accelerators.
    for matrix, spec in ((rows, "oi,niwc->nowc"), (columns, "oi,nhic->nhoc")):
        if not np.array_equal(matrix, np.eye(*matrix.shape)):
            x = jnp.einsum(spec, jnp.asarray(matrix, x.dtype), x, precision=jax.lax.Precision.HIGHEST)
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
