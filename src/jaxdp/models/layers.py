"""Provides the layers that the models share. Arrays are NHWC, and layers do not depend on
devices.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Key

from jaxdp.models import convolution, initializers
from jaxdp.models.batch_norm import BatchNorm as BatchNorm
from jaxdp.models.batch_norm import Combine as Combine
from jaxdp.models.batch_norm import norms as norms
from jaxdp.models.batch_norm import set_batch_norm as set_batch_norm


def conv(  # noqa: PLR0913 - a layer's constructor
    in_features: int,
    features: int,
    size: int,
    *,
    stride: int = 1,
    padding: int | None = None,
    bias: bool = False,
    local: bool = False,
    kernel_init: initializers.Initializer = initializers.he_normal_fan_out,
    dtype: Any,
    rngs: nnx.Rngs,
) -> nnx.Conv:
    """Creates a square convolution with equal padding on both sides, as in PyTorch (Flax's SAME
    pads one side at stride 2).

    Args:
        in_features: channels of the input.
        features: channels of the output.
        size: rows and columns of the kernel.
        stride: step in pixels along both sides.
        padding: rows and columns of zeros on each side; None for the padding that keeps the size at
            stride 1.
        bias: whether to add a bias; it starts at 0.
        local: whether evaluated outputs depend on no pixel outside their window, not even by
            rounding.
        kernel_init: initializer of the kernel.
        dtype: format of the computation; parameters are float32.
        rngs: source of the initial kernel.
    """
    pad = size // 2 if padding is None else padding
    return nnx.Conv(
        in_features,
        features,
        (size, size),
        strides=stride,
        padding=[(pad, pad), (pad, pad)],
        use_bias=bias,
        dtype=dtype,
        kernel_init=kernel_init,
        bias_init=initializers.zeros,
        rngs=rngs,
        conv_general_dilated=(
            convolution.convolve_nhwc_locally if local else convolution.convolve_nhwc
        ),
    )


class ConvStack(nnx.Module):
    """3x3 convolutions, each followed by batch norm, if the stack has any, and ReLU.

    Args:
        widths: channels of the input, and of the output of each convolution.
        batch_norm: whether batch norm follows each convolution.
        dtype: format of the computation.
        **options: of `conv`.
    """

    def __init__(
        self, widths: Sequence[int], *, batch_norm: bool, dtype: Any, **options: Any
    ) -> None:
        pairs = itertools.pairwise(widths)
        self.convs = nnx.List([conv(*pair, 3, dtype=dtype, **options) for pair in pairs])
        self.norms = nnx.List(norms(self.convs, dtype) if batch_norm else [])

    def __call__(
        self, x: Float[Array, "batch height width in"]
    ) -> Float[Array, "batch h w features"]:
        for position, conv in enumerate(self.convs):
            x = conv(x)
            x = nnx.relu(self.norms[position](x) if self.norms else x)
        return x


class ResidualUnit(nnx.Module):
    """The convolutions of a residual unit (two 3x3, or three in a bottleneck) and their norms.

    A bottleneck has a 1x1, a 3x3, and a 1x1 to four times the width. The first 3x3 strides.

    Args:
        in_features: channels of the input.
        width: channels of the 3x3 convolutions.
        bottleneck: whether the unit is a bottleneck.
        stride: step in pixels along both sides.
        dtype: format of the computation.
        rngs: source of the initial kernels.
        local: as of `conv`.

    Attributes:
        features: channels of the output.
    """

    def __init__(
        self,
        in_features: int,
        width: int,
        *,
        bottleneck: bool,
        stride: int,
        dtype: Any,
        rngs: nnx.Rngs,
        local: bool = False,
    ) -> None:
        # (kernel size, features, stride) of each convolution
        shapes = [(3, width, stride), (3, width, 1)]
        if bottleneck:
            shapes = [(1, width, 1), (3, width, stride), (1, 4 * width, 1)]
        self.features, self.convs = shapes[-1][1], nnx.List([])
        for size, features, step in shapes:
            options: dict[str, Any] = {"stride": step, "local": local, "dtype": dtype}
            self.convs.append(conv(in_features, features, size, rngs=rngs, **options))
            in_features = features
        self.norms = nnx.List(norms(self.convs, dtype))

    def branch(self, x: Array, norms: Sequence[BatchNorm]) -> Array:
        """Returns the convolutions of x with a norm after each and ReLU in between."""
        for position, (conv, norm) in enumerate(zip(self.convs, norms, strict=True)):
            x = norm(conv(x if position == 0 else nnx.relu(x)))
        return x


def dense(in_features: int, features: int, *, dtype: Any, rngs: nnx.Rngs) -> nnx.Linear:
    """Creates a dense layer with bias.

    Both start from U(-1/sqrt(in), 1/sqrt(in)), as in PyTorch.
    """
    bias = initializers.host_initializer(
        lambda rng, shape: initializers.draw_uniform_fan_in(rng, (in_features, *shape))[0]
    )
    return nnx.Linear(
        in_features,
        features,
        dtype=dtype,
        kernel_init=initializers.uniform_fan_in,
        bias_init=bias,
        rngs=rngs,
    )


def float32_or_wider(outputs: Array) -> Array:
    """Returns the outputs of a model as float32, or as float64 if it computes in float64."""
    return outputs.astype(jnp.promote_types(outputs.dtype, jnp.float32))


def run_blocks(model: nnx.Module, blocks: Sequence[Any], x: Array, *args: Any) -> Array:
    """Calls a model's blocks one after the other, and keeps the activations for the backward pass
    that the model's attribute `remat` allows: all, or with `blocks` none inside of a block.

    Args:
        model: the model. A train step sets its attribute `remat`.
        blocks: modules that map an array to the next block's input.
        x: the first block's input.
        *args: further arguments of every block, e.g. the keys of the examples.

    Source: Chen et al. 2016, section 4.
    """
    remat = getattr(model, "remat", "none") == "blocks"
    for block in blocks:
        if remat:
            x = nnx.remat(lambda block, *inputs: block(*inputs))(block, x, *args)
        else:
            x = block(x, *args)
        x = convolution.computed_once(x)
    return x


class Stochastic(nnx.Module):
    """Base class of layers that draw random numbers per example.

    In training, a layer is called with one key per example, so that the numbers for an example
    depend neither on other examples nor on the device. Called without keys, a layer draws them from
    the model's own `nnx.Rngs`, as NNX layers do.

    Args:
        rate: probability of a change of an example; a layer with the rate 0 changes nothing.
        index: identifies the layer in its model: layers with the same index draw the same
            numbers.
        rngs: serves calls without keys, from its stream `dropout`; not used for the rate 0.
    """

    def __init__(self, rate: float | int, *, index: int, rngs: nnx.Rngs) -> None:
        self.rate = rate
        self.index = index
        self.rngs = rngs.fork() if rate else None
        self.deterministic = False

    def keys(self, keys: Key[Array, "batch"] | None, batch: int) -> Key[Array, "batch"]:
        """Returns this layer's key for each example, from the examples' keys or, without these,
        from `nnx.Rngs`.
        """
        if keys is None:
            assert self.rngs is not None
            return jax.random.split(self.rngs.dropout(), batch)
        return jax.vmap(jax.random.fold_in, (0, None))(keys, self.index)


class Dropout(Stochastic):
    """Zeroes features with probability `rate` in training, and scales the others up to keep the
    mean.

    Source: Srivastava et al. 2014.
    """

    def __call__(
        self, x: Float[Array, "batch *rest"], keys: Key[Array, "batch"] | None
    ) -> Float[Array, "batch *rest"]:
        if self.deterministic or self.rate == 0:
            return x
        kept = jax.vmap(lambda key: jax.random.bernoulli(key, 1 - self.rate, x.shape[1:]))(
            self.keys(keys, x.shape[0])
        )
        return jnp.where(kept, x / (1 - self.rate), 0).astype(x.dtype)


class ShakeDrop(Stochastic):
    """Scales a residual branch at random: forward by b + alpha - b alpha, backward by b + beta - b
    beta, drawn per example.

    Here b is 1 with probability 1 - rate, and 0 otherwise; alpha is uniform in [-1, 1] and beta in
    [0, 1]. Evaluation scales by the mean, 1 - rate.

    Source: Yamada et al. 2019, equations 6 and 7, the variant drawn per image.
    """

    def __call__(
        self, x: Float[Array, "batch *rest"], keys: Key[Array, "batch"] | None
    ) -> Float[Array, "batch *rest"]:
        if self.rate == 0:
            return x
        keep = 1 - self.rate
        if self.deterministic:
            return x * jnp.asarray(keep, x.dtype)

        def draw(key: Key[Array, ""]) -> tuple[Array, Array]:
            gate, alpha, beta = jax.random.uniform(key, (3,))
            passes = gate < keep
            return jnp.where(passes, 1.0, 2 * alpha - 1), jnp.where(passes, 1.0, beta)

        forward, backward = (
            factor.astype(x.dtype).reshape(-1, *[1] * (x.ndim - 1))
            for factor in jax.vmap(draw)(self.keys(keys, x.shape[0]))
        )
        return x * backward + jax.lax.stop_gradient(x * (forward - backward))


def shortcut(
    x: Float[Array, "batch height width in"], features: int, stride: int
) -> Float[Array, "batch h w features"]:
    """Returns the parameter-free shortcut of a unit: an average pool at stride 2, then zeros after
    the existing channels.

    The pool is 2x2 with stride 2 and keeps an odd last row and column. Their windows average over
    real pixels only.

    Source: Han et al. 2017, section 3.3; ceil mode as in the authors' code.
    """
    if stride == 2:
        odd: Any = [(0, size % 2) for size in x.shape[1:3]]  # Flax's annotation allows only names
        # The counts are float32.
        x = nnx.avg_pool(x, (2, 2), (2, 2), padding=odd, count_include_pad=False).astype(x.dtype)
    return jnp.pad(x, ((0, 0), (0, 0), (0, 0), (0, features - x.shape[-1])))
