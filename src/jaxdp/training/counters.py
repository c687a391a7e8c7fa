"""Counts what a run has done so far: metric sums, times, and updates that went wrong."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from jaxdp.step import metrics

# Fields that a checkpoint keeps.
_SAVED = ("interval", "epoch", "skipped_updates", "skipped_in_a_row", "best", "evaluation_due")


@dataclasses.dataclass
class Counters:
    """Metric sums and times of steps that are done.

    Attributes:
        interval, epoch: sums since the last row, and since the epoch began; part of a checkpoint.
        first_step_done: when this process's first step was done, by `time.perf_counter`; 0 before.
        train_seconds, train_examples: of all other steps of this process, without evaluating and
            saving.
        skipped_updates, skipped_in_a_row: updates left out because they were not finite, in the
            whole run and just now.
        best: the largest rank of an evaluation on validation data, None before there is one; part
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
        """Notes the rank of an evaluation on validation data; returns whether it is the best."""
        if self.best is not None and rank <= self.best:
            return False
        self.best = rank
        return True

    def position(self) -> dict[str, Any]:
        """Returns what a checkpoint keeps, so that a run resumes as if it had never stopped."""
        values = {name: getattr(self, name) for name in _SAVED}
        values |= {name: metrics.to_json(values[name]) for name in ("interval", "epoch")}
        kept = {name: value for name, value in values.items() if value is not None}
        if not self.evaluation_due:
            del kept["evaluation_due"]
        return kept

    def load(self, position: Mapping[str, Any]) -> None:
        """Continues from what a checkpoint kept."""
        for name in _SAVED:
            if name in position:
                setattr(self, name, position[name])
