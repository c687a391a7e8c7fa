"""Takes a run from step to step: trains, reads metrics, evaluates, and hands out states to be
saved.

The order at a step that is evaluated and saved is fixed: check that everything is finite, write the
row, save. A state that diverged is never saved, and no row is about one.

A run that a signal stops only saves: where an evaluation is due, the run evaluates once it resumes.
"""

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxdp.callbacks.events import Activity, Evaluated, Saving, StepBegin, StepEnd
from jaxdp.runtime import collector
from jaxdp.runtime.processes import compile_then_barrier
from jaxdp.step import metrics
from jaxdp.step.state import TrainState
from jaxdp.text.flags import flag
from jaxdp.training.outcome import RunOutcome
from jaxdp.training.reader import Diverged, Reader

if TYPE_CHECKING:
    from jaxdp.training.run import Run


def train(run: "Run", state: TrainState, start: int) -> RunOutcome:
    """Trains from step `start` to the end, or until asked to stop.

    The last state is handed out to be saved in either case.

    Args:
        state: placed on the devices; it is consumed.

    Raises:
        Diverged: if a loss, a gradient or a state to be saved is not finite; nothing is saved from
            that step on.
    """
    setup, intervals = run.setup, run.setup.intervals
    reader = run.reader = Reader(setup, run.counters, run.complete_row)
    batches, constants = setup.batches.placed(start), setup.constants
    step, sums = start, None
    if run.counters.evaluation_due and setup.evaluator.split is not None:
        run.state, run.counters.evaluation_due = state, None
        with reader.paused():
            sums = _evaluate_and_save(run, state, step, evaluates=True, saves=True)
        if run.counters.evaluation_due or run.ended_early():
            return _left(run, state, step, sums)
    compiled_sizes: set[int] = set()
    for steps in intervals.executions(start):
        compiled = len(steps) in compiled_sizes
        compiled_sizes.add(len(steps))
        run.emit("on_step_begin", StepBegin, steps.start + 1, steps.stop)
        if not compiled:
            reader.drain()  # compiling holds up nothing else then
        run.emit("on_activity", Activity, "waiting for input", step)
        with reader.waiting(), jax.profiler.TraceAnnotation("waiting for input"):
            batch = next(batches)
        activity = "training" if compiled else "compiling"
        run.emit("on_activity", Activity, activity, steps.start + 1, compiled)
        with (
            jax.profiler.StepTraceAnnotation("train", step_num=step + 1),
            contextlib.nullcontext() if compiled else collector.paused(),
        ):
            state, step_sums = compile_then_barrier(
                setup.strategy.train_step, state, batch, constants
            )
        run.state, step = state, steps.stop
        reader.add(steps, step_sums, compiled=compiled)
        run.emit("on_step_end", StepEnd, step, state)
        last, stopped = step == intervals.total_steps, run.agree_to_stop(step)
        evaluates = last or step % intervals.eval_every == 0
        evaluates &= setup.evaluator.split is not None
        saves = last or stopped or step % intervals.checkpoint_every == 0
        postpones = evaluates and stopped and not run.ended_early()
        run.counters.evaluation_due = postpones or None
        if evaluates or saves:
            with reader.paused():
                run.state = state = setup.strategy.fetch_state(state)
                sums = _evaluate_and_save(
                    run, state, step, evaluates=evaluates and not postpones, saves=saves
                )
        is_cut = (stopped or bool(run.ended_early())) and not last
        if is_cut or run.counters.evaluation_due:
            return _left(run, state, step, sums)
    return RunOutcome("done", step, state, sums)


def _left(run: "Run", state: TrainState, step: int, sums: metrics.Sums | None) -> RunOutcome:
    """Returns the outcome of a run that ends before its last step or evaluation."""
    early = "" if run.counters.evaluation_due else run.ended_early()
    return RunOutcome("done" if early else "stopped", step, state, sums, early)


class _Interrupted(Exception):
    """A signal came during an evaluation."""


def _evaluate(run: "Run", state: TrainState, step: int) -> metrics.Sums | None:
    """Returns the metric sums of an evaluation; None if a signal came first."""

    def advance() -> None:
        run.emit("on_activity", Activity, "evaluating", step)
        if run.must_leave():
            raise _Interrupted

    # The first time it compiles.
    run.emit("on_activity", Activity, "evaluating", step, run.has_evaluated)
    run.has_evaluated = True
    with contextlib.suppress(_Interrupted):
        return run.setup.evaluator.evaluate(state, advance)
    return None


def _evaluate_and_save(
    run: "Run", state: TrainState, step: int, *, evaluates: bool, saves: bool
) -> metrics.Sums | None:
    setup, split = run.setup, run.setup.evaluator.split or ""
    sums = values = saved = None
    if evaluates:
        sums = _evaluate(run, state, step)
        run.counters.evaluation_due = sums is None or None
    if sums is not None:
        values = metrics.compute(setup.step_config.task, sums)
    if saves or run.counters.evaluation_due:
        saved = _copy(run, state, step)
    finite = saved is None or setup.strategy.all_finite(state, saved)
    check_finite(step, finite, values, split, setup.config.precision)
    if values is not None:
        run.complete_row(
            {"step": step, "epoch": setup.intervals.epoch(step), "split": split} | values
        )
        run.emit("on_evaluate", Evaluated, step, split, values)
        improved = run.improves(values)
        if saved is None and (improved or run.ended_early()):
            saved = _copy(run, state, step)
            check_finite(step, setup.strategy.all_finite(state, saved), None)
    if run.ended_early() and run.reader is not None:
        run.reader.write_rest(step)
    if saved is not None:
        run.emit("on_save", Saving, step, saved, run.position(), values)
    return sums


def _copy(run: "Run", state: TrainState, step: int) -> Any:
    run.emit("on_activity", Activity, "saving", step, False)
    return run.setup.strategy.host_copy(state)


def check_finite(
    step: int,
    weights_are: bool,
    values: Mapping[str, float] | None,
    split: str = "test",
    precision: str = "float32",
) -> None:
    """Checks what loss and gradients do not show: they are from before the update, which may have
    been the one that went too far.

    Raises:
        Diverged: if weights to be saved, or the loss of an evaluation, are not finite numbers.
    """
    after = f"after the update of step {step} the"
    if not weights_are:
        raise Diverged(step, f"{after} weights are not finite numbers")
    if values is None or np.isfinite(values["loss"]):
        return
    others = [name for name, value in values.items() if not np.isfinite(value)][1:]
    also = f" (also {', '.join(others)})" if others else ""
    reason = f"{after} {split} loss is {values['loss']}{also}, though the training loss is finite"
    if precision != "float32":
        reason += f"; {precision} may be why: try {flag('precision', 'float32')}"
    raise Diverged(step, reason)
