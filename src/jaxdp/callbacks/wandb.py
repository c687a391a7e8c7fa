"""Logs a run to Weights & Biases."""

import secrets
from typing import Any

from jaxdp.callbacks.callback import register
from jaxdp.callbacks.events import Ended, Logged, Run
from jaxdp.callbacks.tracking import Tracker, metrics_of, settings_of


@register("wandb")
class WandB(Tracker):
    """Logs settings, rows, the images drawn at the end and the summary.

    W&B's own variables determine where it logs and whether it is online.

    Args:
        project: W&B project.
        name: name of the W&B run; by default the name of the run directory.
        mode: `online`, `offline` or `disabled`; by default the value of `WANDB_MODE`.
    """

    package = "wandb"

    def __init__(self, project: str = "jaxdp", name: str = "", mode: str = "") -> None:
        super().__init__()
        self._project = project
        self._name = name
        self._mode = mode
        self._run: Any = None

    def _begin(self, run: Run, identifier: str) -> str:
        folder = run.folder
        self._run = self._library.init(
            project=self._project,
            name=self._name or (folder and folder.name),
            id=identifier or secrets.token_hex(4),
            resume="allow",
            mode=self._mode or None,
            config=settings_of(run),
            dir=folder and str(folder),
        )
        return self._run.id

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
