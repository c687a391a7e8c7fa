"""Reads the grid of a sweep, such as `learning_rate=0.05,0.1 seed=0,1`, and expands it into the
runs that it names.
"""

import dataclasses
import itertools
import urllib.parse
from collections.abc import Collection, Sequence
from typing import Any

from jaxdp import config as config_lib
from jaxdp import deprecation, parsing
from jaxdp.config import TrainConfig
from jaxdp.registry import ConfigError, nearest, shown

_LONGEST_NAME = 200  # of a folder; most file systems take 255 bytes

Settings = dict[str, Any]  # by the name of a field, or FIELD.KEYWORD


@dataclasses.dataclass(frozen=True)
class Cell:
    """One run of a sweep.

    Attributes:
        settings: in which it differs from the others.
        name: says them; the name of its folder.
    """

    settings: Settings
    config: TrainConfig
    name: str


def parse(words: Sequence[str], flag: str = "grid") -> dict[str, list[Any]]:
    """Reads `["learning_rate=0.05,0.1", "model_kwargs.depth=20,110"]`.

    Values are a list of YAML, in which commas separate.

    Args:
        flag: where they stand, for errors.

    Raises:
        ConfigError: for a name that is no setting, values of another type, or what is there twice.
    """
    types = {
        name: config_lib.fields(TrainConfig)[name]
        for name in config_lib.settings_with(TrainConfig, saved=True)
    }
    grid: dict[str, list[Any]] = {}
    for word in words:
        name, separator, _ = word.partition("=")
        name = name.replace("-", "_")
        field, dot, keyword = name.partition(".")
        if not separator:
            raise ConfigError(
                flag, word, "write NAME=VALUE,VALUE without spaces, e.g. learning_rate=0.05,0.1"
            )
        if field not in types:
            remedy = f"unknown setting {field!r}; {nearest(field, list(types))}"
            raise ConfigError(flag, word, deprecation.removal(field) or remedy)
        takes_keywords = field.endswith("_kwargs")
        if dot and not (takes_keywords and keyword.isidentifier()):
            remedy = (
                "only model_kwargs, task_kwargs and optimizer_kwargs have keywords, e.g."
                " model_kwargs.depth=20,110"
            )
            raise ConfigError(flag, word, remedy)
        if name in grid:
            raise ConfigError(flag, word, f"{name} is there twice; give all its values at once")
        grid[name] = _values(flag, word, name, types[field])
    if not grid:
        raise ConfigError(
            "grid", "", "say what to vary, e.g. --grid learning_rate=0.05,0.1 seed=0,1"
        )
    return grid


def _values(flag: str, word: str, name: str, field: dataclasses.Field[Any]) -> list[Any]:
    """Returns the values of a setting, or of a keyword of it, as its type has them.

    Args:
        flag: where they stand, for errors.
        word: all that stands there: NAME=VALUES.
        name: of the setting, with that of its keyword if there is one.
        field: the declaration of the setting.
    """
    setting, _, keyword = name.partition(".")
    try:
        given = parsing.parse_yaml(f"[{word.partition('=')[2]}]")
    except ValueError:
        given = None
    if not given:
        raise ConfigError(
            flag,
            word,
            "names no values; separate them by commas, and quote one that YAML would take apart",
        )
    is_list = "tuple" in str(field.type)
    values: list[Any] = []
    for value in given:
        value = [value] if is_list and isinstance(value, str) else value
        value = (
            config_lib.number(value)
            if keyword
            else config_lib.convert(
                setting, value, field.type, numbers=config_lib.facts_of(field).numbers
            )
        )
        if value in values:
            raise ConfigError(flag, word, f"has {shown(value)} twice; give each value once")
        values.append(value)
    return values


def expand(words: Sequence[str], config: TrainConfig, given: Collection[str] = ()) -> list[Cell]:
    """Returns every combination, the last setting varying fastest.

    Args:
        words: as for `--grid`.
        config: what holds for all runs.
        given: the flags of the command line. A setting of the grid displaces its partner of a pair
            that came from a file.

    Raises:
        ConfigError: for a grid that cannot be read, and the first combination that is no valid
            configuration.
    """
    grid = parse(words)
    shared = shared_settings(config, grid, given)
    return [
        cell(dict(zip(grid, values, strict=True)), shared)
        for values in itertools.product(*grid.values())
    ]


def shared_settings(
    config: TrainConfig, varied: Collection[str], given: Collection[str]
) -> Settings:
    """Returns what holds for all runs, without what a varied setting excludes and only a file has
    set.

    Args:
        varied: names of the settings that differ between the runs.
        given: the flags of the command line.
    """
    return config.flat() | dict.fromkeys(config_lib.displaced_by(varied).difference(varied, given))


def cell(settings: Settings, shared: Settings) -> Cell:
    """Returns the run with these settings on top of the shared ones.

    Raises:
        ConfigError: if together they are no valid configuration.
    """
    changed = dict(shared)
    # A keyword changes the keywords that were set as a whole.
    for name in sorted(settings, key=lambda name: "." in name):
        field, dot, keyword = name.partition(".")
        changed[field] = changed[field] | {keyword: settings[name]} if dot else settings[name]
    return Cell(settings, TrainConfig.of(**changed), _name(settings))


def _name(settings: Settings) -> str:
    text = ",".join(f"{name}={shown(value)}" for name, value in settings.items())
    quoted = urllib.parse.quote(text, safe="=,.:+-")
    return (
        quoted
        if len(quoted) <= _LONGEST_NAME
        else f"{quoted[: _LONGEST_NAME - 9]}-{config_lib.hash_of(settings)}"
    )
