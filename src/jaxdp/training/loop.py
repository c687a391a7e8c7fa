"""How does a run proceed from step to step? It trains, reads metrics, evaluates and saves; listeners show and write."""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from jaxdp.callbacks.profiler import Profiler
from jaxdp.callbacks.watchdog import Watchdog
from jaxdp.runtime import monitor
from jaxdp.sharding.strategy import Strategy
from jaxdp.step import metrics
from jaxdp.step.state import Constants, TrainState
from jaxdp.training.counters import Counters
from jaxdp.training.intervals import Intervals
from jaxdp.training.reader import Diverged, Listener, Reader


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
    constants: Constants,
    *,
    start: int,
    plan: Intervals,
    counters: Counters,
    learning_rates: Float[np.ndarray, "steps"],
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
        batches: placed batches from step `start` on, those of each call together.
        counters: sums that a checkpoint carried over, or an empty one; it is filled as training goes.
        evaluate: takes the state, and what to call after each batch.
        save: takes step, a copy of the state, position and the test figures of that state, if it was evaluated.
        should_stop: takes the number of the step that was just dispatched; all processes get the same answer.
        max_skips: at this many updates skipped in a row it gives up; only a recipe that skips them comes to that.
        read_devices: returns what a training row tells of devices and processes.

    Raises:
        Diverged: when a loss, a gradient or the state to be saved is not finite; nothing is saved from that step on.
    """
    reader = Reader(strategy, plan, counters, learning_rates, listeners, max_skips, read_devices)
    step, test, evaluated = start, None, False
    compiled_sizes: set[int] = set()
    for call in plan.calls(start):
        compiled = len(call) in compiled_sizes
        compiled_sizes.add(len(call))
        if profiler.begins(step + 1):
            with reader.paused():
                profiler.start()
        if not compiled:
            reader.drain()  # compiling holds up nothing else then
        watchdog.note("waiting for input", step)
        with reader.waiting(), jax.profiler.TraceAnnotation("waiting for input"):
            batch = next(batches)
        watchdog.note("training" if compiled else "compiling", call.start + 1, limited=compiled)
        with jax.profiler.StepTraceAnnotation("train", step_num=step + 1):
            state, sums = strategy.train_step(state, batch, constants)
        step = call.stop
        reader.add(call, sums, compiled=compiled)
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
                    save(step, saved, counters.position(), figures)
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


def evaluate(
    strategy: Strategy, state: TrainState, batches: Iterator[Any], data: Any, batch_done: Callable[[], None]
) -> metrics.Sums:
    """Returns sums over every example once; the host waits for each batch while the next one is read."""
    sums: metrics.Sums = {}
    for batch in batches:
        sums = metrics.add(sums, strategy.gather(strategy.eval_step(state, batch, data)))
        batch_done()
    return sums
