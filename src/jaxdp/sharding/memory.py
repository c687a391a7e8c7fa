"""Estimates the memory of a step and the batch that fits, by compiling the step, before anything is
allocated. Explains an allocation that fails nevertheless.
"""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from jax.experimental import multihost_utils

from jaxdp.errors import ConfigError, flag
from jaxdp.runtime import platform
from jaxdp.runtime.free_memory import TooLarge
from jaxdp.sharding.partition import bytes_per_device
from jaxdp.sharding.strategy import Strategy
from jaxdp.text.messages import brief
from jaxdp.text.units import bytes_text

# The rest is for gaps of the allocator and for the programs.
USABLE_FRACTION = 0.92
# An epoch of fewer steps trains badly, even if memory allows a larger batch.
MIN_STEPS_PER_EPOCH = 10
FIRST_EXAMPLES = 16  # examples on a device in the first compiled step
_MOST_EXAMPLES = 2**24
_LARGEST_JUMP = 256  # factor from a number of examples that fits to the next tried number
KINDS = ("params", "optimizer", "statistics", "dataset", "batch", "working")

# Returns the shapes of a step's arguments for a global batch of this size.
AbstractStep = Callable[[int], tuple[Any, Any, Any]]


@dataclasses.dataclass(frozen=True)
class StepMemory:
    """The bytes that a device holds during a training step, by type, and its operations.

    Attributes:
        dataset: bytes of the dataset, if it is on the devices.
        working: further bytes that XLA plans: activations, gradients and copies.
        flops: floating-point operations of the step on one device, as XLA counts them.
    """

    params: int
    optimizer: int
    statistics: int
    dataset: int
    batch: int
    working: int
    flops: float

    @property
    def total(self) -> int:
        """All bytes."""
        return sum(getattr(self, kind) for kind in KINDS)


def compile_step(
    strategy: Strategy, abstract_step: AbstractStep, global_batch_size: int
) -> tuple[Any, StepMemory]:
    """Compiles the step for a batch of this size.

    Returns the compiled program, and XLA's memory plan.

    Raises:
        ConfigError: for a strategy whose programs XLA does not plan.
    """
    state, batch, constants = abstract_step(global_batch_size)
    programs = strategy.compile(state, batch, constants)
    dataset = bytes_per_device(constants.examples)
    working, batch_bytes, flops = 0, 0, 0.0
    for each in programs:
        plan = each.compiled.memory_analysis()
        known = bytes_per_device(each.state) + (dataset if each.reads_examples else 0)
        # The rest of the arguments is the padding of their layout on a TPU, or other arrays.
        others = max(plan.argument_size_in_bytes - known, 0)
        if each.reads_examples:
            per_device = math.ceil(bytes_per_device(batch) / strategy.num_devices)
            batch_bytes = min(others, per_device)
        # XLA counts donated arrays as arguments and as outputs.
        changed = plan.output_size_in_bytes - plan.alias_size_in_bytes
        held = others + plan.temp_size_in_bytes + changed + each.held_bytes
        working = max(working, held)
        unknown = np.nan if each.reads_examples else 0.0
        costs = each.compiled.cost_analysis() or {}
        flops += each.calls * float(costs.get("flops", unknown))
    return programs[0].compiled, StepMemory(
        params=bytes_per_device(state.params),
        optimizer=bytes_per_device((state.opt_state, state.step, state.loss_scale)),
        statistics=bytes_per_device((state.batch_stats, state.ema)),
        dataset=dataset,
        batch=batch_bytes,
        working=working - batch_bytes,
        flops=flops,
    )


def largest_batch(
    strategy: Strategy,
    compile_batch: Callable[[int], tuple[Any, StepMemory]],
    limit: int | float,
    *,
    first: int,
    most: int = _MOST_EXAMPLES,
) -> int:
    """Returns the largest number of examples that fits on devices of this size: a power of 2 times
    the smallest possible number, or 0.

    Args:
        compile_batch: `compile_step` for a global batch of this size.
        first: examples on a device in the first try.
        most: maximum number of examples on a device.
    """
    unit = fewest_examples(strategy)

    def bytes_of(units: int) -> int | float:
        try:
            _, step = compile_batch(units * unit * strategy.num_devices)
        except RuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            return math.inf
        return step.total

    return unit * largest_power(bytes_of, first // unit, most // unit, USABLE_FRACTION * limit)


@contextlib.contextmanager
def explained(what: str, remedy: Callable[[float], str]) -> Iterator[None]:
    """Turns an allocation that fails in the block into a ConfigError.

    Args:
        what: the block does, e.g. `a training step of 4 images of 96x96`.
        remedy: returns what to do to take so many times less memory.
    """
    try:
        yield
    except (MemoryError, TooLarge, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "RESOURCE_EXHAUSTED" not in str(error):
            raise
        problem = f"{what} does not fit the memory ({brief(error)})"
        text = f"{problem}; {remedy(getattr(error, 'times', 2.0))}"
        raise ConfigError("", "", text) from error


def largest_power(
    bytes_of: Callable[[int], int | float], first: int, most: int, usable: int | float
) -> int:
    """Returns the largest power of 2 that fits, or 0 if none fits, with few tries.

    Args:
        bytes_of: returns the bytes for a number; infinity if it cannot be compiled.
        first: the first number to try.
        most: the largest number to try.
        usable: available bytes.
    """
    tried: dict[int, int | float] = {}
    best, fails = 0, 2 * power_below(most)
    count = power_below(min(first, most))
    while best < count < fails:
        tried[count] = bytes_of(count)
        if tried[count] <= usable:
            best = count
        else:
            fails = count
        guess = 2.0 * best or fails / 2
        measured = [size for size in sorted(tried) if tried[size] < math.inf][-2:]
        if len(measured) == 2:  # a straight line through the largest numbers
            low, high = measured
            growth = (tried[high] - tried[low]) / (high - low)
            guess = high + (usable - tried[high]) / max(growth, 1.0)
        # The line through small steps is too steep, because activations use memory for gradients
        # before.
        count = min(max(power_below(guess), 2 * best), _LARGEST_JUMP * max(best, 1), fails // 2)
    return best


def power_below(number: int | float) -> int:
    """Returns the largest power of 2 that does not exceed a number, and at least 1."""
    return 1 << (max(int(number), 1).bit_length() - 1)


def fewest_examples(strategy: Strategy) -> int:
    """Returns the number that must divide the examples on a device, so that microbatches consist of
    whole batch-norm groups.
    """
    group = strategy.step_config.batch_norm.group_size or 1
    return strategy.step_config.accumulate_steps * (group // math.gcd(group, strategy.num_devices))


def automatic_batch(strategy: Strategy, abstract_step: AbstractStep, num_examples: int) -> int:
    """Returns the largest global batch that fits the devices and leaves an epoch of a few steps.

    Each device gets a power of 2 of examples, times the number that microbatches and batch-norm
    groups require.

    Raises:
        ConfigError: if not even the smallest batch fits.
    """
    if not strategy.divided_by_devices:
        remedy = f"depends on the devices, and with {flag('strategy', strategy.name)} nothing does"
        raise ConfigError("global_batch_size", "auto", f"{remedy}; give a number")
    # Every process compiles the same steps, so the smallest memory of all processes counts.
    limit = np.asarray(float(platform.device_memory_bytes(strategy.devices)))
    limit = float(np.min(multihost_utils.process_allgather(limit)))
    most = num_examples // (MIN_STEPS_PER_EPOCH * strategy.num_devices)
    compile_batch = functools.partial(compile_step, strategy, abstract_step)
    examples = largest_batch(strategy, compile_batch, limit, first=FIRST_EXAMPLES, most=most)
    if not examples:
        unit = fewest_examples(strategy)
        least = "one example" if unit == 1 else f"{unit} examples"
        remedy = f"a step of {least} on each device does not fit {bytes_text(limit)}; see"
        raise ConfigError("global_batch_size", "auto", f"{remedy} python -m jaxdp.plan")
    return strategy.num_devices * examples
