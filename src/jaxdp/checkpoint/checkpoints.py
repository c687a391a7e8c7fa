"""How is a run saved and found again? Orbax, one folder a step, complete or not there at all, with checksums beside it."""

import contextlib
import errno
import logging
import os
import pathlib
import shutil
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from orbax.checkpoint import v1 as orbax

from jaxdp.checkpoint import integrity
from jaxdp.registry import ConfigError
from jaxdp.step.state import TrainState

Position = dict[str, Any]
_SHAPES = "shapes_without_padding"  # beside the position

_orbax: Any = orbax  # its annotations are narrower than what it takes
_SYSTEM_ERRORS = (
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ENOENT,
)  # fmt: skip


class NotSavedError(OSError):
    """A checkpoint could not be written; those before it are as they were."""


class Checkpoints:
    """The checkpoints of one run: the newest few and the best one stay.

    A checkpoint holds the state as plain arrays named by their path, e.g. `params/head/kernel`: it restores on any number of
    devices, and the names tell what is in it. Beside them stands the position: what the loop needs to go on as if nothing had
    happened; and where processes wrote parts of padded arrays, the shapes without the padding, which every reader takes off.

    Args:
        directory: its subfolders are named by step.
        keep: how many of the newest stay; None for all, to read only.
        best_metric: name of the figure that ranks checkpoints, and whether larger is better.

    Raises:
        ConfigError: to write, if all checkpoints are damaged. Where some are, they are set aside, with a line on standard error.
    """

    def __init__(self, directory: pathlib.Path, *, keep: int | None, best_metric: tuple[str, bool]) -> None:
        logging.getLogger("absl").setLevel(logging.CRITICAL)  # Orbax reports its phases there, and each error it also raises
        self._metric, self._larger_is_better = best_metric
        self._directory, self._writes, self._unsealed = directory.absolute(), keep is not None, None
        self._response: Any = None
        if keep is not None:
            self._set_damaged_aside(keep)
            _LateReportsHidden.install()
        self._orbax: Any = self._open(keep) if self._writes else None  # to read, Orbax opens a checkpoint at a time

    def _open(self, keep: int | None) -> Any:
        training = _orbax.training
        policies = training.preservation_policies
        best = policies.BestN(
            get_metric_fn=self._rank, reverse=False, n=1, keep_checkpoints_without_metrics=False
        )  # ascending: the last one is kept
        # While `save` waits: it takes no time, and where it fails in the background the threads that wait for the folders go on
        # waiting for ten minutes, and keep the process from ending.
        folders_first = _orbax.options.AsyncOptions(create_directories_asynchronously=False)
        return training.Checkpointer(
            self._directory,
            context=_orbax.Context(async_options=folders_first),
            preservation_policy=policies.AnyPreservationPolicy([policies.LatestN(keep), best]),
            cleanup_tmp_directories=True,  # what a killed save left
        )

    def _rank(self, metrics: Mapping[str, float]) -> float:
        return metrics[self._metric] if self._larger_is_better else -metrics[self._metric]

    def steps(self) -> list[int]:
        return integrity.steps(self._directory)

    def latest(self) -> int | None:
        return max(self.steps(), default=None)

    def best(self) -> tuple[int, dict[str, float]] | None:
        """Returns step and test figures of the best checkpoint that has any; of equals the newest."""
        figures = {step: integrity.read_figures(self._directory, step) for step in self.steps()}
        ranked = [(self._rank(values), step, values) for step, values in figures.items() if values]
        return max(ranked, key=lambda item: item[:2])[1:] if ranked else None

    def best_first(self) -> list[int]:
        """Returns the steps as a reader prefers them: the best ones, then those that were not evaluated, the newest first."""
        figures = {step: integrity.read_figures(self._directory, step) for step in self.steps()}
        evaluated = [(self._rank(values), step) for step, values in figures.items() if values]
        return [step for _, step in sorted(evaluated, reverse=True)] + sorted(
            set(figures) - {s for _, s in evaluated}, reverse=True
        )

    def choose(self, step: int | None) -> int | None:
        """Returns the step if it is not damaged; for None the best usable one, and says on standard error which it passes over.

        Raises:
            ConfigError: if the step is damaged, or all are.
        """
        problems: dict[int, str] = {}
        if step is not None and step not in self.steps():
            return step  # to be missed when it is read
        for candidate in self.best_first() if step is None else [step]:
            verdict = integrity.examine(self._directory, candidate, thorough=True)
            if verdict.usable:
                if problems:
                    print(f"warning: {_damage(problems)}; using step {candidate} instead", file=sys.stderr)
                return candidate
            problems[candidate] = verdict.problem
        if step is not None:
            usable = [known for known in self.steps() if integrity.examine(self._directory, known, thorough=False).usable]
            raise ConfigError("step", step, f"is damaged: {problems[step]}; others: {', '.join(map(str, usable)) or 'none'}")
        if problems:
            raise ConfigError("run_dir", self._directory.parent, f"all its checkpoints are damaged: {_damage(problems)}")
        return None

    def save(
        self, step: int, state: TrainState, position: Position, figures: Mapping[str, float] | None,
        shapes: TrainState | None = None,
    ) -> None:  # fmt: skip
        """Starts to save a state, a copy that stays as it is, and returns; waits first for an earlier save.

        Args:
            figures: of an evaluation of this very state, if there was one.
            shapes: of the state that the model knows, where this one may be padded.

        Raises:
            NotSavedError: if this or the earlier save cannot be written.
        """
        self.wait()
        metrics, arrays = dict(figures) if figures else None, flatten(state)
        known = flatten(shapes) if shapes is not None else {}
        padded = {name: list(leaf.shape) for name, leaf in known.items() if leaf.shape != np.shape(arrays[name])}
        about = position | {_SHAPES: padded} if padded else position
        with self._saving(step):
            if not self._directory.is_dir():  # Orbax would make another one, with nothing else of the run beside it
                raise FileNotFoundError(os.strerror(errno.ENOENT))
            if jax.process_index() == 0:
                integrity.forget(self._directory, step)
            self._response = self._orbax.save_async(step, arrays, force=True, metrics=metrics, custom_metadata=about)
        self._unsealed = step

    def arrays(self, step: int) -> dict[str, np.ndarray]:
        """Returns the arrays of a checkpoint by name, whole and without padding.

        Raises:
            ConfigError: if there is no such step, or it cannot be read.
        """
        with self._reading(step) as path:
            stored, shapes, _ = _describe(path)
            return _load_whole(path, stored, shapes)

    def restore(self, step: int, like: TrainState, parts: TrainState | None = None) -> tuple[TrainState, Position]:
        """Returns the saved state in the structure of `like`, and the position.

        Args:
            like: a state of the same shapes.
            parts: shapes, padding included, and shardings: the state is then read straight onto devices, and a process reads no
                more than what its own devices hold. None for NumPy arrays.

        Raises:
            ConfigError: if there is no such step, or the arrays in it are not those of `like`.
        """
        with self._reading(step) as path:
            stored, shapes, position = _describe(path)
            expected = {name: np.shape(leaf) for name, leaf in flatten(like).items()}
            wrong = sorted(set(shapes) ^ set(expected))
            wrong += [name for name, shape in expected.items() if name in shapes and shapes[name] != shape]
            if wrong:
                remedy = f"the checkpoint does not fit this model and optimizer: {len(wrong)} arrays differ, e.g. {wrong[0]}"
                raise ConfigError("resume", step, remedy)
            found = _load_whole(path, stored, shapes) if parts is None else _load_parts(path, stored, flatten(parts))
        paths, structure = jax.tree_util.tree_flatten_with_path(like)
        return jax.tree.unflatten(structure, [found[_name(path)] for path, _ in paths]), position

    @contextlib.contextmanager
    def _reading(self, step: int) -> Iterator[pathlib.Path]:
        if step not in self.steps():
            known = ", ".join(map(str, sorted(self.steps()))) or "none"
            raise ConfigError("step", step, f"there is no such checkpoint in {self._directory}; there are: {known}")
        path = self._directory / str(step)
        try:
            yield path
        except ConfigError:
            raise
        except Exception as error:  # of many kinds
            raise ConfigError("step", step, f"{path} cannot be read ({_reason(error)}); move it away to use another one") from error

    def wait(self) -> None:
        """Waits until everything is on disk, and then writes its checksums; without them a checkpoint is complete all the same.

        Raises:
            NotSavedError: if the save under way could not be written.
        """
        (step, self._unsealed), (response, self._response) = (self._unsealed, None), (self._response, None)
        if self._orbax is None:
            return
        with self._saving(step):
            try:
                if response is not None:
                    response.result()  # without it Orbax keeps a thread and an event loop, with three descriptors, for every save
            finally:
                self._orbax.wait()  # and without this it raises an error once more when it is closed
        if step is not None and jax.process_index() == 0:
            try:
                integrity.record(self._directory, step)
            except OSError as error:
                text = f"the checkpoint of step {step} is complete, but has no checksums: {_reason(error)}"
                print(f"warning: {text}", file=sys.stderr)

    def close(self) -> None:
        try:
            self.wait()
        finally:
            if self._orbax is not None:
                with self._saving(None):
                    self._orbax.close()

    def _set_damaged_aside(self, keep: int) -> None:
        """Runs before Orbax looks: it fails at a damaged file of figures, and would not save a step that is there.

        Orbax removes an old checkpoint file by file: what a kill on the way has left of one that was not to be kept is removed.
        """
        steps, problems, best = self.steps(), integrity.find_damaged(self._directory), self.best()
        _synchronize("damaged-found")  # no process looks while the first one moves
        if problems and set(problems) == set(steps):
            remedy = (
                f"all checkpoints in {self._directory} are damaged: {_damage(problems)}; give another --run-dir to start afresh"
            )
            raise ConfigError("resume", "auto", remedy)
        if jax.process_index() == 0:
            for step, problem in problems.items():
                newer = [other for other in steps if other > step and other not in problems]
                ranked = integrity.read_figures(self._directory, step) is not None
                if problem.endswith("is missing") and len(newer) >= keep and ranked and best is not None and best[0] != step:
                    shutil.rmtree(self._directory / str(step))
                    continue
                target = integrity.set_aside(self._directory, step)
                print(f"warning: the checkpoint of step {step} is damaged: {problem}; moved to {target}", file=sys.stderr)
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
            reason = _reason(error)
            raise NotSavedError(f"{what} could not be saved in {self._directory}: {reason}") from error


class _LateReportsHidden:
    """A `sys.unraisablehook` that leaves out what follows from a failed save and says nothing new.

    When one array of a checkpoint cannot be written, Orbax closes its event loop while others are still being written.
    TensorStore's threads then tell a loop that is closed that they are done; what that raises nobody catches.
    """

    def __init__(self, following: Any) -> None:
        self._following = following

    def __call__(self, unraisable: Any) -> None:
        late = isinstance(unraisable.exc_value, RuntimeError) and str(unraisable.exc_value) == "Event loop is closed"
        if not (late and unraisable.object is None):  # TensorStore names none, Python's own reports do
            self._following(unraisable)

    @classmethod
    def install(cls) -> None:
        """It stays: when the last of these writes ends nobody knows."""
        if not isinstance(sys.unraisablehook, cls):
            sys.unraisablehook = cls(sys.unraisablehook)


def _describe(path: pathlib.Path) -> tuple[dict[str, Any], dict[str, tuple[int, ...]], Position]:
    """Returns of a checkpoint what is stored under which name, the shapes of that without padding, and the position."""
    found = _orbax.metadata(path)
    position = dict(found.custom_metadata or {})
    unpadded = position.pop(_SHAPES, {})
    return found.metadata, {name: tuple(unpadded.get(name, leaf.shape)) for name, leaf in found.metadata.items()}, position


def _load_whole(path: pathlib.Path, stored: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    # As NumPy, whatever they were saved from: Orbax would place what came from devices on devices again.
    wanted = {name: np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape) for name, leaf in stored.items()}
    arrays = {name: np.asarray(array) for name, array in _orbax.load(path, wanted).items()}
    for name, shape in shapes.items():
        if arrays[name].shape != shape:
            arrays[name] = np.ascontiguousarray(arrays[name][tuple(map(slice, shape))])
    return arrays


def _load_parts(path: pathlib.Path, stored: dict[str, Any], parts: dict[str, Any]) -> dict[str, jax.Array]:
    context = _orbax.Context()
    context.array.loading.enable_padding_and_truncation = True  # another mesh needs more padding, or less
    wanted = {name: jax.ShapeDtypeStruct(part.shape, stored[name].dtype, sharding=part.sharding) for name, part in parts.items()}
    with context:
        return _orbax.load(path, wanted)


def _synchronize(name: str) -> None:
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(name)


def _reason(error: Exception) -> str:
    """TensorStore's messages are long, and name the system's error somewhere within."""
    text = " ".join(str(error).split())
    known = [os.strerror(number) for number in _SYSTEM_ERRORS if os.strerror(number) in text]
    return known[0] if known else text[:200] or type(error).__name__


def _damage(problems: Mapping[int, str]) -> str:
    step, problem = next(iter(problems.items()))
    more = f" ({len(problems)} are damaged)" if len(problems) > 1 else ""
    return f"the checkpoint of step {step} is damaged: {problem}{more}"


def flatten(state: TrainState) -> dict[str, Any]:
    return {_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(state)}


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")
