"""How a run ended, and what it leaves."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from jaxdp.rundir.layout import RunDirectory
from jaxdp.rundir.read import Row
from jaxdp.step import metrics
from jaxdp.step.state import TrainState


@dataclasses.dataclass(frozen=True)
class RunOutcome:
    """How a run ended, and what it leaves.

    Attributes:
        status: `done`, `stopped` by a signal, or `diverged`.
        step: the last step.
        state: the result, on the devices: the best by validation data if there are any and a run
            directory, otherwise the last; None if it diverged or was complete already.
        sums: metric sums of the state's evaluation, if there was one.
        reason: why it ended before its last step, if it did: what diverged, or why a callback ended
            it.
        rows: of metrics.jsonl, those that this process made.
        summary: what summary.json holds.
        last_saved: step of the newest checkpoint.
        directory: of the run, if it writes one.
        position: what a run needs in addition to the state to continue.
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
        """Whether there was nothing left to train."""
        return self.status == "done" and self.state is None

    @property
    def ended_early(self) -> str:
        """Why a callback ended the run, or nothing."""
        return self.reason if self.status == "done" else ""
