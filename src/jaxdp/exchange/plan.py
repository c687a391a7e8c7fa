"""Decides which worker computes which slice, and which gradient may be applied when.

It knows numbers and times alone.

Neither Ray nor JAX: what is decided here is tested with simulated workers by the thousand.
"""

import dataclasses
import heapq
from typing import NamedTuple

import numpy as np

_NEWEST = 0.3  # share of the newest measurement in a worker's pace
_COPIES = 2  # how many workers may compute one slice
_FORGETS = 0.9  # what is left after a round of the pace of a worker that had nothing to do


class Ticket(NamedTuple):
    """A slice of a round, e.g. of a step; all slices of a round cost the same."""

    round: int
    slice: int


@dataclasses.dataclass
class Counts:
    """What became of the work that was given out.

    Attributes:
        recomputed: how often a slice was given out once more, because its worker was late or lost.
        dropped: how many results came of slices that were done already.
    """

    recomputed: int = 0
    dropped: int = 0


class Plan:
    """Gives the slices of one round after the other to workers as they become free, so that the
    round ends as soon as it can.

    A worker gets a slice unless the others are expected to be done with all that are left before it
    were. When none is left, it gets a second copy of the slice that is expected last, if it is
    expected to be faster. Every slice is done once: later results of it are dropped. Workers may
    join and leave at any time, and a result may be told more than once. One that is too slow to get
    a slice is expected to be a little faster in the next round, until it is tried again: it may
    have been slow only then.

    Attributes:
        counts: of all rounds.
    """

    def __init__(self) -> None:
        self.counts = Counts()
        self._round, self._left = -1, 0
        self._waiting: list[int] = []  # a heap of slices that nobody computes
        self._holders: dict[int, list[int]] = {}  # workers that compute a slice of this round
        self._done: set[int] = set()
        self._rows: dict[int, int] = {}  # row of each worker below
        self._tickets: dict[int, Ticket] = {}  # what each busy worker computes
        self._idle: set[int] = set()
        self._busy: set[int] = set()  # who has had a slice of this round
        self._free_rows: list[int] = []
        # Seconds for a slice; NaN while unknown, infinite for an empty row.
        self._pace = np.full(0, np.inf)
        self._begun = np.full(0, np.nan)  # when a worker got its slice; NaN while it is idle

    @property
    def workers(self) -> list[int]:
        return list(self._rows)

    @property
    def round_is_done(self) -> bool:
        return self._left == 0

    def join(self, worker: int) -> None:
        """Adds an idle worker, whose pace is assumed to be that of the others until it is
        measured.
        """
        if not self._free_rows:
            size = max(len(self._pace), 8)
            self._free_rows += range(len(self._pace), len(self._pace) + size)
            self._pace = np.concatenate([self._pace, np.full(size, np.inf)])
            self._begun = np.concatenate([self._begun, np.full(size, np.nan)])
        row = self._rows[worker] = self._free_rows.pop()
        self._pace[row], self._begun[row] = np.nan, np.nan
        self._idle.add(worker)

    def leave(self, worker: int) -> None:
        """Removes a worker, if it had joined.

        The slice that it was computing is given to another one.
        """
        if worker not in self._rows:
            return
        row, ticket = self._rows.pop(worker), self._tickets.pop(worker, None)
        self._idle.discard(worker)
        self._pace[row], self._begun[row] = np.inf, np.nan
        self._free_rows.append(row)
        if ticket is not None:
            self._release(worker, ticket)

    def begin(self, slices: int) -> int:
        """Begins the next round, which has so many slices, and returns its number.

        One that is not done is given up.
        """
        for worker in self._idle - self._busy:
            self._pace[self._rows[worker]] *= _FORGETS
        self._busy = set(self._tickets)
        self._round, self._left = self._round + 1, slices
        self._waiting, self._holders, self._done = list(range(slices)), {}, set()
        return self._round

    def finished(self, worker: int, ticket: Ticket, now: float) -> bool:
        """Takes note of a result.

        Returns:
            whether it is the first one of its slice, and to be used.
        """
        if self._tickets.get(worker) == ticket:
            row = self._rows[worker]
            measured, before = now - self._begun[row], self._pace[row]
            self._pace[row] = (
                measured if np.isnan(before) else _NEWEST * measured + (1 - _NEWEST) * before
            )
            self._begun[row] = np.nan
            del self._tickets[worker]
            self._idle.add(worker)
        if ticket.round != self._round or ticket.slice in self._done:
            self.counts.dropped += 1
            return False
        self._done.add(ticket.slice)
        # Its worker had been given up, and nobody else has it yet.
        if self._holders.pop(ticket.slice, None) is None:
            self._waiting.remove(ticket.slice)
            heapq.heapify(self._waiting)
        self._left -= 1
        return True

    def assign(self, now: float) -> list[tuple[int, Ticket]]:
        """Gives slices to idle workers, the fastest first.

        A slower one gets none where a faster one does not.
        """
        rows, found = self._rows, list[tuple[int, Ticket]]()
        if not self._left or not self._idle:
            return found
        paces = self._paces()
        idle = sorted(self._idle, key=lambda each: (paces[rows[each]], each))
        for worker in idle:
            number = self._next(rows[worker], paces, now)
            if number is None:
                break
            ticket = Ticket(self._round, number)
            self._tickets[worker], self._begun[rows[worker]] = ticket, now
            self._idle.remove(worker)
            self._busy.add(worker)
            self._holders.setdefault(number, []).append(worker)
            found.append((worker, ticket))
        return found

    def _paces(self) -> np.ndarray:
        known = self._pace[np.isfinite(self._pace)]
        return np.where(np.isnan(self._pace), np.median(known) if len(known) else 0.0, self._pace)

    def _next(self, row: int, paces: np.ndarray, now: float) -> int | None:
        end = now + paces[row]
        if self._waiting:
            # How many slices would each of the others have done before this worker were done with
            # one?
            times = np.maximum(end - self._expected(paces, now), 0.0) * (1 - 1e-9)
            done = np.floor(
                np.divide(
                    times, paces, out=np.zeros_like(times), where=np.isfinite(paces) & (paces > 0)
                )
            )
            return (
                heapq.heappop(self._waiting)
                if done.sum() - done[row] < len(self._waiting)
                else None
            )
        expected, late = self._expected(paces, now), None
        for number, holders in self._holders.items():
            if (
                len(holders) < _COPIES
                and (last := max(expected[self._rows[each]] for each in holders)) > end
            ):
                end, late = last, number
        if late is not None:
            self.counts.recomputed += 1
        return late

    def _expected(self, paces: np.ndarray, now: float) -> np.ndarray:
        """Returns when each worker is expected to be free.

        One that is late is expected to be late by as much again.
        """
        with np.errstate(invalid="ignore"):
            ends = self._begun + paces
            return np.where(
                np.isnan(self._begun), now, np.where(ends >= now, ends, now + (now - ends))
            )

    def _release(self, worker: int, ticket: Ticket) -> None:
        if ticket.round != self._round or ticket.slice in self._done:
            return
        holders = self._holders[ticket.slice]
        holders.remove(worker)
        if not holders:
            del self._holders[ticket.slice]
            heapq.heappush(self._waiting, ticket.slice)
            self.counts.recomputed += 1


class StalenessBound:
    """Says who may pull and whose gradient may be applied, so that no gradient is ever staler than
    a bound.

    The staleness of a gradient is the number of updates between the pull of its parameters and its
    own. Whoever has pulled must be able to push within the bound, in whatever order they finish: of
    those outstanding, in the order of their pulls, the i-th has i updates before it, counted from
    0.

    Args:
        bound: the largest staleness; None for no bound.
    """

    def __init__(self, bound: int | None) -> None:
        self._bound, self.version = bound, 0
        self._pulled: dict[int, int] = {}  # version that each outstanding worker has

    def may_pull(self) -> bool:
        """Whether one more worker may begin with the present version."""
        return self._bound is None or len(self._pulled) <= self._bound

    def pull(self, worker: int) -> None:
        assert self.may_pull()
        self._pulled[worker] = self.version

    def leave(self, worker: int) -> None:
        """Forgets a worker that will not push what it pulled for."""
        self._pulled.pop(worker, None)

    def may_apply(self, worker: int) -> bool:
        """Whether all others could still push within the bound after this one."""
        if self._bound is None:
            return True
        others = sorted(version for each, version in self._pulled.items() if each != worker)
        return all(
            self.version + 1 + place - version <= self._bound
            for place, version in enumerate(others)
        )

    def apply(self, worker: int) -> int:
        """Counts the update and returns the staleness of its gradient."""
        staleness = self.version - self._pulled.pop(worker)
        self.version += 1
        return staleness
