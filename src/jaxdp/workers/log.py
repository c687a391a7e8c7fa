"""Records what the workers of a run do."""

from jaxdp.callbacks.events import Ended, Run, StepEnd
from jaxdp.rundir.layout import RunDirectory
from jaxdp.rundir.read import Row
from jaxdp.workers.session import WorkerSession


class WorkersLog:
    """The callback that records which workers joined and left, and adds to rows what they did."""

    def __init__(self, session: WorkerSession) -> None:
        self._session = session

    def on_step_end(self, run: Run, event: StepEnd | Ended) -> None:
        """Records which workers joined and left."""
        pool = self._session.pool
        changes, pool.changes = pool.changes, []
        if run.folder is not None:
            for name, facts in changes:
                RunDirectory(run.folder).record(name, event.step, **facts)

    on_end = on_step_end

    def on_row(self, run: Run, row: Row) -> None:
        """Adds to a training row what the workers did since the last one."""
        if row["split"] != "train":
            return
        pool, work = self._session.pool, self._session.work.take()
        row |= {
            "elapsed_seconds": pool.seconds,
            "workers": pool.ready,
            "worker_slices": [work.slices[place] for place in range(pool.count)],
            "recomputed_slices": work.recomputed,
            "dropped_slices": work.dropped,
            "worker_bytes": work.moved_bytes,
            "worker_idle_seconds": round(work.waiting_seconds, 6),
        }
