"""Reads the metric sums and times of finished steps, checks that they are finite, and makes
rows.
"""

import collections
import contextlib
import dataclasses
import gc
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from jaxdp.build.setup import Setup
from jaxdp.rundir.read import Row
from jaxdp.runtime import monitor
from jaxdp.step import metrics
from jaxdp.text.flags import Sentence
from jaxdp.training.counters import Counters

# How many steps may be under way before the host waits for the oldest step. This hides dispatch and
# the reading of metrics, and limits the batches in memory. It also prevents a timeout in the
# rendezvous of XLA:CPU, which occurs if simulated devices run too far ahead (8 steps still work).
RUN_AHEAD = 4
_SKIPS = ("skipped_updates", "overflows")
# Fields of a training row about the machine. All other fields are the same in every run of the same
# training.
MEASURED = ("examples_per_second", "step_seconds", "input_wait_fraction", *monitor.FIELDS)


class Diverged(Exception):
    """Loss, gradients or weights are not finite numbers."""

    def __init__(self, step: int, reason: str) -> None:
        self.step, self.reason = step, Sentence(reason)
        super().__init__(self.reason)


@dataclasses.dataclass
class _RowTimes:
    """Times and counts of the steps of a row, without steps that waited for a compilation."""

    seconds: float = 0.0
    steps: int = 0
    examples: float = 0.0
    wait_seconds: float = 0.0
    compile_seconds: float = 0.0


class Reader:
    """Reads metric sums a few steps after their dispatch, so that reading never delays the device.

    Args:
        setup: the parts of the run.
        counters: the reader adds the steps that it reads.
        complete_row: receives each row of training metrics.

    Attributes:
        margin: no process is more than `margin` - 1 steps ahead of the slowest process.
    """

    def __init__(
        self, setup: Setup, counters: Counters, complete_row: Callable[[Row], None]
    ) -> None:
        self._setup = setup
        self._counters = counters
        self._complete_row = complete_row
        self._unread: collections.deque[tuple[range, Any, bool]] = collections.deque()
        self._clock = time.perf_counter()
        self._times = _RowTimes()
        calls = setup.intervals.steps_per_execution
        self._run_ahead = max(RUN_AHEAD // calls, 1)
        self.margin = calls * (self._run_ahead + 1)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Counts the time of the block as waiting for input."""
        began = time.perf_counter()
        yield
        self._times.wait_seconds += time.perf_counter() - began

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Reads all steps, and excludes the time of the block from the training time."""
        self.drain()
        yield
        self._clock = time.perf_counter()

    def drain(self) -> None:
        """Reads all steps, which synchronizes with the devices."""
        while self._unread:
            self._read()

    def add(self, steps: range, sums: Any, *, compiled: bool) -> None:
        """Takes the metric sums of an execution, and reads the executions that are due.

        Args:
            compiled: whether the program of the execution was already compiled.
        """
        self._unread.append((steps, sums, compiled))
        most_unread = self._run_ahead if compiled and self._setup.strategy.runs_ahead else 0
        while len(self._unread) > most_unread:
            self._read()

    def _read(self) -> None:
        steps, sums, compiled = self._unread.popleft()
        gathered = self._setup.strategy.gather(sums)  # waits for these steps
        now = time.perf_counter()
        seconds, self._clock = now - self._clock, now
        counters, stacked = self._counters, self._setup.intervals.steps_per_execution > 1
        if not compiled and not counters.first_step_done:
            counters.first_step_done = now
        for number, step in enumerate(steps):
            own = gathered
            if stacked:
                own = {name: values[number] for name, values in gathered.items()}
            self._take(step + 1, metrics.add(own), seconds / len(steps), compiled=compiled)
        if not compiled:
            self._times.wait_seconds = 0.0
            # Tracing leaves millions of objects. A further collection of these objects takes as
            # long as several steps.
            gc.collect()
            gc.freeze()
            self._clock = time.perf_counter()

    def _take(self, step: int, sums: metrics.Sums, seconds: float, *, compiled: bool) -> None:
        """Adds the metric sums and the time of a step to the counters, and writes a row if a row is
        due.

        Args:
            seconds: the duration of the step.
            compiled: whether the program of the step was already compiled. Otherwise no rate
                includes the step, unless it is the only step of a row.
        """
        counters, times = self._counters, self._times
        intervals = self._setup.intervals
        sums = self._checked(step, sums)
        if compiled:
            examples = float(sums["examples"])
            counters.train_seconds += seconds
            counters.train_examples += examples
            times.seconds += seconds
            times.steps += 1
            times.examples += examples
        else:
            times.compile_seconds += seconds
        if (step - 1) % intervals.steps_per_epoch == 0:
            counters.epoch = {}
        counters.interval = metrics.add(counters.interval, sums)
        counters.epoch = metrics.add(counters.epoch, sums)
        # If all updates were skipped, the next row counts them.
        if intervals.logs_at(step) and counters.interval["examples"]:
            self._write_row(step)

    def write_rest(self, step: int) -> None:
        """Writes a row of the steps since the last row, if a callback ends the run."""
        if self._counters.interval.get("examples"):
            self._write_row(step)

    def _checked(self, step: int, sums: metrics.Sums) -> metrics.Sums:
        """Returns the metric sums of a step. If its update was skipped, only the counts of skips
        are not 0.

        The values are the same in every process.

        Raises:
            Diverged: if loss or gradients are not finite, or too many updates were skipped.
        """
        counters = self._counters
        skipped, overflowed = (bool(sums.get(name, 0.0)) for name in _SKIPS)
        loss, norm = sums["loss"] / np.maximum(sums["examples"], 1.0), sums["gradient_norm"]
        counters.skipped_updates += skipped
        # A loss scale that was too large is halved. That is no divergence.
        in_a_row = counters.skipped_in_a_row + 1 if skipped and not overflowed else 0
        counters.skipped_in_a_row = in_a_row
        tolerated = overflowed or (skipped and self._setup.step_config.on_divergence == "skip")
        fine = tolerated or (np.isfinite(loss) and np.isfinite(norm))
        if in_a_row >= self._setup.config.max_divergences or not fine:
            reason = f"the loss of step {step} is {loss:.6g}, its gradient norm {norm:.6g}"
            if in_a_row > 1:
                reason += f"; {in_a_row} updates in a row were skipped"
            raise Diverged(step, reason)
        if not skipped:
            return sums
        return {
            name: each if name in _SKIPS else np.zeros_like(each) for name, each in sums.items()
        }

    def _write_row(self, step: int) -> None:
        setup, times = self._setup, self._times
        sums = self._counters.interval
        values = metrics.compute(setup.step_config.task, sums)
        row: Row = {"step": step, "epoch": setup.intervals.epoch(step), "split": "train"} | values
        row["gradient_norm"] = float(sums["gradient_norm"] / np.maximum(sums["updates"], 1.0))
        row |= {name: round(float(sums[name])) for name in _SKIPS if name in sums}
        # The learning rate of an optimizer object is unknown.
        if setup.inputs.optimizer is None:
            # The optimizer does not count updates that were skipped.
            updates = max(step - 1 - self._counters.skipped_updates, 0)
            row["learning_rate"] = float(setup.learning_rates[updates])
        # A row with only the first step has only the time with compilation.
        seconds, examples = times.compile_seconds, values["examples"]
        if times.steps:
            seconds, examples = times.seconds, times.examples
        if seconds:  # otherwise a process before this process took all steps of the row
            row["examples_per_second"] = examples / seconds
            row["step_seconds"] = seconds / max(times.steps, 1)
            row["input_wait_fraction"] = min(times.wait_seconds / seconds, 1.0)
        self._complete_row(row)
        self._counters.interval = {}
        self._times = _RowTimes()
