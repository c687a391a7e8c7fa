"""Finds the checkpoints of a run, chooses among them, and reads their arrays: whole, in parts, or
those of the model alone.
"""

import contextlib
import dataclasses
import functools
import logging
import pathlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import jax
import numpy as np

from jaxdp.checkpoint import integrity
from jaxdp.checkpoint.integrity import BestMetric
from jaxdp.models.weights import fit_weights
from jaxdp.registry import ConfigError
from jaxdp.rundir.start import check_utf8
from jaxdp.step.state import TrainState

Position = dict[str, Any]  # plain values: where a run was, and what its loop has counted so far
SHAPES = "shapes_without_padding"  # beside the position

T = TypeVar("T")
_ATTEMPTS = 30  # to read a checkpoint of a run that goes on


@functools.cache
def orbax() -> Any:  # its annotations are narrower than what it takes
    """Returns Orbax, which is imported where it is needed: a run without a folder needs none."""
    from orbax.checkpoint import v1

    return v1


class _OrbaxErrors(logging.Filter):
    """Drops what Orbax logs, its phases and each error that it also raises, and keeps the error of
    a save in the background.

    Before Orbax raises that one it waits for the other processes: for twenty minutes, where theirs
    has failed too.
    """

    background: BaseException | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        if record.threadName == "async_save" and record.exc_info:
            self.background = record.exc_info[1]
        return False


orbax_errors = _OrbaxErrors()


class SavedCheckpoints:
    """The checkpoints that a run has, to be read; nothing is changed.

    A checkpoint holds the state as plain arrays named by their path, e.g. `params/head/kernel`: it
    restores on any number of devices, and the names tell what is in it. Beside them stands the
    position: what the loop needs to go on as if nothing had happened; and where processes wrote
    parts of padded arrays, the shapes without the padding, which every reader takes off.

    Args:
        directory: its subfolders are named by step.
        best_metric: name of the metric that ranks checkpoints, and whether larger is better; None
            without validation data: no checkpoint is better than another then, and readers take the
            newest.

    Raises:
        ConfigError: for a path that is not UTF-8, which Orbax cannot read.
    """

    def __init__(self, directory: pathlib.Path, *, best_metric: BestMetric | None) -> None:
        # Orbax leaves errors of further arrays to it.
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)
        logging.getLogger("absl").setLevel(logging.ERROR)
        logging.getLogger("absl").addFilter(orbax_errors)
        self._directory, self._best_metric = directory.absolute(), best_metric
        check_utf8(directory.parent)

    def steps(self) -> list[int]:
        return integrity.steps(self._directory)

    def latest(self) -> int | None:
        return max(self.steps(), default=None)

    def best(self) -> tuple[int, dict[str, float]] | None:
        """Returns step and validation metrics of the best checkpoint that has any.

        Of equals the newest.
        """
        metrics = self._evaluated()
        ranked = self._ranked(metrics)
        return (ranked[0], metrics[ranked[0]]) if ranked else None

    def best_first(self) -> list[int]:
        """Returns the steps as a reader prefers them: the best ones, then those that were not
        evaluated, the newest first.
        """
        ranked = self._ranked(self._evaluated())
        return ranked + [step for step in reversed(self.steps()) if step not in ranked]

    def _ranked(self, metrics: Mapping[int, Mapping[str, float]]) -> list[int]:
        return integrity.ranked(metrics, self._best_metric) if self._best_metric is not None else []

    def _evaluated(self) -> dict[int, dict[str, float]]:
        """Returns the metrics of those that were evaluated, by step."""
        return {
            step: metrics
            for step in self.steps()
            if (metrics := integrity.read_metrics(self._directory, step))
        }

    def read_chosen(self, step: int | None, read: Callable[[int], T]) -> tuple[int, T] | None:
        """Returns a checkpoint's step and what `read` makes of it: this one, or for None the best
        usable one, or else the newest.

        It says on standard error which it passes over. Of a run that goes on, one may be removed
        while it is read: another is chosen then. None where there is no checkpoint.

        Raises:
            ConfigError: if the step is damaged or not there, or all are damaged.
        """
        for attempt in range(_ATTEMPTS):
            chosen = self._choose(step)
            if chosen is None:
                return None
            try:
                return chosen, read(chosen)
            except ConfigError:
                if (
                    step is not None
                    or attempt == _ATTEMPTS - 1
                    or not integrity.vanishes(self._directory, chosen)
                ):
                    raise
        raise AssertionError

    def _choose(self, step: int | None) -> int | None:
        if step is not None:
            return self._checked(step)
        problems: dict[int, str] = {}
        for _ in range(_ATTEMPTS):
            # What was evaluated, and its metrics cannot be read, might have been the best.
            problems = {
                known: problem for known in self.steps() if (problem := self._unranked(known))
            }
            for candidate in self.best_first():
                verdict = integrity.examine(self._directory, candidate, thorough=True)
                if verdict.usable:
                    if problems:
                        print(
                            f"warning: {damage_text(problems)}; using step {candidate} instead",
                            file=sys.stderr,
                        )
                    return candidate
                if not integrity.vanishes(self._directory, candidate):
                    problems[candidate] = verdict.problem
            if problems or not self.steps():
                break
        if problems:
            raise ConfigError(
                "run_dir",
                self._directory.parent,
                f"all its checkpoints are damaged: {damage_text(problems)}",
            )
        return None

    def _unranked(self, step: int) -> str:
        """Returns what is wrong with the metrics of a checkpoint, nothing if there are none or they
        can be read.
        """
        if self._best_metric is None or integrity.read_metrics(self._directory, step) is not None:
            return ""
        verdict = integrity.examine(self._directory, step, thorough=False)
        return (
            verdict.problem
            if not verdict.usable and not integrity.vanishes(self._directory, step)
            else ""
        )

    def _checked(self, step: int) -> int:
        verdict = (
            integrity.examine(self._directory, step, thorough=True)
            if step in self.steps()
            else None
        )
        if verdict is not None and not verdict.usable:
            usable = [
                known
                for known in self.steps()
                if integrity.examine(self._directory, known, thorough=False).usable
            ]
            raise ConfigError(
                "step",
                step,
                f"is damaged: {verdict.problem}; others: {', '.join(map(str, usable)) or 'none'}",
            )
        return step  # one that is not there will be missed when it is read

    def arrays(self, step: int) -> dict[str, np.ndarray]:
        """Returns the arrays of a checkpoint by name, whole and without padding.

        Raises:
            ConfigError: if there is no such step, or it cannot be read.
        """
        with self._reading(step) as path:
            stored = _Stored.of(path)
            return stored.load(stored.shapes)

    def model_arrays(self, step: int) -> dict[str, np.ndarray]:
        """Returns the parameters and batch statistics of a checkpoint by name, e.g. `head/kernel`:
        averages where it has them.

        Raises:
            ConfigError: if there is no such step, or it cannot be read.
        """
        with self._reading(step) as path:
            stored = _Stored.of(path)
            averaged = any(name.startswith("ema/") for name in stored.shapes)
            prefixes = ("ema/0/", "ema/1/") if averaged else ("params/", "batch_stats/")
            found = stored.load(
                {name: shape for name, shape in stored.shapes.items() if name.startswith(prefixes)}
            )
        return {
            next(name.removeprefix(each) for each in prefixes if name.startswith(each)): array
            for name, array in found.items()
        }

    def restore(
        self, step: int, like: TrainState, parts: TrainState | None = None
    ) -> tuple[TrainState, Position]:
        """Returns the saved state in the structure of `like`, and the position.

        Args:
            like: a state of the same shapes.
            parts: shapes, padding included, and shardings: the state is then read straight onto
                devices, and a process reads no more than what its own devices hold. None for NumPy
                arrays.

        Raises:
            ConfigError: if there is no such step, or the arrays in it are not those of `like`.
        """
        with self._reading(step) as path:
            stored, expected = _Stored.of(path), _shapes(like)
            _check_fit(step, stored.shapes, expected, "this model and optimizer")
            _check_dtypes(step, stored.leaves, flatten(like))
            found = stored.load(expected) if parts is None else stored.load_parts(flatten(parts))
        return _unflatten(like, found), stored.position

    def restore_model(self, step: int, like: TrainState) -> TrainState:
        """Returns what a saved state evaluates with: step, parameters, batch statistics and
        averages, as NumPy arrays.

        The optimizer's state is neither read nor returned (it is None, as is the loss scale), so
        that any optimizer, or none, will do, and a third or so of the bytes.

        Args:
            like: a state of the same shapes; its optimizer's state does not matter.

        Raises:
            ConfigError: if there is no such step, or the model's arrays in it are not those of
                `like`, whose dtypes they are cast to.
        """
        like = dataclasses.replace(like, opt_state=None, loss_scale=None)
        with self._reading(step) as path:
            stored, expected = _Stored.of(path), _shapes(like)
            saved = {
                name: shape
                for name, shape in stored.shapes.items()
                if name.partition("/")[0] not in _OF_TRAINING
            }
            _check_fit(step, saved, expected, "this model")
            found, problems = fit_weights(stored.load(expected), flatten(like))
        if problems:
            raise _of_another_model(step, "this model", problems)
        return _unflatten(like, found)

    @contextlib.contextmanager
    def _reading(self, step: int) -> Iterator[pathlib.Path]:
        if step not in self.steps():
            known = ", ".join(map(str, self.steps())) or "none"
            raise ConfigError(
                "step",
                step,
                f"there is no such checkpoint in {self._directory}; there are: {known}",
            )
        path = self._directory / str(step)
        try:
            yield path
        except ConfigError:
            raise
        except Exception as error:  # of many kinds
            reason = integrity.reason_text(error)
            raise ConfigError(
                "step", step, f"{path} cannot be read ({reason}); move it away to use another one"
            ) from error


_OF_TRAINING = ("opt_state", "loss_scale")  # what evaluation does without


@dataclasses.dataclass(frozen=True)
class _Stored:
    """What Orbax tells of a checkpoint before its arrays are read.

    Attributes:
        leaves: shapes, padding included, and dtypes by name.
        shapes: without padding.
    """

    path: pathlib.Path
    leaves: Mapping[str, Any]
    shapes: Mapping[str, tuple[int, ...]]
    position: Position

    @classmethod
    def of(cls, path: pathlib.Path) -> "_Stored":
        found = orbax().metadata(path)
        position = dict(found.custom_metadata or {})
        unpadded = position.pop(SHAPES, {})
        shapes = {
            name: tuple(unpadded.get(name, leaf.shape)) for name, leaf in found.metadata.items()
        }
        return cls(path, found.metadata, shapes, position)

    def load(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
        """Reads the arrays that `shapes` names, and no others.

        They are whole and without padding.
        """
        # As NumPy, whatever they were saved from: Orbax would place what came from devices on
        # devices again.
        wanted = {
            name: np.broadcast_to(np.zeros((), self.leaves[name].dtype), self.leaves[name].shape)
            for name in shapes
        }
        context = orbax().Context()
        context.pytree.loading.partial_load = True
        with context:
            arrays = {
                name: np.asarray(array) for name, array in orbax().load(self.path, wanted).items()
            }
        for name, shape in shapes.items():
            if arrays[name].shape != shape:
                arrays[name] = np.ascontiguousarray(arrays[name][tuple(map(slice, shape))])
        return arrays

    def load_parts(self, parts: Mapping[str, Any]) -> dict[str, jax.Array]:
        context = orbax().Context()
        # Another mesh needs more padding, or less.
        context.array.loading.enable_padding_and_truncation = True
        wanted = {
            name: jax.ShapeDtypeStruct(part.shape, self.leaves[name].dtype, sharding=part.sharding)
            for name, part in parts.items()
        }
        with context:
            return orbax().load(self.path, wanted)


def _check_fit(step: int, saved: Mapping[str, Any], expected: Mapping[str, Any], what: str) -> None:
    wrong = sorted(set(saved) ^ set(expected))
    wrong += [name for name, shape in expected.items() if name in saved and saved[name] != shape]
    if wrong:
        raise _of_another_model(step, what, f"{len(wrong)} arrays differ, e.g. {wrong[0]}")


def _check_dtypes(step: int, saved: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Lets no run resume in other dtypes: its step was compiled for these."""
    differing = [name for name, leaf in expected.items() if saved[name].dtype != leaf.dtype]
    if differing:
        dtypes = f"{saved[differing[0]].dtype}, expected {expected[differing[0]].dtype}"
        problem = f"{len(differing)} of another dtype: {differing[0]} {dtypes}"
        raise _of_another_model(step, "this model and optimizer", problem)


def _of_another_model(step: int, what: str, problem: str) -> ConfigError:
    return ConfigError("resume", step, f"the checkpoint does not fit {what}: {problem}")


def damage_text(problems: Mapping[int, str]) -> str:
    """Says the first of some checkpoints' problems, and how many there are."""
    step, problem = next(iter(problems.items()))
    more = f" ({len(problems)} are damaged)" if len(problems) > 1 else ""
    return f"the checkpoint of step {step} is damaged: {problem}{more}"


def flatten(state: TrainState) -> dict[str, Any]:
    """Returns the leaves of a state by the names that they have in a checkpoint."""
    return {_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(state)}


def _unflatten(like: TrainState, leaves: Mapping[str, Any]) -> TrainState:
    paths, structure = jax.tree_util.tree_flatten_with_path(like)
    return jax.tree.unflatten(structure, [leaves[_name(path)] for path, _ in paths])


def _shapes(state: TrainState) -> dict[str, tuple[int, ...]]:
    return {name: np.shape(leaf) for name, leaf in flatten(state).items()}


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")
