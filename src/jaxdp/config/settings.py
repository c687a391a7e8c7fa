"""Defines the base of all settings. Each setting has one name, which its flag, its keyword and its
line of YAML share, and its own facts.
"""

import copy
import dataclasses
import functools
import inspect
import os
import typing
from collections.abc import Collection, Mapping
from typing import Any, Literal, TypeVar, cast

from jaxdp.config import deprecation
from jaxdp.config.conversion import as_written, convert
from jaxdp.config.values import Range
from jaxdp.errors import ConfigError, flag
from jaxdp.plugins.listing import with_names
from jaxdp.text.messages import nearest, shown
from jaxdp.text.parsing import is_finite

OBJECT = "(object)"  # replaces the name of an object that a program passed
REQUIRED: Any = dataclasses.MISSING  # the default of a required setting

Some = TypeVar("Some", bound="Settings")
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Facts:
    """Facts of a setting other than its type and its default.

    The defaults are the safe choices. Without other facts, a setting is fixed when a run resumes,
    is part of the name of the run's folder, and is part of the compiled step.

    Attributes:
        help: text of `--help`; `help_text` names what {PLACE} stands for.
        checks: ranges of its number, or conditions of its text.
        metavar: the placeholder of the value in `--help`; "" to derive it from the type.
        numbers: types of number that a setting of text accepts in YAML and Python.
        separator: the separator of names in one word; "" if each word is a name.
        positional: whether it is positional on the command line, without a flag.
        alias: a short flag.
        basic: whether `--help` of training shows it. `--help-all` shows all settings.
        resume: whether a run continues with another value. `fixed`: never; `start`: not, but
            another run may start from its weights; `presence`: while it stays zero or nonzero;
            `free`: always.
        program: whether the compiled step depends on it.
        names_run: whether it is part of the hash in a run's folder. `if_set`: where it has a value,
            as settings have that older runs lack; `never`: such a setting is free on resume.
        saved: whether `config.yaml` keeps it. A setting that only says how a command runs is not
            kept and names no run; the program does not depend on it.
        set_by: objects that determine it, and with which it cannot be given, separated by spaces.
        each_fit: whether each call of `Trainer.fit` may change it.
        loads_data: whether `jaxdp.data.load` accepts it.
        excludes: setting with which it cannot be combined.
        none: what None means as a value of its own; "" for a setting that is never None in a run.
    """

    help: str
    checks: tuple[Range, ...] = ()
    metavar: str = ""
    numbers: tuple[type, ...] = ()
    separator: str = ""
    positional: bool = False
    alias: str = ""
    basic: bool = False
    resume: Literal["fixed", "start", "presence", "free"] = "fixed"
    program: bool = True
    names_run: Literal["always", "if_set", "never"] = "always"
    saved: bool = True
    set_by: str = ""
    each_fit: bool = True
    loads_data: bool = True
    excludes: str = ""
    none: str = ""

    @property
    def help_text(self) -> str:
        return with_names(self.help)


def setting(default: T, help: str, *checks: Range, **facts: Any) -> T:
    """Declares a setting. `facts` are fields of `Facts`. Line breaks in `help` count as spaces."""
    if not facts.get("saved", True):
        facts |= {"program": False, "names_run": "never"}
    if facts.get("names_run") == "never":  # runs with any value of it share a folder
        facts["resume"] = "free"
    metadata = {"facts": Facts(" ".join(help.split()), checks, **facts)}
    if isinstance(default, dict):  # no two settings share a default
        return dataclasses.field(
            default_factory=functools.partial(copy.copy, default), metadata=metadata
        )  # pyright: ignore
    return dataclasses.field(default=default, metadata=metadata)


@typing.dataclass_transform(frozen_default=True, kw_only_default=True)
def settings_group(cls: type[T]) -> type[T]:
    """Makes a class of settings frozen, with keyword arguments only."""
    return dataclasses.dataclass(frozen=True, kw_only=True)(cls)


@settings_group
class Settings:
    """Frozen settings. A command inherits the groups of settings that it accepts.

    Attributes:
        filled: names of settings that were not given, with defaults that depend on other settings,
            the dataset or the devices. They are not part of the name of a run, and a user who
            starts from the file of a run gets new values.
    """

    filled: frozenset[str] = dataclasses.field(default=frozenset(), compare=False, repr=False)

    def __post_init__(self) -> None:
        for name, field in fields(type(self)).items():
            value, facts = getattr(self, name), facts_of(field)
            if isinstance(value, int | float | str) and not isinstance(value, bool):
                if not isinstance(value, str) and not is_finite(value):
                    raise ConfigError(name, value, "must be a finite number")
                for check in facts.checks:
                    check.check(name, value)
            if facts.excludes and None not in (value, getattr(self, facts.excludes, None)):
                remedy = f"cannot be combined with {flag(name)}; give one of them"
                raise ConfigError(facts.excludes, getattr(self, facts.excludes), remedy)

    @classmethod
    def of(cls: type[Some], *, filled: frozenset[str] = frozenset(), **settings: Any) -> Some:
        """Creates settings from values by name, as in a file or a program.

        All other settings get their defaults.

        Args:
            filled: see the attribute.

        Raises:
            ConfigError: for an unknown name, and for a value of the wrong type or out of range.
        """
        return cls(**cls._converted(settings), filled=filled)

    def replace(self: Some, **settings: Any) -> Some:
        """Returns these settings with some changes. A given setting displaces settings that it
        excludes.

        Raises:
            ConfigError: as for `of`.
        """
        given = [name for name, value in settings.items() if value is not None]
        displaced = displaced_by(type(self), given) - settings.keys()
        changed = self._converted(settings) | dict.fromkeys(displaced)
        return dataclasses.replace(self, **changed, filled=self.filled.difference(changed))

    def fill(self: Some, **settings: Any) -> Some:
        """Returns these settings with the given values for settings that are None."""
        missing = {name: value for name, value in settings.items() if getattr(self, name) is None}
        return dataclasses.replace(self.replace(**missing), filled=self.filled.union(missing))

    def as_given(self: Some) -> Some:
        """Returns these settings without the values that `fill` set."""
        return self.replace(**dict.fromkeys(self.filled))

    @classmethod
    def _converted(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        known, converted = fields(cls), dict[str, Any]()
        for name, value in settings.items():
            if name not in known:
                remedy = f"unknown setting; {nearest(name, known)}"
                raise ConfigError(name, shown(value), deprecation.removal(name) or remedy)
            if isinstance(value, os.PathLike):
                value = os.fspath(cast("os.PathLike[str]", value))
            converted[name] = convert_for(known[name], value)
        return converted

    def part(self, kind: type[Some], **changed: Any) -> Some:
        """Returns the settings that belong to `kind`, with some changes."""
        own = {name: getattr(self, name) for name in fields(kind) if name in fields(type(self))}
        return kind.of(**own | changed)

    def flat(self) -> dict[str, Any]:
        """Returns the value of each setting by its name."""
        return {name: getattr(self, name) for name in fields(type(self))}

    def plain(self) -> dict[str, Any]:
        """Returns each setting by its name, in the types of YAML and JSON.

        `of` reads them.
        """
        return {name: _plain(value) for name, value in self.flat().items()}

    def changed(self) -> dict[str, Any]:
        """Returns the settings that differ from their defaults, as `plain` does."""
        defaults = type(self)().plain()
        return {name: value for name, value in self.plain().items() if value != defaults[name]}


@functools.cache
def fields(cls: type[Settings]) -> "Mapping[str, dataclasses.Field[Any]]":
    """Returns the fields of a class of settings by name, in the order of its groups."""
    found = {field.name: field for field in dataclasses.fields(cls) if "facts" in field.metadata}
    order = [name for group in cls.__mro__ for name in inspect.get_annotations(group)]
    return {name: found[name] for name in order if name in found}


def facts_of(field: "dataclasses.Field[Any]") -> Facts:
    """Returns the facts of the declaration of a setting."""
    return field.metadata["facts"]


def convert_for(field: "dataclasses.Field[Any]", value: Any) -> Any:
    """Returns a value from YAML or a program in the type of a setting, as `convert` does."""
    return convert(field.name, value, field.type, numbers=facts_of(field).numbers)


def as_flag(field: "dataclasses.Field[Any]", value: Any, text: Any) -> Any:
    """Returns a YAML value as the setting's flag would give it, as `as_written` does."""
    return as_written(value, text, field.type, separator=facts_of(field).separator)


def settings_with(cls: type[Settings], **facts: Any) -> list[str]:
    """Returns the settings that have these facts, e.g. `saved=False`."""
    return [
        name
        for name, field in fields(cls).items()
        if all(getattr(facts_of(field), fact) == value for fact, value in facts.items())
    ]


def displaced_by(cls: type[Settings], given: Collection[str]) -> set[str]:
    """Returns the settings of a class that exclude one of these."""
    pairs = [(name, facts_of(field).excludes) for name, field in fields(cls).items()]
    displaced = {partner for pair in pairs for name, partner in (pair, pair[::-1]) if name in given}
    return displaced & fields(cls).keys()


def _plain(value: Any) -> Any:
    if hasattr(value, "parse"):
        return str(value)
    return [*typing.cast(Any, value)] if isinstance(value, tuple) else value
