"""Ends a run once a metric no longer improves."""

from typing import Any

from jaxdp.callbacks.callback import register
from jaxdp.callbacks.events import Evaluated, Run, Started
from jaxdp.errors import ConfigError, flag
from jaxdp.text.messages import nearest

# The metrics of jaxdp's tasks; a detail such as `iou/cell` has the direction of `iou`.
_LOWER_IS_BETTER = {"loss", "mse", "mae", "rmse"}
_LARGER_IS_BETTER = {
    "accuracy",
    "top5_accuracy",
    "pixel_accuracy",
    "iou",
    "dice",
    "f1",
    "average_precision",
    "mean_average_precision",
    "r2",
    "psnr",
}
_STATE = ("best", "best_step", "evaluations_since_best")


@register("early_stopping")
class EarlyStopping:
    """Ends the run, as done, if a metric of the validation data did not improve for `patience`
    evaluations in a row.

    A run that resumes keeps the best value and the number of evaluations since then. If several
    processes train, each process uses the same numbers, so all end at the same step.

    Args:
        metric: name of the metric, such as `loss` or `accuracy`.
        patience: number of evaluations without an improvement after which the run ends.
        min_delta: how much better a value must be to count as an improvement.
        larger_is_better: direction of the metric; needed only for a metric whose direction neither
            the task nor jaxdp knows.

    Raises:
        ConfigError: for a patience below 1 or a negative `min_delta`. The run raises it for a
            dataset without validation data, for a metric that the task does not have, and for one
            whose direction is not known.
    """

    every_process = True

    def __init__(
        self,
        metric: str = "loss",
        patience: int = 5,
        min_delta: float = 0.0,
        larger_is_better: bool | None = None,
    ) -> None:
        if patience < 1 or int(patience) != patience:
            problem = "must be a whole number of at least 1"
            raise ConfigError("callbacks", {"patience": patience}, problem)
        if min_delta < 0:
            raise ConfigError("callbacks", {"min_delta": min_delta}, "must not be negative")
        self.metric = metric
        self.patience = int(patience)
        self.min_delta = min_delta
        self.larger_is_better = larger_is_better
        self._is_loaded = False
        self._begin()

    def _begin(self) -> None:
        self.best: float | None = None
        self.best_step = self.evaluations_since_best = 0

    def on_start(self, run: Run, event: Started) -> None:
        """Resets the state, unless a checkpoint held one, because this object may have watched
        another run.

        Validation data are required. If a run stopped by test data, their metrics would look better
        than they are.
        """
        if not self._is_loaded:
            self._begin()
        self._is_loaded = False
        if run.setup.evaluator.split != "validation":
            raise ConfigError(
                "callbacks",
                "early_stopping",
                "stops by validation data, and this dataset has none; set some apart, e.g. with"
                f" {flag('validation', 0.1)}",
            )
        _ = self._is_larger_better(run)

    def on_evaluate(self, run: Run, event: Evaluated) -> None:
        """Compares the metric with the best value so far."""
        if self.metric not in event.metrics:
            known = [name for name in event.metrics if name != "examples"]
            raise ConfigError(
                "callbacks",
                f"early_stopping:metric={self.metric}",
                f"unknown metric; {nearest(self.metric, known)}",
            )
        value = float(event.metrics[self.metric])
        sign = 1 if self._is_larger_better(run) else -1
        if self.best is None or sign * (value - self.best) > self.min_delta:
            self.best, self.best_step = value, event.step
            self.evaluations_since_best = 0
            return
        self.evaluations_since_best += 1
        if self.evaluations_since_best >= self.patience:
            run.stop(
                f"{event.split} {self.metric} has not improved on {self.best:.6g} since step"
                f" {self.best_step}"
            )

    def _is_larger_better(self, run: Run) -> bool:
        """Returns the direction of the metric.

        Raises:
            ConfigError: if it is not known.
        """
        if self.larger_is_better is not None:
            return self.larger_is_better
        name, larger = run.setup.step_config.task.best_metric
        base = self.metric.partition("/")[0]
        if name in (self.metric, base):
            return larger
        if base not in _LOWER_IS_BETTER | _LARGER_IS_BETTER:
            known = nearest(self.metric, sorted(_LOWER_IS_BETTER | _LARGER_IS_BETTER))
            remedy = f"say whether larger is better, with larger_is_better=true or false; {known}"
            raise ConfigError("callbacks", f"early_stopping:metric={self.metric}", remedy)
        return base in _LARGER_IS_BETTER

    def state_dict(self) -> dict[str, Any]:
        """Returns the state for a checkpoint."""
        return {name: getattr(self, name) for name in _STATE}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state from a checkpoint."""
        for name in _STATE:
            setattr(self, name, state[name])
        self._is_loaded = True
