"""The scheduling of slices, with simulated workers: neither Ray nor JAX takes part."""

import heapq
import itertools
import random
from collections import Counter

import pytest

from jaxdp.workers.scheduler import SliceId, SliceScheduler, Work

POLL = 0.5  # seconds after which idle workers are asked again


class Simulation:
    """Workers of random speeds on a clock of its own, which die, hang and arrive."""

    def __init__(self, seed: int, workers: int, *, noise: float = 0.1) -> None:
        self.random, self.now, self.noise = random.Random(seed), 0.0, noise
        self.scheduler = SliceScheduler(Work())
        self.events: list[tuple[float, int, str, int, SliceId | None]] = []
        self.order, self.names = itertools.count(), itertools.count()
        self.pace: dict[int, float] = {}
        self.alive: dict[int, tuple[float, float]] = {}  # from when until when
        self.applied: Counter[SliceId] = Counter()
        for _ in range(workers):
            self.arrive()

    def push(
        self, time: float, what: str, worker: int = -1, slice_id: SliceId | None = None
    ) -> None:
        heapq.heappush(self.events, (time, next(self.order), what, worker, slice_id))

    def arrive(self, *_: object) -> None:
        worker = next(self.names)
        self.pace[worker] = 10 ** self.random.uniform(-0.5, 0.5)  # ten to one
        self.alive[worker] = (self.now, float("inf"))
        self.scheduler.join(worker)

    def run(self, slices: int, rounds: int = 1) -> list[float]:
        ends = []
        for _ in range(rounds):
            self.scheduler.begin(slices)
            self.push(self.now, "poll")
            self.left = slices
            while self.left:
                self.now, _, what, worker, slice_id = heapq.heappop(self.events)
                assert self.now < 10_000, "nothing goes on"
                getattr(self, what)(worker, slice_id)
                for chosen, given in self.scheduler.assign(self.now):
                    self.give(chosen, given)
            ends.append(self.now)
        return ends

    def give(self, worker: int, slice_id: SliceId) -> None:
        takes = self.pace[worker] * self.random.uniform(1 - self.noise, 1 + self.noise)
        if self.now + takes < self.alive[worker][1]:
            self.push(self.now + takes, "done", worker, slice_id)
            if self.random.random() < 0.01:  # a push is told twice
                self.push(self.now + 1.1 * takes, "done", worker, slice_id)

    def done(self, worker: int, slice_id: SliceId) -> None:
        if self.scheduler.finished(worker, slice_id, self.now):
            self.applied[slice_id] += 1
            self.left -= 1

    def poll(self, *_: object) -> None:
        if not any(what == "poll" for _, _, what, _, _ in self.events[:1]):
            self.push(self.now + POLL, "poll")

    def hang(self, worker: int, _: object) -> None:
        """From now on nothing comes of it, and nobody is told."""
        self.alive[worker] = (self.alive[worker][0], self.now)
        self.events = [
            event for event in self.events if not (event[2] == "done" and event[3] == worker)
        ]
        heapq.heapify(self.events)

    def die(self, worker: int, _: object) -> None:
        self.hang(worker, None)
        self.push(self.now + 0.2, "found_dead", worker)

    def found_dead(self, worker: int, _: object) -> None:
        self.scheduler.leave(worker)

    def ideal(self, slices: int) -> float:
        """Returns when so many slices would be done if work could be divided at will, each worker
        busy while it lives.
        """
        changes = sorted(
            change
            for worker, (begin, end) in self.alive.items()
            for change in ((begin, 1 / self.pace[worker]), (end, -1 / self.pace[worker]))
        )
        left, time = float(slices), 0.0
        speed = 0.0
        for moment, change in changes:
            if speed and left <= speed * (moment - time):
                break
            if moment > time:
                left, time = left - speed * (moment - time), moment
            speed += change
        return time + left / speed


def test_a_thousand_workers_of_random_speeds_that_die_hang_and_arrive() -> None:
    simulation, slices = Simulation(0, 1000), 20_000
    for worker in simulation.random.sample(range(1000), 200):
        simulation.push(simulation.random.uniform(0, 12), "die", worker)
    for worker in simulation.random.sample(range(1000), 5):
        simulation.push(simulation.random.uniform(0, 12), "hang", worker)
    for _ in range(200):
        simulation.push(simulation.random.uniform(0, 12), "arrive")
    (end,) = simulation.run(slices)
    assert len(simulation.applied) == slices
    assert set(simulation.applied.values()) == {1}
    assert end <= 1.15 * simulation.ideal(slices)
    assert simulation.scheduler.work.recomputed > 200  # the dead ones' at least
    assert simulation.scheduler.work.dropped > 100  # those that were told twice


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("slow", "slices"), [(4.0, 16), (1000.0, 15)])
def test_rounds_of_few_slices_end_as_early_as_whole_slices_allow(
    seed: int, slow: float, slices: int
) -> None:
    """One of four workers is four times slower, or far too slow: the best that there is are five
    slices' time.
    """
    simulation = Simulation(seed, 4, noise=0.02)
    simulation.pace = {0: 1.0, 1: 1.0, 2: 1.0, 3: slow}
    ends = simulation.run(slices, rounds=20)
    assert set(simulation.applied.values()) == {1}
    assert (ends[-1] - ends[1]) / 18 < 1.05 * 5.0


def test_a_worker_that_was_slow_once_is_tried_again() -> None:
    simulation = Simulation(0, 3, noise=0.0)
    simulation.pace = {0: 1.0, 1: 1.0, 2: 50.0}
    simulation.run(6, rounds=2)
    simulation.pace[2] = 1.0
    ends = simulation.run(6, rounds=100)
    assert ends[-1] - ends[-2] == 2.0  # three workers, two slices each


def test_a_worker_that_hangs_loses_its_slice_to_another() -> None:
    simulation = Simulation(0, 2, noise=0.0)
    simulation.pace = {0: 1.0, 1: 1.0}
    simulation.run(4)
    simulation.push(simulation.now + 0.5, "hang", 1)
    (end,) = simulation.run(4)
    assert end - simulation.now == 0
    assert set(simulation.applied.values()) == {1}
    assert simulation.scheduler.work.recomputed == 1


def test_nothing_is_given_where_nobody_is() -> None:
    scheduler = SliceScheduler(Work())
    scheduler.leave(3)  # it died before it had joined
    scheduler.begin(2)
    assert scheduler.assign(0.0) == []
    scheduler.join(7)
    ((worker, slice_id),) = scheduler.assign(1.0)
    scheduler.leave(worker)
    assert scheduler.assign(2.0) == []
    scheduler.join(8)
    assert scheduler.assign(3.0) == [(8, slice_id)]
    assert scheduler.finished(7, slice_id, 4.0)  # the one that was given up had pushed after all
    assert not scheduler.finished(8, slice_id, 5.0)
