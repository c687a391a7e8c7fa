"""Searches settings with Optuna: `--trials 30 'learning_rate=log(1e-4,1)'` proposes 30 runs, and
stops those worse than most.

The study is study.db in the folder of the sweep, so that the same command goes on. What it
maximizes is the metric by which sweeps rank, of the validation data, with its sign turned where
smaller is better: which one that is the first finished run tells.
"""

import dataclasses
import math
import pathlib
import re
from collections.abc import Collection, Sequence
from typing import Any, Literal

import numpy as np

from jaxdp import config as config_lib
from jaxdp.config import TrainConfig
from jaxdp.exit_codes import EXIT_DIVERGED, EXIT_STOPPED
from jaxdp.parsing import is_count, resolved
from jaxdp.registry import ConfigError, shown
from jaxdp.rundir.layout import RunDirectory
from jaxdp.tools import sweep_grid
from jaxdp.tools.sweep_grid import Cell

_RANGE = re.compile(r"(?P<kind>log|uniform|int)\((?P<low>[^,()]+),(?P<high>[^,()]+)\)")
_EXAMPLE = (
    "e.g. --trials 30 'learning_rate=log(1e-4,1)' 'model_kwargs.width=int(8,32)'"
    " optimizer=nesterov,adam"
)
_DIGITS = 4  # of a proposed number: a folder is named after it
_NO_VALIDATION = (
    "a search chooses by validation data, and there are none; set some apart, e.g. --validation 0.1"
)


@dataclasses.dataclass(frozen=True)
class Range:
    """Numbers from which a search takes one, both ends included."""

    kind: Literal["log", "uniform", "int"]
    low: int | float
    high: int | float


Space = dict[str, Range | list[Any]]  # by the name of a setting; a list is of values, as in a grid


def parse(words: Sequence[str]) -> tuple[int, Space]:
    """Reads `["30", "learning_rate=log(1e-4,1)", "optimizer=nesterov,adam"]`.

    Returns:
        the number of trials, and from what each setting is taken.

    Raises:
        ConfigError: for a number, a name or a range that cannot be read.
    """
    if not words or not is_count(words[0]) or not int(words[0]):
        raise ConfigError(
            "trials", words[0] if words else "", f"begin with the number of trials, {_EXAMPLE}"
        )
    space: Space = {}
    for word in words[1:]:
        setting, _, text = word.partition("=")
        match = _RANGE.fullmatch(text)
        if match is None and re.match(r"(log|uniform|int)\(", text):
            raise ConfigError(
                "trials",
                word,
                "write log(LOW,HIGH), uniform(LOW,HIGH) or int(LOW,HIGH) without spaces",
            )
        values = f"{setting}={match['low']},{match['high']}" if match else word
        ((name, found),) = sweep_grid.parse([values], "trials").items()
        if name in space:
            raise ConfigError("trials", word, f"{name} is there twice; give all its values at once")
        space[name] = _range(word, name, match["kind"], *found) if match else found
    if not space:
        raise ConfigError("trials", words[0], f"say what to vary, {_EXAMPLE}")
    return int(words[0]), space


def _range(word: str, name: str, kind: Any, low: Any, high: Any) -> Range:
    numbers = [type(each) for each in (low, high)]
    if not set(numbers) <= {int, float} or not low < high:
        raise ConfigError("trials", word, "must be two numbers, the smaller one first")
    if kind == "log" and low <= 0:
        raise ConfigError("trials", word, "on a logarithmic scale both must be greater than 0")
    if kind == "int" and numbers != [int, int]:
        raise ConfigError(
            "trials",
            word,
            "both must be whole numbers; use uniform(LOW,HIGH) or log(LOW,HIGH) for others",
        )
    if kind != "int" and "." not in name and int in numbers:
        raise ConfigError(
            "trials", word, f"{name} takes whole numbers; use int(LOW,HIGH), or list the values"
        )
    return Range(kind, low, high)


class Search:
    """The trials of a search as the runs of a sweep.

    Args:
        words: as for `--trials`.
        config: what holds for all runs; its seed is that of the search, too.
        given: the flags of the command line.
        folder: of the sweep.

    Attributes:
        count: runs still to come when the search began.
        failed: whether a run ended with an error; divergence is an answer, and not one.

    Raises:
        ConfigError: if Optuna is missing, the space cannot be read, or the folder holds another
            search or cannot be written.
    """

    def __init__(
        self,
        words: Sequence[str],
        config: TrainConfig,
        given: Collection[str],
        folder: pathlib.Path,
    ) -> None:
        self._total, self._space = parse(words)
        self._shared, self._folder, self._seed = (
            sweep_grid.shared_settings(config, self._space, given),
            folder,
            config.seed,
        )
        for end in ("low", "high"):  # what is out of range shows before anything starts
            ends = {
                name: getattr(each, end) if isinstance(each, Range) else each[0]
                for name, each in self._space.items()
            }
            sweep_grid.cell(ends, self._shared)
        if config.validation == "none":
            raise ConfigError("validation", "none", _NO_VALIDATION)
        self._optuna = _optuna()
        self._states = self._optuna.trial.TrialState
        self._study = self._open(
            {"space": list(words[1:]), "settings": config_lib.defining(config)}
        )
        # Under way, by the name of their run: two may propose the same one.
        self._trials: dict[str, list[Any]] = {}
        self._reported: set[tuple[int, int]] = set()  # trial and step
        self._pruned: set[str] = set()
        self.failed = False
        settled = self._in_state(self._states.COMPLETE, self._states.PRUNED)
        self._again = self._interrupted([trial.params for trial in settled])
        self._asked = len(settled)
        self.count = max(self._total - self._asked, 0)

    def _open(self, what: dict[str, Any]) -> Any:
        """Opens the study in the folder, or begins one.

        Args:
            what: is searched: the same in all sessions, but for the number of trials.
        """
        from sqlalchemy.engine import URL
        from sqlalchemy.pool import NullPool

        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                "output", self._folder, f"cannot be written ({error.strerror}); give another folder"
            ) from error
        address = URL.create("sqlite", database=str(resolved(self._folder) / "study.db"))
        # No connection stays open: nobody would close those of a pool.
        storage = self._optuna.storages.RDBStorage(
            address.render_as_string(), engine_kwargs={"poolclass": NullPool}
        )
        study = self._optuna.create_study(
            storage=storage,
            study_name="sweep",
            direction="maximize",
            load_if_exists=True,
            pruner=self._optuna.pruners.MedianPruner(),
        )
        held = study.user_attrs.get("search", what)
        pairs = {"trials": (what["space"], held["space"])}
        pairs |= {
            name: (what["settings"].get(name), held["settings"].get(name))
            for name in what["settings"] | held["settings"]
        }
        for name, (ours, theirs) in pairs.items():
            if ours != theirs:
                remedy = (
                    f"holds a search with {name} {shown(theirs)}, not {shown(ours)}; give another"
                    " --output"
                )
                raise ConfigError("output", self._folder, remedy)
        study.set_user_attr("search", what)
        return study

    def _in_state(self, *states: Any) -> list[Any]:
        return self._study.get_trials(deepcopy=False, states=states)

    def _interrupted(self, settled: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Returns the parameters of trials that came to no end: they run again, after their last
        checkpoint.
        """
        again: list[dict[str, Any]] = []
        for trial in self._in_state(self._states.RUNNING, self._states.FAIL):
            if trial.state == self._states.RUNNING:
                self._study.tell(trial.number, state=self._states.FAIL)
            if trial.params not in [*settled, *again]:
                again.append(trial.params)
        return again

    def next(self) -> Cell | None:
        """Returns the next run, None if all have been proposed."""
        while self._asked < self._total:
            if self._again:
                self._study.enqueue_trial(self._again.pop(0))
            # Each trial has a sampler of its own: one for all would draw the same again when
            # another process goes on.
            seed = int(np.random.SeedSequence([self._seed, self._asked]).generate_state(1)[0])
            self._study.sampler = self._optuna.samplers.TPESampler(seed=seed)
            trial = self._study.ask(
                {name: self._distribution(each) for name, each in self._space.items()}
            )
            self._asked += 1
            cell = self._cell(trial.params)
            others = self._trials.setdefault(cell.name, [])
            others.append(trial)
            if len(others) == 1:
                if not self._directory(cell).is_done():
                    return cell
                # Few values: an earlier trial has proposed the same run, and its result is that of
                # both.
                self.ended(cell, 0, "")
        return None

    def _distribution(self, dimension: Range | list[Any]) -> Any:
        distributions = self._optuna.distributions
        if not isinstance(dimension, Range):
            return distributions.CategoricalDistribution([shown(value) for value in dimension])
        if dimension.kind == "int":
            return distributions.IntDistribution(dimension.low, dimension.high)
        return distributions.FloatDistribution(
            dimension.low, dimension.high, log=dimension.kind == "log"
        )

    def _cell(self, params: dict[str, Any]) -> Cell:
        return sweep_grid.cell(
            {name: _value(each, params[name]) for name, each in self._space.items()}, self._shared
        )

    def _directory(self, cell: Cell) -> RunDirectory:
        return RunDirectory(self._folder / cell.name)

    def should_stop(self, cell: Cell) -> bool:
        """Whether to stop a run now: once, if by its latest evaluation it is worse than the median
        of the others at that step.

        Raises:
            ConfigError: if it has no validation data.
        """
        directory = self._directory(cell)
        if (
            directory.file("dataset.json").is_file()
            and "validation" not in directory.read("dataset.json")["examples"]
        ):
            raise ConfigError("validation", "", _NO_VALIDATION)
        if cell.name in self._pruned or not self._report(cell):
            return False
        if not self._trials[cell.name][0].should_prune():
            return False
        self._pruned.add(cell.name)
        return True

    def _report(self, cell: Cell) -> bool:
        """Reports the evaluations of a run, as soon as it is known which metric counts.

        Returns whether there are new ones.
        """
        metric = self._study.user_attrs.get("metric")
        rows = [
            row
            for row in self._directory(cell).read("metrics.jsonl")
            if metric and row["split"] == "validation" and metric[0] in row
        ]
        new = False
        for trial in self._trials[cell.name]:
            for row in rows:
                if (trial.number, row["step"]) not in self._reported:
                    self._reported.add((trial.number, row["step"]))
                    trial.report(metric[1] * row[metric[0]], row["step"])
                    new = True
        return new

    def ended(self, cell: Cell, code: int, reason: str) -> str:
        """Takes the end of a run, and returns what became of it."""
        summary = self._directory(cell).read("summary.json") if not code else None
        if summary is not None:
            best = summary["best_metric"]
            self._study.set_user_attr(
                "metric", [best["name"], 1 if best["larger_is_better"] else -1]
            )
        self._report(cell)
        pruned = cell.name in self._pruned and code == EXIT_STOPPED
        value = (
            summary["metrics"]["validation"][summary["best_metric"]["name"]]
            if summary is not None
            else math.nan
        )
        if not code and not math.isfinite(value):
            code, reason = EXIT_DIVERGED, f"its metric of the validation data is {value}"
        for trial in self._trials.pop(cell.name):
            if not code:
                self._study.tell(trial, self._study.user_attrs["metric"][1] * value)
            elif pruned:
                self._study.tell(trial, state=self._states.PRUNED)
            else:
                trial.set_user_attr("failed", reason)
                diverged = code == EXIT_DIVERGED  # would do so again, and tells where not to look
                self._study.tell(
                    trial, state=self._states.PRUNED if diverged else self._states.FAIL
                )
                self.failed |= not diverged
        return "pruned" if pruned else f"failed: {reason}" if code else "done"

    def results(self) -> list[tuple[Cell, str | None, int | None]]:
        """Returns the runs that came to an end, each with why it failed, and the step at which it
        was pruned.
        """
        found: dict[str, tuple[Cell, str | None, int | None]] = {}
        for trial in self._in_state(self._states.COMPLETE, self._states.PRUNED, self._states.FAIL):
            cell, reason = self._cell(trial.params), trial.user_attrs.get("failed")
            if trial.state == self._states.FAIL and reason is None:
                continue  # was interrupted, and has run again since
            pruned = (
                trial.last_step if trial.state == self._states.PRUNED and reason is None else None
            )
            found[cell.name] = (cell, reason, pruned)
        return list(found.values())


def _value(dimension: Range | list[Any], param: Any) -> Any:
    """Returns the value of a setting for what the study holds."""
    if not isinstance(dimension, Range):
        return next(value for value in dimension if shown(value) == param)
    if dimension.kind == "int":
        return param
    return min(max(float(f"{param:.{_DIGITS}g}"), dimension.low), dimension.high)


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise ConfigError(
            "trials", "", "a search needs Optuna: pip install 'jaxdp[optuna]'"
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
