"""Batch norm with a gradient that keeps no array of differences from the mean."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

Combine = Callable[[Array, Array], tuple[Array, Array]]
Moments = tuple[Float[Array, "groups features"], Float[Array, "groups features"]]


class BatchNorm(nnx.Module):
    """Normalizes each channel by the mean and variance of the examples that share statistics.

    The model does not determine which examples share statistics. `set_batch_norm` sets it from
    outside, for a whole model at once. Statistics are computed in at least float32, and stored in
    float32. The running variance averages biased variances, whereas PyTorch averages unbiased
    variances.

    Args:
        features: number of channels.
        momentum: weight of the old running statistics in an update.
        epsilon: added to the variance before its square root is taken.
        dtype: format of the output.

    Source: Ioffe and Szegedy 2015, algorithm 1; groups smaller than the batch: Hoffer et al. 2017,
    section 3.3.
    """

    def __init__(
        self, features: int, *, momentum: float = 0.9, epsilon: float = 1e-5, dtype: Any
    ) -> None:
        zeros, ones = np.zeros(features, np.float32), np.ones(features, np.float32)
        self.scale = nnx.Param(jax.device_put(ones))
        self.bias = nnx.Param(jax.device_put(zeros))
        self.mean = nnx.BatchStat(jax.device_put(zeros))
        self.var = nnx.BatchStat(jax.device_put(ones))
        self.momentum = momentum
        self.epsilon = epsilon
        self.dtype = dtype
        self.use_running_average = False
        self.group_size: int | None = None
        self.combine: Combine | None = None

    def __call__(
        self, x: Float[Array, "batch *space features"]
    ) -> Float[Array, "batch *space features"]:
        """Normalizes `x`, and in training updates the running statistics.

        Raises:
            ValueError: if the batch is not a multiple of `group_size`.
        """
        if self.use_running_average:
            return self._normalize(x, self.mean[...], self.var[...])
        group_size = self.group_size or x.shape[0]
        if x.shape[0] % group_size:
            raise ValueError(
                f"batch norm over groups of {group_size} examples needs a multiple of that, got"
                f" {x.shape[0]}"
            )
        grouped = x.reshape(-1, group_size, *x.shape[1:])
        mean, var = moments(
            grouped.astype(jnp.promote_types(self.dtype, jnp.float32)),
            grouped.dtype == jnp.bfloat16,
        )
        if self.combine is not None:
            mean, var = self.combine(mean, var)
        for running, value in ((self.mean, mean), (self.var, var)):
            new = self.momentum * running[...] + (1 - self.momentum) * jnp.mean(value, 0)
            # Not running[...], which compares shardings. To find that a traced array has no
            # sharding, JAX searches the whole trace.
            running.set_value(new.astype(running[...].dtype))
        return self._normalize(grouped, per_group(mean, grouped), per_group(var, grouped)).reshape(
            x.shape
        )

    def _normalize(self, x: Array, mean: Array, var: Array) -> Array:
        # One multiplication and one addition per element. All other operations are per channel.
        factor = self.scale[...] * jax.lax.rsqrt(var + self.epsilon)
        offset = self.bias[...] - mean * factor
        return (x * factor + offset).astype(self.dtype)


def norms(convs: Sequence[Any], dtype: Any) -> list[BatchNorm]:
    """Creates a batch norm for the output of each convolution."""
    return [BatchNorm(conv.out_features, dtype=dtype) for conv in convs]


def set_batch_norm(model: nnx.Module, *, group_size: int | None, combine: Combine | None) -> None:
    """Sets which examples share statistics, for all batch norms of a model.

    Args:
        model: the model. Other layers do not change.
        group_size: examples per group; None for all examples of a call.
        combine: returns, for each group of a call, the statistics of the larger group that contains
            it; None if the groups of a call are whole.
    """
    for _, module in nnx.iter_modules(model):
        if isinstance(module, BatchNorm):
            module.group_size, module.combine = group_size, combine


# The type of `jax.custom_vjp` hides the type of its result.
_custom_vjp: Any = functools.partial(jax.custom_vjp, nondiff_argnums=(1,))


@_custom_vjp
def moments(x: Float[Array, "groups batch *space features"], rounded: bool = False) -> Moments:
    """Returns the mean and the biased variance of each group's channels.

    JAX's own derivative of `jnp.var` keeps the differences from the mean, an array as large as `x`,
    for the backward pass, and passes over it several more times. Without this array, a step of
    PyramidNet moves a fifth fewer bytes through memory.

    Args:
        x: at least float32.
        rounded: whether `x` was bfloat16. Accelerators then compute both in one pass, which XLA
            fuses into the operation that computes `x`.
    """
    return (
        jax.lax.platform_dependent(x, cpu=two_passes, default=one_pass)
        if rounded
        else two_passes(x)
    )


def two_passes(x: Array) -> Moments:
    """Returns the mean, and the mean of the squared differences from it, which are accurate for a
    mean of any size.
    """
    mean = jnp.mean(x, range(1, x.ndim - 1))
    return mean, jnp.mean(jnp.square(x - per_group(mean, x)), range(1, x.ndim - 1))


def one_pass(x: Array) -> Moments:
    """Returns the moments from the sums of `x` and of its squares.

    The difference of E[x²] and E[x]² loses bits to a large mean: it is off by some 2^-24 E[x]² in
    float32. When `x` was rounded to the 8 bits of bfloat16, its variance changed by more, some
    2^-19 E[x]².
    """
    axes = range(1, x.ndim - 1)
    mean = jnp.mean(x, axes)
    return mean, jnp.maximum(jnp.mean(jnp.square(x), axes) - jnp.square(mean), 0)


def _moments_forward(x: Array, rounded: bool) -> tuple[Moments, tuple[Array, Array]]:
    found = moments(x, rounded)
    return found, (x, found[0])


def _moments_backward(
    rounded: bool, kept: tuple[Array, Array], cotangents: Moments
) -> tuple[Array]:
    (x, mean), (of_mean, of_var) = kept, cotangents
    count = x.size // mean.size
    slope = 2 * of_var / count
    # Not slope * (x - mean), because XLA would compute these differences in the forward pass and
    # keep them.
    return (x * per_group(slope, x) + per_group(of_mean / count - slope * mean, x),)


moments.defvjp(_moments_forward, _moments_backward)


def per_group(values: Float[Array, "groups features"], x: Array) -> Array:
    """Reshapes one value per group and channel so that it broadcasts against `x`, of shape (groups,
    batch, ..., features).
    """
    return values.reshape(len(values), *[1] * (x.ndim - 2), values.shape[-1])
