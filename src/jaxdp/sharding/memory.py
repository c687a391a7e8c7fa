"""Predicts how much memory a step takes and which batch fits, by compiling it, before anything is
allocated.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from jax.experimental import multihost_utils

from jaxdp.registry import ConfigError
from jaxdp.runtime import platform
from jaxdp.sharding.partition import bytes_per_device
from jaxdp.sharding.strategy import Strategy
from jaxdp.units import bytes_text

# The rest is for the gaps of the allocator and for the programs themselves.
USABLE_FRACTION = 0.92
# An epoch of fewer steps trains badly, however much memory there is.
MIN_STEPS_PER_EPOCH = 10
FIRST_EXAMPLES = 16  # on a device, in the first step that is compiled
KINDS = ("params", "optimizer", "statistics", "dataset", "batch", "working")

# The shapes of a step's arguments for a global batch of so many examples.
AbstractStep = Callable[[int], tuple[Any, Any, Any]]


@dataclasses.dataclass(frozen=True)
class StepMemory:
    """Bytes that a device holds during a training step, by kind, and what it computes.

    Attributes:
        dataset: if it lies on the devices.
        working: what XLA plans in addition: activations, gradients and copies.
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

    @property
    def fixed(self) -> int:
        """Bytes that do not depend on the batch."""
        return self.total - self.batch - self.working


def compile_step(
    strategy: Strategy,
    abstract_step: AbstractStep,
    global_batch_size: int,
    options: Mapping[str, Any] | None = None,
) -> tuple[Any, StepMemory]:
    """Compiles the step for a batch of this size.

    Returns the compiled program, and the memory that XLA plans for it.

    Args:
        options: of the compiler.

    Raises:
        ConfigError: for a strategy with a step of several programs.
    """
    # First: some strategies learn from it what their step is.
    state, batch, constants = abstract_step(global_batch_size)
    step: Any = strategy.train_step
    if not hasattr(step, "lower"):
        remedy = "has a step of several programs; plan for another strategy"
        raise ConfigError("strategy", strategy.name, remedy)
    compiled = step.lower(state, batch, constants).compile(
        compiler_options=dict(options) if options else None
    )
    analysis, costs = compiled.memory_analysis(), compiled.cost_analysis() or {}
    known = {
        "params": bytes_per_device(state.params),
        "optimizer": bytes_per_device((state.opt_state, state.step, state.loss_scale)),
        "statistics": bytes_per_device((state.batch_stats, state.ema)),
        "dataset": bytes_per_device(constants.examples),
    }
    # XLA counts what is donated as an argument and as an output.
    working = (
        analysis.temp_size_in_bytes + analysis.output_size_in_bytes - analysis.alias_size_in_bytes
    )
    # The rest of the arguments is the padding of their layout on a TPU.
    others = max(analysis.argument_size_in_bytes - sum(known.values()), 0)
    batch_bytes = min(others, math.ceil(bytes_per_device(batch) / strategy.data_shards))
    # XLA counts the body of a loop once.
    loops = strategy.recipe.accumulate_steps if strategy.recipe.scan else 1
    flops = loops * float(costs.get("flops", np.nan))
    working += others - batch_bytes
    return compiled, StepMemory(**known, batch=batch_bytes, working=working, flops=flops)


class LargestBatch(NamedTuple):
    """The largest batch that fits a device, as compiled steps show.

    Attributes:
        examples: on a device, a power of 2 of the fewest that there can be; 0 if none fits.
        bytes_per_example: the growth between the two largest steps that were compiled.
    """

    examples: int
    bytes_per_example: float


def find_largest(
    strategy: Strategy,
    abstract_step: AbstractStep,
    limit: int | float,
    *,
    known: Mapping[int, StepMemory] | None = None,
    most: int | float = math.inf,
    options: Mapping[str, Any] | None = None,
) -> LargestBatch:
    """Finds the largest batch that fits devices with so many bytes, by compiling a few steps.

    Args:
        known: steps by examples on a device that were compiled already.
        most: examples on a device that may be tried.
        options: of the compiler.
    """
    unit, steps = fewest_examples(strategy), dict(known or {})

    def bytes_of(examples: int) -> int | float:
        global_batch_size = examples * strategy.data_shards
        try:
            _, step = compile_step(strategy, abstract_step, global_batch_size, options)
        except RuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            return math.inf
        steps[examples] = step
        return step.total

    first = max(unit, int(min(FIRST_EXAMPLES, most)) // unit * unit)
    while not steps and bytes_of(first) == math.inf:
        if first == unit:
            return LargestBatch(0, math.nan)
        first = max(unit, first // 2 // unit * unit)
    tried: dict[int, int | float] = {0: next(iter(steps.values())).fixed}
    tried |= {examples: step.total for examples, step in steps.items()}
    return largest_fitting(bytes_of, tried, unit, USABLE_FRACTION * limit, most)


def largest_fitting(
    bytes_of: Callable[[int], int | float],
    known: Mapping[int, int | float],
    unit: int,
    usable: int | float,
    most: int | float = math.inf,
) -> LargestBatch:
    """Returns the largest number of examples that fits: a power of 2 of units, or 0.

    A straight line through the known numbers gives the next number to try; only numbers that were
    tried count as fitting.

    Args:
        bytes_of: returns the bytes of so many examples; infinity if they cannot be compiled.
        known: bytes by examples, for none and for one number at least.
        unit: fewest examples.
        usable: bytes that there are.
        most: examples that may be tried.
    """
    tried = dict(known)

    def power(examples: int | float) -> int:
        count = int(min(examples, max(most, unit)) // unit)
        return unit << count.bit_length() - 1 if count > 0 else 0

    while True:
        best = power(max((count for count, size in tried.items() if size <= usable), default=0))
        fails = min((count for count, size in tried.items() if size > usable), default=math.inf)
        first, second = sorted(count for count, size in tried.items() if size < math.inf)[-2:]
        growth = (tried[second] - tried[first]) / (second - first)
        guess = power(second + (usable - tried[second]) / max(growth, 1.0))
        # The line of small steps is too steep: memory for gradients serves activations before.
        if len(tried) <= len(known) or fails < math.inf:
            guess = max(guess, power(2 * best))
        if guess >= fails:
            guess = power(fails - 1)
        if guess <= best or guess in tried:
            return LargestBatch(best, growth)
        tried[guess] = bytes_of(guess)


def fewest_examples(strategy: Strategy) -> int:
    """Returns the number that divides the examples on a device, so that microbatches consist of
    whole groups of batch norm.
    """
    group = strategy.recipe.batch_norm.group_size or 1
    return strategy.recipe.accumulate_steps * (group // math.gcd(group, strategy.data_shards))


def automatic_batch(strategy: Strategy, abstract_step: AbstractStep, num_examples: int) -> int:
    """Returns the largest global batch that fits the devices and leaves an epoch of a few steps.

    Each device gets a power of 2 of examples, or of the number that microbatches and groups of
    batch norm need.

    Raises:
        ConfigError: if not even these fit.
    """
    # Every process compiles the same steps: the smallest memory decides, wherever it is.
    limit = np.asarray(float(platform.device_memory_bytes(strategy.devices)))
    limit = float(np.min(multihost_utils.process_allgather(limit)))
    most = num_examples // (MIN_STEPS_PER_EPOCH * strategy.data_shards)
    largest = find_largest(strategy, abstract_step, limit, most=most)
    if not largest.examples:
        unit = fewest_examples(strategy)
        least = "one example" if unit == 1 else f"{unit} examples"
        remedy = f"a step of {least} on each device does not fit {bytes_text(limit)}; see"
        raise ConfigError("global_batch_size", "auto", f"{remedy} python -m jaxdp.plan")
    return strategy.data_shards * largest.examples
