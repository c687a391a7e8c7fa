"""How does a name on the command line become a model, dataset, strategy or optimiser?

A registry collects what its package's files register. To add a thing, add a file with a decorated class or function; from outside
the package, decorate it in your own script before you call `jaxdp.train.main`.
"""

import difflib
import importlib
import inspect
import math
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

T = TypeVar("T")
Entry = TypeVar("Entry")


class ConfigError(ValueError):
    """A setting that cannot work. Commands print it as one line and exit with code 2.

    Args:
        field: name of the setting as in the configuration, e.g. `global_batch_size`; empty if it concerns no single setting.
        value: the offending value.
        remedy: what is wrong and what to do instead, one sentence.
    """

    def __init__(self, field: str, value: object, remedy: str) -> None:
        flag = "--" + field.replace("_", "-")
        super().__init__(f"{flag} {shown(value)}".rstrip() + f": {remedy}" if field else remedy)


def shown(value: object) -> str:
    """Returns a setting's value as one would write it on the command line."""
    if isinstance(value, Mapping):
        return " ".join(f"{key}={item}" for key, item in value.items()) or "(none)"
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def nearest(name: str, candidates: Mapping[str, Any] | list[str]) -> str:
    """Returns a remedy: the most similar candidate where there is one, and all of them."""
    close = difflib.get_close_matches(name, list(candidates), n=1, cutoff=0.5)
    known = ", ".join(sorted(candidates)) or "none"
    return f"did you mean {close[0]}? known: {known}" if close else f"known: {known}"


def check_keywords(field: str, function: Callable[..., Any], keywords: Mapping[str, Any], reserved: tuple[str, ...]) -> None:
    """Raises ConfigError for a keyword that `function` does not take, or a value of another kind than its default.

    Args:
        field: name of the setting that the keywords came from.
        reserved: parameters that the caller fills itself.
    """
    # A Flax module's own signature is that of its metaclass.
    signature = inspect.signature(function.__init__ if inspect.isclass(function) else function)
    accepted = [name for name in signature.parameters if name not in ("self", *reserved)]
    for keyword in keywords:
        if keyword not in accepted:
            raise ConfigError(field, {keyword: keywords[keyword]}, f"unknown keyword; {nearest(keyword, accepted)}")
        default, value = signature.parameters[keyword].default, keywords[keyword]
        if isinstance(default, bool | str) and not isinstance(value, type(default)):
            kind = "true or false" if isinstance(default, bool) else "a name"
            raise ConfigError(field, {keyword: value}, f"must be {kind}")
        numeric = isinstance(default, int | float) and not isinstance(default, bool)
        if numeric and (not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value)):
            raise ConfigError(field, {keyword: value}, "must be a finite number")


class Registry(Generic[T]):
    """Named things of one kind, found in the files of one package.

    Args:
        field: the setting that names them, for error messages.
        package: its modules are imported at the first look-up, so that their decorators run.
    """

    def __init__(self, field: str, package: str) -> None:
        self._field, self._package = field, package
        self._entries: dict[str, T] = {}
        self._loaded = False

    def register(self, name: str) -> Callable[[Entry], Entry]:
        """Decorator that files a thing under `name` and returns it unchanged."""

        def add(entry: Entry) -> Entry:
            self._entries[name] = entry  # pyright: ignore[reportArgumentType]  # the decorated thing keeps its own type
            return entry

        return add

    def entries(self) -> Mapping[str, T]:
        if not self._loaded:
            self._loaded = True
            for module in pkgutil.iter_modules(importlib.import_module(self._package).__path__):
                importlib.import_module(f"{self._package}.{module.name}")
        return self._entries

    def __getitem__(self, name: str) -> T:
        """Raises ConfigError that suggests the nearest known name."""
        if name in self._entries:
            return self._entries[name]
        entries = self.entries()
        if name not in entries:
            raise ConfigError(self._field, name, f"unknown {self._field}; {nearest(name, entries)}")
        return entries[name]
