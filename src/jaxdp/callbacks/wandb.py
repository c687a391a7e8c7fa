"""Logs a run to Weights & Biases."""

import importlib
import secrets
from typing import Any

from jaxdp.callbacks.callback import register
from jaxdp.callbacks.events import Ended, Logged, Run, Started
from jaxdp.callbacks.tracking import metrics_of
from jaxdp.errors import ConfigError
from jaxdp.rundir.read import read_line
from jaxdp.rundir.write import replace_file


@register("wandb")
class WandB:
    """Logs settings, rows, the images drawn at the end and the summary.

    W&B's own variables determine where it logs and whether it is online. A run with a run directory
    keeps its identifier in `wandb-id.txt`, so that a resumed run continues its run at W&B.

    Args:
        project: W&B project.
        name: name of the W&B run; by default the name of the run directory.
        mode: `online`, `offline` or `disabled`; by default the value of `WANDB_MODE`.

    Raises:
        ConfigError: if the package is not installed.
    """

    only_reports = True

    def __init__(self, project: str = "jaxdp", name: str = "", mode: str = "") -> None:
        try:
            self._library: Any = importlib.import_module("wandb")
        except ImportError as error:
            problem = "needs the package wandb: pip install '.[wandb]'"
            raise ConfigError("callbacks", "wandb", problem) from error
        self._project = project
        self._name = name
        self._mode = mode
        self._run: Any = None

    def on_start(self, run: Run, event: Started) -> None:
        """Begins or resumes the W&B run."""
        folder = run.folder
        path = folder and folder / "wandb-id.txt"
        self._run = self._library.init(
            project=self._project,
            name=self._name or (folder and folder.name),
            id=(path and read_line(path)) or secrets.token_hex(4),
            resume="allow",
            mode=self._mode or None,
            config=_settings_of(run),
            dir=folder and str(folder),
        )
        if path is not None:
            replace_file(path, self._run.id + "\n")

    def on_log(self, run: Run, event: Logged) -> None:
        """Logs a row at its step. W&B ignores steps before a step that it has seen."""
        self._run.log(metrics_of(event.row), step=event.row["step"])

    def on_end(self, run: Run, event: Ended) -> None:
        """Logs the images and the summary."""
        images = {name: self._library.Image(image) for name, image in event.images.items()}
        if images:
            self._run.log(images, step=event.step)
        self._run.summary.update(
            {"status": event.status, "parameters": event.summary["parameters"]}
        )

    def close(self) -> None:
        """Ends the W&B run."""
        if self._run is not None:
            self._run.finish()
            self._run = None


def _settings_of(run: Run) -> dict[str, Any]:
    """Returns the settings that have a value, and the number of devices and processes."""
    settings = run.setup.config.plain()
    given = {name: value for name, value in settings.items() if value not in (None, (), {}, "")}
    return given | run.where()
