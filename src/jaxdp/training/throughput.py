"""Measures how fast a training step is here and where its time goes, in a process of its own that
nothing has warmed.
"""

import collections
import gc
import itertools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxdp.sharding import memory
from jaxdp.training.reader import RUN_AHEAD
from jaxdp.training.setup import Setup

REPETITION_SECONDS = 1.0
MIN_STEPS, _MAX_STEPS = 5, 2000
_WARM_UP = 4
_APART = 10  # steps that are measured one by one
_INPUT_SECONDS = 0.5
# Rows of the square matrices whose product gives the peak: large enough to fill the machine, small
# enough for one core.
_MATRIX_ON_CPU, _MATRIX = 1024, 8192
_MATRIX_RUNS = 6


def benchmark_training(setup: Setup, *, steps: int | None, repeats: int) -> dict[str, Any]:
    """Trains for a few seconds and returns figures, ready for JSON.

    Times of parts are milliseconds of a step.

    Args:
        setup: of a run with more steps than could be measured.
        steps: of a repetition; None for as many as take about a second, at least 5.
        repeats: repetitions to take median, minimum and maximum of.
    """
    strategy, batch_size = setup.strategy, setup.global_batch_size
    training = _Training(setup)
    first, count, seconds = training.repeat(steps, repeats)
    dispatch, whole = training.run_apart(min(count, _APART))
    peaks = [(device.memory_stats() or {}).get("peak_bytes_in_use") for device in strategy.devices]
    planned_bytes = flops = None
    if hasattr(strategy.train_step, "lower"):
        _, planned = memory.compile_step(strategy, setup.abstract_step, batch_size)
        planned_bytes = planned.total
        flops = planned.flops * strategy.num_devices if math.isfinite(planned.flops) else None
    peak = matrix_peak(setup.dtype, strategy.devices)
    median = statistics.median(seconds)
    return {
        "model": setup.config.model,
        "dataset": setup.config.dataset,
        "image_shape": list(setup.dataset.image_shape),
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(training.state.params)),
        "data_placement": setup.config.data_placement,
        "steps": count,
        "repeats": repeats,
        "compile_seconds": max(first - median, 0.0),
        "images_per_second": spread([batch_size / each for each in seconds]),
        "ms_per_step": spread([1e3 * each for each in seconds]),
        "parts_ms": {
            "input": 1e3 * _input_seconds(setup),
            "dispatch": 1e3 * dispatch,
            "step": 1e3 * whole,
        },
        "memory_bytes": planned_bytes,
        "peak_memory_bytes": max(filter(None, peaks), default=None),
        "flops_per_step": flops,
        "peak_flops_per_second": peak,
        "fraction_of_peak": None if flops is None else flops / median / peak,
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    """Returns the median, minimum and maximum of some values."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def steps_for(seconds: float) -> int:
    """Returns the steps of a repetition, given what one takes."""
    return min(max(MIN_STEPS, math.ceil(REPETITION_SECONDS / max(seconds, 1e-9))), _MAX_STEPS)


class _Training:
    """A run that goes on from one measurement to the next."""

    def __init__(self, setup: Setup) -> None:
        self._strategy, self._constants = setup.strategy, setup.constants
        # A run may be shorter than what is measured: then it begins again.
        self._batches = itertools.chain.from_iterable(
            setup.train_batches(0) for _ in itertools.count()
        )
        self.state = setup.strategy.restore(setup.create_state(), setup.shapes)
        self._step = setup.strategy.train_step

    def run(self, steps: int) -> float:
        """Returns the seconds of so many steps, with input and as many of them under way as in
        training.
        """
        under_way: collections.deque[Any] = collections.deque()
        start = time.perf_counter()
        for _ in range(steps):
            self.state, sums = self._step(self.state, next(self._batches), self._constants)
            under_way.append(sums)
            if len(under_way) >= RUN_AHEAD:
                jax.block_until_ready(under_way.popleft())
        jax.block_until_ready((self.state, under_way))
        return time.perf_counter() - start

    def repeat(self, steps: int | None, repeats: int) -> tuple[float, int, list[float]]:
        """Returns the seconds of the first step, the steps of a repetition, and the seconds of a
        step in each of them.
        """
        first = self.run(1)
        # Tracing leaves millions of objects, which the collector would look through in the middle
        # of a measurement.
        gc.collect()
        gc.freeze()
        self.run(_WARM_UP)
        count = steps or steps_for(self.run(_WARM_UP) / _WARM_UP)
        return first, count, [self.run(count) / count for _ in range(repeats)]

    def run_apart(self, steps: int) -> tuple[float, float]:
        """Returns the median seconds until a step's call returns, and until it is done.

        No other is under way meanwhile.
        """
        calls, wholes = [], []
        for _ in range(steps):
            batch = jax.block_until_ready(next(self._batches))
            start = time.perf_counter()
            self.state, sums = self._step(self.state, batch, self._constants)
            calls.append(time.perf_counter() - start)
            jax.block_until_ready((self.state, sums))
            wholes.append(time.perf_counter() - start)
        return statistics.median(calls), statistics.median(wholes)


def _input_seconds(setup: Setup) -> float:
    """Returns what the input pipeline takes for a batch while nothing else runs."""
    batches = setup.train_batches(0)
    for _ in range(2 * RUN_AHEAD):  # those that were read ahead took no time
        jax.block_until_ready(next(batches))
    count, start = 0, time.perf_counter()
    while count < MIN_STEPS or time.perf_counter() - start < _INPUT_SECONDS:
        jax.block_until_ready(next(batches))
        count += 1
    return (time.perf_counter() - start) / count


def matrix_peak(dtype: Any, devices: Sequence[Any]) -> float:
    """Returns the operations per second of a large matrix product, measured on one device, for all
    of them.

    Simulated devices share the machine's cores, and one of them can use them all.
    """
    on_cpu = devices[0].platform == "cpu"
    rows = _MATRIX_ON_CPU if on_cpu else _MATRIX
    matrix = jax.device_put(jnp.ones((rows, rows), dtype), devices[0])
    product: Callable[[Any, Any], Any] = jax.jit(jnp.matmul)
    seconds = []
    for _ in range(1 + _MATRIX_RUNS):  # the first one compiles
        start = time.perf_counter()
        product(matrix, matrix).block_until_ready()
        seconds.append(time.perf_counter() - start)
    return 2 * rows**3 / min(seconds) * (1 if on_cpu else len(devices))
