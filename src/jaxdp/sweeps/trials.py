"""Provides the runs of a sweep. `learning_rate=0.05,0.1 seed=0,1` names four runs."""

import dataclasses
import functools
import itertools
import pathlib
import signal
import urllib.parse
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from jaxdp import config as config_lib
from jaxdp.config import TrainConfig, deprecation
from jaxdp.errors import ConfigError, flag
from jaxdp.launching import launcher
from jaxdp.launching.local_process import LocalProcess
from jaxdp.rundir.layout import RunDirectory
from jaxdp.rundir.write import check_folder, replace_file
from jaxdp.text import parsing
from jaxdp.text.messages import nearest, shown

_LONGEST_NAME = 200  # length of a folder's name; most file systems allow 255 bytes
_REASON_LENGTH = 300

Settings = dict[str, Any]  # by the name of a field, or FIELD.KEYWORD


@dataclasses.dataclass(eq=False)
class Trial:
    """One run of a sweep, which trains in its own process.

    Attributes:
        settings: settings in which it differs from the others.
        config: all its settings.
        run: its folder, with a name that lists the settings in which it differs.
        note: why it has no result; empty if it has a result.
        process: process in which it trains, after it has started.
        proposal: Optuna's trial in a search.
        pruned: whether a search stops it early.
        last_step: the step of the last evaluation that a search has seen.
    """

    settings: Settings
    config: TrainConfig
    run: RunDirectory
    note: str = ""
    process: Any = None
    proposal: Any = None
    pruned: bool = False
    last_step: int = -1

    def __post_init__(self) -> None:
        self.name, self.log = self.run.path.name, self.run.file("train.log")
        # The settings in the form of the sweep. `train` writes config.yaml.
        self._file = self.run.file("settings.yaml")

    def is_done(self) -> bool:
        """Returns whether its run is complete.

        Raises:
            ConfigError: if its folder holds a run with other settings.
        """
        if self._file.is_file():
            before = config_lib.defining(TrainConfig.of(**config_lib.load(self._file)))
            now = config_lib.defining(self.config)
            names = [name for name in before | now if before.get(name) != now.get(name)]
            if names:
                remedy = (
                    f"holds a run with another {', '.join(names)}; give another {flag('output')}"
                )
                raise ConfigError("output", self.run.path, remedy)
        return self.run.is_done()

    def start(self, environment: Mapping[str, str]) -> None:
        """Trains in a process with these variables, and appends its standard error to `log`."""
        folder = self.run.path
        folder.mkdir(exist_ok=True)
        replace_file(self._file, config_lib.to_yaml(self.config))
        self._log_start = self.log.stat().st_size if self.log.is_file() else 0
        words = ["--config", str(self._file), "--run-dir", str(folder)]
        self.process = LocalProcess([*launcher.TRAIN, *words], environment, log=self.log)

    def reason(self, code: int) -> str:
        """Returns why it failed: the last line of its log, or the signal that ended it."""
        if code < 0:
            return f"ended by {signal.Signals(-code).name}"
        text = self.log.read_bytes()[self._log_start :].decode(errors="replace").strip()
        last = text.splitlines()[-1].strip() if text else f"ended with {code}"
        return last.removeprefix("jaxdp.train: error: ")[:_REASON_LENGTH]


@dataclasses.dataclass(frozen=True)
class Space:
    """The settings that vary, and the settings that all runs of a sweep share.

    Attributes:
        words: e.g. `["learning_rate=0.05,0.1", "model_kwargs.depth=20,110"]`.
        flag: the flag with the words, `grid` or `trials`.
        config: the settings of all runs. A varied setting displaces its partner of an exclusive
            pair, unless the command line gives both.
        given: the flags of the command line.
        folder: of the sweep, with a folder for each run.
    """

    words: Sequence[str]
    flag: str
    config: TrainConfig
    given: Collection[str]
    folder: pathlib.Path

    @functools.cached_property
    def texts(self) -> dict[str, str]:
        """The values of each setting, by its name.

        Raises:
            ConfigError: for a name that is not a setting, and for a repeated name.
        """
        known = config_lib.settings_with(TrainConfig, saved=True)
        texts: dict[str, str] = {}
        for word in self.words:
            name, _, text = word.partition("=")
            name = name.replace("-", "_")
            field, dot, _ = name.partition(".")
            problem = ""
            if field not in known:
                unknown = f"unknown setting {field!r}; {nearest(field, known)}"
                problem = deprecation.removal(field) or unknown
            elif dot and not field.endswith("_kwargs"):
                problem = (
                    "only model_kwargs, task_kwargs and optimizer_kwargs have keywords, e.g."
                    " model_kwargs.depth=20,110"
                )
            elif name in texts:
                problem = f"{name} is there twice; give all its values at once"
            if problem:
                raise ConfigError(self.flag, word, problem)
            texts[name] = text
        return texts

    def values(self, name: str) -> list[Any]:
        """Returns the values of a setting, or of a keyword of a setting, from a text that is a YAML
        list.

        Raises:
            ConfigError: if there are no values, or if they do not have the type of the setting.
        """
        text = self.texts[name]
        field, dot, _ = name.partition(".")
        facts = config_lib.fields(TrainConfig)[field]
        try:
            given = parsing.parse_yaml(f"[{text}]")
            written = parsing.parse_yaml(f"[{text}]", as_text=True)
        except ValueError:
            given = written = list[Any]()
        if not given:
            remedy = "write NAME=VALUE,VALUE without spaces; quote a value that YAML would split"
            raise ConfigError(self.flag, f"{name}={text}", remedy)
        if not dot:
            pairs = zip(given, written, strict=True)
            given = [config_lib.as_written(facts, *pair) for pair in pairs]
        convert = config_lib.number if dot else functools.partial(config_lib.convert, facts)
        return [convert(value) for value in given]

    def create(self, settings: Settings) -> Trial:
        """Returns the run with these settings on top of the shared ones.

        Raises:
            ConfigError: if together they are not a valid configuration.
        """
        changed = {name: getattr(self.config, name) for name in self.given}
        # A keyword changes one of the keywords that were set together.
        for name in sorted(settings, key=lambda name: "." in name):
            field, dot, keyword = name.partition(".")
            whole = changed.get(field, getattr(self.config, field))
            changed[field] = whole | {keyword: settings[name]} if dot else settings[name]
        text = ",".join(f"{name}={shown(value)}" for name, value in settings.items())
        name = urllib.parse.quote(text, safe="=,.:+-")
        if len(name) > _LONGEST_NAME:
            name = f"{name[: _LONGEST_NAME - 9]}-{config_lib.hash_of(settings)}"
        return Trial(settings, self.config.replace(**changed), RunDirectory(self.folder / name))


class Grid:
    """Every combination of values, in order; the last setting varies fastest.

    Attributes:
        waiting: the remaining runs. Complete runs do not run again.
        count: their number.

    Raises:
        ConfigError: for a grid that cannot be read, the first invalid combination, and a folder
            that cannot be written or holds runs with other settings.
    """

    def __init__(self, space: Space) -> None:
        if not space.words:
            example = flag("grid", ("learning_rate=0.05,0.1", "seed=0,1"))
            raise ConfigError("grid", "", f"say what to vary, e.g. {example}")
        values = map(space.values, space.texts)
        combinations = (
            dict(zip(space.texts, each, strict=True)) for each in itertools.product(*values)
        )
        self._trials = {trial.name: trial for trial in map(space.create, combinations)}
        self.begin()
        check_folder("output", space.folder)

    def begin(self) -> None:
        """Finds out the remaining runs."""
        waiting = [trial for trial in self._trials.values() if not trial.is_done()]
        self.waiting, self.count = iter(waiting), len(waiting)

    def should_stop(self, trial: Trial) -> bool:
        """Returns whether to stop a run in progress. Returns true once."""
        return False

    def end(self, trial: Trial, code: int) -> bool:
        """Records the exit code of a run, and returns whether the run failed."""
        return code != 0

    def trials(self) -> list[Trial]:
        """Returns the runs of the table."""
        return [*self._trials.values()]
