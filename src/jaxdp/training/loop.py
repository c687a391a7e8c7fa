"""How does a run proceed from step to step? It trains, reads metrics, evaluates and saves; listeners show and write."""

import collections
import dataclasses
import functools
import gc
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np
import optax

from jaxdp.parallel import monitor
from jaxdp.parallel.strategy import Strategy
from jaxdp.training import metrics
from jaxdp.training.ledger import Ledger
from jaxdp.training.profiler import Profiler
from jaxdp.training.state import TrainState
from jaxdp.training.watchdog import Watchdog

# How many steps may be under way before the host waits for the oldest. It hides dispatch and the reading of metrics, bounds the
# batches in memory, and keeps simulated devices from running so far ahead that XLA:CPU's rendezvous times out (at 8 they survive).
RUN_AHEAD = 4
_SKIPS = ("skipped_updates", "overflows")
# What a training row tells of the machine: the rest is the same in every run of the same training.
MEASURED = ("examples_per_second", "step_seconds", "input_wait_fraction", *monitor.FIELDS)

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Plan:
    """When what happens, in steps counted from 1."""

    total_steps: int
    steps_per_epoch: int
    log_every: int
    eval_every: int
    checkpoint_every: int

    def epoch(self, step: int) -> int:
        """Returns the epoch that a step belongs to, counted from 1."""
        return max(step - 1, 0) // self.steps_per_epoch + 1


@runtime_checkable
class Listener(Protocol):
    def advance(self, step: int) -> None:
        """A step was dispatched."""
        ...

    def write(self, row: Row) -> None:
        """A row for metrics.jsonl: training figures since the last one, or an evaluation."""
        ...


class Diverged(Exception):
    """Loss, gradients or weights are no longer finite numbers."""

    def __init__(self, step: int, reason: str) -> None:
        super().__init__(reason)
        self.step = step


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Attributes:
    test: sums of the state's evaluation, if there was one.
    stopped: whether it was asked to stop before the end.
    """

    state: TrainState
    step: int
    test: metrics.Sums | None
    stopped: bool


def fit(
    strategy: Strategy,
    state: TrainState,
    batches: Iterator[Any],
    data: Any,
    *,
    start: int,
    plan: Plan,
    ledger: Ledger,
    schedule: optax.Schedule,
    evaluate: Callable[[TrainState, Callable[[], None]], metrics.Sums],
    save: Callable[[int, TrainState, dict[str, Any], dict[str, float] | None], None],
    listeners: list[Listener],
    should_stop: Callable[[int], bool],
    max_skips: int,
    watchdog: Watchdog,
    profiler: Profiler,
    read_devices: Callable[[], monitor.Figures],
) -> Outcome:
    """Trains from step `start` to the end of the plan, or until asked to stop; saves the last state in either case.

    Args:
        batches: placed batches from step `start` on.
        data: the dataset where it lives on the devices, or nothing.
        ledger: sums that a checkpoint carried over, or an empty one; it is filled as training goes.
        evaluate: takes the state, and what to call after each batch.
        save: takes step, a copy of the state, position and the test figures of that state, if it was evaluated.
        should_stop: takes the number of the step that was just dispatched; all processes get the same answer.
        max_skips: at this many updates skipped in a row it gives up; only a recipe that skips them comes to that.
        read_devices: returns what a training row tells of devices and processes.

    Raises:
        Diverged: when a loss, a gradient or the state to be saved is not finite; nothing is saved from that step on.
    """
    reader = _Reader(strategy, plan, ledger, schedule, listeners, max_skips, read_devices)
    step, test, evaluated = start, None, False
    while step < plan.total_steps:
        compiled = step > start
        if profiler.begins(step + 1):
            with reader.paused():
                profiler.start()
        watchdog.note("waiting for input", step)
        with reader.waiting(), jax.profiler.TraceAnnotation("waiting for input"):
            batch = next(batches)
        watchdog.note("training" if compiled else "compiling", step + 1, limited=compiled)
        with jax.profiler.StepTraceAnnotation("train", step_num=step + 1):
            state, sums = strategy.train_step(state, batch, data)
        step += 1
        reader.add(step, sums)
        for listener in listeners:
            listener.advance(step)
        last = step == plan.total_steps
        if profiler.ends(step):
            with reader.paused():
                profiler.stop()
        stopped = should_stop(step)
        evaluates = last or step % plan.eval_every == 0
        saves = last or stopped or step % plan.checkpoint_every == 0
        if evaluates or saves:
            with reader.paused():
                test = figures = saved = None
                if evaluates:
                    watchdog.note("evaluating", step, limited=evaluated)
                    test, evaluated = evaluate(state, functools.partial(watchdog.note, "evaluating", step)), True
                    figures = metrics.figures(strategy.recipe.task, test)
                if saves:
                    watchdog.note("saving", step, limited=False)
                    saved = strategy.to_save(state)
                check_finite(step, saved is None or strategy.all_finite(state, saved), figures)
                if figures is not None:
                    reader.tell({"step": step, "epoch": plan.epoch(step), "split": "test"} | figures)
                if saved is not None:
                    save(step, saved, ledger.position(), figures)
        if stopped and not last:
            return Outcome(state, step, test, stopped=True)
    return Outcome(state, step, test, stopped=False)


def check_finite(step: int, weights_are: bool, figures: dict[str, float] | None) -> None:
    """Loss and gradients are those before the update, which may have been the one that went too far.

    Raises:
        Diverged: if weights to be saved, or the loss of an evaluation, are not finite numbers.
    """
    if not weights_are:
        raise Diverged(step, f"after the update of step {step} the weights are not finite numbers")
    if figures is not None and not np.isfinite(figures["loss"]):
        raise Diverged(step, f"after the update of step {step} the test loss is {figures['loss']}")


class _Reader:
    """Reads metric sums a few steps after they were dispatched, so that reading never holds up the device."""

    def __init__(
        self, strategy: Strategy, plan: Plan, ledger: Ledger, schedule: optax.Schedule, listeners: list[Listener], max_skips: int,
        read_devices: Callable[[], monitor.Figures],
    ) -> None:  # fmt: skip
        self._strategy, self._plan, self._ledger = strategy, plan, ledger
        self._listeners, self._max_skips, self._read_devices = listeners, max_skips, read_devices
        # All at once: called step by step, a schedule compiles each of its operations while the device waits.
        self._learning_rates = np.asarray(jax.jit(jax.vmap(schedule))(np.arange(plan.total_steps)))
        self._unread: collections.deque[tuple[int, Any]] = collections.deque()
        self._clock = time.perf_counter()
        self._compiled = False
        self._row_seconds = self._row_wait = self._row_examples = 0.0
        self._row_steps = 0
        self._compile_seconds = 0.0

    def waiting(self) -> "_Stopwatch":
        return _Stopwatch(self._waited)

    def _waited(self, seconds: float) -> None:
        self._row_wait += seconds

    def paused(self) -> "_Stopwatch":
        """Reads everything (a device sync) and keeps the block out of the training time."""
        while self._unread:
            self._read()
        return _Stopwatch(lambda seconds: self._restart())

    def _restart(self) -> None:
        self._clock = time.perf_counter()

    def add(self, step: int, sums: Any) -> None:
        self._unread.append((step, sums))
        while len(self._unread) > (RUN_AHEAD if self._compiled else 0):
            self._read()

    def _read(self) -> None:
        step, sums = self._unread.popleft()
        read = metrics.add(self._strategy.gather(sums))  # waits for that step
        now = time.perf_counter()
        seconds, self._clock = now - self._clock, now
        ledger, plan = self._ledger, self._plan
        read = self._checked(step, read)
        if self._compiled:
            ledger.train_seconds += seconds
            ledger.train_examples += float(read["examples"])
            self._row_seconds += seconds
            self._row_steps += 1
            self._row_examples += float(read["examples"])
        else:
            self._compiled = True
            self._compile_seconds = seconds
            if not ledger.first_step_done:  # after a rollback this is not the first one
                ledger.first_step_seconds, ledger.first_step_done = seconds, now
            self._row_wait = 0.0
            # Tracing leaves millions of objects: to look through them again takes the collector as long as several steps.
            gc.collect()
            gc.freeze()
            self._restart()
        if (step - 1) % plan.steps_per_epoch == 0:
            ledger.epoch = {}
        ledger.interval, ledger.epoch = metrics.add(ledger.interval, read), metrics.add(ledger.epoch, read)
        if step % plan.log_every == 0 or step == plan.total_steps:
            self._write_row(step)

    def _checked(self, step: int, read: metrics.Sums) -> metrics.Sums:
        """Returns a step's sums, of a skipped update only that it was; the values are the same in every process."""
        ledger = self._ledger
        skipped, overflowed = bool(read.get("skipped_updates", 0.0)), bool(read.get("overflows", 0.0))
        loss, norm = read["loss"] / np.maximum(read["examples"], 1.0), read["gradient_norm"]
        ledger.skipped_updates += skipped
        # A loss scale that was too large is tried again at half its size: nothing has diverged.
        ledger.skipped_in_a_row = ledger.skipped_in_a_row + 1 if skipped and not overflowed else 0
        tolerated = overflowed or (skipped and self._strategy.recipe.on_divergence == "skip")
        if ledger.skipped_in_a_row >= self._max_skips or not (tolerated or (np.isfinite(loss) and np.isfinite(norm))):
            again = f"; {ledger.skipped_in_a_row} updates in a row were skipped" if ledger.skipped_in_a_row > 1 else ""
            raise Diverged(step, f"the loss of step {step} is {loss:.6g}, its gradient norm {norm:.6g}{again}")
        if not skipped:
            return read
        return {name: value if name in _SKIPS else np.zeros_like(value) for name, value in read.items()}

    def _write_row(self, step: int) -> None:
        ledger = self._ledger
        if not ledger.interval["examples"]:  # nothing but skipped updates: the next row tells of them
            return
        figures = metrics.figures(self._strategy.recipe.task, ledger.interval)
        timed = self._row_steps > 0  # not so in a row of the first step alone
        seconds = self._row_seconds if timed else self._compile_seconds
        self.tell(
            {"step": step, "epoch": self._plan.epoch(step), "split": "train"}
            | figures
            | {"gradient_norm": float(ledger.interval["gradient_norm"] / np.maximum(ledger.interval["updates"], 1.0))}
            | {name: round(float(ledger.interval[name])) for name in _SKIPS if name in ledger.interval}
            | {
                # The optimizer does not count updates that were skipped.
                "learning_rate": float(self._learning_rates[max(step - 1 - ledger.skipped_updates, 0)]),
                "examples_per_second": (self._row_examples if timed else figures["examples"]) / seconds,
                "step_seconds": seconds / max(self._row_steps, 1),
                "input_wait_fraction": min(self._row_wait / seconds, 1.0),
            }
            | self._read_devices()
        )
        ledger.interval = {}
        self._row_seconds = self._row_wait = self._row_examples = 0.0
        self._row_steps = 0

    def tell(self, row: Row) -> None:
        for listener in self._listeners:
            listener.write(row)


class _Stopwatch:
    def __init__(self, done: Callable[[float], None]) -> None:
        self._done = done

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        self._done(time.perf_counter() - self._start)


def evaluate(
    strategy: Strategy, state: TrainState, batches: Iterator[Any], data: Any, batch_done: Callable[[], None]
) -> metrics.Sums:
    """Returns sums over every example once; the host waits for each batch while the next one is read."""
    sums: metrics.Sums = {}
    for batch in batches:
        sums = metrics.add(sums, strategy.gather(strategy.eval_step(state, batch, data)))
        batch_done()
    return sums
