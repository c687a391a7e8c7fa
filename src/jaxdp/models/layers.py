"""Which layers do the models share? NHWC; a layer knows no device.

Weights are drawn with NumPy on the host: drawing them with JAX would compile once per shape, and each unit of a PyramidNet has
shapes of its own (40 s for 110 layers).
"""

import functools
import math
from collections.abc import Callable, Sequence
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


def _he_normal_fan_in(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    height, width, in_features, _ = shape
    return rng.standard_normal(shape, np.float32) * np.float32(np.sqrt(2.0 / (height * width * in_features)))


def _uniform_fan_in(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    bound = 1.0 / np.sqrt(shape[0])
    return rng.uniform(-bound, bound, shape)


he_normal_fan_out = host_initializer(_he_normal_fan_out)
he_normal_fan_in = host_initializer(_he_normal_fan_in)
uniform_fan_in = host_initializer(_uniform_fan_in)
zeros = host_initializer(lambda rng, shape: np.zeros(shape, np.float32))


def conv(
    in_features: int, features: int, size: int, *, stride: int = 1, padding: int | None = None, bias: bool = False,
    kernel_init: Initializer = he_normal_fan_out, dtype: Any, rngs: nnx.Rngs,
) -> nnx.Conv:  # fmt: skip
    """A square convolution that pads both sides alike, as PyTorch does (Flax's SAME pads one side at stride 2).

    Args:
        padding: rows and columns of zeros on each side; None for as many as keep the size at stride 1.
        bias: whether there is one; it begins at 0.
    """
    pad = size // 2 if padding is None else padding
    return nnx.Conv(
        in_features, features, (size, size), strides=stride, padding=[(pad, pad), (pad, pad)], use_bias=bias, dtype=dtype,
        kernel_init=kernel_init, bias_init=zeros, rngs=rngs, conv_general_dilated=_convolve,
    )  # fmt: skip


def _convolve(x: Array, kernel: Array, strides: Any, padding: Any, **_: Any) -> Array:
    """Takes what Flax passes; the rest is the same for all convolutions here."""
    return convolve(x, kernel, tuple(strides), tuple(padding))


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def convolve(
    x: Float[Array, "batch height width in"], kernel: Float[Array, "kh kw in out"], strides: tuple[int, ...], padding: Any
) -> Float[Array, "batch h w out"]:
    """A convolution whose gradient is computed in the form that the platform is fast at.

    Where XLA:CPU computes the gradient of the kernel, it would compute what that reads, batch norms and sums of branches, once
    more for this use, in the order of a transposed array; after a barrier it takes what is there. And it lays out the windows of
    one of the two factors in memory: better those of the one with fewer channels.
    """
    return _plain(x, kernel, strides, padding)


def _plain(x: Array, kernel: Array, strides: tuple[int, ...], padding: Any) -> Array:
    return jax.lax.conv_general_dilated(x, kernel, strides, padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))


def _convolve_forward(x: Array, kernel: Array, strides: tuple[int, ...], padding: Any) -> tuple[Array, tuple[Array, Array]]:
    return _plain(x, kernel, strides, padding), (x, kernel)


def _convolve_backward(strides: tuple[int, ...], padding: Any, kept: tuple[Array, Array], of_y: Array) -> tuple[Array, Array]:
    x, kernel = kept

    def of_kernel(x: Array, of_y: Array) -> Array:
        (found,) = jax.linear_transpose(lambda kernel: _plain(x, kernel, strides, padding), kernel)(of_y)
        return found

    def swapped(x: Array, of_y: Array) -> Array:
        pads = [(size - 1 - before, size - 1 - after) for size, (before, after) in zip(kernel.shape, padding, strict=False)]
        flipped = jax.lax.conv_general_dilated(of_y, x, (1, 1), pads, dimension_numbers=("CHWN", "IHWO", "HWNC"))
        return flipped[::-1, ::-1].swapaxes(2, 3)

    def on_cpu(x: Array, of_y: Array) -> Array:
        compute = swapped if max(strides) == 1 and x.shape[-1] > of_y.shape[-1] else of_kernel
        return compute(*jax.lax.optimization_barrier((x, of_y)))

    (of_x,) = jax.linear_transpose(lambda x: _plain(x, kernel, strides, padding), x)(of_y)
    return of_x, jax.lax.platform_dependent(x, of_y, cpu=on_cpu, default=of_kernel)


convolve.defvjp(_convolve_forward, _convolve_backward)


def dense(in_features: int, features: int, *, dtype: Any, rngs: nnx.Rngs) -> nnx.Linear:
    """A dense layer with bias; both are drawn from U(-1/sqrt(in), 1/sqrt(in)), as PyTorch does."""
    bias = host_initializer(lambda rng, shape: _uniform_fan_in(rng, (in_features, *shape))[0])
    return nnx.Linear(in_features, features, dtype=dtype, kernel_init=uniform_fan_in, bias_init=bias, rngs=rngs)


Moments = tuple[Float[Array, "groups features"], Float[Array, "groups features"]]


@jax.custom_vjp
def moments(x: Float[Array, "groups batch *space features"]) -> Moments:
    """Returns mean and biased variance of each group's channels.

    JAX's own derivative of `jnp.var` keeps the differences from the mean, an array as large as `x`, for the backward pass, and
    passes over it several times more: without it a step of PyramidNet moves a fifth fewer bytes through memory.
    """
    mean = jnp.mean(x, range(1, x.ndim - 1))
    return mean, jnp.mean(jnp.square(x - _per_group(mean, x)), range(1, x.ndim - 1))


def _moments_forward(x: Array) -> tuple[Moments, tuple[Array, Array]]:
    found = moments(x)
    return found, (x, found[0])


def _moments_backward(kept: tuple[Array, Array], cotangents: Moments) -> tuple[Array]:
    (x, mean), (of_mean, of_var) = kept, cotangents
    count = x.size // mean.size
    slope = 2 * of_var / count
    # Not slope * (x - mean): XLA would find these differences in the forward pass, and keep them.
    return (x * _per_group(slope, x) + _per_group(of_mean / count - slope * mean, x),)


moments.defvjp(_moments_forward, _moments_backward)


def _per_group(values: Float[Array, "groups features"], x: Array) -> Array:
    return values.reshape(len(values), *[1] * (x.ndim - 2), values.shape[-1])


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
        mean, var = moments(grouped.astype(jnp.promote_types(self.dtype, jnp.float32)))
        if self.share is not None:
            # The variance of a union from its parts (Chan et al. 1979): no cancellation, unlike E[x²] - E[x]².
            local_mean, mean = mean, self.share(mean)
            var = self.share(var + jnp.square(local_mean - mean))
        self._update(mean, var)
        return self._normalize(grouped, _per_group(mean, grouped), _per_group(var, grouped)).reshape(x.shape)

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


def set_remat(model: nnx.Module, remat: str) -> None:
    """Says what the backward pass computes again instead of keeping it: `none`, within `blocks`, or `full`, runs of blocks, too."""
    setattr(model, "remat", remat)  # noqa: B010 - an attribute that the class does not declare


def run_blocks(model: nnx.Module, blocks: Sequence[Any], x: Array, *args: Any) -> Array:
    """Calls one block of a model after the other with `args`, and keeps for the backward pass what `set_remat` said.

    With `full` two levels are computed again: about the square root of the number of blocks are kept, for twice the forward time.
    Source: Chen et al. 2016, section 4.
    """
    return _run(getattr(model, "remat", "none"), list(blocks), x, *args)


def _run(remat: str, blocks: list[Any], x: Array, *args: Any) -> Array:
    if remat == "none":
        for block in blocks:
            x = block(x, *args)
    elif remat == "blocks" or len(blocks) < 4:
        for block in blocks:
            x = nnx.remat(lambda block, *inputs: block(*inputs))(block, x, *args)
    else:
        length = math.isqrt(len(blocks))
        for start in range(0, len(blocks), length):
            run = nnx.List(blocks[start : start + length])
            x = nnx.remat(lambda run, *inputs: _run("blocks", list(run), *inputs))(run, x, *args)
    return x


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
