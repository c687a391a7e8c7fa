"""Keeps the best state of a run without a folder."""

from typing import Any

from jaxdp.checkpoint.integrity import BestMetric, rank


class BestInMemory:
    """The best state by validation data, on the host; it takes the place of `Checkpoints`.

    Args:
        best_metric: name of the metric that ranks states, and whether larger is better.
    """

    every_process = True

    def __init__(self, best_metric: BestMetric) -> None:
        self._best_metric = best_metric
        self._kept: Any = None  # `events.Saving`

    def on_save(self, run: Any, event: Any) -> None:
        """Keeps the state if it is the best so far."""
        if event.metrics is None:
            return
        before = None if self._kept is None else rank(self._kept.metrics, self._best_metric)
        if before is None or rank(event.metrics, self._best_metric) > before:
            self._kept = event

    def latest(self) -> None:
        """A run without a folder resumes from none."""

    def best(self) -> tuple[int, dict[str, float]] | None:
        """Returns the step and the metrics of the best state."""
        return None if self._kept is None else (self._kept.step, dict(self._kept.metrics))

    def restore(self, step: int, *_: Any) -> tuple[Any, dict[str, Any]]:
        """Returns the best state and its position."""
        return self._kept.state, dict(self._kept.position)

    def wait(self) -> None:
        """Nothing is written."""
