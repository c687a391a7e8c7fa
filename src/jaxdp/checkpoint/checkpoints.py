"""Saves a run's state with Orbax: a folder for each step, complete or not there at all, with
checksums next to it.
"""

import contextlib
import dataclasses
import errno
import functools
import os
import pathlib
import shutil
import sys
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import jax
from jax.experimental import multihost_utils

from jaxdp.checkpoint import integrity, paths
from jaxdp.checkpoint.integrity import BestMetric
from jaxdp.checkpoint.restore import SavedCheckpoints, damage_text
from jaxdp.checkpoint.stored import SETTINGS, Position, flatten, orbax, orbax_errors
from jaxdp.errors import ConfigError, flag
from jaxdp.step.state import TrainState
from jaxdp.text.console import warn_again

# How often a process that is one of several looks whether its own part of a save has failed.
_LOOK_SECONDS = 1.0


class NotSavedError(OSError):
    """A checkpoint could not be written; those before it are as they were."""


class Checkpoints(SavedCheckpoints):
    """The checkpoints of a run that is under way: it saves, and keeps the newest few, and the best
    one where there is one.

    It is the last callback of its run.

    Args:
        directory: its subfolders are named by step.
        keep: how many of the newest stay.
        best_metric: name of the metric that ranks checkpoints, and whether larger is better; None
            if nothing ranks them.
        settings: of the run, as for `SavedCheckpoints`; each checkpoint gets them.

    Raises:
        ConfigError: if all checkpoints are damaged. Where some are, they are set aside, with a line
            on standard error.
    """

    every_process = True  # all of them take part in a checkpoint

    def __init__(
        self,
        directory: pathlib.Path,
        *,
        keep: int,
        best_metric: BestMetric | None,
        settings: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        super().__init__(directory, best_metric=best_metric, settings=settings)
        self._response: Any = None  # of Orbax, to the save under way
        self._unsealed: int | None = None  # the step that is being saved, and has no checksums yet
        self._unread: TrainState | None = None  # the first state, until it is read back
        self._has_saved = False
        self._given_up = False  # Orbax also waits for processes that failed to save
        self._finish_replacing()
        _synchronize("replaced")
        self._set_damaged_aside()
        # The one that the run resumes at is saved again with the metrics of a late evaluation.
        self._resumed = self.latest()
        _hide_late_reports()
        self._path = contextlib.ExitStack()  # of the folder, as Orbax knows it
        self._orbax = self._open(keep)

    def _open(self, keep: int) -> Any:
        policies, best_metric = orbax().training.preservation_policies, self._best_metric
        kept = [policies.LatestN(keep)]
        if best_metric is not None:
            kept.append(
                policies.BestN(
                    get_metric_fn=lambda metrics: integrity.rank(metrics, best_metric),
                    reverse=False,  # ascending: the last one is kept
                    n=1,
                    keep_checkpoints_without_metrics=False,
                )
            )
        # While `save` waits, which takes no time: after a failure in the background the threads
        # that wait for the folders would keep the process from ending for ten minutes.
        folders_first = orbax().options.AsyncOptions(create_directories_asynchronously=False)
        return orbax().training.Checkpointer(
            self._path.enter_context(paths.plain(self._directory)),
            context=orbax().Context(async_options=folders_first),
            preservation_policy=policies.AnyPreservationPolicy(kept),
            cleanup_tmp_directories=True,  # what a killed save left
        )

    def on_save(self, run: Any, event: Any) -> None:
        """Starts to save a state, an `events.Saving`; the writing goes on during training."""
        self.save(event.step, event.state, dict(event.position), event.metrics)

    def save(
        self,
        step: int,
        state: TrainState,
        position: Position,
        metrics: Mapping[str, float] | None,
    ) -> None:
        """Starts to save a state, a copy that stays as it is, and returns.

        Waits first for an earlier save.

        Args:
            metrics: of an evaluation of this very state, if there was one.

        Raises:
            NotSavedError: if this or the earlier save cannot be written.
        """
        self.wait()
        with self._saving(step):
            # Orbax would make another one, with nothing else of the run next to it.
            if not self._directory.is_dir():
                raise FileNotFoundError(os.strerror(errno.ENOENT))
            replaces = step == self._resumed
            if jax.process_index() == 0:
                integrity.forget(self._directory, step)
                if replaces:
                    self._replaced.mkdir(exist_ok=True)
                    os.replace(self._directory / str(step), self._replaced / str(step))
            if replaces:
                _synchronize("replaced")
            orbax_errors.background = None
            self._response = self._orbax.save_async(
                step,
                flatten(state),
                force=True,
                overwrite=replaces,
                metrics=dict(metrics) if metrics else None,
                custom_metadata={**position, SETTINGS: dict(self._settings)},
            )
        self._unsealed = step
        if not self._has_saved:
            self._unread, self._has_saved = jax.tree.map(_shape, state), True

    def wait(self) -> None:
        """Waits until everything is on disk, and then writes its checksums.

        Without them a checkpoint is complete all the same.

        Raises:
            NotSavedError: if the save under way could not be written.
        """
        step, self._unsealed = self._unsealed, None
        response, self._response = self._response, None
        with self._saving(step):
            try:
                if response is not None:
                    # Without it Orbax keeps a thread, an event loop and three descriptors for every
                    # save.
                    self._finish(response)
            finally:
                if not self._given_up:
                    # And without this it raises an error once more when it is closed.
                    self._orbax.wait()
        if step is not None:
            self._read_back(step)
        if step is not None and jax.process_index() == 0:
            try:
                integrity.record(self._directory, step)
            except OSError as error:
                warn_again(
                    f"the checkpoint of step {step} is complete, but has no checksums:"
                    f" {integrity.reason_text(error)}"
                )
            self._finish_replacing()

    @property
    def _replaced(self) -> pathlib.Path:
        """Where a checkpoint is until it is saved again under the same step."""
        return self._directory.with_name("replaced")

    def _finish_replacing(self) -> None:
        """Puts a checkpoint back that was to be replaced, unless the new one is complete."""
        if jax.process_index() == 0 and self._replaced.is_dir():
            for folder in self._replaced.iterdir():
                if not (self._directory / folder.name).exists():
                    os.replace(folder, self._directory / folder.name)
            shutil.rmtree(self._replaced, ignore_errors=True)

    def _read_back(self, step: int) -> None:
        """Reads what Orbax knows of the first checkpoint, so that no run goes on whose checkpoints
        are lost.

        Raises:
            NotSavedError: if its arrays are not there.
        """
        expected, self._unread = self._unread, None
        if expected is None or step not in self.steps():
            return
        try:
            with self._reading(step) as stored:
                written = {name: leaf.shape for name, leaf in stored.leaves.items()}
                dataclasses.replace(stored, shapes=written).check_fit(expected)
        except ConfigError as error:
            problem = f"the checkpoint of step {step} was saved, but cannot be used: {error.remedy}"
            raise NotSavedError(problem) from error

    def _finish(self, response: Any) -> None:
        while jax.process_count() > 1:
            try:
                return response.result(timeout=_LOOK_SECONDS)
            except TimeoutError:
                if orbax_errors.background is not None:
                    self._given_up = True
                    raise orbax_errors.background from None
        response.result()

    def close(self) -> None:
        try:
            self.wait()
        finally:
            if not self._given_up:  # otherwise Orbax may still write
                with self._saving(None), self._path:
                    self._orbax.close()

    def _set_damaged_aside(self) -> None:
        """Runs before Orbax looks, which fails at a damaged file of metrics, and would not save a
        step that is there.

        Raises:
            ConfigError: if all are damaged.
        """
        problems = self.find_damaged()
        all_damaged = bool(problems) and set(problems) == set(self.steps())
        _synchronize("damaged-found")  # no process looks while the first one moves
        if all_damaged:
            remedy = (
                f"all checkpoints in {self._directory} are damaged: {damage_text(problems)}; give"
                f" another {flag('run_dir')} to start afresh"
            )
            raise ConfigError("resume", "auto", remedy)
        if jax.process_index() == 0:
            for step, problem in problems.items():
                target = integrity.set_aside(self._directory, step)
                warn_again(
                    f"the checkpoint of step {step} is damaged: {problem}; moved to {target}"
                )
            integrity.forget(self._directory)
        _synchronize("damaged-moved")

    @contextlib.contextmanager
    def _saving(self, step: int | None) -> Iterator[None]:
        try:
            yield
        except NotSavedError:
            raise
        except Exception as error:  # of many kinds, from threads of Orbax and TensorStore
            what = f"the checkpoint of step {step}" if step is not None else "a checkpoint"
            raise NotSavedError(
                f"{what} could not be saved in {self._directory}: {integrity.reason_text(error)}"
            ) from error


def _shape(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)


@functools.cache
def _hide_late_reports() -> None:
    """Hides, for the rest of the process, what follows from a failed save and says nothing new.

    When one array of a checkpoint cannot be written, Orbax closes its event loop while others are
    still being written. TensorStore's threads then report to a closed loop, which raises errors
    that no code catches.
    """
    following = sys.unraisablehook

    def report(unraisable: Any) -> None:
        # TensorStore names no object, Python's own reports do.
        late = isinstance(unraisable.exc_value, RuntimeError) and unraisable.object is None
        if not (late and str(unraisable.exc_value) == "Event loop is closed"):
            following(unraisable)

    sys.unraisablehook = report


def _synchronize(name: str) -> None:
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(name)
