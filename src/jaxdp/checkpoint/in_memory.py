"""Keeps the best state of a run without a folder."""

from typing import Any

from jaxdp.checkpoint.integrity import BestMetric, rank


class BestInMemory:
    """The best state by validation data, on the host; it takes the place of `Checkpoints`.

    Args:
        best_metric: name of the metric that ranks states, and whether larger is better.

    Attributes:
        kept: the best state so far, a `callbacks.events.Saving`; None without an evaluation.
    """

    every_process = True

    def __init__(self, best_metric: BestMetric) -> None:
        self.best_metric = best_metric
        self.kept: Any = None  # `events.Saving`

    def on_save(self, run: Any, event: Any) -> None:
        """Keeps the state if it is the best so far."""
        if event.metrics is None:
            return
        before = None if self.kept is None else rank(self.kept.metrics, self.best_metric)
        if before is None or rank(event.metrics, self.best_metric) > before:
            self.kept = event

    def latest(self) -> None:
        """A run without a folder resumes from none."""

    def best(self) -> tuple[int, dict[str, float]] | None:
        """Returns the step and the metrics of the best state."""
        return None if self.kept is None else (self.kept.step, dict(self.kept.metrics))

    def restore(self, step: int, *_: Any) -> tuple[Any, dict[str, Any]]:
        """Returns the best state and its position."""
        return self.kept.state, dict(self.kept.position)

    def wait(self) -> None:
        """Nothing is written."""
