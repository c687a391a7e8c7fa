"""Computes digests of the user's own source files, with which a run detects changes of its code."""

import contextlib
import functools
import hashlib
import os
import pathlib
import sys
import sysconfig
from collections.abc import Mapping
from typing import Any

from jaxdp.errors import ConfigError
from jaxdp.rundir.read import read_bytes
from jaxdp.text.messages import some
from jaxdp.text.parsing import resolved

_MOST_NAMES = 3  # in one line


def digests() -> dict[str, str]:
    """Returns the SHA-256 of each imported source file that is not installed, by its name.

    These are the script, plugins, the modules of passed classes and functions, and their imports. A
    name is relative to the folder from which Python imports the file, so that the same code has the
    same name elsewhere.
    """
    names = dict[pathlib.Path, str]()
    for name, module in list(sys.modules.items()):
        attributes: dict[str, Any] = getattr(
            module, "__dict__", {}
        )  # some programs put other objects there
        file = attributes.get("__file__")
        if (
            not isinstance(file, str)
            or _is_installed(file)
            or _is_installed(str(path := resolved(file)))
        ):
            continue
        spec = attributes.get("__spec__")  # it names the module that python -m runs
        module_name = getattr(spec, "name", name)
        is_plugin = os.sep in module_name  # its module has the path as its name
        depth = 1 if is_plugin else module_name.count(".") + 1
        names[path] = "/".join(path.parts[-depth - (path.name == "__init__.py") :])
    found = dict[str, str]()
    for path, name in sorted(names.items()):
        with contextlib.suppress(ConfigError):  # the file is gone, or never existed
            digest = hashlib.sha256(read_bytes(path)).hexdigest()
            found[str(path) if name in found else name] = digest
    return found


def text(changed: Mapping[str, Any]) -> str:
    """Returns e.g. `mynet.py has changed since the run began`; nothing if no file has changed."""
    names = sorted(changed)
    verb = "has" if len(names) == 1 else "have"
    return f"{some(names, _MOST_NAMES)} {verb} changed since the run began" if names else ""


def _is_installed(file: str) -> bool:
    """Returns whether a file is part of jaxdp, of the standard library or of an installed
    package.
    """
    is_package = not {"site-packages", "dist-packages"}.isdisjoint(file.split(os.sep))
    return is_package or file.startswith(_installed())


@functools.cache
def _installed() -> tuple[str, ...]:
    kinds = ("stdlib", "platstdlib", "purelib", "platlib", "scripts")
    folders = [*map(sysconfig.get_path, kinds), os.path.dirname(os.path.dirname(__file__))]
    folders += [os.path.realpath(folder) for folder in folders]
    return tuple(os.path.join(folder, "") for folder in folders)
