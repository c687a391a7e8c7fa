"""Begins or resumes a run, trains, evaluates the result, and summarizes the run."""

import contextlib
import dataclasses
import gc
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jaxdp import callbacks as callbacks_lib
from jaxdp import config as config_lib
from jaxdp.build import initial_weights as transfer
from jaxdp.build import model_size
from jaxdp.build.setup import Setup
from jaxdp.callbacks import CallbackList
from jaxdp.callbacks.early_stopping import EarlyStopping
from jaxdp.callbacks.events import Activity, Ended, Saving, Started
from jaxdp.callbacks.max_time import MaxTime
from jaxdp.callbacks.plots import Plots
from jaxdp.callbacks.run_record import RunRecord
from jaxdp.checkpoint.checkpoints import Checkpoints
from jaxdp.checkpoint.in_memory import BestInMemory
from jaxdp.checkpoint.integrity import BestMetric, rank
from jaxdp.errors import ConfigError, flag
from jaxdp.inference import instances
from jaxdp.inference import predictions as answers
from jaxdp.inference.predictor import Predictor
from jaxdp.rundir.layout import RunDirectory
from jaxdp.rundir.start import open_run
from jaxdp.runtime import devices as devices_lib
from jaxdp.runtime.processes import Group
from jaxdp.runtime.signals import StopSignals
from jaxdp.step.state import TrainState, fingerprint
from jaxdp.training import summary
from jaxdp.training.agreement import check_agreement
from jaxdp.training.loop import Loop
from jaxdp.training.outcome import RunOutcome
from jaxdp.training.stopping import Interrupted, Stopping

_PLACE = ("step", "epoch", "split")  # of a row; the rest are metrics


class TrainingRun:
    """A run that is under way. Callbacks see it as `callbacks.events.Run`.

    Args:
        setup: the parts of the run.
        group: the processes that train.
        callbacks: callback objects, called in this order.
        directory: the run directory; None to write no files.
        stopping: decides whether the run ends before its last step.
        start_time: when the run began for its user, by `time.perf_counter`.
        before: the outcome in memory that the run continues, with the state on the host.
    """

    def __init__(
        self,
        setup: Setup,
        group: Group,
        callbacks: Sequence[Any],
        directory: RunDirectory | None,
        stopping: Stopping,
        *,
        start_time: float,
        before: RunOutcome | None,
    ) -> None:
        self.setup, self.group = setup, group
        self.folder = directory.path if directory is not None else None
        self.title, self.headline = summary.title(setup), summary.description(setup)
        self.description = dataclasses.asdict(setup.description)
        self._directory, self._stopping = directory, stopping
        self._start_time, self._before = start_time, before
        best_metric: BestMetric | None = None
        self._checkpoints: Checkpoints | BestInMemory | None = None
        stops_early = any(isinstance(each, EarlyStopping) for each in callbacks)
        if setup.dataset.validation is not None and (directory is not None or stops_early):
            best_metric = setup.step_config.task.best_metric
        if directory is None and best_metric is not None:
            self._checkpoints = BestInMemory(best_metric)
            callbacks = [*callbacks, self._checkpoints]
        if directory is not None:
            self._checkpoints = Checkpoints(
                directory.checkpoints,
                keep=setup.config.keep,
                best_metric=best_metric,
                settings=config_lib.kept(setup.config),
            )
            callbacks = [*callbacks, self._checkpoints]
            self._found = directory.path.stat()
        self._callbacks = CallbackList(
            callbacks, self, primary=group.index == 0, before_writing=self._check_in_place
        )
        self._loop = Loop(setup, self._callbacks, stopping, best_metric, self._count)
        self._predictor: Predictor | None = None

    def where(self) -> dict[str, Any]:
        """Returns the number of devices and processes, and of workers if there are any."""
        own = {"devices": self.setup.strategy.num_devices, "processes": self.group.count}
        return own | summary.worker_facts(self.setup)

    def predict(self, images: Any, *, probabilities: bool = False) -> Any:
        """Returns the predictions of the current state, or of the result at the end of the run."""
        predictor = self._predicting(self._loop.state)
        return answers.predict(predictor, images, probabilities=probabilities)

    def _predicting(self, state: TrainState) -> Predictor:
        """Returns a predictor of a state. All states share one compiled program."""
        setup = self.setup
        trained = setup.strategy.gather(dataclasses.replace(state, opt_state=None))
        if self._predictor is None:
            self._predictor = Predictor(
                trained, setup.config, setup.description, setup.step_config.task
            )
        self._predictor.replace_state(trained)
        return self._predictor

    def _count(self, state: TrainState, split: str) -> Iterator[list[Any]]:
        """Yields the counts of the instances in each example of a split."""
        return instances.count(self._predicting(state), self.setup.examples.source(split))

    def paused(self) -> contextlib.AbstractContextManager[Any]:
        """Waits for all dispatched steps, and excludes the time of the block from the training
        time.
        """
        self._check_in_place()  # the profiler writes a trace in the block
        return self._loop.reader.paused()

    def stop(self, reason: str) -> None:
        """Ends the run, as done: after the current step if the callback is called in every process,
        otherwise a few steps later.
        """
        self._stopping.request(reason, everywhere=self._callbacks.current_is_everywhere())

    def _check_in_place(self) -> None:
        """Raises OSError if the run directory is no longer where the run found it."""
        if self._directory is not None:
            self._directory.check_in_place(self._found)

    def execute(self) -> RunOutcome:
        """Trains to the last step, or until the run is stopped or diverges.

        Raises:
            ConfigError: for a checkpoint that does not fit, or if the processes would train
                different runs.
            OSError: if the run directory cannot be written.
        """
        try:
            with contextlib.ExitStack() as cleanup:
                cleanup.callback(gc.unfreeze)  # the reader freezes objects
                cleanup.callback(self._callbacks.close)
                if (complete := self._complete()) is not None:
                    return complete
                outcome = self._loop.train(*self._begin())
                if self._checkpoints is not None:
                    self._checkpoints.wait()
                return self._sum_up(outcome)
        except OSError:
            self._check_in_place()  # a moved folder causes other errors
            raise

    def _latest(self) -> int | None:
        return self._checkpoints.latest() if self._checkpoints is not None else None

    def _complete(self) -> RunOutcome | None:
        """Returns the outcome of a complete run from its summary, or None if the run is not
        complete.
        """
        finished = self._directory.read("summary.json") if self._directory is not None else None
        saved, total_steps = self._latest(), self.setup.intervals.total_steps
        if self.setup.config.resume == "must" and saved is None:
            remedy = f"there is no checkpoint in {self.folder}; check {flag('run_dir')}"
            raise ConfigError("resume", "must", remedy)
        if finished is None or finished["status"] != "done":
            return None
        early = finished.get("ended_early")  # unless the run has more steps now
        is_early = early and saved == finished["steps"] and total_steps <= early["total_steps"]
        if (saved or 0) < total_steps and not is_early:
            return None
        return RunOutcome(
            "done",
            saved or 0,
            summary=finished,
            last_saved=saved,
            directory=self._directory,
        )

    def _begin(self) -> tuple[TrainState, int]:
        """Returns the state on the devices, and the step after which the run continues."""
        setup, loop, before = self.setup, self._loop, self._before
        message, start, position = "", 0, dict[str, Any]()
        if (saved := self._latest()) is not None:
            start, (state, position) = saved, self._restore(saved)
            message = self._resumed_text(saved, position)
        elif before is not None:
            start, position = before.step, dict(before.position)
            loop.rows.extend(row for row in before.rows if row["step"] <= start)
            state = transfer.continued(before.state, setup.shapes, setup.intervals.total_steps)
            position |= self._keep_in_memory(start, state, position)
            message = f"continuing after step {start}"
        else:
            state = setup.create_state()
            if setup.initial.weights is not None:
                message = setup.initial.weights.text()
        check_agreement(setup, self.group, state, start, self.folder)
        loop.counters.load(position)
        _ = setup.examples.train, setup.examples.evaluated  # read before the progress begins
        self._stopping.begin_training()
        self._callbacks.load_state_dict(position.get("callbacks", {}))
        event = Started(start, start > 0, message, loop.counters.evaluation_due)
        self._callbacks.call("on_start", event)
        return setup.strategy.restore(state), start

    def _keep_in_memory(
        self, step: int, state: TrainState, position: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Keeps the state that the run continues as the best so far, if it was evaluated. Returns
        what changes in the position: the rank of this state is the best.
        """
        memory = self._checkpoints
        if not isinstance(memory, BestInMemory):
            return {}
        rows = [
            row for row in self._loop.rows if (row["step"], row["split"]) == (step, "validation")
        ]
        if not rows:
            return {"best": None}
        metrics = {name: value for name, value in rows[-1].items() if name not in _PLACE}
        memory.kept = Saving(step, state, position, metrics)
        return {"best": rank(metrics, memory.best_metric)}

    def _resumed_text(self, saved: int, position: Mapping[str, Any]) -> str:
        """Returns a message for the user about the checkpoint at which the run resumes."""
        message = f"continuing {self.folder} after step {saved}"
        if changed := self._changes():
            message += f" with other settings: {changed}"
        if rollbacks := position.get("rollbacks"):  # of version 0.2
            message += f"\nwarning: it went back {rollbacks} times, and each time halved its"
            message += " learning rate; now the rate of the settings holds again"
        return message

    def _restore(self, step: int) -> tuple[TrainState, dict[str, Any]]:
        """Returns the state and the position of a checkpoint."""
        assert self._checkpoints is not None
        shapes, strategy = self.setup.shapes, self.setup.strategy
        try:
            # Each process reads only its shards of a sharded state.
            parts = strategy.abstract(shapes) if strategy.shard_params else None
            return self._checkpoints.restore(step, shapes, parts)
        except ConfigError as error:
            remedy = error.remedy.template
            if changed := self._changes():
                remedy += f"; other settings than before: {changed}"
            raise ConfigError(error.field, error.value, remedy) from error

    def _changes(self) -> str:
        """Returns a text with the settings that differ from the settings of the run directory."""
        return self._directory.changes_text(self.setup.config) if self._directory else ""

    def _sum_up(self, outcome: RunOutcome) -> RunOutcome:
        """Evaluates the result, and returns the outcome with the summary of the run."""
        outcome = dataclasses.replace(outcome, rows=self._loop.rows, position=self._loop.position())
        self._callbacks.call("on_activity", Activity("finishing", outcome.step, limited=False))
        digest = None
        if outcome.state is not None and not self.setup.strategy.shard_params:
            digest = fingerprint(outcome.state)
        best = self._checkpoints.best() if self._checkpoints is not None else None
        result_step = best[0] if best and outcome.status == "done" else outcome.step
        evaluated, predictor = dict[str, dict[str, float]](), None
        try:
            result = self._evaluated(outcome, result_step)
            if result.state is not None and result.sums is not None:
                # In all processes, because each may hold a part of the state.
                predictor = self._predicting(result.state)
                evaluated = summary.result_metrics(
                    self.setup, result, predictor, self._stopping.leave
                )
                self._loop.state = result.state
            outcome = result
        except Interrupted:  # the next start evaluates the result
            outcome = dataclasses.replace(outcome, status="stopped", sums=None)
            result_step, predictor = outcome.step, None
        written = summary.summarize(
            self.setup,
            self._loop.counters,
            outcome,
            result_step=result_step,
            evaluated=evaluated,
            best=best,
            arrays_sha256=digest,
            start_time=self._start_time,
        )
        ended = Ended(
            outcome.status, outcome.step, outcome.reason, outcome.sums, predictor, written
        )
        self._callbacks.call("on_end", ended)
        return dataclasses.replace(
            outcome,
            summary=written,
            last_saved=self._latest(),
            directory=self._directory,
        )

    def _evaluated(self, outcome: RunOutcome, result_step: int) -> RunOutcome:
        """Returns the outcome with the state after `result_step`, evaluated if the run is done."""
        setup, state, sums = self.setup, outcome.state, outcome.sums
        if outcome.status != "done" or state is None:
            return outcome
        position = outcome.position
        if result_step != outcome.step:
            saved, position = self._restore(result_step)
            state, sums = setup.strategy.restore(saved), None
        elif outcome.ended_early or setup.evaluator.split is None:
            return outcome
        # A run that was killed after its last checkpoint has no sums, either.
        sums = sums or setup.evaluator.evaluate(state, self._stopping.leave)
        return dataclasses.replace(outcome, state=state, sums=sums, position=position)


def run_setup(
    setup: Setup,
    group: Group,
    callbacks: Sequence[Any],
    signals: StopSignals,
    *,
    writes: bool,
    start_time: float,
    progress: bool = True,
    before: RunOutcome | None = None,
) -> RunOutcome:
    """Begins or resumes a run, and trains.

    Args:
        callbacks: callbacks in addition to jaxdp's, as objects or as values of `--callbacks`.
        signals: the signals of this process, which stop the run.
        writes: whether to write a run directory, by default a directory named after the settings.
        start_time: when the run began for its user, by `time.perf_counter`.
        progress: whether to show progress on standard error.
        before: the outcome that the run continues in memory.
    """
    devices_lib.check_alive(setup.strategy.devices)
    directory, primary = None, group.index == 0
    with contextlib.ExitStack() as cleanup:
        cleanup.enter_context(devices_lib.in_use())
        model_size.check(setup)
        chosen = _all_callbacks(setup, callbacks, writes, progress)
        if writes:
            description = dataclasses.asdict(setup.description)
            directory = open_run(setup.config, description, create=primary)
            if primary:
                cleanup.enter_context(directory.exclusive())
        # First, so that the other callbacks see the fields that the strategy adds to a row.
        chosen = [*cleanup.enter_context(setup.strategy.resources(setup)), *chosen]
        stopping = Stopping(signals, group)
        run = TrainingRun(
            setup, group, chosen, directory, stopping, start_time=start_time, before=before
        )
        return run.execute()


def _all_callbacks(
    setup: Setup, callbacks: Sequence[Any], writes: bool, progress: bool
) -> list[Any]:
    """Returns the callbacks of a run in the order in which they are called."""
    config, own = setup.config, [callbacks_lib.create(each) for each in callbacks]
    chosen: list[Any] = [callbacks_lib.DeviceMonitor()]
    chosen += [callbacks_lib.Progress()] if progress else []
    chosen += [callbacks_lib.JsonLines(), Plots(), callbacks_lib.TensorBoard()] if writes else []
    if config.early_stop is not None:
        metric, larger = setup.step_config.task.best_metric
        chosen += [callbacks_lib.EarlyStopping(metric, config.early_stop, larger_is_better=larger)]
    if config.max_time is not None:
        chosen.append(MaxTime(config.max_time.seconds, str(config.max_time)))
    chosen += own
    return [*chosen, RunRecord()] if writes else chosen
