"""Determines which worker computes which slice.

It handles only numbers and times, without Ray and JAX, so that tests can simulate thousands of
workers.
"""

import dataclasses
import heapq
from collections import Counter
from typing import NamedTuple

import numpy as np

_NEWEST = 0.3  # weight of the newest measurement in a worker's speed
_COPIES = 2  # how many workers may compute one slice
_FORGETS = 0.9  # factor per round for the time of a worker that was idle


class SliceId(NamedTuple):
    """A slice of a round, e.g. of a step. All slices of a round cost the same."""

    round: int
    slice: int


@dataclasses.dataclass
class Work:
    """Counts the work of workers since the last row of metrics.

    Attributes:
        slices: number of results of each worker, by its index.
        recomputed: how often a slice was assigned again, because its worker was late or lost.
        dropped: number of results for slices that were already done.
        moved_bytes: bytes to and from workers.
        waiting_seconds: waiting time, summed over workers.
    """

    slices: Counter[int] = dataclasses.field(default_factory=Counter[int])
    recomputed: int = 0
    dropped: int = 0
    moved_bytes: int = 0
    waiting_seconds: float = 0.0

    def take(self) -> "Work":
        """Returns the counts, and resets them."""
        counted = dataclasses.replace(self)
        vars(self).update(vars(Work()))
        return counted


class SliceScheduler:
    """Assigns the slices of each round to workers as they become free, so that the round ends as
    soon as possible.

    A worker gets a slice unless the others are expected to finish all remaining slices before it
    would finish one. If no slice is left, the worker gets a second copy of the slice that is
    expected last, if the worker is expected to be faster. Every slice counts once, and later
    results of it are dropped. Workers may join and leave at any time, and a result may arrive more
    than once. A worker that is too slow to get a slice is expected to be slightly faster in the
    next round, until it is tried again, because it may have been slow only temporarily.

    Args:
        work: counts slices that were assigned again and results that were dropped.
    """

    def __init__(self, work: Work) -> None:
        self.work = work
        self._round = -1
        self._open: set[int] = set()  # slices of this round that are not done
        self._waiting: list[int] = []  # a heap of remaining slices that no worker computes
        self._computing: dict[int, SliceId] = {}  # the slice of each busy worker
        self._idle: set[int] = set()
        self._used: set[int] = set()  # workers that have had a slice in this round
        # By the index of a worker: seconds for a slice, which are NaN while unknown and infinite
        # after it left, and the time at which it got its slice, which is NaN while it is idle.
        self._pace, self._begun = np.full(0, np.inf), np.full(0, np.nan)

    def join(self, worker: int) -> None:
        """Adds an idle worker, which is assumed to be as fast as the others until it is
        measured.
        """
        more = max(worker + 1 - len(self._pace), 0)
        self._pace = np.append(self._pace, np.full(more, np.inf))
        self._begun = np.append(self._begun, np.full(more, np.nan))
        self._pace[worker] = np.nan
        self._idle.add(worker)

    def leave(self, worker: int) -> None:
        """Removes a worker, if it had joined. Its slice is assigned to another worker."""
        if worker not in self._idle and worker not in self._computing:
            return
        slice_id = self._computing.pop(worker, None)
        self._idle.discard(worker)
        self._pace[worker], self._begun[worker] = np.inf, np.nan
        if slice_id is None or slice_id in self._computing.values():
            return
        if self._is_open(slice_id):
            heapq.heappush(self._waiting, slice_id.slice)
            self.work.recomputed += 1

    def _is_open(self, slice_id: SliceId) -> bool:
        return slice_id.round == self._round and slice_id.slice in self._open

    def begin(self, slices: int) -> None:
        """Starts the next round with this number of slices, and abandons an unfinished round."""
        for worker in self._idle - self._used:
            self._pace[worker] *= _FORGETS
        self._used = set(self._computing)
        self._round += 1
        self._waiting = list(range(slices))
        self._open = set(self._waiting)

    def finished(self, worker: int, slice_id: SliceId, now: float) -> bool:
        """Records a result, and returns whether it is the first result of its slice and must be
        used.
        """
        if self._computing.get(worker) == slice_id:
            measured, before = now - self._begun[worker], self._pace[worker]
            self._pace[worker] = (
                measured if np.isnan(before) else _NEWEST * measured + (1 - _NEWEST) * before
            )
            self._begun[worker] = np.nan
            del self._computing[worker]
            self._idle.add(worker)
        if not self._is_open(slice_id):
            self.work.dropped += 1
            return False
        self._open.remove(slice_id.slice)
        if slice_id.slice in self._waiting:  # its worker had been abandoned
            self._waiting.remove(slice_id.slice)
            heapq.heapify(self._waiting)
        return True

    def assign(self, now: float) -> list[tuple[int, SliceId]]:
        """Assigns slices to idle workers, the fastest first. If a worker gets no slice, slower
        workers get none either.
        """
        assigned = list[tuple[int, SliceId]]()
        if not self._open or not self._idle:
            return assigned
        measured = self._pace[np.isfinite(self._pace)]
        typical = np.median(measured) if len(measured) else 0.0
        paces = np.where(np.isnan(self._pace), typical, self._pace)
        for worker in sorted(self._idle, key=lambda worker: (paces[worker], worker)):
            number = self._next(worker, paces, now)
            if number is None:
                break
            slice_id = SliceId(self._round, number)
            self._computing[worker], self._begun[worker] = slice_id, now
            self._idle.remove(worker)
            self._used.add(worker)
            assigned.append((worker, slice_id))
        return assigned

    def _next(self, worker: int, paces: np.ndarray, now: float) -> int | None:
        end, free_at = now + paces[worker], self._free_at(paces, now)
        if self._waiting:
            # The number of slices that each other worker would finish before this worker finishes
            # one.
            times = np.maximum(end - free_at, 0.0) * (1 - 1e-9)
            usable = np.isfinite(paces) & (paces > 0)
            done = np.floor(np.divide(times, paces, out=np.zeros_like(times), where=usable))
            is_needed = done.sum() - done[worker] < len(self._waiting)
            return heapq.heappop(self._waiting) if is_needed else None
        ends: dict[int, list[float]] = {}
        for holder, slice_id in self._computing.items():
            if self._is_open(slice_id):
                ends.setdefault(slice_id.slice, []).append(free_at[holder])
        expected = {number: max(each) for number, each in ends.items() if len(each) < _COPIES}
        late = max(expected, key=lambda number: expected[number], default=None)
        if late is None or expected[late] <= end:
            return None
        self.work.recomputed += 1
        return late

    def _free_at(self, paces: np.ndarray, now: float) -> np.ndarray:
        """Returns when each worker is expected to be free. A late worker is expected to take the
        same delay again.
        """
        with np.errstate(invalid="ignore"):
            ends = self._begun + paces
            late = np.where(ends >= now, ends, now + (now - ends))
            return np.where(np.isnan(self._begun), now, late)
