"""Tells how much memory a step takes and which batch fits, by compiling it, before anything is
allocated.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jax.experimental import multihost_utils

from jaxdp.registry import ConfigError
from jaxdp.runtime import platform
from jaxdp.sharding.partition import bytes_per_device
from jaxdp.sharding.strategy import Strategy
from jaxdp.units import bytes_text

# What is left for the allocator's gaps and for the programs themselves.
USABLE_FRACTION = 0.92
# An epoch of fewer steps trains badly, however much memory there is.
MIN_STEPS_PER_EPOCH = 10
# About so many examples on a device has the smaller one of the two steps that are compiled, the
# other one four times as many. Where that does not take three times the working memory, four times
# as many are tried, and so on.
_EXAMPLES, _MORE, _GROWS, _MOST_EXAMPLES = 16, 4, 3, 1024

# What a step takes, as shapes, for a global batch of so many examples.
AbstractStep = Callable[[int], tuple[Any, Any, Any]]


@dataclasses.dataclass(frozen=True)
class StepMemory:
    """Bytes that a device holds during a training step, by kind, and what it computes.

    Attributes:
        dataset: where it lies on the devices.
        working: what XLA plans for besides: activations, gradients and copies.
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
        return (
            self.params
            + self.optimizer
            + self.statistics
            + self.dataset
            + self.batch
            + self.working
        )


def compile_step(
    strategy: Strategy,
    abstract_step: AbstractStep,
    global_batch_size: int,
    options: Mapping[str, Any] | None = None,
) -> tuple[Any, StepMemory]:
    """Compiles the step for a batch of this size.

    Returns the compiled program, and what XLA plans for it.

    Args:
        options: of the compiler.

    Raises:
        ConfigError: for a strategy whose step is several programs.
    """
    # First: some strategies learn from it what their step is.
    state, batch, constants = abstract_step(global_batch_size)
    step: Any = strategy.train_step
    if not hasattr(step, "lower"):
        remedy = (
            "has a step of several programs, whose memory no one of them tells; plan for another"
            " strategy"
        )
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
    # What is donated is counted as argument and as output.
    working = (
        analysis.temp_size_in_bytes + analysis.output_size_in_bytes - analysis.alias_size_in_bytes
    )
    # What arguments take besides is the padding of their layout, which a TPU has.
    others = max(analysis.argument_size_in_bytes - sum(known.values()), 0)
    batch_bytes = min(others, -(-bytes_per_device(batch) // strategy.data_shards))
    working += others - batch_bytes
    return compiled, StepMemory(
        **known, batch=batch_bytes, working=working, flops=float(costs.get("flops", np.nan))
    )


def step_memory(
    strategy: Strategy, abstract_step: AbstractStep, global_batch_size: int
) -> StepMemory:
    """Compiles the step for a batch of this size, and reads what XLA plans.

    Raises:
        ConfigError: for a strategy whose step is several programs.
    """
    return compile_step(strategy, abstract_step, global_batch_size)[1]


@dataclasses.dataclass(frozen=True)
class Forecast:
    """Memory and operations as straight lines over the examples of a device, through two compiled
    steps.
    """

    examples: tuple[int, int]
    steps: tuple[StepMemory, StepMemory]

    def at(self, examples: int, kind: str = "total") -> float:
        """Returns one of the figures of `StepMemory` for so many examples on a device."""
        return getattr(self.steps[0], kind) + self.slope(kind) * (examples - self.examples[0])

    def slope(self, kind: str = "total") -> float:
        first, second = (getattr(step, kind) for step in self.steps)
        return (second - first) / (self.examples[1] - self.examples[0])

    def largest(self, limit: float) -> int:
        """Returns how many examples a device can take with so many bytes, 0 if none."""
        return max(int((limit - self.at(0)) / max(self.slope(), 1.0)), 0)


def forecast(strategy: Strategy, abstract_step: AbstractStep) -> Forecast:
    """Forecasts the memory of a step of any batch size from steps compiled at two sizes."""

    def at(count: int) -> StepMemory:
        return step_memory(strategy, abstract_step, count * strategy.data_shards)

    unit = fewest_examples(strategy)
    count = -(-_EXAMPLES // unit) * unit
    steps = at(count), at(_MORE * count)
    while hides_growth(*steps, count):
        count *= _MORE
        steps = steps[1], at(_MORE * count)
    return Forecast((count, _MORE * count), steps)


def largest_fitting(
    bytes_of: Callable[[int], int | float],
    known: Mapping[int, int | float],
    unit: int,
    usable: float,
) -> int:
    """Returns the largest number of examples that fits, a power of 2 of units, 0 if not even one
    unit does.

    A straight line through what is known tells which number to try next; only what was tried counts
    as fitting.

    Args:
        bytes_of: tells what so many examples take; infinity for what cannot be compiled.
        known: bytes by examples, for none and for one number at least.
        unit: fewest examples.
        usable: bytes that there are.
    """
    tried = dict(known)

    def power(examples: int | float) -> int:
        return unit * power_of_two(int(examples // unit)) if examples >= unit else 0

    while True:
        best = power(
            max((examples for examples, each in tried.items() if each <= usable), default=0)
        )
        fails = min(
            (examples for examples, each in tried.items() if each > usable), default=math.inf
        )
        first, second = sorted(examples for examples, each in tried.items() if each < math.inf)[-2:]
        slope = max((tried[second] - tried[first]) / (second - first), 1.0)
        guess = power(second + (usable - tried[second]) / slope)
        # Of small steps the line is too steep: memory for gradients serves activations before.
        if len(tried) <= len(known) or fails < math.inf:
            guess = max(guess, 2 * best)
        if guess >= fails:
            guess = power(fails - 1)
        if guess <= best:
            return best
        tried[guess] = bytes_of(guess)


def hides_growth(first: StepMemory, second: StepMemory, examples: int) -> bool:
    """Returns whether two steps are too small to show what a larger batch takes, and larger ones
    are worth compiling.

    Memory for gradients serves activations before: with few examples one may see no more than that
    of the gradients.

    Args:
        first: a step.
        second: one of four times as many examples.
        examples: how many the first one has; where they are many the two have to do.
    """
    return second.working < _GROWS * first.working and examples < _MOST_EXAMPLES


def fewest_examples(strategy: Strategy) -> int:
    """Returns what the examples on a device must be a multiple of, so that microbatches consist of
    whole groups of batch norm.
    """
    group = strategy.recipe.batch_norm.group_size or 1
    return strategy.recipe.accumulate_steps * (group // math.gcd(group, strategy.data_shards))


def power_of_two(count: int) -> int:
    """Returns the largest one up to `count`, which is at least 1."""
    return 1 << (count.bit_length() - 1)


def largest_batch(strategy: Strategy, abstract_step: AbstractStep, num_examples: int) -> int:
    """Returns the largest global batch that fits the devices and leaves an epoch of a few steps.

    Each device gets a power of two of examples, or of as many as parts of the batch and groups of
    batch norm need.

    Raises:
        ConfigError: if not even those fit.
    """
    limit = platform.device_memory_bytes(strategy.devices)
    fitting = forecast(strategy, abstract_step).largest(USABLE_FRACTION * limit)
    unit = fewest_examples(strategy)
    if fitting < unit:
        least = "one example" if unit == 1 else f"{unit} examples"
        remedy = (
            f"a step of {least} on each device does not fit {bytes_text(limit)}; see python -m"
            " jaxdp.plan"
        )
        raise ConfigError("global_batch_size", "auto", remedy)
    sensible = num_examples // (MIN_STEPS_PER_EPOCH * strategy.data_shards)
    size = strategy.data_shards * unit * power_of_two(max(min(fitting, sensible) // unit, 1))
    # The devices of some processes may have less memory than those of others.
    return int(np.min(multihost_utils.process_allgather(np.asarray(size))))
