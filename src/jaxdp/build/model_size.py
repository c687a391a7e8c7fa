"""Refuses a model for which there is not enough memory before anything of it is made."""

import bisect
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import jax

from jaxdp.build.model_check import array_shapes
from jaxdp.errors import ConfigError
from jaxdp.runtime import platform
from jaxdp.runtime.free_memory import available_memory_bytes
from jaxdp.text.units import bytes_text

if TYPE_CHECKING:
    from jaxdp.build.setup import Setup

# A parameter and its gradient, which every step has; optimizer and activations come on top.
_BYTES = 8


def check(setup: "Setup") -> None:
    """Raises ConfigError if a model's parameters and gradients exceed the free memory.

    If `--model-kwargs` has a whole number, the error names the largest one that would fit.
    """
    devices, sharded = setup.strategy.devices, setup.config.shard_params
    copies = 1
    if devices[0].platform == "cpu":  # simulated devices share one memory
        free, copies = available_memory_bytes(), 1 if sharded else len(devices)
    else:
        free = platform.device_memory_bytes(devices) * (len(devices) if sharded else 1)

    def required(arrays: Iterable[Any]) -> int:
        return copies * _BYTES * sum(math.prod(array.shape) for array in arrays)

    # The step asks for these shapes anyway: to build a deep model once more takes a second.
    taken, kwargs = required(jax.tree.leaves(setup.shapes.params)), setup.config.model_kwargs
    if taken <= free:
        return
    sizes = (
        f"its parameters and gradients take {bytes_text(taken)}, and {bytes_text(free)} are free"
    )
    counts = {name: value for name, value in kwargs.items() if type(value) is int}
    if not counts:
        raise ConfigError("model", setup.config.model, f"{sizes}; choose a smaller one")
    name = max(counts, key=lambda each: counts[each])

    def is_large(count: int) -> bool:
        smaller = setup.config.replace(model_kwargs=kwargs | {name: count})
        try:
            return required(array_shapes(smaller, setup.dataset, setup.inputs)[0].values()) > free
        except ConfigError:  # the model does not take this number, e.g. a depth
            return True

    fits = bisect.bisect_left(range(1, counts[name]), True, key=is_large)
    remedy = f"use at most {name}={fits}" if fits else "choose a smaller model"
    raise ConfigError("model_kwargs", {name: counts[name]}, f"{sizes}; {remedy}")
