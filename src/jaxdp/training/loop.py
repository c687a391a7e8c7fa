"""Takes a run from step to step: trains, reads metrics, evaluates, and hands out states to be
saved.

The order at a step that is evaluated and saved is fixed: check that everything is finite, tell the
row, save. What diverged is never saved, and a row never tells of a state that diverged.
"""

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxdp.events import Activity, Evaluated, Saving, StepBegin, StepEnd
from jaxdp.runtime.processes import compile_then_barrier
from jaxdp.step import metrics
from jaxdp.step.state import TrainState
from jaxdp.training.reader import Diverged, Reader

if TYPE_CHECKING:
    from jaxdp.training.run import Run


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What training ended with.

    Attributes:
        sums: metric sums of the state's evaluation, if there was one.
        stopped: whether it was asked to stop before the end.
        early: why a callback ended it, if one did.
    """

    state: TrainState
    step: int
    sums: metrics.Sums | None
    stopped: bool = False
    early: str = ""


def train(run: "Run", state: TrainState, start: int) -> Outcome:
    """Trains from step `start` to the end, or until asked to stop.

    The last state is handed out to be saved in either case.

    Args:
        state: placed on the devices; it is consumed.

    Raises:
        Diverged: when a loss, a gradient or a state to be saved is not finite; nothing is saved
            from that step on.
    """
    setup, intervals = run.setup, run.setup.intervals
    reader = run.reader = Reader(setup, run.counters, run.tell)
    batches, constants = setup.train_batches(start), setup.constants
    step, sums = start, None
    compiled_sizes: set[int] = set()
    for call in intervals.executions(start):
        compiled = len(call) in compiled_sizes
        compiled_sizes.add(len(call))
        run.emit("on_step_begin", StepBegin, call.start + 1, call.stop)
        if not compiled:
            reader.drain()  # compiling holds up nothing else then
        run.emit("on_activity", Activity, "waiting for input", step)
        with reader.waiting(), jax.profiler.TraceAnnotation("waiting for input"):
            batch = next(batches)
        run.emit(
            "on_activity",
            Activity,
            "training" if compiled else "compiling",
            call.start + 1,
            compiled,
        )
        with jax.profiler.StepTraceAnnotation("train", step_num=step + 1):
            state, step_sums = compile_then_barrier(
                setup.strategy.train_step, state, batch, constants
            )
        step = call.stop
        reader.add(call, step_sums, compiled=compiled)
        run.emit("on_step_end", StepEnd, step, state)
        last, stopped = step == intervals.total_steps, run.stops_at(step)
        evaluates = last or step % intervals.eval_every == 0
        saves = last or stopped or step % intervals.checkpoint_every == 0
        if evaluates or saves:
            with reader.paused():
                state = setup.strategy.collect(state)
                sums = _evaluate_and_save(run, state, step, evaluates=evaluates, saves=saves)
        early = run.ended_early()
        if (stopped or early) and not last:
            return Outcome(state, step, sums, stopped=not early, early=early)
    return Outcome(state, step, sums)


def _evaluate_and_save(
    run: "Run", state: TrainState, step: int, *, evaluates: bool, saves: bool
) -> metrics.Sums | None:
    setup = run.setup
    sums = None
    found = None
    saved = None
    if evaluates:
        # The first time it compiles.
        run.emit("on_activity", Activity, "evaluating", step, run.has_evaluated)
        run.has_evaluated = True
        sums = setup.evaluate(state, lambda: run.emit("on_activity", Activity, "evaluating", step))
        found = metrics.compute(setup.recipe.task, sums)
    if saves:
        saved = _copy(run, state, step)
    check_finite(
        step,
        saved is None or setup.strategy.all_finite(state, saved),
        found,
        setup.evaluation_split,
        setup.config.precision,
    )
    if found is not None:
        split = setup.evaluation_split
        run.tell({"step": step, "epoch": setup.intervals.epoch(step), "split": split} | found)
        run.emit("on_evaluate", Evaluated, step, split, found)
        improved = run.improves(found)
        if saved is None and (improved or run.ended_early()):
            saved = _copy(run, state, step)
            check_finite(step, setup.strategy.all_finite(state, saved), None)
    if saved is not None:
        run.emit("on_save", Saving, step, saved, run.position(), found)
    return sums


def _copy(run: "Run", state: TrainState, step: int) -> Any:
    run.emit("on_activity", Activity, "saving", step, False)
    return run.setup.strategy.to_save(state)


def check_finite(
    step: int,
    weights_are: bool,
    values: dict[str, float] | None,
    split: str = "test",
    precision: str = "float32",
) -> None:
    """Checks what loss and gradients do not show: they are from before the update, which may have
    been the one that went too far.

    Raises:
        Diverged: if weights to be saved, or the loss of an evaluation, are not finite numbers.
    """
    if not weights_are:
        raise Diverged(step, f"after the update of step {step} the weights are not finite numbers")
    if values is not None and not np.isfinite(values["loss"]):
        others = [name for name, value in values.items() if not np.isfinite(value)][1:]
        also = f" (also {', '.join(others)})" if others else ""
        hint = (
            f"; {precision} may be why: try --precision float32" if precision != "float32" else ""
        )
        raise Diverged(
            step,
            f"after the update of step {step} the {split} loss is {values['loss']}{also}, though"
            f" the training loss is finite{hint}",
        )
