"""Finds the checkpoints of a run, selects a checkpoint, and reads the requested parts."""

import contextlib
import dataclasses
import logging
import pathlib
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from jaxdp.checkpoint import integrity, paths
from jaxdp.checkpoint.integrity import BestMetric
from jaxdp.checkpoint.stored import (
    SETTINGS,
    Position,
    Stored,
    flatten,
    misfit,
    orbax_errors,
    unflatten,
)
from jaxdp.errors import ConfigError
from jaxdp.models.weights import fit_weights
from jaxdp.rundir.start import check_utf8
from jaxdp.step.state import TrainState
from jaxdp.text.console import warn, warn_again
from jaxdp.text.messages import brief, one_line, valid_text

T = TypeVar("T")
_ATTEMPTS = 30  # to read a checkpoint of a run that continues


class SavedCheckpoints:
    """The checkpoints of a run, for reading only.

    A checkpoint holds the state as plain arrays named by their path, e.g. `params/head/kernel`. It
    can be restored on any number of devices, and the names show its content. It also holds the
    position, with which the loop continues as if it had not stopped. If processes of version 0.2
    wrote padded arrays, it also has the shapes without the padding, and reading removes the
    padding.

    Args:
        directory: its subfolders are named by step.
        best_metric: name of the metric that ranks checkpoints, and whether larger is better; None
            without validation data. Readers then use the newest checkpoint.
        settings: settings of the run that do not change when it continues. A checkpoint with
            another seed belongs to another run.

    Raises:
        ConfigError: for a path that is not UTF-8, which Orbax cannot read.
    """

    def __init__(
        self,
        directory: pathlib.Path,
        *,
        best_metric: BestMetric | None,
        settings: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        # Orbax passes errors of further arrays to it.
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)
        logging.getLogger("absl").setLevel(logging.ERROR)
        logging.getLogger("absl").addFilter(orbax_errors)
        self._directory, self._best_metric = directory.absolute(), best_metric
        self._settings = settings
        check_utf8(directory.parent)

    def steps(self) -> list[int]:
        return integrity.steps(self._directory)

    def latest(self) -> int | None:
        return max(self.steps(), default=None)

    def best(self) -> tuple[int, dict[str, float]] | None:
        """Returns step and validation metrics of the best checkpoint that has validation
        metrics.
        """
        return next(iter(self.ranked().items()), None)

    def best_first(self) -> list[int]:
        """Returns the steps in order of preference: the best checkpoints, then checkpoints without
        an evaluation, newest first.
        """
        ranked = self.ranked()
        return [*ranked, *(step for step in reversed(self.steps()) if step not in ranked)]

    def ranked(self) -> dict[int, dict[str, float]]:
        """Returns the metrics by step, the best first; of equal metrics, the newest first."""
        if (best_metric := self._best_metric) is None:
            return {}
        found = {step: integrity.read_metrics(self._directory, step) for step in self.steps()}
        known = {
            step: metrics
            for step, metrics in found.items()
            if metrics and best_metric[0] in metrics
        }

        def order(item: tuple[int, dict[str, float]]) -> tuple[float, int]:
            return integrity.rank(item[1], best_metric), item[0]

        return dict(sorted(known.items(), key=order, reverse=True))

    def read_chosen(self, step: int | None, read: Callable[[int], T]) -> tuple[int, T] | None:
        """Returns the step of a checkpoint and the result of `read` for it. For None, this is the
        best usable checkpoint or, without metrics, the newest.

        Prints damaged checkpoints on standard error. A run that continues may remove a checkpoint
        while it is read. The selection then starts again.

        Returns:
            None if there is no checkpoint.

        Raises:
            ConfigError: if the step is damaged or missing, or all checkpoints are damaged.
        """
        if step is not None:
            # `read` does not find a checkpoint that is gone.
            exists = step in self.steps()
            verdict = integrity.examine(self._directory, step) if exists else None
            if verdict and (problem := verdict.problem or self._foreign(step)):
                remedy = f"is damaged: {problem}; leave it out for the best undamaged one"
                raise ConfigError("step", step, remedy)
            return step, read(step)
        for _ in range(_ATTEMPTS):
            problems = self.find_damaged()
            usable = [each for each in self.best_first() if each not in problems]
            if not usable and problems:
                what = f"all its checkpoints are damaged: {damage_text(problems)}"
                raise ConfigError("run_dir", self._directory.parent, what)
            if not usable:
                return None
            try:
                found = read(usable[0])
            except ConfigError:
                if integrity.vanishes(self._directory, usable[0]):
                    continue
                raise
            if problems:
                warn_again(f"{damage_text(problems)}; using step {usable[0]}")
            return usable[0], found
        remedy = "its checkpoints are removed before they can be read; read it when it has ended"
        raise ConfigError("run_dir", self._directory.parent, remedy)

    def find_damaged(self) -> dict[int, str]:
        """Returns the problem of each damaged checkpoint by step: files that differ from the saved
        files, a checkpoint of another run, and without checksums anything that Orbax cannot read.
        """
        problems = dict[int, str]()
        for step, verdict in integrity.examine_all(self._directory).items():
            problem = verdict.problem or self._foreign(step)
            if problem:
                problems[step] = problem
            elif verdict.state == "unverified":
                try:
                    with paths.plain(self._directory) as folder:
                        Stored.of(folder / str(step)).load()
                except Exception as error:  # exceptions of many types
                    if not integrity.vanishes(self._directory, step):
                        problems[step] = f"it cannot be read ({integrity.reason_text(error)})"
        return problems

    def _foreign(self, step: int) -> str:
        """Returns why a checkpoint belongs to another run; nothing if it has the seed of this
        run.
        """
        theirs = self._differing(step)
        if "seed" not in theirs:
            return ""
        return f"it is of a run with seed {brief(theirs['seed'])}, not {self._settings['seed']}"

    def _differing(self, step: int) -> dict[str, Any]:
        """Returns the settings of a checkpoint that differ from the settings of its run."""
        theirs = integrity.read_position(self._directory, step).get(SETTINGS, {})

        def shown(value: Any) -> str:  # a path with odd characters has another form in JSON
            return valid_text(one_line(value))

        return {
            name: theirs[name]
            for name, value in self._settings.items()
            if name in theirs and shown(theirs[name]) != shown(value)
        }

    def arrays(self, step: int) -> dict[str, np.ndarray]:
        """Returns the arrays of a checkpoint by name, whole and without padding.

        Raises:
            ConfigError: if there is no such step, or it cannot be read.
        """
        with self._reading(step) as stored:
            return stored.load()

    def model_arrays(self, step: int) -> dict[str, np.ndarray]:
        """Returns the parameters and batch statistics of a checkpoint by name, e.g. `head/kernel`.
        These are averages if it has an EMA.

        Raises:
            ConfigError: if there is no such step, or it cannot be read.
        """
        with self._reading(step) as stored:
            averaged = any(name.startswith("ema/") for name in stored.shapes)
            prefixes = ("ema/0/", "ema/1/") if averaged else ("params/", "batch_stats/")
            found = stored.load(lambda name: name.startswith(prefixes))
        first, second = prefixes
        return {
            name.removeprefix(first).removeprefix(second): array for name, array in found.items()
        }

    def restore(
        self, step: int, like: TrainState, parts: TrainState | None = None
    ) -> tuple[TrainState, Position]:
        """Returns the saved state in the structure of `like`, and the position.

        Args:
            like: a state of the same shapes.
            parts: shapes and shardings, with which the state is read directly onto devices. A
                process then reads only the parts that its own devices hold. None for NumPy arrays.

        Raises:
            ConfigError: if there is no such step, or its arrays do not fit `like`.
        """
        with self._reading(step) as stored:
            stored.check_fit(like)
            found = stored.load() if parts is None else stored.load_parts(flatten(parts))
        return unflatten(like, found), stored.position

    def restore_model(self, step: int, like: TrainState) -> TrainState:
        """Returns the parts of a saved state for evaluation: step, parameters, batch statistics and
        averages, as NumPy arrays.

        The state of the optimizer and the loss scale are neither read nor returned (both are None).
        Any optimizer is therefore accepted, and about a third of the bytes is read.

        Args:
            like: a state of the same shapes; its optimizer's state does not matter.

        Raises:
            ConfigError: if there is no such step, or the model's arrays in it do not fit `like`.
                They are cast to its dtypes.
        """
        like = dataclasses.replace(like, opt_state=None, loss_scale=None)
        with self._reading(step) as stored:
            arrays = stored.load(
                lambda name: name.partition("/")[0] not in ("opt_state", "loss_scale")
            )
            found, problems = fit_weights(arrays, flatten(like))
        if problems:
            raise misfit(step, "this model", problems)
        return unflatten(like, found)

    @contextlib.contextmanager
    def _reading(self, step: int) -> Iterator[Stored]:
        steps = self.steps()
        if step not in steps:
            known = ", ".join(map(str, steps)) or "none"
            raise ConfigError(
                "step",
                step,
                f"there is no such checkpoint in {self._directory}; there are: {known}",
            )
        # The user may have moved the data, and changed the settings of the run accordingly.
        for name, value in self._differing(step).items():
            warn(
                f"the checkpoint of step {step} was saved with {name} {brief(value)}, and its run"
                f" has {brief(self._settings[name])}"
            )
        path = self._directory / str(step)
        try:
            with paths.plain(self._directory) as folder:
                yield Stored.of(folder / path.name)
        except ConfigError:
            raise
        except Exception as error:  # exceptions of many types
            reason = integrity.reason_text(error)
            remedy = f"{path} cannot be read ({reason}); move it away to use another one"
            raise ConfigError("step", step, remedy) from error


def damage_text(problems: Mapping[int, str]) -> str:
    """Returns the first problem of some checkpoints, and how many are damaged."""
    step, problem = next(iter(problems.items()))
    more = f" ({len(problems)} are damaged)" if len(problems) > 1 else ""
    return f"the checkpoint of step {step} is damaged: {problem}{more}"
