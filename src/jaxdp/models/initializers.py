"""Provides the initializers of weights.

Weights are drawn with NumPy on the host. Drawing them with JAX would compile once per shape, and
each unit of a PyramidNet has its own shapes (40 s for 110 layers).
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
Initializer = Callable[..., jax.Array]


def host_initializer(draw: Draw) -> Initializer:
    """Returns a Flax initializer that draws with NumPy.

    The same key gives the same numbers eagerly, under jit and eval_shape.
    """

    def initialize(
        key: Key[Array, ""],
        shape: tuple[int, ...],
        dtype: Any = jnp.float32,
        out_sharding: Any = None,
    ) -> jax.Array:
        def on_host(data: Any) -> np.ndarray:
            return draw(np.random.default_rng(np.asarray(data)), tuple(shape)).astype(dtype)

        data = jax.random.key_data(key)
        if isinstance(data, jax.core.Tracer):
            return jax.pure_callback(on_host, jax.ShapeDtypeStruct(shape, dtype), data)
        return jax.device_put(on_host(data))  # jnp.asarray would compile a copy

    return initialize


def normal(deviation: Callable[[tuple[int, ...]], float]) -> Initializer:
    """Returns an initializer that draws from a normal distribution with mean 0.

    Args:
        deviation: returns the standard deviation for a shape.
    """
    return host_initializer(
        lambda rng, shape: rng.standard_normal(shape, np.float32) * np.float32(deviation(shape))
    )


def draw_uniform_fan_in(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Draws from U(-1/sqrt(in), 1/sqrt(in)), where `in` is the first dim of `shape`."""
    bound = 1.0 / np.sqrt(shape[0])
    return rng.uniform(-bound, bound, shape)


# The shape of a kernel is (rows, columns, in, out).
he_normal_fan_out = normal(lambda shape: np.sqrt(2 / (shape[0] * shape[1] * shape[3])))
he_normal_fan_in = normal(lambda shape: np.sqrt(2 / (shape[0] * shape[1] * shape[2])))
uniform_fan_in = host_initializer(draw_uniform_fan_in)
zeros = host_initializer(lambda rng, shape: np.zeros(shape, np.float32))
