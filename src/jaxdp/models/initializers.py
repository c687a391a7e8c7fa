"""Provides the initializers of weights.

Weights are drawn with NumPy on the host: drawing them with JAX would compile once per shape, and
each unit of a PyramidNet has shapes of its own (40 s for 110 layers).
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


def _he_normal_fan_out(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    height, width, _, features = shape
    return rng.standard_normal(shape, np.float32) * np.float32(
        np.sqrt(2.0 / (height * width * features))
    )


def _he_normal_fan_in(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    height, width, in_features, _ = shape
    return rng.standard_normal(shape, np.float32) * np.float32(
        np.sqrt(2.0 / (height * width * in_features))
    )


def draw_uniform_fan_in(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Draws from U(-1/sqrt(in), 1/sqrt(in)), where `in` is the first dim of `shape`."""
    bound = 1.0 / np.sqrt(shape[0])
    return rng.uniform(-bound, bound, shape)


he_normal_fan_out = host_initializer(_he_normal_fan_out)
he_normal_fan_in = host_initializer(_he_normal_fan_in)
uniform_fan_in = host_initializer(draw_uniform_fan_in)
zeros = host_initializer(lambda rng, shape: np.zeros(shape, np.float32))
