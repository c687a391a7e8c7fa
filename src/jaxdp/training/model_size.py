"""Refuses a model for which there is not enough memory before anything of it is made."""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import jax

from jaxdp.free_memory import available_memory_bytes
from jaxdp.model_check import array_shapes
from jaxdp.registry import ConfigError
from jaxdp.runtime import platform
from jaxdp.units import bytes_text

if TYPE_CHECKING:
    from jaxdp.training.setup import Setup

# Of a parameter and its gradient, which every step has; optimizer and activations come on top.
_BYTES = 8


def check(setup: "Setup") -> None:
    """Raises ConfigError for a model whose parameters and gradients alone take more memory than
    there is.

    Of a whole number among `--model-kwargs` the error tells the largest one with which they would
    fit.
    """
    devices = setup.strategy.devices
    on_host = devices[0].platform == "cpu"  # whose simulated devices share one memory
    copies = len(devices) if on_host and not setup.config.shard_params else 1
    shares = len(devices) if setup.config.shard_params and not on_host else 1
    room = available_memory_bytes() if on_host else shares * platform.device_memory_bytes(devices)

    def takes(arrays: Iterable[Any]) -> int:
        return copies * _BYTES * sum(math.prod(array.shape) for array in arrays)

    # Of shapes that the step asks for anyway: to build a deep model once more takes a second.
    taken, kwargs = takes(jax.tree.leaves(setup.shapes.params)), setup.config.model_kwargs
    if taken <= room:
        return
    counts = {
        name: value
        for name, value in kwargs.items()
        if isinstance(value, int) and not isinstance(value, bool)
    }
    found = (
        f"its parameters and gradients take {bytes_text(taken)}, and {bytes_text(room)} are free"
    )
    if not counts:
        raise ConfigError("model", setup.config.model, f"{found}; choose a smaller one")
    name = max(counts, key=lambda each: counts[each])
    fits, too_large = 0, counts[name]
    while too_large - fits > 1:
        middle = (fits + too_large) // 2
        try:
            smaller = setup.config.replace(model_kwargs=kwargs | {name: middle})
            is_small = (
                takes(array_shapes(smaller, setup.dataset, setup.objects)[0].values()) <= room
            )
        except ConfigError:  # a number that the model does not take, e.g. a depth
            is_small = False
        fits, too_large = (middle, too_large) if is_small else (fits, middle)
    remedy = f"use at most {name}={fits}" if fits else "choose a smaller model"
    raise ConfigError("model_kwargs", {name: counts[name]}, f"{found}; {remedy}")
