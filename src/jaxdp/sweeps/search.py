"""Provides the runs of a sweep that Optuna proposes: `--trials 30 'learning_rate=log(1e-4,1)'`.

The study is study.db in the folder of the sweep, so that the same command continues it. It
maximizes the metric of the validation data by which sweeps rank, negated if smaller is better. The
first complete run determines this metric. Optuna's default pruner compares with the median.
"""

import math
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from jaxdp import config as config_lib
from jaxdp.cli.exit_codes import EXIT_DIVERGED
from jaxdp.errors import ConfigError, flag
from jaxdp.rundir.write import check_folder
from jaxdp.sweeps.trials import Settings, Space, Trial
from jaxdp.text import parsing
from jaxdp.text.messages import shown

_EXAMPLE = (
    f"e.g. {flag('trials', 30)} 'learning_rate=log(1e-4,1)' 'model_kwargs.width=int(8,32)'"
    " optimizer=nesterov,adam"
)
_RANGE = re.compile(r"(log|uniform|int)\((.*),(.*)\)")
_DIGITS = 4  # digits of a proposed number, which is in the name of a folder
_NO_VALIDATION = (
    "a search chooses by validation data, and there are none; set some apart, e.g."
    f" {flag('validation', 0.1)}"
)


class Search:
    """The runs that Optuna proposes, with the same attributes and methods as `Grid`.

    A trial without a result remains RUNNING in the study, and the next session proposes it again.

    Args:
        number: of trials, from the command line.
        space: the ranges. The seed of its runs also seeds the search.

    Raises:
        ConfigError: if Optuna is missing, the space cannot be read, or the folder holds another
            search or cannot be written.
    """

    def __init__(self, number: str, space: Space) -> None:
        try:
            import optuna
        except ImportError as error:
            remedy = "a search needs Optuna: pip install '.[optuna]'"
            raise ConfigError("trials", "", remedy) from error
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._optuna: Any = optuna
        if not parsing.is_count(number) or not int(number) or not space.words:
            remedy = f"give the number of trials and what to vary, {_EXAMPLE}"
            raise ConfigError("trials", number, remedy)
        self._total, self._space = int(number), space
        self._values: dict[str, list[Any]] = {}  # of each choice, or the two ends of a range
        self._distributions = {name: self._distribution(name) for name in space.texts}
        for end in (0, -1):  # an end that is out of range is reported before any run starts
            space.create({name: values[end] for name, values in self._values.items()})
        check_folder("output", space.folder)

    def begin(self) -> None:
        """Opens the study. No other sweep may use it meanwhile."""
        self._study = self._open()
        self._running: set[str] = set()
        for each in self._in_state("RUNNING"):
            self._study.tell(each.number, state=self._optuna.trial.TrialState.FAIL)
            self._study.enqueue_trial(each.params)
        self.waiting = self._propose()
        self.count = self._total - len(self._in_state("COMPLETE", "PRUNED"))

    def _distribution(self, name: str) -> Any:
        """Returns Optuna's distribution of a setting. A choice has the values as text."""
        distributions = self._optuna.distributions
        text = self._space.texts[name]
        match = _RANGE.fullmatch(text)
        if match is None:
            self._values[name] = self._space.values(name)
            texts = dict.fromkeys(map(shown, self._values[name]))
            return distributions.CategoricalDistribution([*texts])
        kind, *ends = match.groups()
        try:
            self._values[name] = [*map(int if kind == "int" else float, ends)]
            if kind == "int":
                return distributions.IntDistribution(*self._values[name])
            return distributions.FloatDistribution(*self._values[name], log=kind == "log")
        except ValueError as error:
            remedy = "write log(LOW,HIGH), uniform(LOW,HIGH), or int(LOW,HIGH) for integers"
            raise ConfigError("trials", f"{name}={text}", f"{error}; {remedy}") from error

    def _value(self, name: str, proposed: Any) -> Any:
        """Returns the value of the setting that Optuna proposes."""
        values = self._values[name]
        if isinstance(proposed, float):
            return min(max(float(f"{proposed:.{_DIGITS}g}"), values[0]), values[1])
        return {shown(value): value for value in values}.get(proposed, proposed)

    def _open(self) -> Any:
        """Opens the study in the folder, or creates it. Only the number of trials may change."""
        from sqlalchemy.pool import NullPool

        folder = self._space.folder
        search = {
            "space": [*self._space.words],
            "settings": config_lib.defining(self._space.config),
        }
        storage = self._optuna.storages.RDBStorage(
            f"sqlite:///{folder / 'study.db'}",
            engine_kwargs={"poolclass": NullPool},  # a pool would never close its connections
        )
        study = self._optuna.create_study(
            storage=storage, study_name="sweep", direction="maximize", load_if_exists=True
        )
        if study.user_attrs.get("search", search) != search:
            remedy = f"holds a search with other ranges or settings; give another {flag('output')}"
            raise ConfigError("output", folder, remedy)
        study.set_user_attr("search", search)
        return study

    def _in_state(self, *names: str) -> list[Any]:
        states = [self._optuna.trial.TrialState[name] for name in names]
        return self._study.get_trials(deepcopy=False, states=states)

    def _trial(self, proposal: Any) -> Trial:
        trial = self._space.create(
            {name: self._value(name, proposal.params[name]) for name in self._values}
        )
        trial.proposal = proposal
        return trial

    def _propose(self) -> Iterator[Trial]:
        """Yields the next run, proposed from the results of the previous runs."""
        while (asked := len(self._in_state("COMPLETE", "PRUNED", "RUNNING"))) < self._total:
            # A single sampler for all trials would propose the same values again in a second
            # session.
            seed = int(
                np.random.SeedSequence([self._space.config.seed, asked]).generate_state(1)[0]
            )
            self._study.sampler = self._optuna.samplers.TPESampler(seed=seed)
            trial = self._trial(self._study.ask(self._distributions))
            if (
                trial.name in self._running
            ):  # for a choice of few values; the next session requests it again
                continue
            self._running.add(trial.name)
            if trial.is_done():  # an earlier trial proposed this run, so both get its result
                self.end(trial, 0)
            else:
                yield trial

    def should_stop(self, trial: Trial) -> bool:
        """Returns whether a run is worse than the median of the others at its latest evaluation.
        Returns true once.

        Raises:
            ConfigError: if it has no validation data.
        """
        has_data = trial.run.file("dataset.json").is_file()
        if has_data and "validation" not in trial.run.read("dataset.json")["examples"]:
            raise ConfigError("validation", "", _NO_VALIDATION)
        if trial.pruned:
            return False
        self._report(trial)
        trial.pruned = bool(trial.proposal.should_prune())
        return trial.pruned

    def _report(self, trial: Trial) -> None:
        """Reports new evaluations of a run, after a complete run has determined the metric."""
        best = self._study.user_attrs.get("best_metric")
        for row in trial.run.read("metrics.jsonl") if best else ():
            if row["split"] == "validation" and row["step"] > trial.last_step:
                trial.proposal.report(_score(row, best), row["step"])
                trial.last_step = row["step"]

    def end(self, trial: Trial, code: int) -> bool:
        """Records the exit code of a run, and returns whether it failed. Divergence is a result."""
        self._running.discard(trial.name)
        score = math.nan
        if code == 0:
            summary = trial.run.read("summary.json")
            self._study.set_user_attr("best_metric", summary["best_metric"])
            score = _score(summary["metrics"]["validation"], summary["best_metric"])
        self._report(trial)
        if code and trial.pruned:
            trial.note = f"pruned at step {trial.last_step}"
        trial.proposal.set_user_attr("note", trial.note)
        if math.isfinite(score):
            self._study.tell(trial.proposal, score)
        elif trial.pruned or code in (0, EXIT_DIVERGED):
            # A run that diverged would diverge again, and informs the search.
            self._study.tell(trial.proposal, state=self._optuna.trial.TrialState.PRUNED)
        else:
            return True
        return False

    def trials(self) -> list[Trial]:
        """Returns the runs that have ended."""
        trials: dict[str, Trial] = {}
        for each in self._in_state("COMPLETE", "PRUNED", "RUNNING"):
            trial = self._trial(each)
            trial.note = each.user_attrs.get("note", "")
            if trial.note or each.state.is_finished():
                trials[trial.name] = trial
        return [*trials.values()]


def _score(metrics: Settings, best: Settings) -> float:
    """Returns the value that the study maximizes."""
    value = metrics[best["name"]]
    return value if best["larger_is_better"] else -value
