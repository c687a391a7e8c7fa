"""Registries, which map names to models, datasets, tasks, strategies and callbacks.

A registry collects what the modules of its packages register. To add an entry, add a file with a
decorated class or function. Outside the packages, entries are found in a script that calls
`jaxdp.train.main`, in what `--plugins` names, and in installed distributions that name their
modules in the entry-point group `jaxdp.plugins`.
"""

# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import contextlib
import functools
import importlib
import importlib.metadata
import inspect
import os
import pkgutil
import sys
import traceback
from collections.abc import Callable, Generator, Mapping
from typing import Any, Generic, TypeVar

from jaxdp.errors import ConfigError
from jaxdp.text.messages import nearest, one_line
from jaxdp.text.parsing import is_finite

T = TypeVar("T")
Entry = TypeVar("Entry")

ENTRY_POINTS = "jaxdp.plugins"
registering_modules: set[str] = set()  # have registered something
registries: list["Registry[Any]"] = []
_distributions_are_loaded = False


def check_keywords(
    field: str, function: Callable[..., Any], keywords: Mapping[str, Any], reserved: tuple[str, ...]
) -> None:
    """Raises ConfigError for a keyword that `function` does not accept, or for a value of another
    type than the default.

    Args:
        field: name of the setting that the keywords came from.
        reserved: parameters that the caller passes itself.
    """
    # For a Flax module, `inspect.signature` returns the signature of its metaclass.
    signature = inspect.signature(function.__init__ if inspect.isclass(function) else function)
    accepted = [name for name in signature.parameters if name not in ("self", *reserved)]
    for keyword, value in keywords.items():
        problem = ""
        if keyword not in accepted:
            problem = f"unknown keyword argument; {nearest(keyword, accepted)}"
        elif isinstance(default := signature.parameters[keyword].default, bool | str):
            if not isinstance(value, type(default)):
                problem = "must be " + (
                    "true or false" if isinstance(default, bool) else "a string"
                )
        elif isinstance(default, int | float) and not is_finite(value):
            problem = "must be a finite number"
        if problem:
            raise ConfigError(field, {keyword: value}, problem)


class Registry(Generic[T]):
    """Named entries of one type, found in the modules of one or more packages.

    Args:
        field: the setting that names them, for error messages.
        packages: packages with modules that the first lookup imports, so that their decorators run.
            The modules of the entry points follow.
    """

    def __init__(self, field: str, *packages: str) -> None:
        self._field, self._packages = field, packages
        self._entries: dict[str, T] = {}
        # File or module, and the entry's own name in it.
        self._origins: dict[str, tuple[str, str]] = {}
        self._loaded = False
        registries.append(self)

    def register(self, name: str) -> Callable[[Entry], Entry]:
        """Decorator that registers an entry under `name` and returns it unchanged.

        Raises:
            ConfigError: if the name is taken. The same entry may be registered again, by a notebook
                cell that runs twice.
        """

        def add(entry: Entry) -> Entry:
            thing: Any = entry.func if isinstance(entry, functools.partial) else entry
            module = getattr(thing, "__module__", None) or ""
            file = getattr(sys.modules.get(module), "__file__", None)
            origin = (file or module, getattr(thing, "__qualname__", name))
            before = self._origins.setdefault(name, origin)
            if before != origin:
                where = f"{before[0]} and {origin[0]}"
                remedy = f"is registered twice, in {where}; rename one of them"
                raise ConfigError(self._field, name, remedy)
            registering_modules.add(module)
            # A decorated entry keeps its own type.
            self._entries[name] = entry  # pyright: ignore[reportArgumentType]
            return entry

        return add

    def entries(self) -> Mapping[str, T]:
        if not self._loaded:
            self._loaded = True
            for package in self._packages:
                for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
                    importlib.import_module(f"{package}.{module.name}")
            _load_distributions()
        return self._entries

    @contextlib.contextmanager
    def renewing(self, file: str) -> Generator[None]:
        """Removes the entries that a file has registered. If the block fails, restores them."""
        entries, origins = self._entries, self._origins
        self._origins = {name: origin for name, origin in origins.items() if origin[0] != file}
        self._entries = {name: entries[name] for name in self._origins}
        try:
            yield
        except BaseException:
            self._entries, self._origins = entries, origins
            raise

    def __getitem__(self, name: str) -> T:
        """Raises ConfigError, which suggests the nearest name, if the entry does not exist."""
        entries = self.entries()
        if name not in entries:
            raise ConfigError(self._field, name, f"unknown {self._field}; {nearest(name, entries)}")
        return entries[name]


def _load_distributions() -> None:
    """Imports the plugins of installed distributions, once."""
    global _distributions_are_loaded
    if _distributions_are_loaded:
        return
    _distributions_are_loaded = True  # first, because a plugin may look up an entry
    for entry in importlib.metadata.entry_points(group=ENTRY_POINTS):
        try:
            entry.load()
        except Exception as error:  # whatever its code raises
            name = entry.dist.name if entry.dist else "an unknown distribution"
            remedy = f"cannot be imported: {import_problem(error)}; fix or uninstall it"
            raise ConfigError("", "", f"the plugin {entry.value} of {name} {remedy}") from error


def import_problem(error: Exception) -> str:
    """Returns one line with the error of an import, its file and its line."""
    if isinstance(error, ConfigError):
        return error.template
    text = one_line(error)
    frames = traceback.extract_tb(error.__traceback__)
    # Skips the import system and its caller in this file.
    own = os.path.dirname(__file__)
    frames = [
        frame
        for frame in frames
        if "importlib" not in frame.filename and os.path.dirname(frame.filename) != own
    ]
    where = ""
    if frames and not isinstance(error, SyntaxError):  # which says where itself
        where = f" ({frames[-1].filename}, line {frames[-1].lineno})"
    return f"{type(error).__name__}: {text}{where}"
