"""Exact training with workers of different speed: the same bits, as fast as the workers allow.

Each run needs a Ray of its own, whose processes have the speeds in their environment: another file
has the tests that share one.
"""

import pytest
from small_runs import NEEDS_RAY, At, cluster, digest, rows, trained, wait_for_all

from jaxdp.workers import session
from jaxdp.workers.scheduler import SliceId, SliceScheduler

pytestmark = [pytest.mark.usefixtures("no_pictures"), pytest.mark.slow, NEEDS_RAY]


def test_the_bits_do_not_depend_on_speed() -> None:
    same = {"strategy": "exact", "slices": 8, "steps": 10, "learning_rate": 0.1}
    with cluster():
        even = digest(trained("even", workers=2, **same))
    # The slow worker is slower than the others on a machine that is busy with other things, too.
    with cluster("0.05,0.05,1.0"):
        uneven = trained("uneven", workers=3, callbacks=[At(1, wait_for_all)], **same)
    assert digest(uneven) == even
    last = rows("uneven")[-1]
    assert last["workers"] == 3
    assert last["worker_slices"][2] < min(last["worker_slices"][:2])


class EqualShares(SliceScheduler):
    """The baseline: each worker computes the same slices in every step, and none helps another."""

    def assign(self, now: float) -> list[tuple[int, SliceId]]:
        workers = sorted(self._idle | self._computing.keys())
        if len(workers) < 4:
            return []
        found = []
        for place, worker in enumerate(workers):
            mine = [number for number in self._waiting if number % 4 == place]
            if worker in self._idle and mine:
                slice_id = SliceId(self._round, min(mine))
                self._waiting.remove(slice_id.slice)
                self._idle.remove(worker)
                self._computing[worker], self._begun[worker] = slice_id, now
                found.append((worker, slice_id))
        return found


def test_one_of_four_workers_four_times_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rates of the last ten steps; workers sleep, so that two cores stand for four machines,
    and for longer than a busy core computes.
    """
    same = {
        "strategy": "exact",
        "workers": 4,
        "slices": 16,
        "batch_norm": "group:2",
        "steps": 20,
        "log_every": 10,
        "eval_every": 10,
        "callbacks": [At(1, wait_for_all)],
    }
    with cluster("0.25,0.25,0.25,1.0"):
        planned = digest(trained("planned", **same))
        monkeypatch.setattr(session, "SliceScheduler", EqualShares)
        assert digest(trained("shares", **same)) == planned
    planned_rate, equal_rate = (
        rows(folder)[-1]["examples_per_second"] for folder in ("planned", "shares")
    )
    print(
        f"equal shares {equal_rate:.1f}, planned {planned_rate:.1f} examples/s:"
        f" {planned_rate / equal_rate:.2f} times"
    )
    assert rows("shares")[-1]["worker_slices"] == [40, 40, 40, 40]
    assert planned_rate >= 2.5 * equal_rate
