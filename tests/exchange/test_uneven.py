"""Workers of different speed: the same bits, and how much faster than equal shares.

Each run starts a Ray of its own.
"""

import pytest
from small_runs import NEEDS_RAY, digest, rows, trained

from jaxdp.exchange import rounds
from jaxdp.exchange.plan import Plan, Ticket
from jaxdp.exchange.worker import SLOWED

pytestmark = [pytest.mark.usefixtures("no_pictures"), NEEDS_RAY]


@pytest.mark.slow
def test_the_bits_do_not_depend_on_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    same = {"exchange": "exact", "slices": 8, "steps": 10, "learning_rate": 0.1}
    even = digest(trained("even", workers=2, **same))
    monkeypatch.setenv(SLOWED, "0.02,0.02,0.2")
    assert digest(trained("uneven", workers=3, **same)) == even
    last = rows("uneven")[-1]
    assert last["workers"] == 3
    assert last["worker_slices"][2] < min(last["worker_slices"][:2])


class EqualShares(Plan):
    """What is compared with: each worker computes the same slices in every step, and nobody helps
    another one.
    """

    def assign(self, now: float) -> list[tuple[int, Ticket]]:
        if len(self.workers) < 4:
            return []
        found = []
        for place, worker in enumerate(sorted(self.workers)):
            mine = [number for number in self._waiting if number % 4 == place]
            if worker in self._idle and mine:
                ticket = Ticket(self._round, min(mine))
                self._waiting.remove(ticket.slice)
                self._idle.remove(worker)
                self._tickets[worker], self._begun[self._rows[worker]] = ticket, now
                self._holders[ticket.slice] = [worker]
                found.append((worker, ticket))
        return found


@pytest.mark.slow
def test_one_of_four_workers_four_times_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rates of the last ten steps; workers sleep, so that two cores stand for four machines."""
    monkeypatch.setenv(SLOWED, "0.1,0.1,0.1,0.4")
    same = {
        "exchange": "exact",
        "workers": 4,
        "slices": 16,
        "batch_norm": "group:2",
        "steps": 20,
        "log_every": 10,
        "eval_every": 10,
    }
    planned = digest(trained("planned", **same))
    monkeypatch.setattr(rounds, "Plan", EqualShares)
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
