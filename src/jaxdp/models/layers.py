"""Which layers do the models share? NHWC; a layer knows no device.

Weights are drawn with NumPy on the host: drawing them with JAX would compile once per shape, and each unit of a PyramidNet has
shapes of its own (40 s for 110 layers).
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Key

Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
Initializer = Callable[..., jax.Array]


def host_initializer(draw: Draw) -> Initializer:
    """Makes a Flax initializer of a NumPy draw; the same key gives the same numbers eagerly, under jit and under eval_shape."""

    def initialize(key: Key[Array, ""], shape: tuple[int, ...], dtype: Any = jnp.float32, out_sharding: Any = None) -> jax.Array:
        def on_host(data: Any) -> np.ndarray:
            return draw(np.random.default_rng(np.asarray(data)), tuple(shape)).astype(dtype)

        data = jax.random.key_data(key)
        if isinstance(data, jax.core.Tracer):
            return jax.pure_callback(on_host, jax.ShapeDtypeStruct(shape, dtype), data)
        return jax.device_put(on_host(data))  # jnp.asarray would compile a copy

    return initialize


def _he_normal_fan_out(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    height, width, _, features = shape
    return rng.standard_normal(shape, np.float32) * np.float32(np.sqrt(2.0 / (height * width * features)))


def _uniform_fan_in(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    bound = 1.0 / np.sqrt(shape[0])
    return rng.uniform(-bound, bound, shape)


he_normal_fan_out = host_initializer(_he_normal_fan_out)
uniform_fan_in = host_initializer(_uniform_fan_in)


def conv(
    in_features: int, features: int, size: int, *, stride: int = 1, padding: int | None = None, dtype: Any, rngs: nnx.Rngs
) -> nnx.Conv:
    """A square convolution without bias that pads both sides alike, as PyTorch does (Flax's SAME pads one side at stride 2)."""
    pad = size // 2 if padding is None else padding
    return nnx.Conv(
        in_features, features, (size, size), strides=stride, padding=[(pad, pad), (pad, pad)], use_bias=False, dtype=dtype,
        kernel_init=he_normal_fan_out, rngs=rngs,
    )  # fmt: skip


def dense(in_features: int, features: int, *, dtype: Any, rngs: nnx.Rngs) -> nnx.Linear:
    """A dense layer with bias; both are drawn from U(-1/sqrt(in), 1/sqrt(in)), as PyTorch does."""
    bias = host_initializer(lambda rng, shape: _uniform_fan_in(rng, (in_features, *shape))[0])
    return nnx.Linear(in_features, features, dtype=dtype, kernel_init=uniform_fan_in, bias_init=bias, rngs=rngs)


class BatchNorm(nnx.Module):
    """Normalizes each channel by the mean and variance of the examples that share statistics.

    Which examples do is not the model's business: `set_batch_norm` says it from outside, for a whole model at once.
    Statistics are computed in float32 at least, and kept in it. The running variance averages biased variances, where PyTorch's
    is unbiased.

    Source: Ioffe and Szegedy 2015, algorithm 1; groups smaller than the batch: Hoffer et al. 2017, section 3.3.
    """

    def __init__(self, features: int, *, momentum: float = 0.9, epsilon: float = 1e-5, dtype: Any) -> None:
        zeros, ones = np.zeros(features, np.float32), np.ones(features, np.float32)
        self.scale = nnx.Param(jax.device_put(ones))
        self.bias = nnx.Param(jax.device_put(zeros))
        self.mean = nnx.BatchStat(jax.device_put(zeros))
        self.var = nnx.BatchStat(jax.device_put(ones))
        self.momentum, self.epsilon, self.dtype = momentum, epsilon, dtype
        self.use_running_average = False
        self.group_size: int | None = None
        self.share: Callable[[Any], Any] | None = None

    def __call__(self, x: Float[Array, "batch *space features"]) -> Float[Array, "batch *space features"]:
        """Raises ValueError if groups of `group_size` do not divide the batch."""
        if self.use_running_average:
            return self._normalize(x, self.mean[...], self.var[...])
        group_size = self.group_size or x.shape[0]
        if x.shape[0] % group_size:
            raise ValueError(f"batch norm over groups of {group_size} examples needs a multiple of it, got {x.shape[0]}")
        grouped = x.reshape(-1, group_size, *x.shape[1:])
        axes = tuple(range(1, x.ndim))
        wide = grouped.astype(jnp.promote_types(self.dtype, jnp.float32))
        mean = jnp.mean(wide, axes)
        if self.share is None:
            var = jnp.var(wide, axes)
        else:
            # The variance of a union from its parts (Chan et al. 1979): no cancellation, unlike E[x²] - E[x]².
            local_mean, mean = mean, self.share(mean)
            var = self.share(jnp.var(wide, axes) + jnp.square(local_mean - mean))
        self._update(mean, var)
        spread = (slice(None), *([None] * (x.ndim - 1)))
        return self._normalize(grouped, mean[spread], var[spread]).reshape(x.shape)

    def _update(self, mean: Float[Array, "groups features"], var: Float[Array, "groups features"]) -> None:
        for running, value in ((self.mean, mean), (self.var, var)):
            new = self.momentum * running[...] + (1 - self.momentum) * jnp.mean(value, 0)
            running[...] = new.astype(jnp.float32)

    def _normalize(self, x: Array, mean: Array, var: Array) -> Array:
        # One multiply and one add per element: everything else is per channel.
        factor = self.scale[...] * jax.lax.rsqrt(var + self.epsilon)
        offset = self.bias[...] - mean * factor
        return (x * factor + offset).astype(self.dtype)


def set_batch_norm(model: nnx.Module, *, group_size: int | None, share: Callable[[Any], Any] | None) -> None:
    """Says for all batch norms of a model which examples share statistics.

    Args:
        group_size: examples per group; None for all that the model is called with.
        share: averages statistics with other programs' (for statistics over the global batch); None to keep to oneself.
    """
    for _, module in nnx.iter_modules(model):
        if isinstance(module, BatchNorm):
            module.group_size, module.share = group_size, share


class Stochastic(nnx.Module):
    """Base of layers that draw one random number per example.

    In training a layer is called with one key per example, so that what an example meets depends neither on its neighbours nor
    on the device. Called without keys it draws them from the model's own `nnx.Rngs`, as NNX layers do.
    """

    def __init__(self, index: int, rngs: nnx.Rngs) -> None:
        self.index = index  # tells the layers of one model apart
        self.rngs = rngs.fork()
        self.deterministic = False

    def keys(self, keys: Key[Array, "batch"] | None, batch: int) -> Key[Array, "batch"]:
        if keys is None:
            return jax.random.split(self.rngs.dropout(), batch)
        return jax.vmap(jax.random.fold_in, (0, None))(keys, self.index)


class Dropout(Stochastic):
    """Zeroes features at `rate` in training and scales the others up. Source: Srivastava et al. 2014."""

    def __init__(self, rate: float | int, *, index: int, rngs: nnx.Rngs) -> None:
        super().__init__(index, rngs)
        self.rate = rate

    def __call__(self, x: Float[Array, "batch *rest"], keys: Key[Array, "batch"] | None) -> Float[Array, "batch *rest"]:
        if self.deterministic or self.rate == 0:
            return x
        kept = jax.vmap(lambda key: jax.random.bernoulli(key, 1 - self.rate, x.shape[1:]))(self.keys(keys, x.shape[0]))
        return jnp.where(kept, x / (1 - self.rate), 0).astype(x.dtype)


class ShakeDrop(Stochastic):
    """Disturbs a residual branch: forward by b + alpha - b alpha, backward by b + beta - b beta, drawn per example.

    Here b is 1 with probability 1 - drop_probability, alpha is uniform in [-1, 1] and beta in [0, 1]; evaluation scales by the
    mean, 1 - drop_probability. Source: Yamada et al. 2019, equations 6 and 7, the variant drawn per image.
    """

    def __init__(self, drop_probability: float | int, *, index: int, rngs: nnx.Rngs) -> None:
        super().__init__(index, rngs)
        self.drop_probability = drop_probability

    def __call__(self, x: Float[Array, "batch *rest"], keys: Key[Array, "batch"] | None) -> Float[Array, "batch *rest"]:
        keep = 1 - self.drop_probability
        if self.deterministic:
            return x * jnp.asarray(keep, x.dtype)

        def draw(key: Key[Array, ""]) -> tuple[Array, Array]:
            gate, alpha, beta = jax.random.uniform(key, (3,))
            passes = gate < keep
            return jnp.where(passes, 1.0, 2 * alpha - 1), jnp.where(passes, 1.0, beta)

        forward, backward = (
            factor.astype(x.dtype).reshape(-1, *[1] * (x.ndim - 1)) for factor in jax.vmap(draw)(self.keys(keys, x.shape[0]))
        )
        return x * backward + jax.lax.stop_gradient(x * (forward - backward))


def shortcut(x: Float[Array, "batch height width in"], features: int, stride: int) -> Float[Array, "batch h w features"]:
    """The parameter-free shortcut: average pool where the unit strides, then zeros after the existing channels.

    The pool is 2x2 with stride 2 and keeps an odd last row and column, whose windows average over the real cells alone.
    Source: Han et al. 2017, section 3.3; ceil mode as in the authors' code.
    """
    if stride == 2:
        odd: Any = [(0, size % 2) for size in x.shape[1:3]]  # Flax's annotation knows only names
        x = nnx.avg_pool(x, (2, 2), (2, 2), padding=odd, count_include_pad=False)
    return jnp.pad(x, ((0, 0), (0, 0), (0, 0), (0, features - x.shape[-1])))
