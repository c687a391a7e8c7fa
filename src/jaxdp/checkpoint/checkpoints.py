"""Saves the state of a run with Orbax, in a folder for each step that is either complete or absent,
with checksums.
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

# How often one of several processes checks whether its own part of a save has failed.
_LOOK_SECONDS = 1.0


class NotSavedError(OSError):
    """A checkpoint could not be written. Earlier checkpoints are unchanged."""


class Checkpoints(SavedCheckpoints):
    """The checkpoints of a run in progress. Saves states, and keeps the newest checkpoints and the
    best checkpoint.

    It is the last callback of its run.

    Args:
        directory: its subfolders are named by step.
        keep: how many of the newest checkpoints to keep.
        best_metric: name of the metric that ranks checkpoints, and whether larger is better; None
            if nothing ranks them.
        settings: settings of the run, as for `SavedCheckpoints`, which each checkpoint records.

    Raises:
        ConfigError: if all checkpoints are damaged. If only some are damaged, they are moved away,
            with a line on standard error.
    """

    every_process = True  # all processes take part in a checkpoint

    def __init__(
        self,
        directory: pathlib.Path,
        *,
        keep: int,
        best_metric: BestMetric | None,
        settings: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        super().__init__(directory, best_metric=best_metric, settings=settings)
        # Step, and Orbax's handle, of the save in progress, which has no checksums yet.
        self._in_progress: tuple[int, Any] | None = None
        self._unread: TrainState | None = None  # the first state, until it is read back
        self._has_saved = False
        self._given_up = False  # Orbax also waits for processes that failed to save
        self._finish_replacing()
        _synchronize("replaced")
        self._set_damaged_aside()
        # The checkpoint from which the run resumes is saved again with the metrics of a late
        # evaluation.
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
        # While `save` waits, which takes no time. After a failure in the background, the threads
        # that wait for the folders would keep the process from ending for ten minutes.
        folders_first = orbax().options.AsyncOptions(create_directories_asynchronously=False)
        return orbax().training.Checkpointer(
            self._path.enter_context(paths.plain(self._directory)),
            context=orbax().Context(async_options=folders_first),
            preservation_policy=policies.AnyPreservationPolicy(kept),
            cleanup_tmp_directories=True,  # files that a killed save left
        )

    def on_save(self, run: Any, event: Any) -> None:
        """Starts to save a state, an `events.Saving`. Writing continues during training."""
        self.save(event.step, event.state, dict(event.position), event.metrics)

    def save(
        self,
        step: int,
        state: TrainState,
        position: Position,
        metrics: Mapping[str, float] | None,
    ) -> None:
        """Starts to save a state, a copy that does not change, and returns.

        Waits first for an earlier save.

        Args:
            metrics: of an evaluation of this very state, if there was one.

        Raises:
            NotSavedError: if this or the earlier save cannot be written.
        """
        self.wait()
        with self._saving(step):
            # Orbax would create another folder, without the other files of the run.
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
            response = self._orbax.save_async(
                step,
                flatten(state),
                force=True,
                overwrite=replaces,
                metrics=dict(metrics) if metrics else None,
                custom_metadata={**position, SETTINGS: dict(self._settings)},
            )
        self._in_progress = step, response
        if not self._has_saved:
            self._has_saved = True
            self._unread = jax.tree.map(
                lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state
            )

    def wait(self) -> None:
        """Waits until the checkpoint is on disk, and then writes its checksums.

        A checkpoint without checksums is also complete.

        Raises:
            NotSavedError: if the save in progress could not be written.
        """
        step, response = self._in_progress or (None, None)
        self._in_progress = None
        with self._saving(step):
            try:
                if response is not None:
                    # Without it Orbax keeps a thread, an event loop and three descriptors for every
                    # save.
                    self._finish(response)
            finally:
                if not self._given_up:
                    # Without this, Orbax raises an error again when it is closed.
                    self._orbax.wait()
        if step is None:
            return
        self._read_back(step)
        if jax.process_index() == 0:
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
        """The location of a checkpoint until it is saved again under the same step."""
        return self._directory.with_name("replaced")

    def _finish_replacing(self) -> None:
        """Restores a checkpoint that was to be replaced, unless the new checkpoint is complete."""
        if jax.process_index() == 0 and self._replaced.is_dir():
            for folder in self._replaced.iterdir():
                if not (self._directory / folder.name).exists():
                    os.replace(folder, self._directory / folder.name)
            shutil.rmtree(self._replaced, ignore_errors=True)

    def _read_back(self, step: int) -> None:
        """Reads the metadata of the first checkpoint, so that no run continues without usable
        checkpoints.

        Raises:
            NotSavedError: if its arrays are missing.
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
        """Runs before Orbax reads the folder, because Orbax fails for a damaged file of metrics,
        and does not save a step that exists.

        Raises:
            ConfigError: if all are damaged.
        """
        problems = self.find_damaged()
        all_damaged = bool(problems) and set(problems) == set(self.steps())
        _synchronize(
            "damaged-found"
        )  # no process reads the folder while the first process moves checkpoints
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
        except (
            Exception
        ) as error:  # exceptions of many types, from threads of Orbax and TensorStore
            what = f"the checkpoint of step {step}" if step is not None else "a checkpoint"
            raise NotSavedError(
                f"{what} could not be saved in {self._directory}: {integrity.reason_text(error)}"
            ) from error


@functools.cache
def _hide_late_reports() -> None:
    """Hides, for the rest of the process, errors that follow from a failed save and add no
    information.

    When one array of a checkpoint cannot be written, Orbax closes its event loop while others are
    still being written. TensorStore's threads then report to a closed loop, which raises errors
    that no code catches.
    """
    following = sys.unraisablehook

    def report(unraisable: Any) -> None:
        # TensorStore names no object, but Python's own reports do.
        late = isinstance(unraisable.exc_value, RuntimeError) and unraisable.object is None
        if not (late and str(unraisable.exc_value) == "Event loop is closed"):
            following(unraisable)

    sys.unraisablehook = report


def _synchronize(name: str) -> None:
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(name)
