"""Refuses a model for which there is not enough memory before anything of it is made."""

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
    taken = _BYTES * sum(leaf.size for leaf in jax.tree.leaves(setup.shapes.params))
    if devices[0].platform == "cpu":  # simulated devices share one memory
        taken, free = taken * (1 if sharded else len(devices)), available_memory_bytes()
    else:
        free = platform.device_memory_bytes(devices) * (len(devices) if sharded else 1)
    if taken > free:
        sizes = f"its parameters and gradients take {bytes_text(taken)}, and {bytes_text(free)}"
        remedy = f"{sizes} are free; choose a smaller one, by --model-kwargs or another model"
        raise ConfigError("model", setup.config.model, remedy)
