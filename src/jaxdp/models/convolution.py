"""Convolves images, and adds up residual branches, in forms that are fast on XLA:CPU.

Other platforms get the plain operations and their gradients.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Array, Float

from jaxdp.models import winograd

# With fewer channels, Winograd's algorithm is slower if only the output is computed.
_FEWEST_CHANNELS_FORWARD = 64


def convolve_nhwc(
    x: Array, kernel: Array, strides: Any, padding: Any, local: bool = False, **_: Any
) -> Array:
    """Convolves images in NHWC layout; `nnx.Conv` accepts this function as `conv_general_dilated`.

    Args:
        x: images, of shape (batch, height, width, in).
        kernel: weights, of shape (rows, columns, in, out).
        strides: steps in pixels along height and width.
        padding: pairs of zeros before and after, along height and width.
        local: whether outputs that no step differentiates depend on no pixel outside their window,
            not even by rounding.
        **_: other arguments of Flax, which are the same for all convolutions of these models.
    """
    if x.shape[1] < kernel.shape[0] and x.shape[2] < kernel.shape[1]:
        return _convolve_small(x, kernel, tuple(strides), tuple(padding))
    return (convolve_locally if local else convolve)(x, kernel, tuple(strides), tuple(padding))


# Tiles of a large image rely on it.
convolve_nhwc_locally = functools.partial(convolve_nhwc, local=True)


def _convolve_small(x: Array, kernel: Array, strides: tuple[int, ...], padding: Any) -> Array:
    """Convolves an image smaller than the window as one matrix product, because most of each window
    would be padding.

    For such an image, XLA:CPU exchanges image and kernel. It takes a second for a 2x2 map of 512
    channels, and this function takes 7 ms.
    """
    sides = zip(x.shape[1:3], kernel.shape[:2], strides, padding, strict=True)
    rows, columns = (_taps(size, window, stride, *pads) for size, window, stride, pads in sides)
    parts = (jnp.asarray(rows, kernel.dtype), jnp.asarray(columns, kernel.dtype), kernel)
    # Exact: each sum has one term.
    matrix = jnp.einsum("ihr,jwc,rcfg->hwfijg", *parts, precision=jax.lax.Precision.HIGHEST)
    matrix = matrix.reshape(-1, len(rows) * len(columns) * kernel.shape[-1])
    flat = x.reshape(x.shape[0], matrix.shape[0])  # an exported program knows the batch as a symbol
    return (flat @ matrix).reshape(x.shape[0], len(rows), len(columns), kernel.shape[-1])


def _taps(size: int, window: int, stride: int, before: int, after: int) -> np.ndarray:
    """Returns which tap of the window at an output position is at an input position, as ones and
    zeros (output, input, tap).
    """
    outputs = (size + before + after - window) // stride + 1
    return np.stack([np.eye(size, window, before - stride * output) for output in range(outputs)])


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def convolve(
    x: Float[Array, "batch height width in"],
    kernel: Float[Array, "kh kw in out"],
    strides: tuple[int, ...],
    padding: Any,
) -> Float[Array, "batch h w out"]:
    """Convolves images, and computes the gradients, in the form that is fastest on the platform.

    For the gradient of the kernel, XLA:CPU would recompute the inputs of that gradient (batch
    norms, sums of branches) in the memory order of a transposed array. An optimization barrier
    makes it read the values that already exist.

    On CUDA, the gradient has the layout of the kernel. XLA:GPU would propagate cuDNN's layout to
    the update, which then could not overwrite the old parameters and would copy them.
    """
    if min(kernel.shape[2:]) < _FEWEST_CHANNELS_FORWARD:
        return plain(x, kernel, strides, padding)
    return _convolve_forward(x, kernel, strides, padding)[0]


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def convolve_locally(x: Array, kernel: Array, strides: tuple[int, ...], padding: Any) -> Array:
    """Convolves images as `convolve` does, but with the plain operation unless it is
    differentiated. No output then depends on a pixel outside its window.
    """
    return plain(x, kernel, strides, padding)


def plain(x: Array, kernel: Array, strides: tuple[int, ...], padding: Any) -> Array:
    """Convolves images in NHWC layout with JAX's own gradient."""
    return jax.lax.conv_general_dilated(
        x, kernel, strides, padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def _convolve_forward(
    x: Array, kernel: Array, strides: tuple[int, ...], padding: Any
) -> tuple[Array, tuple[Array, Array]]:
    default = functools.partial(plain, strides=strides, padding=padding)
    on_cpu = winograd.convolve if winograd.is_faster(x, kernel, strides, padding) else default
    return _choose(on_cpu, default, x, kernel), (x, kernel)


def _choose(on_cpu: Callable[..., Array], default: Callable[..., Array], *arrays: Array) -> Array:
    if on_cpu is default:  # saves the time to trace both
        return default(*arrays)
    return jax.lax.platform_dependent(*arrays, cpu=on_cpu, default=default)


def _convolve_backward(
    strides: tuple[int, ...], padding: Any, kept: tuple[Array, Array], of_y: Array
) -> tuple[Array, Array]:
    x, kernel = kept
    forward = functools.partial(plain, strides=strides, padding=padding)

    def of_image(kernel: Array, of_y: Array) -> Array:
        return jax.linear_transpose(lambda x: forward(x, kernel), x)(of_y)[0]

    def of_kernel(x: Array, of_y: Array) -> Array:
        return jax.linear_transpose(lambda kernel: forward(x, kernel), kernel)(of_y)[0]

    def on_cuda(x: Array, of_y: Array) -> Array:
        return with_layout_constraint(of_kernel(x, of_y), Layout(tuple(range(kernel.ndim))))

    def on_cpu(x: Array, of_y: Array) -> Array:
        return of_kernel(*jax.lax.optimization_barrier((x, of_y)))

    image_on_cpu, kernel_on_cpu = (
        (winograd.image_gradient, winograd.kernel_gradient)
        if winograd.is_faster(x, kernel, strides, padding)
        else (of_image, on_cpu)
    )
    return _choose(image_on_cpu, of_image, kernel, of_y), jax.lax.platform_dependent(
        x, of_y, cpu=kernel_on_cpu, cuda=on_cuda, default=of_kernel
    )


convolve.defvjp(_convolve_forward, _convolve_backward)
convolve_locally.defvjp(_convolve_forward, _convolve_backward)


@jax.custom_vjp
def computed_once(x: Array) -> Array:
    """Returns x. On a CPU, x and its gradient in a training step are kept in memory.

    XLA:CPU would add up all residual branches before x again for every operation that reads x, and
    in the gradient all branches after x. A step of PyramidNet 110 then takes 1.4 times as long.
    With jaxlib 0.10.2, processes ended at an evaluation if this function was left out.
    """
    return _keep(x)


def _keep(x: Array) -> Array:
    return _choose(jax.lax.optimization_barrier, lambda x: x, x)


computed_once.defvjp(lambda x: (_keep(x), None), lambda _, of_x: (_keep(of_x),))
