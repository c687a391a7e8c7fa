"""Runs the training loop: takes steps, reads metrics, evaluates, and passes states to be saved.

The order at a step that is evaluated and saved is fixed: check that everything is finite, write the
row, save. A state that diverged is never saved, and no row describes it.

A run that a signal stops only saves. If an evaluation is due, the run evaluates when it resumes.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from jaxdp.build.setup import Setup
from jaxdp.callbacks import CallbackList
from jaxdp.callbacks.events import Activity, Evaluated, Logged, Saving, StepBegin, StepEnd
from jaxdp.checkpoint.integrity import BestMetric, rank
from jaxdp.rundir.read import Row
from jaxdp.runtime import garbage_collector
from jaxdp.runtime.processes import compile_then_barrier
from jaxdp.step import metrics
from jaxdp.step.state import TrainState
from jaxdp.text.flags import flag
from jaxdp.training.counters import Counters
from jaxdp.training.outcome import RunOutcome
from jaxdp.training.reader import Diverged, Reader
from jaxdp.training.stopping import Interrupted, Stopping


class Loop:
    """The training loop of a run.

    Args:
        setup: the parts of the run.
        callbacks: the callbacks of the run, which receive its events.
        stopping: decides after each execution whether the run ends.
        best_metric: the metric for which the best state is saved; None if no state is the best.
        count: yields the counts of the instances that a state finds in each example of a split.

    Attributes:
        state: the current state, on the devices; once the run has ended, its result.
        counters: metric sums and times of the steps so far.
        reader: reads the metric sums of dispatched steps.
        rows: all complete rows.
    """

    def __init__(
        self,
        setup: Setup,
        callbacks: CallbackList,
        stopping: Stopping,
        best_metric: BestMetric | None,
        count: Callable[[TrainState, str], Iterator[list[metrics.Sums]]],
    ) -> None:
        self._setup, self._strategy, self._intervals = setup, setup.strategy, setup.intervals
        self._split = setup.evaluator.split
        self._callbacks, self._stopping = callbacks, stopping
        self._best_metric, self._count = best_metric, count
        self.rows = list[Row]()
        self._step = 0
        self.state: Any = None
        self._sums: metrics.Sums | None = None  # of the evaluation of `state`
        self._has_evaluated = False
        self.counters = Counters()
        self.reader = Reader(setup, self.counters, self._complete_row)

    def train(self, state: TrainState, start: int) -> RunOutcome:
        """Trains from step `start` to the last step, or until the run is stopped or diverges.

        The last state is saved. A run diverges if a loss, a gradient or a state to be saved is not
        finite, and nothing is saved from that step on.

        Args:
            state: the state on the devices. The first step consumes it.
        """
        call, reader = self._callbacks.call, self.reader
        self.state, self._step = state, start
        with reader.paused():  # the time of the first step begins after this block
            batches, constants = self._setup.batches.placed(start), self._setup.constants
        compiled_sizes = set[int]()
        try:
            ends = self._evaluate_late()
            for steps in [] if ends else self._intervals.executions(start):
                compiled = len(steps) in compiled_sizes
                compiled_sizes.add(len(steps))
                call("on_step_begin", StepBegin(steps.start + 1, steps.stop))
                if not compiled:
                    reader.drain()  # so that compiling delays no metrics
                self._note("waiting for input")
                with reader.waiting(), jax.profiler.TraceAnnotation("waiting for input"):
                    batch = next(batches)
                name = "training" if compiled else "compiling"
                call("on_activity", Activity(name, steps.start + 1, limited=compiled))
                with (
                    jax.profiler.StepTraceAnnotation("train", step_num=steps.start + 1),
                    contextlib.nullcontext() if compiled else garbage_collector.paused(),
                ):
                    self.state, sums = compile_then_barrier(
                        self._strategy.train_step, self.state, batch, constants
                    )
                self._step = steps.stop
                reader.add(steps, sums, compiled=compiled)
                call("on_step_end", StepEnd(self._step, self.state))
                if self._ends_after_step():
                    break
        except Diverged as error:
            return RunOutcome("diverged", error.step, reason=error.reason)
        return self._outcome()

    def _outcome(self) -> RunOutcome:
        """Returns the outcome of a run that ends after this step."""
        is_last = self._step == self._intervals.total_steps
        early = "" if is_last else self._stopping.reason
        is_done = (is_last or bool(early)) and not self.counters.evaluation_due
        status, reason = ("done", early) if is_done else ("stopped", "")
        return RunOutcome(status, self._step, self.state, self._sums, reason)

    def _evaluate_late(self) -> bool:
        """Evaluates if a signal stopped the run before its evaluation. Returns whether the run ends
        here.
        """
        is_due, self.counters.evaluation_due = self.counters.evaluation_due, False
        if not is_due or self._split is None:
            return False
        with self.reader.paused():
            self._evaluate_and_save(evaluates=True, saves=True)
        return self.counters.evaluation_due or bool(self._stopping.reason)

    def _ends_after_step(self) -> bool:
        """Evaluates and saves if that is due. Returns whether the run ends after this step."""
        step, counters, stopping = self._step, self.counters, self._stopping
        stops = stopping.after(step, margin=self.reader.margin)
        is_due = self._intervals.evaluates_at(step) or bool(stopping.reason)
        evaluates = self._split is not None and is_due
        saves = stops or self._intervals.saves_at(step)
        counters.evaluation_due = evaluates and stops and not stopping.reason
        if evaluates or saves:
            with self.reader.paused():
                evaluates &= not counters.evaluation_due
                self._evaluate_and_save(evaluates=evaluates, saves=saves)
        return stops or bool(stopping.reason) or counters.evaluation_due

    def _evaluate_and_save(self, *, evaluates: bool, saves: bool) -> None:
        step, split, setup = self._step, self._split or "", self._setup
        self._sums = values = saved = None
        if evaluates:
            self._sums = self._evaluate()
            self.counters.evaluation_due = self._sums is None
        if self._sums is not None:
            values = metrics.compute(setup.step_config.task, self._sums)
        if saves or self.counters.evaluation_due:
            saved = self._copy()
        if values is not None:
            check_evaluation(step, split, values, setup.config.precision)
            place = {"step": step, "epoch": self._intervals.epoch(step), "split": split}
            self._complete_row(place | values)
            self._callbacks.call("on_evaluate", Evaluated(step, split, values))
            best = self._best_metric
            improved = best is not None and self.counters.improves(rank(values, best))
            if saved is None and (improved or self._stopping.reason):
                saved = self._copy()
        if self._stopping.reason:
            self.reader.write_rest(step)
        if saved is not None:
            self._callbacks.call("on_save", Saving(step, saved, self.position(), values))

    def _evaluate(self) -> metrics.Sums | None:
        """Returns the metric sums of an evaluation, or None if a signal interrupted it."""
        self._note("evaluating", limited=self._has_evaluated)  # the first evaluation compiles
        self._has_evaluated = True

        def advance() -> None:
            self._note("evaluating")
            self._stopping.leave()

        with contextlib.suppress(Interrupted):
            sums, split = self._setup.evaluator.evaluate(self.state, advance), self._split or ""
            finds = self._setup.step_config.task.finds_instances
            for counted in self._count(self.state, split) if finds else ():
                sums = metrics.add(sums, *counted)
                advance()
            return sums
        return None

    def _copy(self) -> TrainState:
        """Returns a copy of the state on the host, and checks that its weights are finite.

        Loss and gradients are from before the update, so they do not show that the update itself
        diverged.

        Raises:
            Diverged: if weights are not finite numbers.
        """
        self._note("saving", limited=False)
        saved = self._strategy.host_copy(self.state)
        if not self._strategy.all_finite(self.state, saved):
            reason = f"after the update of step {self._step} the weights are not finite numbers"
            raise Diverged(self._step, reason)
        return saved

    def _note(self, activity: str, *, limited: bool = True) -> None:
        self._callbacks.call("on_activity", Activity(activity, self._step, limited))

    def _complete_row(self, row: Row) -> None:
        """Lets callbacks add fields to a row, keeps the row, and passes it to callbacks."""
        self._callbacks.call("on_row", row)
        self.rows.append(row)
        self._callbacks.call("on_log", Logged(row))

    def position(self) -> dict[str, Any]:
        """Returns the values that a checkpoint holds in addition to the state, so that a resumed
        run continues as an uninterrupted run.
        """
        states = self._callbacks.state_dict()
        return self.counters.position() | ({"callbacks": states} if states else {})


def check_evaluation(
    step: int, split: str, values: Mapping[str, float], precision: str = "float32"
) -> None:
    """Raises Diverged if the loss of an evaluation is not a finite number."""
    if np.isfinite(values["loss"]):
        return
    others = [name for name, value in values.items() if not np.isfinite(value)][1:]
    also = f" (also {', '.join(others)})" if others else ""
    reason = f"after the update of step {step} the {split} loss is {values['loss']}{also}, though"
    reason += " the training loss is finite"
    if precision != "float32":
        reason += f"; {precision} may be why: try {flag('precision', 'float32')}"
    raise Diverged(step, reason)
