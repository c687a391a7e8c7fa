"""Digests of the user's own source files: a run keeps them, and so notices that it goes on under other code."""

import contextlib
import functools
import hashlib
import os
import pathlib
import sys
import sysconfig
from collections.abc import Mapping
from typing import Any

from jaxdp import run_files
from jaxdp.parsing import resolved
from jaxdp.registry import ConfigError

_MOST_NAMES = 3  # in one line


def digests() -> dict[str, str]:
    """Returns the SHA-256 of each imported source file that is not installed, by its name.

    They are the script, plugins, the modules of classes and functions that were handed over, and what those import.
    A name is relative to the folder that Python imports the file from: the same code has the same name elsewhere.
    """
    names = dict[pathlib.Path, str]()
    for module, attributes in [(name, vars(each)) for name, each in list(sys.modules.items()) if hasattr(each, "__dict__")]:
        file: Any = attributes.get("__file__")
        if isinstance(file, str) and not _is_installed(file) and not _is_installed(str(path := resolved(file))):
            names[path] = _name(getattr(attributes.get("__spec__"), "name", module), path)
    found = dict[str, str]()
    for path, name in sorted(names.items()):
        with contextlib.suppress(ConfigError):  # it is gone, or was never a file
            digest = hashlib.sha256(run_files.read_bytes(path)).hexdigest()
            found[str(path) if name in found else name] = digest
    return found


def text(changed: Mapping[str, Any]) -> str:
    """Returns e.g. `mynet.py has changed since the run began`; nothing if no file has."""
    names = sorted(changed)
    more = len(names) - _MOST_NAMES
    shown = ", ".join(names[:_MOST_NAMES]) + f" and {more} more" * (more > 0)
    return f"{shown} {'has' if len(names) == 1 else 'have'} changed since the run began" if names else ""


def _name(module: str, path: pathlib.Path) -> str:
    depth = 1 if os.sep in module else module.count(".") + 1  # a plugin has its path as its module's name
    return "/".join(path.parts[-depth - (path.name == "__init__.py") :])


def _is_installed(file: str) -> bool:
    """Whether a file is one of jaxdp, of the standard library, or of a package that an installer put there."""
    return file.startswith(_installed()) or not {"site-packages", "dist-packages"}.isdisjoint(file.split(os.sep))


@functools.cache
def _installed() -> tuple[str, ...]:
    folders = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib", "scripts")]
    folders.append(os.path.dirname(__file__))
    return tuple(os.path.join(path, "") for folder in folders for path in (folder, os.path.realpath(folder)))
