"""Counts metric sums, times and skipped updates of a run."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from jaxdp.step import metrics

# Fields that a checkpoint holds.
_SAVED = ("interval", "epoch", "skipped_updates", "skipped_in_a_row", "best", "evaluation_due")


@dataclasses.dataclass
class Counters:
    """Metric sums and times of finished steps.

    Attributes:
        interval, epoch: metric sums since the last row, and since the epoch began; part of a
            checkpoint.
        first_step_done: when the first step of this process was finished, by `time.perf_counter`;
            0 before.
        train_seconds, train_examples: of all other steps of this process, without evaluating and
            saving.
        skipped_updates, skipped_in_a_row: updates that were skipped because they were not finite,
            in the whole run, and since the last update; part of a checkpoint.
        best: the largest rank of an evaluation on validation data, None without an evaluation; part
            of a checkpoint.
        evaluation_due: whether a signal stopped the run before the evaluation of its last step;
            part of a checkpoint.
    """

    interval: metrics.Sums = dataclasses.field(default_factory=dict)
    epoch: metrics.Sums = dataclasses.field(default_factory=dict)
    first_step_done: float = 0.0
    train_seconds: float = 0.0
    train_examples: float = 0.0
    skipped_updates: int = 0
    skipped_in_a_row: int = 0
    best: float | None = None
    evaluation_due: bool = False

    def improves(self, rank: float) -> bool:
        """Takes the rank of an evaluation on validation data. Returns whether it is the best."""
        if self.best is not None and rank <= self.best:
            return False
        self.best = rank
        return True

    def position(self) -> dict[str, Any]:
        """Returns the values that a checkpoint holds, so that a resumed run continues as an
        uninterrupted run.
        """
        values = {name: getattr(self, name) for name in _SAVED}
        values |= {name: metrics.to_json(values[name]) for name in ("interval", "epoch")}
        kept = {name: value for name, value in values.items() if value is not None}
        if not self.evaluation_due:
            del kept["evaluation_due"]
        return kept

    def load(self, position: Mapping[str, Any]) -> None:
        """Takes the values that a checkpoint holds."""
        for name in _SAVED:
            if name in position:
                setattr(self, name, position[name])
