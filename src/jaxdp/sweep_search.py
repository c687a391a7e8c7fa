"""The runs of a sweep that Optuna proposes: `--trials 30 'learning_rate=log(1e-4,1)'`.

The study is study.db in the folder of the sweep, so that the same command continues. It maximizes
the metric by which sweeps rank, of the validation data, with its sign changed if smaller is better.
The first finished run says which metric that is.
"""

import math
import pathlib
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxdp import config as config_lib
from jaxdp import parsing, sweep_grid
from jaxdp.config import TrainConfig
from jaxdp.exit_codes import EXIT_DIVERGED, EXIT_STOPPED
from jaxdp.registry import ConfigError, shown
from jaxdp.sweep_grid import Settings, Trial


class Dimension(NamedTuple):
    """A setting of the space.

    Attributes:
        distribution: Optuna's.
        convert: returns our value of Optuna's.
        values: all of them, or the two ends of a range.
    """

    distribution: Any
    convert: Callable[[Any], Any]
    values: list[Any]


_EXAMPLE = (
    "e.g. --trials 30 'learning_rate=log(1e-4,1)' 'model_kwargs.width=int(8,32)'"
    " optimizer=nesterov,adam"
)
_DIGITS = 4  # of a proposed number, which is in the name of a folder
_NO_VALIDATION = (
    "a search chooses by validation data, and there are none; set some apart, e.g. --validation 0.1"
)


def parse_search(words: Sequence[str]) -> tuple[int, dict[str, Dimension]]:
    """Reads `["30", "learning_rate=log(1e-4,1)", "optimizer=nesterov,adam"]`.

    Returns:
        The number of trials, and the dimension of each setting.

    Raises:
        ConfigError: for a number, a name or a range that cannot be read.
    """
    number, *ranges = words or [""]
    if not parsing.is_count(number) or not int(number):
        raise ConfigError("trials", number, f"begin with the number of trials, {_EXAMPLE}")
    if not ranges:
        raise ConfigError("trials", number, f"say what to vary, {_EXAMPLE}")
    grid = sweep_grid.parse(ranges, "trials")
    return int(number), {
        name: _range(word, name, *values) if values.kind else _choice(values.values)
        for word, (name, values) in zip(ranges, grid.items(), strict=True)
    }


def _choice(values: list[Any]) -> Dimension:
    by_text = {shown(value): value for value in values}
    distribution = _import_optuna().distributions.CategoricalDistribution([*by_text])
    return Dimension(distribution, by_text.__getitem__, values)


def _range(word: str, name: str, ends: list[Any], kind: str) -> Dimension:
    low, high = ends
    types = {type(low), type(high)}
    problem = ""
    if not types <= {int, float} or not low < high:
        problem = "must be two numbers, the smaller one first"
    elif kind == "log" and low <= 0:
        problem = "on a logarithmic scale both must be greater than 0"
    elif kind == "int" and types != {int}:
        problem = "both must be whole numbers; use uniform(LOW,HIGH) or log(LOW,HIGH) for others"
    elif kind != "int" and "." not in name and int in types:
        problem = f"{name} takes whole numbers; use int(LOW,HIGH), or list the values"
    if problem:
        raise ConfigError("trials", word, problem)
    distributions = _import_optuna().distributions
    if kind == "int":
        return Dimension(distributions.IntDistribution(low, high), int, ends)

    def rounded(value: float) -> float:
        return min(max(float(f"{value:.{_DIGITS}g}"), low), high)

    return Dimension(distributions.FloatDistribution(low, high, log=kind == "log"), rounded, ends)


class Search:
    """The runs that Optuna proposes; the methods are those of `Grid`.

    Args:
        words: as for `--trials`.
        config: the settings of all runs; its seed is also the seed of the search.
        given: the flags of the command line.
        folder: of the sweep.

    Attributes:
        count: number of runs to come when the search began.

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
        self._total, self._space = parse_search(words)
        self._optuna = _import_optuna()
        self._states = self._optuna.trial.TrialState
        self._shared = sweep_grid.shared_settings(config, self._space, given)
        self._folder, self._seed = folder, config.seed
        for end in (0, -1):  # an end that is out of range shows before anything starts
            settings = {name: each.values[end] for name, each in self._space.items()}
            sweep_grid.create_trial(settings, self._shared, folder)
        if config.validation == "none":
            raise ConfigError("validation", "none", _NO_VALIDATION)
        sweep_grid.create_folder(folder)
        self._study = self._open({"space": [*words[1:]], "settings": config_lib.defining(config)})
        self._running: set[str] = set()
        done = [each.params for each in self._in_state("COMPLETE", "PRUNED")]
        self._again: list[Settings] = []  # trials without an end, which go on from a checkpoint
        for each in self._in_state("RUNNING", "FAIL"):
            if each.state == self._states.RUNNING:
                self._study.tell(each.number, state=self._states.FAIL)
            if each.params not in [*done, *self._again]:
                self._again.append(each.params)
        self._asked = len(done)
        self.count = max(self._total - self._asked, 0)

    def _open(self, search: dict[str, Any]) -> Any:
        """Opens the study in the folder, or begins one; only the number of trials may change."""
        from sqlalchemy.engine import URL
        from sqlalchemy.pool import NullPool

        file = parsing.resolved(self._folder) / "study.db"
        storage = self._optuna.storages.RDBStorage(
            URL.create("sqlite", database=str(file)).render_as_string(),
            engine_kwargs={"poolclass": NullPool},  # a pool would never close its connections
        )
        study = self._optuna.create_study(
            storage=storage,
            study_name="sweep",
            direction="maximize",
            load_if_exists=True,
            pruner=self._optuna.pruners.MedianPruner(),
        )
        held = study.user_attrs.get("search", search)
        ours, theirs = ({"trials": each["space"]} | each["settings"] for each in (search, held))
        sweep_grid.check_same(self._folder, "a search", ours, theirs)
        study.set_user_attr("search", search)
        return study

    def _in_state(self, *names: str) -> list[Any]:
        states = [self._states[name] for name in names]
        return self._study.get_trials(deepcopy=False, states=states)

    def _create(self, params: Settings) -> Trial:
        settings = {name: each.convert(params[name]) for name, each in self._space.items()}
        return sweep_grid.create_trial(settings, self._shared, self._folder)

    def next(self) -> Trial | None:
        while self._asked < self._total:
            if self._again:
                self._study.enqueue_trial(self._again.pop(0))
            # One sampler for all trials would propose the same again in a second session.
            seed = int(np.random.SeedSequence([self._seed, self._asked]).generate_state(1)[0])
            self._study.sampler = self._optuna.samplers.TPESampler(seed=seed)
            proposal = self._study.ask(
                {name: each.distribution for name, each in self._space.items()}
            )
            self._asked += 1
            trial = self._create(proposal.params)
            trial.proposal = proposal
            if trial.name in self._running:  # few values; it is asked for again in the next session
                self._study.tell(proposal, state=self._states.FAIL)
                continue
            self._running.add(trial.name)
            if not trial.run.is_done():
                return trial
            self.end(trial, 0)  # an earlier trial proposed this run: both have its result
        return None

    def should_stop(self, trial: Trial) -> bool:
        """Whether a run is worse than the median of the others at its latest evaluation.

        Raises:
            ConfigError: if it has no validation data.
        """
        has_data = trial.run.file("dataset.json").is_file()
        if has_data and "validation" not in trial.run.read("dataset.json")["examples"]:
            raise ConfigError("validation", "", _NO_VALIDATION)
        if not trial.pruned and self._report(trial):
            trial.pruned = bool(trial.proposal.should_prune())
            return trial.pruned
        return False

    def _report(self, trial: Trial) -> bool:
        """Reports new evaluations of a run; returns whether there are any."""
        name, sign = self._study.user_attrs.get("metric", ("", 0))
        before = trial.last_step
        for row in trial.run.read("metrics.jsonl"):
            is_new = trial.last_step is None or row["step"] > trial.last_step
            if row["split"] == "validation" and name in row and is_new:
                trial.proposal.report(sign * row[name], row["step"])
                trial.last_step = row["step"]
        return trial.last_step != before

    def end(self, trial: Trial, code: int) -> bool:
        """Records the exit code of a run; divergence is a result, not a failure."""
        self._running.discard(trial.name)
        trial.pruned &= code == EXIT_STOPPED
        sign, value = 1, math.nan
        summary = None if code else trial.run.read("summary.json")
        if summary is not None:
            best = summary["best_metric"]
            sign = 1 if best["larger_is_better"] else -1
            self._study.set_user_attr("metric", [best["name"], sign])
            value = sign * summary["metrics"]["validation"][best["name"]]
        self._report(trial)
        if math.isfinite(value):
            self._study.tell(trial.proposal, value)
            return False
        if trial.pruned:
            trial.reason = ""
        elif code == 0:
            code = EXIT_DIVERGED
            trial.reason = f"its metric of the validation data is {sign * value}"
        trial.proposal.set_user_attr("failed", trial.reason)
        # A run that diverged would do so again, and shows the search where not to look.
        settled = trial.pruned or code == EXIT_DIVERGED
        state = self._states.PRUNED if settled else self._states.FAIL
        self._study.tell(trial.proposal, state=state)
        return not settled

    def results(self) -> list[Trial]:
        trials: dict[str, Trial] = {}
        for each in self._in_state("COMPLETE", "PRUNED", "FAIL"):
            trial = self._create(each.params)
            trial.reason = each.user_attrs.get("failed", "")
            trial.pruned = each.state == self._states.PRUNED and not trial.reason
            trial.last_step = each.last_step
            # One that was interrupted has no reason, and has run again since.
            if trial.reason or each.state != self._states.FAIL:
                trials[trial.name] = trial
        return [*trials.values()]


def _import_optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        remedy = "a search needs Optuna: pip install 'jaxdp[optuna]'"
        raise ConfigError("trials", "", remedy) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
