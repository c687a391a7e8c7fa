"""Registries, which map names to models, datasets, tasks and strategies, and the plugins that add
to them.

A registry collects what the modules of its packages register. To add an entry, add a file with a
decorated class or function. Outside the packages, entries are found in a script that calls
`jaxdp.train.main`, in what `--plugins` names, and in installed distributions that name their
modules in the entry-point group `jaxdp.plugins`.
"""

import difflib
import functools
import hashlib
import importlib
import importlib.machinery
import importlib.metadata
import importlib.util
import inspect
import os
import pathlib
import pkgutil
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar, cast

from jaxdp.parsing import is_finite, printable, resolved

T = TypeVar("T")
Entry = TypeVar("Entry")

ENTRY_POINTS = "jaxdp.plugins"
_registering: set[str] = set()  # modules that have registered something
_asked_distributions = False
_registries: list["Registry[Any]"] = []
_MOST_SHOWN = 500  # characters of a value in a message
_executed: dict[str, str] = {}  # by a plugin's module name: its file's digest at the import


class ConfigError(ValueError):
    """An invalid setting. Commands print it as one line and exit with code 2.

    Args:
        field: name of the setting as in the configuration, e.g. `global_batch_size`; empty if it
            concerns no single setting.
        value: the offending value.
        remedy: what is wrong and what to do instead, one sentence.
    """

    def __init__(self, field: str, value: object, remedy: str) -> None:
        # As they are; the text is fit for a terminal.
        self.field = field
        self.value = value
        self.remedy = remedy
        flag = "--" + field.replace("_", "-")
        where = f"{flag} {brief(value)}".rstrip() + ": " if field else ""
        super().__init__(printable(where + remedy))

    def __reduce__(self) -> Any:
        # Another process may not know the class of a value.
        return ConfigError, (self.field, shown(self.value), self.remedy)


def shown(value: object) -> str:
    """Returns a setting's value as it is written on the command line."""
    if isinstance(value, Mapping):
        return (
            " ".join(f"{key}={item}" for key, item in cast(Mapping[str, Any], value).items())
            or "(none)"
        )
    return (
        " ".join(map(str, cast(list[Any], value)))
        if isinstance(value, list | tuple)
        else str(value)
    )


def brief(value: object) -> str:
    """Returns a setting's value for a message, in which a long value is cut."""
    text = shown(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def closest(name: str, candidates: Sequence[str]) -> str | None:
    """Returns the most similar candidate; None if none is similar."""
    return next(iter(difflib.get_close_matches(name, candidates, n=1, cutoff=0.5)), None)


def nearest(name: str, candidates: Mapping[str, Any] | list[str]) -> str:
    """Returns a remedy: the closest candidate, if one is similar, and the list of all."""
    close = closest(name, list(candidates))
    known = ", ".join(sorted(candidates)) or "none"
    return f"did you mean {close}? known: {known}" if close else f"known: {known}"


def check_keywords(
    field: str, function: Callable[..., Any], keywords: Mapping[str, Any], reserved: tuple[str, ...]
) -> None:
    """Raises ConfigError for a keyword that `function` does not take, or a value of another type
    than its default.

    Args:
        field: name of the setting that the keywords came from.
        reserved: parameters that the caller passes itself.
    """
    # A Flax module's own signature is that of its metaclass.
    signature = inspect.signature(function.__init__ if inspect.isclass(function) else function)
    accepted = [name for name in signature.parameters if name not in ("self", *reserved)]
    for keyword in keywords:
        if keyword not in accepted:
            raise ConfigError(
                field,
                {keyword: keywords[keyword]},
                f"unknown keyword argument; {nearest(keyword, accepted)}",
            )
        default, value = signature.parameters[keyword].default, keywords[keyword]
        if isinstance(default, bool | str) and not isinstance(value, type(default)):
            kind = "true or false" if isinstance(default, bool) else "a string"
            raise ConfigError(field, {keyword: value}, f"must be {kind}")
        numeric = isinstance(default, int | float) and not isinstance(default, bool)
        if numeric and not is_finite(value):
            raise ConfigError(field, {keyword: value}, "must be a finite number")


class Registry(Generic[T]):
    """Named entries of one kind, found in the modules of one or more packages.

    Args:
        field: the setting that names them, for error messages.
        packages: their modules are imported at the first lookup, so that their decorators run;
            then those of the entry points.
    """

    def __init__(self, field: str, *packages: str) -> None:
        self._field, self._packages = field, packages
        self._entries: dict[str, T] = {}
        # File or module, and the thing's own name in it.
        self._origins: dict[str, tuple[str, str]] = {}
        self._loaded = False
        _registries.append(self)

    def register(self, name: str) -> Callable[[Entry], Entry]:
        """Decorator that registers an entry under `name` and returns it unchanged.

        Raises:
            ConfigError: if the name is taken. The same entry may come again, from a notebook's cell
                that is run twice.
        """

        def add(entry: Entry) -> Entry:
            thing: Any = entry.func if isinstance(entry, functools.partial) else entry
            module = getattr(thing, "__module__", None) or ""
            file = getattr(sys.modules.get(module), "__file__", None)
            origin = (file or module, getattr(thing, "__qualname__", name))
            before = self._origins.setdefault(name, origin)
            if before != origin:
                raise ConfigError(
                    self._field,
                    name,
                    f"is registered twice, in {before[0]} and {origin[0]}; rename one of them",
                )
            _registering.add(module)
            # What is decorated keeps its own type.
            self._entries[name] = entry  # pyright: ignore[reportArgumentType]
            return cast(Entry, entry)

        return add

    def take(self, file: str) -> dict[str, tuple[T, tuple[str, str]]]:
        """Removes the entries that a file has registered, and returns them for `put_back`."""
        names = [name for name, (origin, _) in self._origins.items() if origin == file]
        return {name: (self._entries.pop(name), self._origins.pop(name)) for name in names}

    def put_back(self, taken: Mapping[str, tuple[T, tuple[str, str]]]) -> None:
        for name, (entry, origin) in taken.items():
            self._entries[name], self._origins[name] = entry, origin

    def entries(self) -> Mapping[str, T]:
        if not self._loaded:
            self._loaded = True
            for package in self._packages:
                for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
                    importlib.import_module(f"{package}.{module.name}")
            _ask_distributions()
        return self._entries

    def __getitem__(self, name: str) -> T:
        """Raises ConfigError, which suggests the nearest name, if there is no such entry."""
        entries = self.entries()
        if name not in entries:
            raise ConfigError(self._field, name, f"unknown {self._field}; {nearest(name, entries)}")
        return entries[name]


def load_plugins(plugins: Sequence[str], *, reload: bool = False) -> None:
    """Imports what `--plugins` names, so that its decorators run.

    Skips the running script and what is imported already.

    Args:
        plugins: dotted names of modules, and files that end in `.py`, relative to the working
            directory.
        reload: whether to import a file anew that has changed since it was imported. Only a new
            trainer or a loaded run may do that: a run that is under way keeps its code.

    Raises:
        ConfigError: for the first one that cannot be imported.
    """
    for word in plugins:
        path = resolved(pathlib.Path(word).expanduser())
        if word.endswith(".py") and not path.is_file():
            raise ConfigError("plugins", word, f"no such file in {pathlib.Path.cwd()}")
        try:
            if not _is_script(word, path):
                (
                    _import_file(path, reload=reload)
                    if word.endswith(".py")
                    else importlib.import_module(word)
                )
        except Exception as error:  # whatever its code raises
            hint = "; a file must end in .py" if not word.endswith(".py") and path.is_file() else ""
            raise ConfigError(
                "plugins", word, f"cannot be imported: {_reason(error)}{hint}"
            ) from error


def load_trusted(stored: Sequence[str], named: Sequence[str], folder: object) -> tuple[str, ...]:
    """Imports the plugins that a command names for a run, and returns these and those of the run
    that are imported already.

    Those that only the folder of a run names are not imported: they are code of whoever made the
    folder.

    Args:
        stored: what the folder names.
        named: what the command or the program names. A file counts by its name, wherever it is now.
        folder: of the run.

    Raises:
        ConfigError: for a plugin of the run that nobody else names; it says what to add.
    """
    load_plugins(named, reload=True)
    names = {pathlib.PurePath(word).name for word in named}
    known = [word for word in stored if _is_imported(word)]
    missing = [
        word for word in stored if word not in known and pathlib.PurePath(word).name not in names
    ]
    if missing:
        words = " ".join(missing)
        remedy = (
            "was trained with plugins, which are run only if you name them, too: if you trust"
            f" them, add --plugins {words}"
        )
        raise ConfigError("run_dir", folder, remedy)
    return tuple(dict.fromkeys([*named, *known]))


def _is_imported(word: str) -> bool:
    path = resolved(pathlib.Path(word).expanduser())
    if not word.endswith(".py"):
        return word in sys.modules or _is_script(word, path)
    modules: list[Any] = list(sys.modules.values())  # some put other things there
    attributes: list[dict[str, Any]] = [
        vars(module) for module in modules if hasattr(module, "__dict__")
    ]
    files = [each.get("__file__") for each in attributes]
    return _is_script(word, path) or str(path) in files


def with_script(plugins: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the plugins and, if the running script registered something, that script, which other
    commands will need as well.
    """
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), cast(str | None, getattr(main, "__file__", None))
    if "__main__" not in _registering or (spec is None and file is None):  # as in a notebook
        return plugins
    name: str = os.path.relpath(file) if spec is None and file else getattr(spec, "name", "")
    name = str(file) if name.startswith("..") else name
    return (
        plugins if any(_is_script(word, resolved(word)) for word in plugins) else (*plugins, name)
    )


def _is_script(word: str, path: pathlib.Path) -> bool:
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), cast(str | None, getattr(main, "__file__", None))
    return getattr(spec, "name", None) == word or (file is not None and resolved(file) == path)


def _import_file(path: pathlib.Path, *, reload: bool) -> None:
    """Imports a file under its path as the module's name, so that it shadows none.

    Like a script, the file can import its neighbours. If a second import fails, the module and the
    entries of the first one stay.
    """
    name, content = str(path), path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    if name in sys.modules and (not reload or _executed.get(name) in (None, digest)):
        return
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    loader = importlib.machinery.SourceFileLoader(name, name)  # a link may lead to another suffix
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    before = sys.modules.get(name)
    taken = [(registry, registry.take(name)) for registry in _registries]
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    try:
        # The module's loader compares times in seconds: it would miss an edit within one.
        exec(compile(content, name, "exec", dont_inherit=True), vars(module))
    except BaseException:
        for registry, entries in taken:
            registry.take(name)
            registry.put_back(entries)
        del sys.modules[name]
        if before is not None:
            sys.modules[name] = before
        raise
    _executed[name] = digest


def _ask_distributions() -> None:
    """Imports the plugins of installed distributions, once."""
    global _asked_distributions
    if _asked_distributions:
        return
    _asked_distributions = True  # first, since a plugin may look something up
    for entry in importlib.metadata.entry_points(group=ENTRY_POINTS):
        try:
            entry.load()
        except Exception as error:  # whatever its code raises
            name = entry.dist.name if entry.dist else "an unknown distribution"
            remedy = f"cannot be imported: {_reason(error)}; fix or uninstall it"
            raise ConfigError("", "", f"the plugin {entry.value} of {name} {remedy}") from error


def _reason(error: Exception) -> str:
    """Returns in one line what went wrong, and in which line of which file."""
    said = " ".join(str(error).split())
    if isinstance(error, ConfigError):
        return said
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "importlib" not in frame.filename
    ]
    # A SyntaxError says where itself.
    last = frames[-1] if frames and not isinstance(error, SyntaxError) else None
    where = f" ({last.filename}, line {last.lineno})" if last and last.filename != __file__ else ""
    return f"{type(error).__name__}: {said}{where}"
