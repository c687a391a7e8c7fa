"""Defines the base of all settings. Each setting has one name, which its flag, its keyword and its
line of YAML share, and its own facts.
"""

import dataclasses
import functools
import inspect
import os
import typing
from collections.abc import Collection, Mapping
from typing import Any, TypeVar, cast

from jaxdp.config import deprecation
from jaxdp.config.conversion import convert
from jaxdp.config.facts import Facts
from jaxdp.config.values import Range
from jaxdp.errors import ConfigError, flag
from jaxdp.text.messages import nearest, shown
from jaxdp.text.parsing import is_finite

OBJECT = "(object)"  # replaces the name of an object that a program passed
REQUIRED: Any = dataclasses.MISSING  # the default of a required setting

Some = TypeVar("Some", bound="Settings")
T = TypeVar("T")


def setting(default: T, help: str, *checks: Range, **facts: Any) -> T:
    """Declares a setting. `facts` are fields of `Facts`. Line breaks in `help` count as spaces."""
    if not facts.get("saved", True):
        facts |= {"program": False, "names_run": "never"}
    if facts.get("names_run") == "never":  # runs with any value of it share a folder
        facts["resume"] = "free"
    metadata = {"facts": Facts(" ".join(help.split()), checks, default=default, **facts)}
    if isinstance(default, dict):  # no two settings share a default
        return dataclasses.field(default_factory=default.copy, metadata=metadata)  # pyright: ignore
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
        for name, facts in fields(type(self)).items():
            value = getattr(self, name)
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
            converted[name] = convert(known[name], value)
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
def fields(cls: type[Settings]) -> Mapping[str, Facts]:
    """Returns the facts of a class of settings by name, in the order of its groups."""
    found = {
        field.name: dataclasses.replace(
            field.metadata["facts"], name=field.name, annotation=field.type
        )
        for field in dataclasses.fields(cls)
        if "facts" in field.metadata
    }
    order = [name for group in cls.__mro__ for name in inspect.get_annotations(group)]
    return {name: found[name] for name in order if name in found}


def settings_with(cls: type[Settings], **facts: Any) -> list[str]:
    """Returns the settings that have these facts, e.g. `saved=False`."""
    return [
        name
        for name, known in fields(cls).items()
        if all(getattr(known, fact) == value for fact, value in facts.items())
    ]


def displaced_by(cls: type[Settings], given: Collection[str]) -> set[str]:
    """Returns the settings of a class that exclude one of these."""
    pairs = [(name, facts.excludes) for name, facts in fields(cls).items()]
    displaced = {partner for pair in pairs for name, partner in (pair, pair[::-1]) if name in given}
    return displaced & fields(cls).keys()


def _plain(value: Any) -> Any:
    if hasattr(value, "parse"):
        return str(value)
    return [*typing.cast(Any, value)] if isinstance(value, tuple) else value
