"""Logs a run to Weights & Biases."""

import importlib
import secrets
from typing import Any

from jaxdp.callbacks import register
from jaxdp.callbacks.json_lines import metrics_of
from jaxdp.events import Ended, Logged, Run, Started
from jaxdp.registry import ConfigError
from jaxdp.rundir.read import read_line
from jaxdp.rundir.write import replace_file


@register("wandb")
class WandB:
    """Logs settings, rows, the images drawn at the end and the summary.

    Where and whether online, W&B's own variables say.

    A run with a run directory keeps its W&B identifier there, in `wandb-id.txt`: what resumes it
    continues the W&B run.

    Args:
        project: W&B project.
        name: of the W&B run; by default the run directory's.
        mode: `online`, `offline` or `disabled`; by default what `WANDB_MODE` says.

    Raises:
        ConfigError: if wandb is not installed.
    """

    def __init__(self, project: str = "jaxdp", name: str = "", mode: str = "") -> None:
        self._wandb: Any = import_extra("wandb")
        self._project, self._name, self._mode, self._run = project, name, mode, None

    def on_start(self, run: Run, event: Started) -> None:
        """Begins or resumes the W&B run, once."""
        if self._run is not None:
            return
        folder = run.folder
        known = folder / "wandb-id.txt" if folder is not None else None
        identifier = (read_line(known) if known is not None else "") or secrets.token_hex(4)
        self._run = self._wandb.init(
            project=self._project,
            name=self._name or (folder.name if folder is not None else None),
            id=identifier,
            resume="allow",
            mode=self._mode or None,
            config=settings_of(run),
            dir=str(folder) if folder is not None else None,
        )
        if known is not None:
            replace_file(known, identifier + "\n")

    def on_log(self, run: Run, event: Logged) -> None:
        """Logs a row at its step; W&B takes no steps that lie before one it has seen."""
        self._running().log(metrics_of(event.row), step=event.row["step"])

    def on_end(self, run: Run, event: Ended) -> None:
        """Logs the images and the summary."""
        running = self._running()
        if event.images:
            running.log(
                {name: self._wandb.Image(image) for name, image in event.images.items()},
                step=event.step,
            )
        running.summary.update({"status": event.status, "parameters": event.summary["parameters"]})

    def _running(self) -> Any:
        assert self._run is not None
        return self._run

    def close(self) -> None:
        """Ends the W&B run."""
        if self._run is not None:
            self._run, running = None, self._run
            running.finish()


def import_extra(name: str) -> Any:
    """Imports an optional dependency; raises ConfigError that says how to install it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            "callbacks", name, f"needs the package {name}: pip install 'jaxdp[{name}]'"
        ) from error


def settings_of(run: Run) -> dict[str, Any]:
    """Returns the settings that are not left to a default, and the number of devices and
    processes.
    """
    config = run.setup.config
    given = config.plain()
    return {
        name: value for name, value in given.items() if value not in (None, (), {}, "")
    } | run.where()
