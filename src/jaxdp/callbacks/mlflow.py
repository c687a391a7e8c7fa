"""Logs a run to MLflow."""

import math
from typing import Any

from jaxdp.callbacks.callback import register
from jaxdp.callbacks.events import Ended, Logged, Run
from jaxdp.callbacks.tracking import Tracker, metrics_of, settings_of


@register("mlflow")
class MLflow(Tracker):
    """Logs settings as parameters, rows as metrics, and the final images as artifacts.

    Args:
        experiment: MLflow experiment.
        tracking_uri: where MLflow keeps its runs, e.g. `file:./mlruns`; by default the value of
            `MLFLOW_TRACKING_URI`.
    """

    package = "mlflow"

    def __init__(self, experiment: str = "jaxdp", tracking_uri: str = "") -> None:
        super().__init__()
        self._experiment, self._tracking_uri = experiment, tracking_uri
        self._run_id = ""
        self._client: Any = None

    def _begin(self, run: Run, identifier: str) -> str:
        client = self._client = self._library.MlflowClient(tracking_uri=self._tracking_uri or None)
        self._run_id = identifier
        if identifier:
            client.set_terminated(identifier, "RUNNING")
            return identifier
        known = client.get_experiment_by_name(self._experiment)
        number = known.experiment_id if known else client.create_experiment(self._experiment)
        created = client.create_run(number, run_name=run.folder and run.folder.name)
        self._run_id = created.info.run_id
        for setting, value in settings_of(run).items():
            client.log_param(self._run_id, setting, str(value)[:500])
        return self._run_id

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
        self._terminate({"done": "FINISHED", "stopped": "KILLED"}.get(event.status, "FAILED"))

    def close(self) -> None:
        """Marks the run as failed if it ended with an error."""
        if self._run_id:
            self._terminate("FAILED")

    def _terminate(self, status: str) -> None:
        self._client.set_terminated(self._run_id, status)
        self._run_id = ""
