"""Finds out the memory of a step of a run, and the largest batch that fits, from XLA's plans."""

import functools
import math
from typing import Any

import jax

from jaxdp.build.resolve import CROP
from jaxdp.data.augment import output_shape
from jaxdp.errors import flag
from jaxdp.runtime import platform
from jaxdp.runtime.targets import Target
from jaxdp.sharding import memory
from jaxdp.text.messages import one_line

Record = dict[str, Any]


def plan_setup(setup: Any, target: Target | None, limit: int | None) -> Record:
    """Returns the resources that a step of a run that has been set up requires, ready for JSON.

    Args:
        target, limit: as for `plan`.
    """
    if limit is None:
        here = platform.device_memory_bytes
        limit = target.chip.memory_bytes if target else here(setup.strategy.devices)
    record = _describe(setup, target, limit)
    examples, size = record["examples_per_device"], record["global_batch_size"]
    compile_batch = functools.cache(
        functools.partial(memory.compile_step, setup.strategy, setup.abstract_step)
    )
    try:
        _, step = compile_batch(size)
    except RuntimeError as error:
        text = one_line(error)
        reason = text[max(text.find("Ran out of memory"), 0) :][:300]
        return record | {"compiles": False, "reason": reason}
    if target is None:  # compilers for absent devices count none, or count a loop once
        record["flops_per_example"] = step.flops / examples
    return record | {
        "compiles": True,
        "bytes": {kind: getattr(step, kind) for kind in (*memory.KINDS, "total")},
        "largest_per_device": memory.largest_batch(
            setup.strategy, compile_batch, limit, first=examples
        ),
    }


def explained(setup: Any) -> Any:
    """Returns a context that turns an allocation that fails in a run into a ConfigError.

    Its remedy supposes that most of a step is activations, in proportion to examples and pixels.
    """
    size, augmentations = setup.config.global_batch_size, setup.step_config.preprocess.augmentations
    height, width, _ = output_shape(augmentations, setup.dataset.image_shape)
    pixels, unit = height * width, setup.config.accumulate_steps * setup.strategy.num_devices

    def remedy(times: float) -> str:
        crop = ""
        if setup.dataset.kind != "classification" and pixels > CROP**2:
            crop = f"{flag('augment', f'crop:{CROP}')} "
            times = max(times * CROP**2 / pixels, 1)
        batch = flag("global_batch_size", unit * memory.power_below(size / times / unit))
        others = f"with {flag('remat', 'blocks')} or a smaller model"
        return f"try {crop}{batch}; python -m jaxdp.plan shows what fits {others}"

    return memory.explained(f"a training step of {size} images of {height}x{width}", remedy)


def _describe(setup: Any, target: Target | None, limit: int) -> Record:
    """Returns the facts of a step that are known before it is compiled."""
    strategy, config = setup.strategy, setup.config
    unit = memory.fewest_examples(strategy)
    examples = math.ceil(setup.batches.global_batch_size / (strategy.num_devices * unit)) * unit
    return {
        "model": config.model,
        "dataset": config.dataset,
        "image_shape": list(setup.dataset.image_shape),
        "precision": config.precision,
        "batch_norm": str(config.batch_norm),
        "strategy": config.strategy,
        "platform": str(target.chip) if target else strategy.devices[0].platform,
        "target": str(target) if target else None,
        "devices": strategy.num_devices,
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(setup.shapes.params)),
        "device_memory": limit,
        "usable_bytes": int(memory.USABLE_FRACTION * limit),
        "examples_per_device": examples,
        "global_batch_size": examples * strategy.num_devices,
    }
