"""Imports plugins, the user's own files and modules that register models, datasets, tasks,
strategies and callbacks.
"""

import contextlib
import hashlib
import importlib
import importlib.machinery
import importlib.util
import os
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from jaxdp.errors import ConfigError, flag
from jaxdp.plugins.registry import import_problem, registering_modules, registries
from jaxdp.text.parsing import resolved

_executed: dict[str, str] = {}  # digest of a plugin's file at its import, by the name of its module


def load_plugins(plugins: Sequence[str], *, reload: bool = False) -> None:
    """Imports the plugins that `--plugins` names, so that their decorators run.

    Skips the running script and modules that are already imported.

    Args:
        plugins: dotted names of modules, and files that end in `.py`, relative to the working
            directory.
        reload: whether to import a file again that has changed since its import. Only a new trainer
            or a loaded run may do so, because a run in progress keeps its code.

    Raises:
        ConfigError: for the first plugin that cannot be imported.
    """
    for word in plugins:
        path, is_file = _path(word), word.endswith(".py")
        if is_file and not path.is_file():
            raise ConfigError("plugins", word, f"no such file in {pathlib.Path.cwd()}")
        try:
            if _is_script(word):
                continue
            if is_file:
                _import_file(path, reload=reload)
            else:
                importlib.import_module(word)
        except Exception as error:  # whatever its code raises
            hint = "" if is_file or not path.is_file() else "; a file must end in .py"
            remedy = f"cannot be imported: {import_problem(error)}{hint}"
            raise ConfigError("plugins", word, remedy) from error


def load_trusted(stored: Sequence[str], named: Sequence[str], folder: object) -> tuple[str, ...]:
    """Imports the plugins that a command names for a run. Returns these plugins and the plugins of
    the run that are already imported.

    Does not import plugins that only the folder of a run names, because they are code of the
    folder's author.

    Args:
        stored: the plugins that the folder names.
        named: the plugins that the command or the program names. A file matches by its name,
            wherever it is now.
        folder: of the run.

    Raises:
        ConfigError: for a plugin that only the folder names. The error says what to add.
    """
    load_plugins(named, reload=True)
    names = {pathlib.PurePath(word).name for word in named}
    known = [word for word in stored if _is_imported(word)]
    missing = [
        word for word in stored if word not in known and pathlib.PurePath(word).name not in names
    ]
    if missing:
        remedy = (
            "was trained with plugins, which run only if you also name them: if you trust"
            f" them, add {flag('plugins', missing)}"
        )
        raise ConfigError("run_dir", folder, remedy)
    return tuple(dict.fromkeys([*named, *known]))


def add_running_script(plugins: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the plugins, with the running script if it registered an entry, because other
    commands will require it.
    """
    module, file = _main()
    in_notebook = module is None and file is None
    if "__main__" not in registering_modules or in_notebook or any(map(_is_script, plugins)):
        return plugins
    if module is None:
        relative = os.path.relpath(str(file))
        module = str(file) if relative.startswith("..") else relative
    return (*plugins, module)


def _path(word: str) -> pathlib.Path:
    return resolved(pathlib.Path(word).expanduser())


def _main() -> tuple[str | None, str | None]:
    """Returns the module that `python -m` runs, and the file of the running script."""
    main = sys.modules["__main__"]
    return getattr(getattr(main, "__spec__", None), "name", None), getattr(main, "__file__", None)


def _is_script(word: str) -> bool:
    module, file = _main()
    return module == word or (file is not None and resolved(file) == _path(word))


def _is_imported(word: str) -> bool:
    if _is_script(word) or not word.endswith(".py"):
        return _is_script(word) or word in sys.modules
    # Some programs put objects there that are not modules.
    attributes = [getattr(module, "__dict__", {}) for module in list[Any](sys.modules.values())]
    return str(_path(word)) in [each.get("__file__") for each in attributes]


def _import_file(path: pathlib.Path, *, reload: bool) -> None:
    """Imports a file under its path as the module's name, so that it shadows no other module.

    Like a script, the file can import files in its folder. If a second import fails, the module and
    the entries of the first import stay.
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
    before, module = sys.modules.get(name), importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with contextlib.ExitStack() as stack:
            for registry in registries:
                stack.enter_context(registry.renewing(name))
            # The module's loader compares times in seconds, so it would miss an edit within a
            # second.
            exec(compile(content, name, "exec", dont_inherit=True), vars(module))
    except BaseException:
        del sys.modules[name]
        if before is not None:
            sys.modules[name] = before
        raise
    _executed[name] = digest
