"""Reads the metric sums and times of finished steps, checks that they are finite, and makes rows of
them.
"""

import collections
import gc
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxdp.rundir.read import Row
from jaxdp.runtime import monitor
from jaxdp.step import metrics
from jaxdp.training.counters import Counters
from jaxdp.training.setup import Setup

# How many steps may be under way before the host waits for the oldest. It hides dispatch and the
# reading of metrics, bounds the batches in memory, and keeps simulated devices from running so far
# ahead that XLA:CPU's rendezvous times out (at 8 they survive).
RUN_AHEAD = 4
_SKIPS = ("skipped_updates", "overflows")
# What a training row tells of the machine: the rest is the same in every run of the same training.
MEASURED = ("examples_per_second", "step_seconds", "input_wait_fraction", *monitor.FIELDS)


def run_ahead(steps_per_execution: int) -> int:
    """Returns how many calls may be under way behind the newest."""
    return max(RUN_AHEAD // steps_per_execution, 1)


class Diverged(Exception):
    """Loss, gradients or weights are no longer finite numbers."""

    def __init__(self, step: int, reason: str) -> None:
        super().__init__(reason)
        self.step = step


class Reader:
    """Reads metric sums a few steps after they were dispatched, so that reading never holds up the
    device.

    Args:
        counters: are filled as steps are read.
        tell: takes each row of training metrics.
    """

    def __init__(self, setup: Setup, counters: Counters, tell: Callable[[Row], None]) -> None:
        self._setup = setup
        self._counters = counters
        self._tell = tell
        self._unread: collections.deque[tuple[range, Any, bool]] = collections.deque()
        self._clock = time.perf_counter()
        self._row_seconds = self._row_wait = self._row_examples = self._compile_seconds = 0.0
        self._row_steps = 0

    def waiting(self) -> "_Stopwatch":
        return _Stopwatch(self._waited)

    def _waited(self, seconds: float) -> None:
        self._row_wait += seconds

    def drain(self) -> None:
        """Reads everything, a device sync."""
        while self._unread:
            self._read()

    def paused(self) -> "_Stopwatch":
        """Drains, and keeps the block out of the training time."""
        self.drain()
        return _Stopwatch(lambda seconds: self._restart())

    def _restart(self) -> None:
        self._clock = time.perf_counter()

    def add(self, call: range, sums: Any, *, compiled: bool) -> None:
        self._unread.append((call, sums, compiled))
        unread = (
            run_ahead(self._setup.intervals.steps_per_execution)
            if compiled and self._setup.strategy.runs_ahead
            else 0
        )
        while len(self._unread) > unread:
            self._read()

    def _read(self) -> None:
        call, sums, compiled = self._unread.popleft()
        gathered = self._setup.strategy.gather(sums)  # waits for these steps
        now = time.perf_counter()
        seconds, self._clock = now - self._clock, now
        counters = self._counters
        if not compiled and not counters.first_step_done:
            counters.first_step_seconds, counters.first_step_done = seconds, now
        for number, step in enumerate(call):
            of_step = (
                gathered
                if self._setup.intervals.steps_per_execution == 1
                else {name: values[number] for name, values in gathered.items()}
            )
            self._take(step + 1, metrics.add(of_step), seconds / len(call), compiled=compiled)
        if not compiled:
            self._row_wait = 0.0
            # Tracing leaves millions of objects: to look through them again takes the collector as
            # long as several steps.
            gc.collect()
            gc.freeze()
            self._restart()

    def _take(self, step: int, read: metrics.Sums, seconds: float, *, compiled: bool) -> None:
        """Adds the metric sums and the time of a step to the counters, and writes a row if one is
        due.

        Args:
            seconds: that it took.
            compiled: whether its program was there already; otherwise no rate counts the step,
                unless a row has no other.
        """
        counters, intervals = self._counters, self._setup.intervals
        read = self._checked(step, read)
        if not compiled:
            self._compile_seconds += seconds
        else:
            counters.train_seconds += seconds
            counters.train_examples += float(read["examples"])
            self._row_seconds += seconds
            self._row_steps += 1
            self._row_examples += float(read["examples"])
        if (step - 1) % intervals.steps_per_epoch == 0:
            counters.epoch = {}
        counters.interval, counters.epoch = (
            metrics.add(counters.interval, read),
            metrics.add(counters.epoch, read),
        )
        if step % intervals.log_every == 0 or step == intervals.total_steps:
            self._write_row(step)

    def _checked(self, step: int, read: metrics.Sums) -> metrics.Sums:
        """Returns a step's sums, of a skipped update only that it was.

        The values are the same in every process.
        """
        counters = self._counters
        skipped, overflowed = (
            bool(read.get("skipped_updates", 0.0)),
            bool(read.get("overflows", 0.0)),
        )
        loss, norm = read["loss"] / np.maximum(read["examples"], 1.0), read["gradient_norm"]
        counters.skipped_updates += skipped
        # A loss scale that was too large is tried again at half its size: nothing has diverged.
        counters.skipped_in_a_row = (
            counters.skipped_in_a_row + 1 if skipped and not overflowed else 0
        )
        tolerated = overflowed or (skipped and self._setup.recipe.on_divergence == "skip")
        if counters.skipped_in_a_row >= self._setup.config.max_divergences or not (
            tolerated or (np.isfinite(loss) and np.isfinite(norm))
        ):
            again = (
                f"; {counters.skipped_in_a_row} updates in a row were skipped"
                if counters.skipped_in_a_row > 1
                else ""
            )
            raise Diverged(
                step, f"the loss of step {step} is {loss:.6g}, its gradient norm {norm:.6g}{again}"
            )
        if not skipped:
            return read
        return {
            name: value if name in _SKIPS else np.zeros_like(value) for name, value in read.items()
        }

    def _write_row(self, step: int) -> None:
        counters = self._counters
        # Nothing but skipped updates: the next row tells of them.
        if not counters.interval["examples"]:
            return
        values = metrics.compute(self._setup.recipe.task, counters.interval)
        timed = self._row_steps > 0  # not so in a row of the first step alone
        seconds = self._row_seconds if timed else self._compile_seconds
        row: Row = {
            "step": step,
            "epoch": self._setup.intervals.epoch(step),
            "split": "train",
        } | values
        row["gradient_norm"] = float(
            counters.interval["gradient_norm"] / np.maximum(counters.interval["updates"], 1.0)
        )
        row |= {
            name: round(float(counters.interval[name]))
            for name in _SKIPS
            if name in counters.interval
        }
        # One given as an object keeps its learning rate to itself.
        if self._setup.objects.optimizer is None:
            # The optimizer does not count updates that were skipped.
            row["learning_rate"] = float(
                self._setup.learning_rates[max(step - 1 - counters.skipped_updates, 0)]
            )
        self._tell(
            row
            | {
                "examples_per_second": (self._row_examples if timed else values["examples"])
                / seconds,
                "step_seconds": seconds / max(self._row_steps, 1),
                "input_wait_fraction": min(self._row_wait / seconds, 1.0),
            }
        )
        counters.interval = {}
        self._row_seconds = self._row_wait = self._row_examples = self._compile_seconds = 0.0
        self._row_steps = 0


class _Stopwatch:
    def __init__(self, done: Callable[[float], None]) -> None:
        self._done = done

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        self._done(time.perf_counter() - self._start)
