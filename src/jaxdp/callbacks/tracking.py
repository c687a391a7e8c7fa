"""Provides flat names of metrics, settings, and stored run identifiers, for all loggers."""

import importlib
from typing import Any, cast

from jaxdp.callbacks.events import Run, Started
from jaxdp.errors import ConfigError
from jaxdp.rundir.read import Row, read_line
from jaxdp.rundir.write import replace_file


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
    """Returns the settings that have a value, and the number of devices and processes."""
    settings = run.setup.config.plain()
    given = {name: value for name, value in settings.items() if value not in (None, (), {}, "")}
    return given | run.where()


class Tracker:
    """Logs a run to a tracker; a subclass begins runs with the tracker's package.

    A run with a run directory keeps its identifier at the tracker in `PACKAGE-id.txt`, so that a
    resumed run continues the tracker's run.

    Raises:
        ConfigError: if the package is not installed.
    """

    package: str
    only_reports = True

    def __init__(self) -> None:
        try:
            self._library: Any = importlib.import_module(self.package)
        except ImportError as error:
            problem = f"needs the package {self.package}: pip install '.[{self.package}]'"
            raise ConfigError("callbacks", self.package, problem) from error

    def on_start(self, run: Run, event: Started) -> None:
        """Begins or resumes the tracker's run."""
        if run.folder is None:
            self._begin(run, "")
            return
        path = run.folder / f"{self.package}-id.txt"
        replace_file(path, self._begin(run, read_line(path)) + "\n")

    def _begin(self, run: Run, identifier: str) -> str:
        """Begins a run, or resumes one that has an identifier, and returns its identifier."""
        raise NotImplementedError
