"""Settings that have a new name, or are gone.

An old name works, with one line of warning, until the release that drops it. A removed setting is
refused with one line.
"""

import dataclasses
import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from jaxdp.registry import ConfigError


@dataclasses.dataclass(frozen=True)
class Renamed:
    """A setting that has a new name.

    Attributes:
        old: name of the field before.
        new: its name now.
        since: the first version with the new name.
        until: the first version without the old one.
    """

    old: str
    new: str
    since: str
    until: str

    def __str__(self) -> str:
        return f"{_as_flag(self.old)} is now {_as_flag(self.new)}"


RENAMED = (Renamed("steps_per_call", "steps_per_execution", since="0.2", until="0.3"),)


@dataclasses.dataclass(frozen=True)
class Removed:
    """A setting that is gone.

    Attributes:
        name: of the setting.
        remedy: what to use instead, or why nothing is needed.
        default: its last default value. A file of an earlier version may hold it.
        names_run: whether the setting is part of the hash that names a run's folder.
        command: the command that had it, or `callbacks` for a callback; empty for a setting of
            training.
    """

    name: str
    remedy: str
    default: Any = None
    names_run: bool = False
    command: str = ""


# All were removed in version 0.3.0.
REMOVED = (
    Removed("measure_devices", "use --devices", default=False),
    Removed(
        "grad_reduce_dtype",
        "leave it out; gradients are averaged in the parameters' format",
        names_run=True,
    ),
    Removed(
        "learning_rate_monitor",
        "rows have the learning rate of an optimizer given by name",
        command="callbacks",
    ),
    Removed("target", "use python -m jaxdp.plan --target", command="bench"),
    Removed("quick", "use python -m jaxdp.plan --target ... --quick", command="bench"),
    Removed("output", "use the table, or --json", command="plan"),
    Removed(
        "compare",
        "name both folders to python -m jaxdp.report, which shows their tables",
        command="bench",
    ),
    Removed(
        "output",
        "use --csv FILE.csv, with a line for each image and a column for each class",
        command="predict",
    ),
    Removed(
        "probabilities",
        "jaxdp.predict.predict() in Python returns those of each pixel",
        command="predict",
    ),
)
_BY_OLD_NAME = {each.old: each for each in RENAMED}


def rename_flags(argv: Sequence[str], fields: Collection[str]) -> tuple[list[str], list[Renamed]]:
    """Returns the arguments with the flags of today, and what to warn about.

    Args:
        argv: words of a command line.
        fields: the settings that the command has. A flag of others stays as it is, to be refused
            under the name that was typed.
    """
    words, renamed = [], []
    for word in argv:
        flag, separator, value = word.partition("=")
        found = _BY_OLD_NAME.get(flag[2:].replace("-", "_")) if flag.startswith("--") else None
        if found and found.new in fields:
            renamed.append(found)
            word = _as_flag(found.new) + separator + value
        words.append(word)
    return words, renamed


def removal(name: str, command: str = "") -> str | None:
    """Returns a sentence about a removed setting; None if there was no such setting.

    Args:
        name: of a setting that does not exist.
        command: the command whose flags are meant, in addition to the settings of training; or
            `callbacks`.
    """
    for each in REMOVED:
        if each.name == name and each.command in ("", command):
            return f"was removed in 0.3.0: {each.remedy}"
    return None


def defining_defaults() -> dict[str, Any]:
    """Returns the defaults of removed settings that still name a run's folder."""
    return {each.name: each.default for each in REMOVED if each.names_run}


def drop_removed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of a file without the removed ones that are at their defaults."""
    defaults = {each.name: each.default for each in REMOVED if not each.command}
    return {
        name: value
        for name, value in settings.items()
        if name not in defaults or value != defaults[name]
    }


def rename_settings(settings: Mapping[str, Any], *, warn: bool = True) -> dict[str, Any]:
    """Returns settings or keyword arguments under the names of today.

    Args:
        settings: values by name.
        warn: whether to raise a DeprecationWarning about each old name; not for files, which nobody
            edits.

    Raises:
        ConfigError: if a setting is there under both names.
    """
    renamed = {}
    for name, value in settings.items():
        found = _BY_OLD_NAME.get(name)
        if found and found.new in settings:
            raise ConfigError(
                found.new,
                settings[found.new],
                f"is also set as {found.old}, its old name; give one of them",
            )
        if found and warn:
            message = (
                f"{found.old} is now {found.new}; the old name works until version {found.until}"
            )
            warnings.warn(message, DeprecationWarning, stacklevel=3)
        renamed[found.new if found else name] = value
    return renamed


def _as_flag(name: str) -> str:
    return "--" + name.replace("_", "-")
