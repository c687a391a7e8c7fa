"""Reads a window of an image at a place that each example draws, in the form that the platform
computes fast.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

# Values that selections may read of an example: 64 x 64 pixels in three channels with 9 x 9 places.
# Beyond, XLA:TPU's loop over the examples is predicted to be quicker.
_MOST_SELECTED = 2**18


def window(pixels: Array, corner: Int[Array, "2"], height: int, width: int) -> Array:
    """Returns `height` x `width` pixels of an array (rows, columns, ...), the first one at
    `corner`.

    Where examples differ in their corners, XLA:TPU makes of a dynamic slice a loop over the
    examples, whose steps cost more than their small slices. There each row, then each column, is
    selected from those of all places.

    Args:
        pixels: of one example; `jax.vmap` maps over the batch.
        corner: row and column, of which at least as many pixels are left.
        height: rows of the window.
        width: columns of the window.
    """
    free = [length - size for length, size in zip(pixels.shape, (height, width), strict=False)]
    if pixels.size * sum(free) > _MOST_SELECTED:
        return sliced(pixels, corner, height, width)
    on_tpu, elsewhere = (
        functools.partial(form, height=height, width=width) for form in (selected, sliced)
    )
    return jax.lax.platform_dependent(pixels, corner, tpu=on_tpu, default=elsewhere)


def sliced(pixels: Array, corner: Array, height: int, width: int) -> Array:
    """Returns the window as one dynamic slice."""
    starts = (corner[0], corner[1], *[0] * (pixels.ndim - 2))
    return jax.lax.dynamic_slice(pixels, starts, (height, width, *pixels.shape[2:]))


def selected(pixels: Array, corner: Array, height: int, width: int) -> Array:
    """Returns the window by a selection from the windows at all places, along one side and then
    along the other.
    """
    for axis, size in enumerate((height, width)):
        found = jax.lax.slice_in_dim(pixels, 0, size, axis=axis)
        for place in range(1, pixels.shape[axis] - size + 1):
            found = jnp.where(
                corner[axis] == place,
                jax.lax.slice_in_dim(pixels, place, place + size, axis=axis),
                found,
            )
        pixels = found
    return pixels
