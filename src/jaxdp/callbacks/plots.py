"""Draws the plots of a finished run: curves, and a confusion matrix or predictions."""

from jaxdp.callbacks.callback import folder_of
from jaxdp.callbacks.events import Ended, Run
from jaxdp.rundir.layout import RunDirectory
from jaxdp.text.console import warn_again
from jaxdp.text.messages import one_line, valid_text


class Plots:
    """Draws into the folder `plots` of the run directory.

    If a plot cannot be drawn, the run prints a warning and continues.
    """

    only_reports = True

    def on_end(self, run: Run, event: Ended) -> None:
        """Draws, and adds the images to `event.images`."""
        directory, task = RunDirectory(folder_of(run, "plots")), run.setup.step_config.task
        task = task.calibrated(event.summary["metrics"].get("validation", {}))
        title = valid_text(run.title)
        try:
            # These modules import Matplotlib, for which the first step need not wait.
            from jaxdp.reporting import outcome, plots

            if event.predict is not None and event.sums is not None:
                source = run.setup.examples.source(run.setup.evaluator.split)
                drawn = outcome.draw(
                    directory.file("plots"),
                    title=title,
                    task=task,
                    source=source,
                    sums=event.sums,
                    predict=event.predict,
                )
                event.images.update(drawn)
            rows, name = directory.read("metrics.jsonl"), task.best_metric[0]
            plots.plot_curves(
                rows, directory.file("plots") / "curves.png", title=title, metric_name=name
            )
        except Exception as error:  # e.g. Matplotlib reads some names as mathematics
            warn_again(f"the plots of {run.folder} could not be drawn: {one_line(error)[:200]}")
