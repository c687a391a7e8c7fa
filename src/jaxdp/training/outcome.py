"""Defines the outcome of a run."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from jaxdp.rundir.layout import RunDirectory
from jaxdp.rundir.read import Row
from jaxdp.step import metrics
from jaxdp.step.state import TrainState


@dataclasses.dataclass(frozen=True)
class RunOutcome:
    """How a run ended, and its result.

    Attributes:
        status: `done`, `stopped` by a signal, or `diverged`.
        step: the last step.
        state: the result, on the devices. The best state by validation data if the run has
            validation data, and a run directory or early stopping; otherwise the last state. None
            if the run diverged or was already complete.
        sums: metric sums of the evaluation of `state`, if there was an evaluation.
        reason: why the run ended before its last step: what diverged, or the reason of a callback.
            Otherwise empty.
        rows: the rows of metrics.jsonl that this process made.
        summary: the content of summary.json.
        last_saved: step of the newest checkpoint.
        directory: the run directory, if the run writes files.
        position: the values that a run needs in addition to the state to continue.
    """

    status: str
    step: int
    state: TrainState | None = None
    sums: metrics.Sums | None = None
    reason: str = ""
    rows: Sequence[Row] = ()
    summary: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    last_saved: int | None = None
    directory: RunDirectory | None = None
    position: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])

    @property
    def was_complete(self) -> bool:
        """Whether the run was already complete."""
        return self.status == "done" and self.state is None

    @property
    def ended_early(self) -> str:
        """The reason of the callback that ended the run, or an empty text."""
        return self.reason if self.status == "done" else ""
