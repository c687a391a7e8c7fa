"""Defines a callback that logs a run to MLflow (pip install mlflow-skinny).

python -m jaxdp.train --plugins examples/log_to_mlflow.py --model cnn --callbacks mlflow

MLflow's own variables determine where it logs, e.g. MLFLOW_TRACKING_URI. With MLFLOW_RUN_ID, a run
that jaxdp resumes also continues its run at MLflow.
"""

import math

import mlflow

from jaxdp import callbacks


@callbacks.register("mlflow")
class MLflow:
    """Logs settings as parameters, rows as metrics, and the final images as artifacts."""

    only_reports = True  # if logging fails, the run continues

    def __init__(self, experiment="jaxdp"):
        self.experiment = experiment

    def on_start(self, run, event):
        mlflow.set_experiment(self.experiment)
        mlflow.start_run(run_name=run.folder and run.folder.name)
        if not event.resumed:  # MLflow lets no parameter change
            settings = run.setup.config.plain() | run.where()
            mlflow.log_params({name: str(value)[:500] for name, value in settings.items()})

    def on_log(self, run, event):
        row = dict(event.row)
        step, split = row.pop("step"), row.pop("split")
        for name, value in row.items():
            if isinstance(value, int | float) and math.isfinite(value):
                mlflow.log_metric(f"{split}/{name}", value, step)

    def on_end(self, run, event):
        for name, image in event.images.items():
            mlflow.log_image(image, f"{name}.png")
        mlflow.end_run("FINISHED" if event.status == "done" else "KILLED")

    def close(self):
        mlflow.end_run("FAILED")  # unless it has ended
