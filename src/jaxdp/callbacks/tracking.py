"""Flat names of metrics, settings, and identifiers that a run keeps, for all loggers."""

import importlib
from typing import Any, cast

from jaxdp.events import Run
from jaxdp.registry import ConfigError
from jaxdp.rundir.read import Row, read_line
from jaxdp.rundir.write import replace_file


def import_extra(name: str) -> Any:
    """Imports an optional dependency; raises ConfigError that says how to install it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            "callbacks", name, f"needs the package {name}: pip install 'jaxdp[{name}]'"
        ) from error


def metrics_of(row: Row) -> dict[str, Any]:
    """Returns the numbers of a row under flat names: `train/loss`, and `device/0/memory_bytes` for
    a list with one number for each device.
    """
    found: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, list):
            kind, _, metric = name.partition("_")
            for number, each in enumerate(cast(list[Any], value)):
                found[f"{kind}/{number}/{metric}"] = each
        elif name not in ("step", "split"):
            found[f"{row['split']}/{name}"] = value
    return found


def settings_of(run: Run) -> dict[str, Any]:
    """Returns the settings that are not left to a default, and the number of devices and
    processes.
    """
    settings = run.setup.config.plain()
    given = {name: value for name, value in settings.items() if value not in (None, (), {}, "")}
    return given | run.where()


def read_identifier(run: Run, file: str) -> str:
    """Returns the name that a run has at a tracker; nothing if it has none yet."""
    return read_line(run.folder / file) if run.folder is not None else ""


def keep_identifier(run: Run, file: str, identifier: str) -> None:
    """Keeps the name of a run at a tracker in the run directory, if there is one."""
    if run.folder is not None:
        replace_file(run.folder / file, identifier + "\n")
