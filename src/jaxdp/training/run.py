"""Carries a run from its start to its end: begins or resumes it, trains, and sums it up."""

import contextlib
import dataclasses
import gc
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxdp import config as config_lib
from jaxdp.build import initial_weights as transfer
from jaxdp.build.setup import Setup
from jaxdp.callbacks import CallbackList
from jaxdp.callbacks.events import Activity, Ended, Logged, Started
from jaxdp.checkpoint.checkpoints import Checkpoints
from jaxdp.checkpoint.integrity import rank
from jaxdp.errors import ConfigError, flag
from jaxdp.inference import predictions as answers
from jaxdp.inference.predictor import Predictor
from jaxdp.rundir.layout import RunDirectory
from jaxdp.rundir.read import Row
from jaxdp.runtime.processes import Group
from jaxdp.runtime.signals import StopSignals
from jaxdp.step.state import TrainState
from jaxdp.training import loop, reader, summary
from jaxdp.training.agreement import check_agreement
from jaxdp.training.counters import Counters
from jaxdp.training.outcome import RunOutcome

# The hooks at which callbacks write in the run directory, rows aside.
_WRITTEN_AT = ("on_save", "on_end")


class Run:
    """One run, which callbacks watch; `events.Run` says what they may ask of it.

    Args:
        setup: what to train.
        group: the processes that train.
        callbacks: objects, called in this order.
        directory: the run directory; None to write no files.
        signals: ask it to stop.
        started: when the run began for its user, by `time.perf_counter`.
        before: the outcome that it continues in memory, with the state on the host.
    """

    def __init__(
        self,
        setup: Setup,
        group: Group,
        callbacks: Sequence[Any],
        directory: RunDirectory | None,
        *,
        signals: StopSignals,
        started: float,
        before: RunOutcome | None,
    ) -> None:
        self.setup, self.group = setup, group
        self.folder = directory.path if directory is not None else None
        self.title, self.headline = summary.title(setup), summary.description(setup)
        self._directory, self._signals = directory, signals
        self._started, self._before = started, before
        self.description = dataclasses.asdict(setup.dataset.describe())
        self.counters, self.rows = Counters(), [*before.rows] if before else list[Row]()
        self.reader: reader.Reader | None = None
        self._stop_reason = self._agreed_reason = ""
        self.has_evaluated = self._stop_is_everywhere = False
        self._checkpoints: Checkpoints | None = None
        self.state: Any = None
        self._predictor: Predictor | None = None
        if directory is not None:
            validates = setup.dataset.validation is not None
            self._checkpoints = Checkpoints(
                directory.checkpoints,
                keep=setup.config.keep,
                best_metric=setup.step_config.task.best_metric if validates else None,
                settings=config_lib.kept(setup.config),
            )
            callbacks = [*callbacks, self._checkpoints]
            self._found = directory.path.stat()
        self._callbacks = CallbackList(callbacks, primary=group.index == 0)

    def where(self) -> dict[str, Any]:
        """Returns the number of devices and processes, and of workers if there are any."""
        own = {"devices": self.setup.strategy.num_devices, "processes": self.group.count}
        return own | summary.worker_facts(self.setup)

    def predict(self, images: Any, *, probabilities: bool = False) -> Any:
        """Returns the answers of the model as it is now."""
        return answers.predict(self._predicting(), images, probabilities=probabilities)

    def _predicting(self) -> Predictor:
        """Returns a predictor of the present state. The first one compiles what others use."""
        setup = self.setup
        trained = setup.strategy.gather(dataclasses.replace(self.state, opt_state=None))
        if self._predictor is None:
            self._predictor = Predictor(
                trained, setup.config, setup.dataset.describe(), setup.step_config.task
            )
        self._predictor.replace_state(trained)
        return self._predictor

    def paused(self) -> contextlib.AbstractContextManager[Any]:
        """Waits for all dispatched steps, and keeps the block out of the training time."""
        assert self.reader is not None
        self._check_in_place()  # a trace of the profiler is written in the block
        return self.reader.paused()

    def stop(self, reason: str) -> None:
        """Ends the run, as done, after the current step."""
        self._stop_reason = self._stop_reason or reason
        self._stop_is_everywhere |= self._callbacks.current_is_everywhere()
        if self.group.count > 1 and not self._stop_is_everywhere:
            self.group.put("early", self._stop_reason)

    def agree_to_stop(self, step: int) -> bool:
        """Whether to stop after this step, which all processes answer alike."""
        wanted = self._signals.requested()
        wanted |= bool(self._stop_reason) and not self._stop_is_everywhere
        calls = self.setup.intervals.steps_per_execution
        margin = calls * (reader.run_ahead(calls) + 1)
        stops = self.group.agree_to_stop(step, wanted=wanted, margin=margin)
        if stops and self.group.count > 1:
            self._agreed_reason = self.group.get("early") or ""
        return stops

    def must_leave(self) -> bool:
        """Whether a signal came, and this process may leave without asking others."""
        return self.group.count == 1 and self._signals.requested() and not self._stop_reason

    def ended_early(self) -> str:
        """Returns why a callback ends the run at this step, or nothing."""
        is_known = self.group.count == 1 or self._stop_is_everywhere
        return self._stop_reason if is_known else self._agreed_reason

    def emit(self, hook: str, event: Callable[..., Any], *arguments: Any) -> None:
        """Makes an event and calls the callbacks that want it."""
        if hook in _WRITTEN_AT:
            self._check_in_place()
        self._callbacks.call(hook, self, event(*arguments))

    def complete_row(self, row: Row) -> None:
        """Lets callbacks add to a row, keeps it, and hands it out."""
        self._check_in_place()
        self._callbacks.call("on_row", self, row)
        self.rows.append(row)
        self._callbacks.call("on_log", self, Logged(row))

    def _check_in_place(self) -> None:
        """Raises OSError if the run directory is no longer where the run found it."""
        if self._directory is not None:
            self._directory.check_in_place(self._found)

    def improves(self, values: Mapping[str, float]) -> bool:
        """Whether an evaluation on validation data is the best so far, so that it is saved."""
        if self._checkpoints is None or self.setup.dataset.validation is None:
            return False
        value, best = rank(values, self.setup.step_config.task.best_metric), self.counters.best
        if best is not None and value <= best:
            return False
        self.counters.best = value
        return True

    def position(self) -> dict[str, Any]:
        """Returns what a checkpoint keeps in addition to the state, so that the run resumes as if
        it had never stopped.
        """
        states = self._callbacks.state_dict()
        return self.counters.position() | ({"callbacks": states} if states else {})

    def execute(self) -> RunOutcome:
        """Trains to the end, or until it diverges or is asked to stop.

        Raises:
            ConfigError: for a checkpoint that does not fit, or processes that are about to train
                different runs.
            OSError: if the run directory cannot be written.
        """
        try:
            with contextlib.ExitStack() as cleanup:
                cleanup.callback(gc.unfreeze)  # what the reader froze is the collector's again
                cleanup.callback(self._callbacks.close)
                if (complete := self._complete()) is not None:
                    return complete
                state, start = self._start()
                try:
                    outcome = loop.train(self, state, start)
                except reader.Diverged as error:
                    outcome = RunOutcome("diverged", error.step, reason=error.reason)
                if self._checkpoints is not None:
                    self._checkpoints.wait()
                return self._finish(outcome)
        except OSError:
            self._check_in_place()  # a folder that was moved is the cause of what follows
            raise

    def _latest(self) -> int | None:
        return self._checkpoints.latest() if self._checkpoints is not None else None

    def _complete(self) -> RunOutcome | None:
        """Returns the outcome of a run that is complete already, by its summary."""
        finished = self._directory.read("summary.json") if self._directory is not None else None
        saved, total_steps = self._latest(), self.setup.intervals.total_steps
        if self.setup.config.resume == "must" and saved is None:
            remedy = f"there is no checkpoint in {self.folder}; check {flag('run_dir')}"
            raise ConfigError("resume", "must", remedy)
        if finished is None or finished["status"] != "done":
            return None
        early = finished.get("ended_early")  # unless it is given more steps than it had then
        is_early = early and saved == finished["steps"] and total_steps <= early["total_steps"]
        if (saved or 0) < total_steps and not is_early:
            return None
        return RunOutcome(
            "done",
            saved or 0,
            summary=finished,
            reason="complete",
            last_saved=saved,
            directory=self._directory,
        )

    def _start(self) -> tuple[TrainState, int]:
        """Returns the state on the devices, and the step after which it continues."""
        setup, saved = self.setup, self._latest()
        message, start = "", saved or 0
        if saved is not None:
            state, position = self._restore(saved)
        elif (before := self._before) is not None:
            start, position = before.step, before.position
            state = transfer.continued(before.state, setup.shapes, setup.intervals.total_steps)
            message = f"continuing after step {start}"
        else:
            state, position = setup.create_state(), dict[str, Any]()
        check_agreement(setup, self.group, state, start, self.folder)
        self.counters = Counters.at(position)
        if saved is not None:
            changed = self._changes()
            message = f"continuing {self.folder} after step {saved}"
            message += f" with other settings: {changed}" * bool(changed)
            if rollbacks := position.get("rollbacks"):  # of version 0.2
                message += f"\nwarning: it went back {rollbacks} times, and each time halved its"
                message += " learning rate; now the rate of the settings holds again"
        elif not start and setup.initial.weights is not None:
            message = setup.initial.weights.text()
        _ = setup.examples.train, setup.examples.evaluated  # read before the progress begins
        self._signals.check()
        self._signals.training = True
        self._callbacks.load_state_dict(position.get("callbacks", {}))
        evaluates = bool(self.counters.evaluation_due)
        self.emit("on_start", Started, start, start > 0, message, evaluates)
        return setup.strategy.restore(state), start

    def _restore(self, step: int) -> tuple[TrainState, dict[str, Any]]:
        """Returns the state and the position of a checkpoint."""
        assert self._checkpoints is not None
        shapes, strategy = self.setup.shapes, self.setup.strategy
        try:
            return self._checkpoints.restore(step, shapes, strategy.restore_target(shapes))
        except ConfigError as error:
            changed = self._changes()
            remedy = error.remedy.marked
            remedy += f"; other settings than before: {changed}" * bool(changed)
            raise ConfigError(error.field, error.value, remedy) from error

    def _changes(self) -> str:
        """Returns which settings differ from the run directory's."""
        return self._directory.changes_text(self.setup.config) if self._directory else ""

    def _finish(self, outcome: RunOutcome) -> RunOutcome:
        """Evaluates the result, and sums the run up."""
        setup, position = self.setup, self.position()
        self.emit("on_activity", Activity, "finishing", outcome.step, False)
        best = self._checkpoints.best() if self._checkpoints is not None else None
        state, sums = outcome.state, outcome.sums
        result_step, predictor = outcome.step, None
        evaluated = dict[str, dict[str, float]]()
        if state is not None and best and best[0] != outcome.step and outcome.status == "done":
            result_step = best[0]
            saved, position = self._restore(result_step)
            state = setup.strategy.restore(saved)
            sums = setup.evaluator.evaluate(state)
        elif (
            outcome.status == "done"
            and state is not None
            and sums is None
            and outcome.step == setup.intervals.total_steps
        ):
            # It was killed after its last checkpoint.
            sums = setup.evaluator.evaluate(state) if setup.evaluator.split is not None else None
        if state is not None and sums is not None:
            self.state = state
            predictor = self._predicting()  # in all processes: each may hold a part of the state
            evaluated = summary.result_metrics(setup, outcome, state, sums, predictor)
        written = summary.summarize(
            setup,
            self.counters,
            outcome,
            result_step=result_step,
            evaluated=evaluated,
            best=best,
            started=self._started,
        )
        self.emit(
            "on_end", Ended, outcome.status, outcome.step, outcome.reason, sums, predictor, written
        )
        return dataclasses.replace(
            outcome,
            state=state,
            sums=sums,
            rows=self.rows,
            summary=written,
            last_saved=self._latest(),
            directory=self._directory,
            position=position,
        )
