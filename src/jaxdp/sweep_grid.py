"""The runs of a sweep by a grid: `learning_rate=0.05,0.1 seed=0,1` names four."""

import dataclasses
import itertools
import pathlib
import re
import urllib.parse
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from jaxdp import config as config_lib
from jaxdp import deprecation, parsing
from jaxdp.config import TrainConfig
from jaxdp.registry import ConfigError, nearest, shown
from jaxdp.rundir.layout import RunDirectory

_LONGEST_NAME = 200  # of a folder; most file systems allow 255 bytes

# Without `ends` where a range cannot be read.
_RANGE = re.compile(r"(?P<kind>log|uniform|int)\((?P<ends>[^,()]+,[^,()]+(?=\)$))?")

Settings = dict[str, Any]  # by the name of a field, or FIELD.KEYWORD


@dataclasses.dataclass(eq=False)
class Trial:
    """One run of a sweep, and how it ended.

    Attributes:
        settings: in which it differs from the others.
        config: all its settings.
        run: its folder, whose name says in which settings it differs.
        reason: why it failed; empty if it did not.
        pruned: whether a search stops it early.
        last_step: the step of the last evaluation that a search knows.
        proposal: Optuna's trial in a search.
    """

    settings: Settings
    config: TrainConfig
    run: RunDirectory
    reason: str = ""
    pruned: bool = False
    last_step: int | None = None
    proposal: Any = None

    @property
    def name(self) -> str:
        return self.run.path.name

    @property
    def file(self) -> pathlib.Path:
        """The file of its settings as the sweep has them; train writes config.yaml."""
        return self.run.file("settings.yaml")


class Values(NamedTuple):
    """The values of a setting, or the ends of a range.

    Attributes:
        values: the values, or the two ends.
        kind: of a range, `log`, `uniform` or `int`; empty for values.
    """

    values: list[Any]
    kind: str = ""


def parse(words: Sequence[str], flag: str = "grid") -> dict[str, Values]:
    """Reads `["learning_rate=0.05,0.1", "model_kwargs.depth=20,110"]`.

    Values are a list of YAML, in which commas separate; `--trials` also takes ranges.

    Args:
        words: the settings with their values.
        flag: the flag that has the words: `grid` or `trials`.

    Raises:
        ConfigError: for a name that is no setting, values of another type, or a repetition.
    """
    if not words:
        remedy = "say what to vary, e.g. --grid learning_rate=0.05,0.1 seed=0,1"
        raise ConfigError(flag, "", remedy)
    known = config_lib.settings_with(TrainConfig, saved=True)
    grid: dict[str, Values] = {}
    for word in words:
        name, separator, text = word.partition("=")
        kind = ""
        if flag == "trials" and (match := _RANGE.match(text)):
            kind, text = match["kind"], match["ends"]
        name = name.replace("-", "_")
        field, dot, keyword = name.partition(".")
        problem = ""
        if not separator:
            problem = "write NAME=VALUE,VALUE without spaces, e.g. learning_rate=0.05,0.1"
        elif field not in known:
            unknown = f"unknown setting {field!r}; {nearest(field, list(known))}"
            problem = deprecation.removal(field) or unknown
        elif dot and not (field.endswith("_kwargs") and keyword.isidentifier()):
            problem = (
                "only model_kwargs, task_kwargs and optimizer_kwargs have keywords, e.g."
                " model_kwargs.depth=20,110"
            )
        elif name in grid:
            problem = f"{name} is there twice; give all its values at once"
        elif kind and not text:
            problem = "write log(LOW,HIGH), uniform(LOW,HIGH) or int(LOW,HIGH) without spaces"
        else:
            values, problem = _values(name, text)
            grid[name] = Values(values, kind)
        if problem:
            raise ConfigError(flag, word, problem)
    return grid


def _values(name: str, text: str) -> tuple[list[Any], str]:
    """Returns the values of a setting, or of a keyword of it, converted to its type, and what is
    wrong with them.
    """
    field_name, dot, _ = name.partition(".")
    field = config_lib.fields(TrainConfig)[field_name]
    try:
        given = parsing.parse_yaml(f"[{text}]")
    except ValueError:
        given = None
    if not given:
        return [], "names no values; separate them by commas, and quote one that YAML would split"
    values: list[Any] = []
    for value in given:
        if "tuple" in str(field.type) and isinstance(value, str):
            value = [value]
        value = config_lib.number(value) if dot else config_lib.convert_for(field, value)
        if value in values:
            return [], f"has {shown(value)} twice; give each value once"
        values.append(value)
    return values, ""


def shared_settings(
    config: TrainConfig, varied: Collection[str], given: Collection[str]
) -> Settings:
    """Returns the settings of all runs.

    A varied setting displaces its partner of an exclusive pair, unless the command line gives both.
    """
    displaced = config_lib.displaced_by(TrainConfig, varied).difference(varied, given)
    return config.flat() | dict.fromkeys(displaced)


def create_trial(settings: Settings, shared: Settings, folder: pathlib.Path) -> Trial:
    """Returns the run with these settings on top of the shared ones.

    Raises:
        ConfigError: if together they are no valid configuration.
    """
    changed = dict(shared)
    # A keyword changes the keywords that were set as a whole.
    for name in sorted(settings, key=lambda name: "." in name):
        field, dot, keyword = name.partition(".")
        changed[field] = changed[field] | {keyword: settings[name]} if dot else settings[name]
    text = ",".join(f"{name}={shown(value)}" for name, value in settings.items())
    name = urllib.parse.quote(text, safe="=,.:+-")
    if len(name) > _LONGEST_NAME:
        name = f"{name[: _LONGEST_NAME - 9]}-{config_lib.hash_of(settings)}"
    return Trial(settings, TrainConfig.of(**changed), RunDirectory(folder / name))


def create_folder(folder: pathlib.Path) -> None:
    """Creates the folder of a sweep; raises ConfigError if it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        remedy = f"cannot be written ({error.strerror}); give another folder"
        raise ConfigError("output", folder, remedy) from error


def check_same(folder: pathlib.Path, what: str, ours: Settings, theirs: Settings) -> None:
    """Raises ConfigError for the first setting that differs from what a folder holds."""
    for name in sorted(ours.keys() | theirs.keys()):
        then, now = (each.get(name) for each in (theirs, ours))
        if then != now:
            remedy = f"holds {what} with {name} {shown(then)}, not {shown(now)}"
            raise ConfigError("output", folder, f"{remedy}; give another --output")


class Grid:
    """Every combination, in order; the last setting varies fastest. Finished runs do not run again.

    Args:
        words: as for `--grid`.
        config: the settings of all runs.
        given: the flags of the command line.
        folder: of the sweep, with a folder for each run.

    Attributes:
        trials: all runs.
        count: number of runs to come.

    Raises:
        ConfigError: for a grid that cannot be read, the first invalid combination, and a folder
            that cannot be written or holds runs with other settings.
    """

    def __init__(
        self,
        words: Sequence[str],
        config: TrainConfig,
        given: Collection[str],
        folder: pathlib.Path,
    ) -> None:
        grid = parse(words)
        shared = shared_settings(config, grid, given)
        self.trials = [
            create_trial(dict(zip(grid, values, strict=True)), shared, folder)
            for values in itertools.product(*(each.values for each in grid.values()))
        ]
        for trial in self.trials:
            if trial.file.is_file():
                theirs = config_lib.defining(TrainConfig.of(**config_lib.load(trial.file)))
                check_same(folder, trial.name, config_lib.defining(trial.config), theirs)
        create_folder(folder)
        self._waiting = [trial for trial in self.trials if not trial.run.is_done()]
        self.count = len(self._waiting)

    def next(self) -> Trial | None:
        """Returns the next run; None if there are no more."""
        return self._waiting.pop(0) if self._waiting else None

    def should_stop(self, trial: Trial) -> bool:
        """Whether to stop a run that is under way; true once."""
        return False

    def end(self, trial: Trial, code: int) -> bool:
        """Records the exit code of a run, and returns whether the run failed."""
        return bool(code)

    def results(self) -> list[Trial]:
        """Returns the runs of the tables."""
        return self.trials
