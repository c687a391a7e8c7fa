"""`python -m jaxdp.train`: trains a model and leaves a folder with everything about the run."""

import contextlib
import dataclasses
import functools
import hashlib
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from jaxdp import command_line, run_directory
from jaxdp.config import TrainConfig, profiled_steps
from jaxdp.registry import ConfigError, with_script
from jaxdp.runtime import platform
from jaxdp.runtime.streams import BestEffortStream

if TYPE_CHECKING:
    from jaxdp.callbacks.watchdog import Watchdog
    from jaxdp.checkpoint.checkpoints import Checkpoints
    from jaxdp.runtime.processes import Group
    from jaxdp.step.state import TrainState
    from jaxdp.training.setup import Setup

DESCRIPTION = "Train an image model data-parallel; the same command continues a run."
EXIT_NOT_WRITTEN, EXIT_DIVERGED, EXIT_STOPPED = 1, 3, 75
_STARTED = time.perf_counter()


def main(argv: Sequence[str] | None = None) -> int:
    with contextlib.redirect_stderr(BestEffortStream(sys.stderr)):  # pyright: ignore[reportArgumentType]
        return command_line.main(_main, argv, "jaxdp.train")


def _main(argv: Sequence[str]) -> int:
    config = command_line.parse(TrainConfig, argv, prog="python -m jaxdp.train", description=DESCRIPTION)
    from jaxdp.runtime import processes

    try:
        return train(config)
    except OSError as error:  # a full disk, a folder that has vanished
        what = "the run directory cannot be written: " if error.errno and not error.filename else ""
        message = f"{what}{error}; the same command continues after the last checkpoint"
        processes.leave(error, EXIT_NOT_WRITTEN, message)
        print(f"jaxdp.train: error: {message}", file=sys.stderr)
        return EXIT_NOT_WRITTEN
    except ConfigError as error:
        processes.leave(error, command_line.EXIT_USAGE_ERROR, str(error))
        raise
    except SystemExit:
        message = "stopped by a signal before the first step; the same command begins again"
        processes.leave(SystemExit(), EXIT_STOPPED, message)
        print(message, file=sys.stderr)
        return EXIT_STOPPED
    except BaseException as error:
        processes.leave(error, 1, "interrupted" if isinstance(error, KeyboardInterrupt) else None)
        raise


def train(config: TrainConfig) -> int:
    """Trains as configured and returns the exit code. To simulate devices, call it before anything else starts JAX.

    Raises:
        ConfigError: for settings that cannot work; nothing has been computed or written then.
    """
    config = dataclasses.replace(config, plugins=with_script(config.plugins))
    platform.configure(config.devices, deterministic=config.deterministic)
    from jaxdp.callbacks.watchdog import Watchdog
    from jaxdp.runtime import processes

    signals = _Signals()
    with signals.handled(), contextlib.ExitStack() as cleanup:
        group = processes.start(config)
        watchdog = Watchdog(group, config.step_timeout)
        cleanup.enter_context(watchdog.watching())
        from jaxdp.reporting import progress
        from jaxdp.training.setup import create_setup

        primary = group.index == 0  # of several processes one writes; all of them take part in a checkpoint
        setup = create_setup(config, advance=progress.Reading() if primary else lambda split, done, total: None)
        description = dataclasses.asdict(setup.dataset.describe())
        run = run_directory.claim(setup.config, description, create=primary)
        watchdog.folder = run.path
        with run.exclusive() if primary else contextlib.nullcontext():
            return _train(setup, run, description, group, watchdog, signals)


def _train(
    setup: "Setup", run: run_directory.RunDirectory, description: dict[str, Any], group: "Group", watchdog: "Watchdog",
    signals: "_Signals",
) -> int:  # fmt: skip
    import jax

    from jaxdp.callbacks.profiler import Profiler
    from jaxdp.checkpoint.checkpoints import Checkpoints
    from jaxdp.inference.apply import create_predictor
    from jaxdp.reporting import outcome as outcome_pictures
    from jaxdp.reporting import plots, progress, writers
    from jaxdp.runtime.monitor import Monitor
    from jaxdp.step import metrics
    from jaxdp.training import loop, reader, summary
    from jaxdp.training.counters import Counters

    primary = group.index == 0
    config, plan, task = setup.config, setup.plan, setup.recipe.task
    best_metric = task.best_metric
    margin = plan.steps_per_execution * (reader.run_ahead(plan.steps_per_execution) + 1)
    with contextlib.closing(Checkpoints(run.checkpoints, keep=config.keep, best_metric=best_metric)) as checkpoints:
        saved = checkpoints.latest()
        start = saved or 0
        if config.resume == "must" and saved is None:
            raise ConfigError("resume", "must", f"there is no checkpoint in {run.path}; check --run-dir")
        finished = run.read_summary()
        if finished is not None and finished["status"] == "done" and start >= plan.total_steps:
            progress.print_summary(finished, str(run.path), best_metric[0])
            print(f"{run.path} is complete: --epochs or --steps extends it, --resume never starts another run.", file=sys.stderr)
            return 0
        state, position = _begin(setup, checkpoints, saved)
        _check_agreement(setup, run, group, state, start, description)
        monitor = Monitor(setup.strategy.devices, group, config.distributed_timeout)
        counters = Counters.at(position)
        counters.rollbacks = max(counters.rollbacks, run.read_rollbacks())
        message = f"continuing {run.path} after step {start}" if saved is not None else ""
        state_bytes = setup.strategy.state_bytes(setup.shapes)
        if primary and state_bytes is not None and state_bytes["per_device"] < state_bytes["replicated"]:
            print(progress.state_bytes_text(state_bytes), file=sys.stderr)
        where = {"devices": setup.strategy.num_devices, "processes": group.count}
        _ = setup.train_data, setup.test_data  # read before the bar begins
        if primary:
            run.write_config(config)
            run.write_dataset(description)
            run.record("started" if saved is None else "resumed", start, **where)
        signals.training = True
        while True:  # once, and again after each rollback
            current = setup.slowed(counters.learning_rate_factor) if counters.rollbacks else setup
            strategy = current.strategy
            with contextlib.ExitStack() as cleanup:
                profiler = Profiler(profiled_steps(config.profile) if config.profile else None, run.path / "profile")
                cleanup.callback(profiler.stop)
                listeners: list[reader.Listener] = []
                events: writers.TensorBoard | None = None
                if primary:
                    bar = progress.Progress(
                        start=start, total_steps=plan.total_steps, steps_per_epoch=plan.steps_per_epoch,
                        figure_name=best_metric[0],
                    )  # fmt: skip
                    if message:
                        bar.say(message)
                    rows = writers.JsonLines(run.metrics_file, start)
                    events = writers.TensorBoard(run.path / "tensorboard", start)
                    for listener in (bar, rows, events):
                        listeners.append(listener)
                        cleanup.callback(listener.close)
                state = strategy.restore(state, setup.shapes)  # the host lets go of it
                test, failure, outcome = None, "", None
                try:
                    outcome = loop.fit(
                        strategy,
                        state,
                        current.train_batches(start),
                        current.constants,
                        start=start,
                        plan=plan,
                        counters=counters,
                        learning_rates=current.learning_rates,
                        evaluate=current.evaluate,
                        save=functools.partial(checkpoints.save, shapes=setup.shapes),
                        listeners=listeners,
                        should_stop=lambda step: group.stops_at(step, wanted=bool(signals.received), margin=margin),
                        max_skips=config.max_divergences,
                        watchdog=watchdog,
                        profiler=profiler,
                        read_devices=monitor.read,
                    )
                    watchdog.note("finishing", outcome.step, limited=False)
                    status, step, test = "stopped" if outcome.stopped else "done", outcome.step, outcome.test
                    if start == step == plan.total_steps:  # killed after its last checkpoint
                        test = current.evaluate(outcome.state)
                except reader.Diverged as error:
                    status, step, failure = "diverged", error.step, str(error)
                trained = None
                if outcome is not None and test is not None:  # by all processes: each may hold a part of it
                    trained = strategy.gather(dataclasses.replace(outcome.state, opt_state=None))
                if events is not None and trained is not None and test is not None:
                    pictures = outcome_pictures.draw(
                        run.plots, title=summary.title(setup), task=task, source=setup.dataset.test, sums=test,
                        predict=create_predictor(trained, setup.recipe.preprocess),
                    )  # fmt: skip
                    events.add_pictures(pictures, step)
            checkpoints.wait()
            if status != "diverged" or config.on_divergence != "rollback" or counters.rollbacks >= config.max_divergences:
                break
            saved = checkpoints.latest()
            start = saved or 0
            state, position = _begin(setup, checkpoints, saved)
            counters = counters.rolled_back(position)
            if primary:
                run.write_rollbacks(counters.rollbacks)
                run.record("rollback", step, to_step=start, reason=failure, **where)
            number = f"rollback {counters.rollbacks} of at most {config.max_divergences}"
            message = f"{failure}: back to step {start} at {counters.learning_rate_factor:g} times the learning rate ({number})"
        parameters = sum(leaf.size for leaf in jax.tree.leaves(setup.shapes.params))
        figures = metrics.figures(task, test) if test is not None else None
        written = summary.summarize(
            setup,
            counters,
            status=status,
            step=step,
            parameters=parameters,
            test=figures,
            best=checkpoints.best(),
            started=_STARTED,
        )  # fmt: skip
        if state_bytes is not None:
            written["state_bytes"] = state_bytes["replicated"]
            written["state_bytes_per_device"] = state_bytes["per_device"]
        last_saved = checkpoints.latest()
        monitor.close()
    if primary:
        run.record(status, step, **({"reason": failure} if failure else {}), **where)
        run.write_summary(written)
        rows = writers.read_rows(run.metrics_file)
        plots.plot_curves(rows, run.plots / "curves.png", title=summary.title(setup), figure_name=best_metric[0])
        progress.print_summary(written, str(run.path), best_metric[0])
        for split, reasons in setup.skipped().items():
            print(f"warning: {len(reasons)} bad {split} examples were left out, e.g. {reasons[0]}", file=sys.stderr)
        if counters.skipped_updates:
            print(f"warning: {counters.skipped_updates} updates were skipped: loss or gradients were not finite", file=sys.stderr)
    if status == "stopped":
        print(f"stopped by a signal after saving step {step}; the same command continues", file=sys.stderr)
    if status == "diverged":
        print(f"diverged: {failure}; the last checkpoint is that of step {last_saved or 0}", file=sys.stderr)
    return {"done": 0, "diverged": EXIT_DIVERGED, "stopped": EXIT_STOPPED}[status]


def _begin(setup: "Setup", checkpoints: "Checkpoints", saved: int | None) -> tuple["TrainState", dict[str, Any]]:
    """Returns the state and position of a checkpoint, or the initial ones."""
    if saved is None:
        return setup.create_state(), {}
    return checkpoints.restore(saved, setup.shapes, setup.strategy.parts(setup.shapes))


def _check_agreement(
    setup: "Setup", run: run_directory.RunDirectory, group: "Group", state: "TrainState", start: int, description: dict[str, Any]
) -> None:
    """Finds out before the first step whether all processes are about to train the same: later it would be a hang, or worse.

    Raises:
        ConfigError: naming the first thing that differs.
    """
    if group.count == 1:
        return
    from jaxdp.step.state import fingerprint
    from jaxdp.training import summary

    first_batch = setup.train_order[min(start, setup.plan.total_steps - 1)]
    what = dataclasses.asdict(dataclasses.replace(setup.config, process_id=None, run_dir=str(run.path))) | {
        "versions": summary.versions(),
        "dataset_description": description,
        "resumed_step": start,
        "initial_arrays": fingerprint(state),
        "first_batch": hashlib.sha256(first_batch.tobytes()).hexdigest(),
    }
    group.check_equal(what, setup.config.distributed_timeout)


class _Signals:
    """What a signal does. Handlers of a run under way only set a flag, which the loop sees between two steps: saving inside a
    handler could meet a save under way. A second interrupt leaves at once, and so does any signal while there is nothing to save.

    Attributes:
        training: whether there is.
    """

    def __init__(self) -> None:
        self.training = False
        self.received: list[int] = []

    @contextlib.contextmanager
    def handled(self) -> Iterator[None]:
        signals = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it
            signals.append(signal.SIGHUP)
        previous = {number: signal.signal(number, self._handle) for number in signals}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _handle(self, number: int, frame: object) -> None:
        if number == signal.SIGINT and (self.received or not self.training):
            raise KeyboardInterrupt
        if not self.training:
            raise SystemExit(EXIT_STOPPED)
        self.received.append(number)


if __name__ == "__main__":
    sys.exit(main())
