"""The runs of a sweep by a grid: `learning_rate=0.05,0.1 seed=0,1` names four."""

import dataclasses
import itertools
import pathlib
import urllib.parse
from collections.abc import Collection, Sequence
from typing import Any

from jaxdp import config as config_lib
from jaxdp import deprecation, parsing
from jaxdp.config import TrainConfig
from jaxdp.registry import ConfigError, nearest, shown
from jaxdp.rundir.layout import RunDirectory

_LONGEST_NAME = 200  # of a folder; most file systems allow 255 bytes

Settings = dict[str, Any]  # by the name of a field, or FIELD.KEYWORD
Result = tuple["Trial", str | None, int | None]  # with why it failed, and where it was pruned


@dataclasses.dataclass(frozen=True)
class Trial:
    """One run of a sweep.

    Attributes:
        settings: in which it differs from the others.
        name: of its folder, which says these settings.
    """

    settings: Settings
    config: TrainConfig
    name: str


def parse(words: Sequence[str], flag: str = "grid") -> dict[str, list[Any]]:
    """Reads `["learning_rate=0.05,0.1", "model_kwargs.depth=20,110"]`.

    Values are a list of YAML, in which commas separate.

    Args:
        flag: the flag that has the words, for errors.

    Raises:
        ConfigError: for a name that is no setting, values of another type, or a repetition.
    """
    fields = {
        name: config_lib.fields(TrainConfig)[name]
        for name in config_lib.settings_with(TrainConfig, saved=True)
    }
    grid: dict[str, list[Any]] = {}
    for word in words:
        name, separator, _ = word.partition("=")
        name = name.replace("-", "_")
        field, dot, keyword = name.partition(".")
        problem = ""
        if not separator:
            problem = "write NAME=VALUE,VALUE without spaces, e.g. learning_rate=0.05,0.1"
        elif field not in fields:
            unknown = f"unknown setting {field!r}; {nearest(field, list(fields))}"
            problem = deprecation.removal(field) or unknown
        elif dot and not (field.endswith("_kwargs") and keyword.isidentifier()):
            problem = (
                "only model_kwargs, task_kwargs and optimizer_kwargs have keywords, e.g."
                " model_kwargs.depth=20,110"
            )
        elif name in grid:
            problem = f"{name} is there twice; give all its values at once"
        if problem:
            raise ConfigError(flag, word, problem)
        grid[name] = _values(flag, word, name, fields[field])
    if not grid:
        remedy = "say what to vary, e.g. --grid learning_rate=0.05,0.1 seed=0,1"
        raise ConfigError("grid", "", remedy)
    return grid


def _values(flag: str, word: str, name: str, field: dataclasses.Field[Any]) -> list[Any]:
    """Returns the values of a setting, or of a keyword of it, converted to its type."""
    keyword = name.partition(".")[2]
    try:
        given = parsing.parse_yaml(f"[{word.partition('=')[2]}]")
    except ValueError:
        given = None
    if not given:
        remedy = "names no values; separate them by commas, and quote one that YAML would split"
        raise ConfigError(flag, word, remedy)
    is_list = "tuple" in str(field.type)
    values: list[Any] = []
    for value in given:
        value = [value] if is_list and isinstance(value, str) else value
        value = config_lib.number(value) if keyword else config_lib.convert_for(field, value)
        if value in values:
            raise ConfigError(flag, word, f"has {shown(value)} twice; give each value once")
        values.append(value)
    return values


def expand(words: Sequence[str], config: TrainConfig, given: Collection[str] = ()) -> list[Trial]:
    """Returns every combination of a grid; the last setting varies fastest.

    Args:
        words: as for `--grid`.
        config: the settings of all runs.
        given: the flags of the command line.

    Raises:
        ConfigError: for a grid that cannot be read, and for the first invalid combination.
    """
    grid = parse(words)
    shared = shared_settings(config, grid, given)
    return [
        create_trial(dict(zip(grid, values, strict=True)), shared)
        for values in itertools.product(*grid.values())
    ]


def shared_settings(
    config: TrainConfig, varied: Collection[str], given: Collection[str]
) -> Settings:
    """Returns the settings of all runs.

    A varied setting displaces its partner of an exclusive pair, unless the command line gives both.
    """
    displaced = config_lib.displaced_by(TrainConfig, varied).difference(varied, given)
    return config.flat() | dict.fromkeys(displaced)


def create_trial(settings: Settings, shared: Settings) -> Trial:
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
    return Trial(settings, TrainConfig.of(**changed), name)


def settings_file(folder: pathlib.Path) -> pathlib.Path:
    """Returns the path of the settings of a run as the sweep has them; train writes config.yaml."""
    return folder / "settings.yaml"


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
    """Every combination, in order; those that are finished do not run again.

    Args:
        folder: of the sweep, with a folder for each run.

    Attributes:
        count: how many runs are to come.

    Raises:
        ConfigError: if the folder cannot be written, or holds runs with other settings.
    """

    def __init__(self, trials: Sequence[Trial], folder: pathlib.Path) -> None:
        for trial in trials:
            file = settings_file(folder / trial.name)
            if file.is_file():
                theirs = config_lib.defining(TrainConfig.of(**config_lib.load(file)))
                check_same(folder, trial.name, config_lib.defining(trial.config), theirs)
        create_folder(folder)
        self._trials = trials
        self._reasons: dict[str, str] = {}
        self._waiting = [each for each in trials if not RunDirectory(folder / each.name).is_done()]
        self.count = len(self._waiting)

    def next(self) -> Trial | None:
        """Returns the next run, None if there are no more."""
        return self._waiting.pop(0) if self._waiting else None

    def should_stop(self, trial: Trial) -> bool:
        """Whether to stop a run that is under way; says so once."""
        return False

    def ended(self, trial: Trial, code: int, reason: str) -> str:
        """Records the end of a run, and returns its outcome: done, pruned or failed."""
        if not code:
            return "done"
        self._reasons[trial.name] = reason
        return f"failed: {reason}"

    @property
    def failed(self) -> bool:
        """Whether a run has ended with an error."""
        return bool(self._reasons)

    def results(self) -> list[Result]:
        """Returns the runs of the tables."""
        return [(trial, self._reasons.get(trial.name), None) for trial in self._trials]
