"""Measures the speed of training steps, in a new process."""

import collections
import gc
import itertools
import math
import statistics
import time
from collections.abc import Sequence
from typing import Any

import jax

from jaxdp.build.setup import Setup
from jaxdp.sharding import memory
from jaxdp.training import summary
from jaxdp.training.reader import RUN_AHEAD

REPETITION_SECONDS = 1.0
MIN_STEPS, _MAX_STEPS = 5, 2000
_WARM_UP = 4


def benchmark_training(setup: Setup, *, steps: int | None, repeats: int) -> dict[str, Any]:
    """Trains for a few seconds and returns figures as plain values.

    Args:
        setup: the parts of a run.
        steps: number of steps of a repetition; None for about a second, and at least 5 steps.
        repeats: number of repetitions, for median, minimum and maximum.
    """
    strategy, batch_size = setup.strategy, setup.batches.global_batch_size
    training = _Training(setup)
    first = training.run(1)
    # Tracing leaves millions of objects. A collection of these objects would disturb a measurement.
    gc.collect()
    gc.freeze()
    training.run(_WARM_UP)
    count = steps or steps_for(training.run(_WARM_UP) / _WARM_UP)
    seconds = [training.run(count) / count for _ in range(repeats)]
    planned_bytes = None
    if hasattr(strategy.train_step, "lower"):
        planned_bytes = memory.compile_step(strategy, setup.abstract_step, batch_size)[1].total
    return {
        "model": setup.config.model,
        "dataset": setup.config.dataset,
        "image_shape": list(setup.dataset.image_shape),
        "parameters": summary.parameter_count(setup),
        "data_placement": setup.config.data_placement,
        "steps": count,
        "repeats": repeats,
        "compile_seconds": max(first - statistics.median(seconds), 0.0),
        "images_per_second": spread([batch_size / each for each in seconds]),
        "ms_per_step": spread([1e3 * each for each in seconds]),
        "memory_bytes": planned_bytes,
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    """Returns the median, minimum and maximum of values."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def steps_for(seconds: float) -> int:
    """Returns the number of steps of a repetition.

    Args:
        seconds: the duration of a step.
    """
    return min(max(MIN_STEPS, math.ceil(REPETITION_SECONDS / max(seconds, 1e-9))), _MAX_STEPS)


class _Training:
    """A run that continues from one measurement to the next."""

    def __init__(self, setup: Setup) -> None:
        self._constants = setup.constants
        # If the measurement takes more steps than the run has, the run begins again.
        self._batches = itertools.chain.from_iterable(
            setup.batches.placed(0) for _ in itertools.count()
        )
        self.state = setup.strategy.restore(setup.create_state())
        self._step = setup.strategy.train_step

    def run(self, steps: int) -> float:
        """Returns the seconds of `steps` steps, with input, and with as many steps under way as in
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
