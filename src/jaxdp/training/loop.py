"""How does a run proceed from step to step? It trains, reads metrics, evaluates and saves; listeners show and write."""

import collections
import dataclasses
import gc
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np
import optax

from jaxdp.parallel.strategy import Strategy
from jaxdp.training import metrics
from jaxdp.training.state import TrainState

# How many steps may be under way before the host waits for the oldest. It hides dispatch and the reading of metrics, bounds the
# batches in memory, and keeps simulated devices from running so far ahead that XLA:CPU's rendezvous times out (at 8 they survive).
RUN_AHEAD = 4

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


@dataclasses.dataclass
class Ledger:
    """Metric sums and times of steps that are done.

    Attributes:
        interval, epoch: sums since the last row, and since the epoch began; part of a checkpoint.
        first_step_seconds: of this process's first step, compilation included; the rates leave it out.
        first_step_done: when it was done, by `time.perf_counter`; 0 before.
        train_seconds, train_examples: of all other steps of this process, without evaluating and saving.
        skipped_updates, skipped_in_a_row: updates left out because they were not finite, in the whole run and just now.
        rollbacks: how often the run went back to a checkpoint; each one halved the learning rate.
    """

    interval: metrics.Sums = dataclasses.field(default_factory=dict)
    epoch: metrics.Sums = dataclasses.field(default_factory=dict)
    first_step_seconds: float = 0.0
    first_step_done: float = 0.0
    train_seconds: float = 0.0
    train_examples: float = 0.0
    skipped_updates: int = 0
    skipped_in_a_row: int = 0
    rollbacks: int = 0

    @property
    def learning_rate_factor(self) -> float:
        return 0.5**self.rollbacks

    def position(self) -> dict[str, Any]:
        """Returns what a checkpoint keeps, so that a run continued goes on as if nothing had happened."""
        sums = {name: metrics.to_json(getattr(self, name)) for name in ("interval", "epoch")}
        return sums | {name: getattr(self, name) for name in ("skipped_updates", "skipped_in_a_row", "rollbacks")}

    @classmethod
    def at(cls, position: Mapping[str, Any]) -> "Ledger":
        """Creates the ledger of a process that begins where a checkpoint was saved."""
        names = ("interval", "epoch", "skipped_updates", "skipped_in_a_row", "rollbacks")
        return cls(**{name: position[name] for name in names if name in position})

    def rolled_back(self, position: Mapping[str, Any]) -> "Ledger":
        """Returns the ledger of this process back at a checkpoint: the time it took is still spent."""
        kept = {name: getattr(self, name) for name in ("first_step_seconds", "first_step_done", "train_seconds", "train_examples")}
        return dataclasses.replace(Ledger.at(position), rollbacks=self.rollbacks + 1, **kept)


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
    evaluate: Callable[[TrainState], metrics.Sums],
    save: Callable[[int, TrainState, dict[str, Any], dict[str, float] | None], None],
    listeners: list[Listener],
    should_stop: Callable[[], bool],
    max_skips: int,
) -> Outcome:
    """Trains from step `start` to the end of the plan, or until asked to stop; saves the last state in either case.

    Args:
        batches: placed batches from step `start` on.
        data: the dataset where it lives on the devices, or nothing.
        ledger: sums that a checkpoint carried over, or an empty one; it is filled as training goes.
        save: takes step, state on the host, position and the test figures of that state, if it was evaluated.
        max_skips: at this many updates skipped in a row it gives up; only a recipe that skips them comes to that.

    Raises:
        Diverged: when a loss, a gradient or the state to be saved is not finite; nothing is saved from that step on.
    """
    reader = _Reader(strategy, plan, ledger, schedule, listeners, max_skips)
    step, test = start, None
    while step < plan.total_steps:
        with reader.waiting():
            batch = next(batches)
        state, sums = strategy.train_step(state, batch, data)
        step += 1
        reader.add(step, sums)
        for listener in listeners:
            listener.advance(step)
        last = step == plan.total_steps
        stopped = should_stop()
        evaluates = last or step % plan.eval_every == 0
        saves = last or stopped or step % plan.checkpoint_every == 0
        if evaluates or saves:
            with reader.paused():
                test = evaluate(state) if evaluates else None
                figures = None
                if test is not None:
                    figures = metrics.figures(strategy.recipe.task, test)
                    reader.tell({"step": step, "epoch": plan.epoch(step), "split": "test"} | figures)
                if saves:
                    gathered = strategy.gather(state)
                    # Loss and gradients are those before the update, which may have been the one that went too far.
                    weights = (gathered.params, gathered.batch_stats, gathered.ema)
                    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(weights)):
                        raise Diverged(step, f"after the update of step {step} the weights are not finite numbers")
                    save(step, gathered, ledger.position(), figures)
        if stopped and not last:
            return Outcome(state, step, test, stopped=True)
    return Outcome(state, step, test, stopped=False)


class _Reader:
    """Reads metric sums a few steps after they were dispatched, so that reading never holds up the device."""

    def __init__(
        self, strategy: Strategy, plan: Plan, ledger: Ledger, schedule: optax.Schedule, listeners: list[Listener], max_skips: int
    ) -> None:
        self._strategy, self._plan, self._ledger = strategy, plan, ledger
        self._listeners, self._max_skips = listeners, max_skips
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
        skipped = bool(read.get("skipped_updates", 0.0))
        loss, norm = read["loss"] / np.maximum(read["examples"], 1.0), read["gradient_norm"]
        ledger.skipped_updates += skipped
        ledger.skipped_in_a_row = ledger.skipped_in_a_row + 1 if skipped else 0
        if ledger.skipped_in_a_row >= self._max_skips or not (skipped or (np.isfinite(loss) and np.isfinite(norm))):
            again = f"; {ledger.skipped_in_a_row} updates in a row were skipped" if skipped else ""
            raise Diverged(step, f"the loss of step {step} is {loss:.6g}, its gradient norm {norm:.6g}{again}")
        if not skipped:
            return read
        return {name: value if name == "skipped_updates" else np.zeros_like(value) for name, value in read.items()}

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
            | {name: round(float(ledger.interval[name])) for name in ("skipped_updates",) if name in ledger.interval}
            | {
                # The optimizer does not count updates that were skipped.
                "learning_rate": float(self._learning_rates[max(step - 1 - ledger.skipped_updates, 0)]),
                "examples_per_second": (self._row_examples if timed else figures["examples"]) / seconds,
                "step_seconds": seconds / max(self._row_steps, 1),
                "input_wait_fraction": min(self._row_wait / seconds, 1.0),
            }
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


def evaluate(strategy: Strategy, state: TrainState, batches: Iterator[Any], data: Any) -> metrics.Sums:
    """Returns sums over every example once; the host waits for each batch while the next one is read."""
    sums: metrics.Sums = {}
    for batch in batches:
        sums = metrics.add(sums, strategy.gather(strategy.eval_step(state, batch, data)))
    return sums
