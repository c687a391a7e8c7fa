"""Refuses a model for which there is not enough memory before anything of it is made."""

import math
from typing import TYPE_CHECKING

import jax

from jaxdp.free_memory import available_memory_bytes
from jaxdp.registry import ConfigError
from jaxdp.runtime import platform
from jaxdp.units import bytes_text

if TYPE_CHECKING:
    from jaxdp.training.setup import Setup

# A parameter and its gradient, which every step has; optimizer and activations come on top.
_BYTES = 8


def check(setup: "Setup") -> None:
    """Raises ConfigError for a model whose parameters and gradients exceed the free memory."""
    devices, sharded = setup.strategy.devices, setup.config.shard_params
    copies = 1
    if devices[0].platform == "cpu":  # simulated devices share one memory
        free, copies = available_memory_bytes(), 1 if sharded else len(devices)
    else:
        free = platform.device_memory_bytes(devices) * (len(devices) if sharded else 1)
    # The step asks for these shapes anyway: to build a deep model once more takes a second.
    parameters = sum(math.prod(array.shape) for array in jax.tree.leaves(setup.shapes.params))
    if (taken := copies * _BYTES * parameters) > free:
        sizes = f"{bytes_text(taken)}, and {bytes_text(free)} are free"
        remedy = f"its parameters and gradients take {sizes}; choose a smaller one"
        raise ConfigError("model", setup.config.model, remedy)
