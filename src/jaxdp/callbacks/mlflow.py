"""Logs a run to MLflow."""

import math
from typing import Any

from jaxdp.callbacks import register
from jaxdp.callbacks.json_lines import metrics_of
from jaxdp.callbacks.wandb import import_extra, settings_of
from jaxdp.events import Ended, Logged, Run, Started
from jaxdp.rundir.read import read_line
from jaxdp.rundir.write import replace_file


@register("mlflow")
class MLflow:
    """Logs settings as parameters, rows as metrics, and the images drawn at the end as artifacts.

    A run with a run directory keeps its MLflow identifier there, in `mlflow-id.txt`: what resumes
    it continues the MLflow run.

    Args:
        experiment: MLflow experiment.
        tracking_uri: where MLflow keeps its runs, e.g. `file:./mlruns`; by default what
            `MLFLOW_TRACKING_URI` says.

    Raises:
        ConfigError: if mlflow is not installed.
    """

    def __init__(self, experiment: str = "jaxdp", tracking_uri: str = "") -> None:
        self._mlflow: Any = import_extra("mlflow")
        self._experiment, self._tracking_uri, self._run_id = experiment, tracking_uri, ""
        self._client: Any = None

    def on_start(self, run: Run, event: Started) -> None:
        """Begins or resumes the MLflow run, once."""
        if self._run_id:
            return
        client = self._client = self._mlflow.MlflowClient(tracking_uri=self._tracking_uri or None)
        known = run.folder / "mlflow-id.txt" if run.folder is not None else None
        self._run_id = read_line(known) if known is not None else ""
        if self._run_id:
            client.set_terminated(self._run_id, "RUNNING")
            return
        experiment = client.get_experiment_by_name(self._experiment)
        identifier = (
            experiment.experiment_id
            if experiment is not None
            else client.create_experiment(self._experiment)
        )
        self._run_id = client.create_run(
            identifier, run_name=run.folder.name if run.folder is not None else None
        ).info.run_id
        for name, value in settings_of(run).items():
            client.log_param(self._run_id, name, str(value)[:500])
        if known is not None:
            replace_file(known, self._run_id + "\n")

    def on_log(self, run: Run, event: Logged) -> None:
        """Logs a row at its step."""
        for name, value in metrics_of(event.row).items():
            if math.isfinite(value):
                self._client.log_metric(self._run_id, name, value, step=event.row["step"])

    def on_end(self, run: Run, event: Ended) -> None:
        """Logs the images, and how the run ended."""
        for name, image in event.images.items():
            self._client.log_image(self._run_id, image, artifact_file=f"{name}.png")
        self._client.set_tag(self._run_id, "status", event.status)
        self._client.set_terminated(
            self._run_id, {"done": "FINISHED", "stopped": "KILLED"}.get(event.status, "FAILED")
        )
        self._run_id = ""

    def close(self) -> None:
        """Marks a run that ended by an error as failed."""
        if self._run_id:
            self._client.set_terminated(self._run_id, "FAILED")
            self._run_id = ""
