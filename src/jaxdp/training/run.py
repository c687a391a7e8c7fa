"""Carries a run from its start to its end: begins or resumes it, trains, and sums it up."""

# Over 300 lines: the parts of one run, which share its state.

import contextlib
import dataclasses
import gc
import hashlib
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from jaxdp.callbacks import CallbackList
from jaxdp.callbacks.checkpoints import CheckpointWriter
from jaxdp.checkpoint.checkpoints import Checkpoints
from jaxdp.checkpoint.integrity import rank
from jaxdp.events import Activity, Ended, Logged, Started
from jaxdp.inference.apply import create_predictor
from jaxdp.registry import ConfigError
from jaxdp.rundir.layout import MovedError, RunDirectory
from jaxdp.rundir.read import Row
from jaxdp.runtime.processes import Group
from jaxdp.runtime.signals import StopSignals
from jaxdp.step import metrics
from jaxdp.step.state import TrainState, fingerprint
from jaxdp.training import loop, reader, summary
from jaxdp.training.counters import Counters
from jaxdp.training.setup import Setup

# The hooks at which callbacks write in the run directory, rows aside.
_WRITTEN_AT = ("on_save", "on_end")


@dataclasses.dataclass(frozen=True)
class Trained:
    """What a run leaves.

    Attributes:
        state: the result, on the devices: the best by validation data, where there are any and a
            run directory, or else the last; None if it diverged, or if there was nothing left to
            train.
        rows: of metrics.jsonl, those that this process made.
        reason: why it ended before its last step, if it did; `complete` if there was nothing left
            to train.
        last_saved: step of the newest checkpoint.
        directory: of the run, if it writes one.
    """

    status: str
    step: int
    state: TrainState | None
    rows: list[Row]
    summary: dict[str, Any]
    reason: str = ""
    last_saved: int | None = None
    directory: RunDirectory | None = None

    @property
    def was_complete(self) -> bool:
        """Whether there was nothing left to train; the reason alone may be a callback's."""
        return self.status == "done" and self.state is None


class Run:
    """One run, which callbacks watch; `events.Run` says what they may ask of it.

    Args:
        setup: what to train.
        group: the processes that train.
        callbacks: objects, called in this order.
        directory: the run directory; None to write no files.
        signals: ask it to stop.
        started: when the run began for its user, by `time.perf_counter`.
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
    ) -> None:
        self.setup = setup
        self.group = group
        self._directory = directory
        self._signals, self._started = signals, started
        self.description = dataclasses.asdict(setup.dataset.describe())
        self.counters, self.rows = Counters(), list[Row]()
        self.reader: reader.Reader | None = None
        self.has_evaluated = False
        self._stop_reason = ""
        self._stop_is_everywhere = False
        self._agreed_reason = ""
        calls = setup.intervals.steps_per_execution
        self._margin = calls * (reader.run_ahead(calls) + 1)
        task = setup.recipe.task
        self._checkpoints: Checkpoints | None = None
        if directory is not None:
            best_metric = task.best_metric if setup.dataset.validation is not None else None
            self._checkpoints = Checkpoints(
                directory.checkpoints, keep=setup.config.keep, best_metric=best_metric
            )
            callbacks = [*callbacks, CheckpointWriter(self._checkpoints)]
            self._opened = directory.opened()
        self._callbacks = CallbackList(callbacks, primary=group.index == 0)

    @property
    def folder(self) -> pathlib.Path | None:
        """The run directory, if there is one."""
        return self._directory.path if self._directory is not None else None

    @property
    def title(self) -> str:
        """What stands above the metrics of the run."""
        return summary.title(self.setup)

    def where(self) -> dict[str, Any]:
        """Returns the number of devices and processes, and of workers if there are any."""
        own = {"devices": self.setup.strategy.num_devices, "processes": self.group.count}
        return own | summary.worker_facts(self.setup)

    def paused(self) -> contextlib.AbstractContextManager[Any]:
        """Waits for all steps that were dispatched, and keeps the block out of the training
        time.
        """
        assert self.reader is not None
        self.check_in_place()  # a trace of the profiler is written in the block
        return self.reader.paused()

    def stop(self, reason: str) -> None:
        """Ends the run, as done, after the current step."""
        self._stop_reason = self._stop_reason or reason
        self._stop_is_everywhere |= self._callbacks.current_is_everywhere()
        if self.group.count > 1 and not self._stop_is_everywhere:
            self.group.put("early", self._stop_reason)

    def stops_at(self, step: int) -> bool:
        """Whether to stop after this step, which all processes answer alike."""
        wanted = self._signals.requested() or (
            bool(self._stop_reason) and not self._stop_is_everywhere
        )
        stops = self.group.agree_to_stop(step, wanted=wanted, margin=self._margin)
        if stops and self.group.count > 1:
            self._agreed_reason = self.group.get("early") or ""
        return stops

    def ended_early(self) -> str:
        """Returns why a callback ends the run at this step, or nothing."""
        return (
            self._stop_reason
            if self.group.count == 1 or self._stop_is_everywhere
            else self._agreed_reason
        )

    def check_in_place(self) -> None:
        """Raises MovedError if the run directory is no longer where the run found it."""
        if self._directory is not None and not self._directory.is_in_place(self._opened):
            raise MovedError(self._directory.path)

    def emit(self, hook: str, event: Callable[..., Any], *arguments: Any) -> None:
        """Makes an event and calls the callbacks that want it."""
        if hook in _WRITTEN_AT:
            self.check_in_place()
        if self._callbacks.has(hook):
            self._callbacks.call(hook, self, event(*arguments))

    def tell(self, row: Row) -> None:
        """Completes a row and tells it."""
        self.check_in_place()
        self._callbacks.call("on_row", self, row)
        self.rows.append(row)
        self._callbacks.call("on_log", self, Logged(row))

    def improves(self, found: Mapping[str, float]) -> bool:
        """Whether an evaluation on validation data is the best so far, and its state is to be
        saved.
        """
        if self._checkpoints is None or self.setup.dataset.validation is None:
            return False
        value, best = rank(found, self.setup.recipe.task.best_metric), self.counters.best
        if best is not None and value <= best:
            return False
        self.counters.best = value
        return True

    def position(self) -> dict[str, Any]:
        """Returns what a checkpoint keeps besides the state, so that the run resumes as if it had
        never stopped.
        """
        states = self._callbacks.state_dict()
        return self.counters.position() | ({"callbacks": states} if states else {})

    def execute(self) -> Trained:
        """Trains to the end, or until it diverges or is asked to stop.

        Raises:
            ConfigError: for a checkpoint that does not fit, or processes that are about to train
                different runs.
            OSError: if the run directory cannot be written.
        """
        with contextlib.ExitStack() as cleanup:
            if self._checkpoints is not None and self._directory is not None:
                cleanup.callback(os.close, self._opened)
                cleanup.enter_context(self._noticing_a_move(self._directory))
                cleanup.enter_context(contextlib.closing(self._checkpoints))
            cleanup.callback(gc.unfreeze)  # what the reader froze is the collector's again
            cleanup.callback(self._callbacks.close)
            cleanup.enter_context(self.setup.reading)
            finished = self._directory.read("summary.json") if self._directory is not None else None
            complete = self._complete(finished)
            if complete is not None:
                return complete
            state, start = self._start()
            outcome, failure = None, ""
            try:
                outcome = loop.train(self, state, start)
                status, step = "stopped" if outcome.stopped else "done", outcome.step
            except reader.Diverged as error:
                status = "diverged"
                step = error.step
                failure = str(error)
            self._wait()
            return self._end(status, step, failure, outcome)

    @contextlib.contextmanager
    def _noticing_a_move(self, directory: RunDirectory) -> Iterator[None]:
        """Raises MovedError for an error of writing that follows from it."""
        try:
            yield
        except OSError as error:
            if directory.is_in_place(self._opened):
                raise
            directory.remove_remains()
            raise MovedError(directory.path) from error

    def _complete(self, finished: dict[str, Any] | None) -> Trained | None:
        """Returns the result of a run that is complete already, by its summary."""
        saved = self._saved()
        if self.setup.config.resume == "must" and saved is None:
            raise ConfigError(
                "resume", "must", f"there is no checkpoint in {self.folder}; check --run-dir"
            )
        if finished is None or finished["status"] != "done":
            return None
        early = (
            bool(finished.get("ended_early"))
            and saved == finished["steps"]
            and not self._is_extended(finished)
        )
        if (saved or 0) >= self.setup.intervals.total_steps or early:
            return Trained(
                "done",
                saved or 0,
                None,
                [],
                finished,
                reason="complete",
                last_saved=saved,
                directory=self._directory,
            )
        return None

    def _is_extended(self, finished: Mapping[str, Any]) -> bool:
        """Whether a run that ended early was given more steps than it had then."""
        return self.setup.intervals.total_steps > finished["ended_early"]["total_steps"]

    def _start(self) -> tuple[TrainState, int]:
        """Returns the state on the devices, and the step after which it continues."""
        setup, config = self.setup, self.setup.config
        saved, message = self._saved(), ""
        state, position = self._begin(saved)
        self._check_agreement(state, saved or 0)
        self.counters = Counters.at(position)
        if saved is not None and self._directory is not None:
            changed = self._directory.changes_text(config)
            message = (
                f"continuing {self.folder} after step {saved}"
                + f" with other settings: {changed}" * bool(changed)
            )
            if rollbacks := position.get("rollbacks"):  # of version 0.2
                message += f"\nwarning: it went back {rollbacks} times, and each time halved its"
                message += " learning rate, which is now that of the settings again"
        elif setup.initial_weights is not None:
            message = setup.initial_weights.text()
        _ = setup.train_data, setup.evaluation_data  # read before the progress begins
        self._signals.check()
        self._signals.training = True
        start = saved or 0
        self._callbacks.load_state_dict(position.get("callbacks", {}))
        self.emit("on_start", Started, start, saved is not None, message)
        return setup.strategy.restore(state, setup.shapes), start

    def _end(self, status: str, step: int, failure: str, outcome: loop.Outcome | None) -> Trained:
        setup = self.setup
        self.emit("on_activity", Activity, "finishing", step, False)
        state, result_step, sums = self._result(outcome, step)
        predict, trained = None, None
        if (
            state is not None
            and sums is not None
            and (self.folder is not None or setup.dataset.instances)
        ):
            # By all processes: each may hold a part of it.
            trained = setup.strategy.gather(dataclasses.replace(state, opt_state=None))
            predict = (
                create_predictor(trained, setup.recipe.preprocess)
                if self.folder is not None
                else None
            )
        early = outcome.early if outcome is not None else ""
        found = self._final_metrics(status, state, sums, trained)
        written = summary.summarize(
            setup,
            self.counters,
            summary.End(status, step, early, result_step),
            found,
            best=self._checkpoints.best() if self._checkpoints is not None else None,
            started=self._started,
        )
        self.emit("on_end", Ended, status, step, failure or early, sums, predict, written)
        return Trained(
            status,
            step,
            state,
            self.rows,
            written,
            failure or early,
            self._saved(),
            self._directory,
        )

    def _final_metrics(
        self, status: str, state: TrainState | None, sums: metrics.Sums | None, trained: Any
    ) -> dict[str, dict[str, float]]:
        """Returns the metrics of the evaluated split, and those of the test split if another split
        chose the result.
        """
        setup, dataset = self.setup, self.setup.dataset
        if sums is None:
            return {}
        split = setup.evaluation_split
        found = {split: summary.split_metrics(setup, split, sums, trained)}
        has_both = dataset.validation is not None and dataset.test is not None
        if state is not None and status == "done" and has_both:
            tested = setup.evaluate(state, split="test")
            found["test"] = summary.split_metrics(setup, "test", tested, trained)
        return found

    def _result(
        self, outcome: loop.Outcome | None, step: int
    ) -> tuple[TrainState | None, int, metrics.Sums | None]:
        """Returns the state that is the result, the best by validation data or else the last, its
        step and its evaluation.
        """
        if outcome is None:
            return None, step, None
        setup, best = (
            self.setup,
            self._checkpoints.best() if self._checkpoints is not None else None,
        )
        if best is not None and best[0] != step and not outcome.stopped:
            state = setup.strategy.restore(self._begin(best[0])[0], setup.shapes)
            return state, best[0], setup.evaluate(state)
        ended = step == setup.intervals.total_steps
        # Without sums it was killed after its last checkpoint.
        sums = setup.evaluate(outcome.state) if ended and outcome.sums is None else outcome.sums
        return outcome.state, step, sums

    def _saved(self) -> int | None:
        return self._checkpoints.latest() if self._checkpoints is not None else None

    def _wait(self) -> None:
        if self._checkpoints is not None:
            self._checkpoints.wait()

    def _begin(self, saved: int | None) -> tuple[TrainState, dict[str, Any]]:
        """Returns the state and position of a checkpoint, or the initial ones."""
        if saved is None:
            return self.setup.create_state(), {}
        assert self._checkpoints is not None
        try:
            return self._checkpoints.restore(
                saved, self.setup.shapes, self.setup.strategy.parts(self.setup.shapes)
            )
        except ConfigError as error:
            changed = (
                self._directory.changes_text(self.setup.config)
                if self._directory is not None
                else ""
            )
            remedy = (
                f"{error.remedy}; other settings than before: {changed}"
                if changed
                else error.remedy
            )
            raise ConfigError(error.field, error.value, remedy) from error

    def _check_agreement(self, state: TrainState, start: int) -> None:
        """Finds out before the first step whether all processes are about to train the same: later
        it would be a hang, or worse.

        Raises:
            ConfigError: naming the first thing that differs.
        """
        if self.group.count == 1:
            return
        setup = self.setup
        first_batch = setup.train_order[min(start, setup.intervals.total_steps - 1)]
        what = setup.config.replace(process_id=None, run_dir=str(self.folder)).plain() | {
            "versions": summary.versions(),
            "dataset_description": self.description,
            "resumed_step": start,
            "initial_arrays": fingerprint(state),
            "first_batch": hashlib.sha256(first_batch.tobytes()).hexdigest(),
        }
        self.group.check_equal(what, setup.config.distributed_timeout)
