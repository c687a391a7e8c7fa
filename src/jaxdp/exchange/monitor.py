"""Tells of the workers in the rows of metrics and in the history of a run."""

import dataclasses
from typing import Any

from jaxdp.events import Ended, Run, StepEnd
from jaxdp.exchange.plan import Counts
from jaxdp.exchange.pool import Pool, Since
from jaxdp.rundir.layout import RunDirectory
from jaxdp.rundir.read import Row


class Monitor:
    """The callback that goes with an exchange.

    Args:
        pool: the workers.
        strategy: has the `counts` of work done twice or in vain, and for `async` the `staleness` of
            each update since the last row.
    """

    def __init__(self, pool: Pool, strategy: Any) -> None:
        self._pool, self._strategy, self._told = pool, strategy, Counts()

    def on_step_end(self, run: Run, event: StepEnd) -> None:
        """Writes which workers joined and left."""
        self._record(run, event.step)

    def on_end(self, run: Run, event: Ended) -> None:
        """Writes which workers joined and left since."""
        self._record(run, event.step)

    def _record(self, run: Run, step: int) -> None:
        changes, self._pool.changes = self._pool.changes, []
        if run.folder is not None:
            for event, facts in changes:
                RunDirectory(run.folder).record(
                    event, step, **{"seconds": self._pool.seconds} | facts
                )

    def on_row(self, run: Run, row: Row) -> None:
        """Adds to a training row what the workers did since the last one."""
        if row["split"] != "train":
            return
        since, self._pool.since = self._pool.since, Since()
        counts = dataclasses.replace(self._strategy.counts)
        row |= {
            "elapsed_seconds": self._pool.seconds,
            "workers": self._pool.ready,
            "worker_slices": [since.slices[place] for place in range(self._pool.count)],
            "recomputed_slices": counts.recomputed - self._told.recomputed,
            "dropped_slices": counts.dropped - self._told.dropped,
            "exchange_bytes": since.moved_bytes,
            "worker_idle_seconds": round(since.waiting_seconds, 6),
        }
        self._told = counts
        staleness: list[int] | None = getattr(self._strategy, "staleness", None)
        if staleness:
            row |= {
                "staleness_mean": sum(staleness) / len(staleness),
                "staleness_max": max(staleness),
            }
            staleness.clear()
