"""The workers as the driver sees them: starts them, gives them jobs, and replaces those that are
lost.
"""

import dataclasses
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxdp.exchange.plan import Ticket
from jaxdp.exchange.worker import Job, Refusal, Task, Worker
from jaxdp.registry import ConfigError
from jaxdp.runtime.ray_cluster import Head

_FIRST_WORKER_SECONDS = 300.0  # in which one worker must have started
_TOGETHER_SECONDS = 20.0  # how long the first worker waits for the others to begin with it
_NEWS_SECONDS = 0.05  # how often idle workers are thought of again
# After which an idle worker is asked whether it lives: of one that has no call Ray says nothing.
_IDLE_SECONDS = 1.0


class WorkersLost(OSError):
    """There are no workers, and there is no use in starting more."""


@dataclasses.dataclass(frozen=True)
class Joined:
    """A worker is ready."""

    worker: int


@dataclasses.dataclass(frozen=True)
class Lost:
    """A worker's process or machine has died, and with it the slice that it was computing."""

    worker: int
    ticket: Ticket | None


@dataclasses.dataclass(frozen=True)
class Unserved:
    """A worker could not read the parameters: whoever held them has died."""

    worker: int
    ticket: Ticket


@dataclasses.dataclass(frozen=True)
class Finished:
    """A worker has computed a slice.

    Attributes:
        found: what there is to know about it.
        arrays: the leaves of what it has computed, in a list; with servers a reference for each of
            them.
    """

    worker: int
    ticket: Ticket
    found: dict[str, Any]
    arrays: list[Any]


@dataclasses.dataclass
class _Process:
    place: int
    actor: Any
    ticket: Ticket | None
    refs: list[Any]  # of its call; none while it is idle
    idle_since: float = 0.0
    version: int = -1  # of the parameters that it has
    asked: Any = None  # the call that asks whether it lives
    asked_at: float = 0.0


@dataclasses.dataclass
class Since:
    """What happened since the last row of metrics."""

    slices: Counter[int] = dataclasses.field(default_factory=Counter[int])  # by place
    waiting_seconds: float = 0.0
    moved_bytes: int = 0


class Pool:
    """So many workers, each in a process of its own.

    Args:
        ray: the module, connected.
        task: what all workers do.
        count: how many there should be.
        head: of a cluster that may lose it.

    Attributes:
        since: what happened since somebody set it anew.
        read_bytes: of what workers compute with.
        changes: joined and lost workers since somebody emptied it, as (event, facts); `seconds` is
            when, as below.
    """

    def __init__(self, ray: Any, task: Task, count: int, head: Head | None = None) -> None:
        self._ray, self._task, self.count, self._head = ray, task, count, head
        self._returns = 1 + (max(task.owners) + 1 if task.owners else 1)
        self._workers: dict[int, _Process] = {}
        self._ready: set[int] = set()
        self._numbers = 0
        self._opened = time.monotonic()
        self._in_a_row, self._begun = 0, self._opened  # losses since a result
        # Until the workers begin.
        self._early: list[Joined | Lost | Unserved | Finished] | None = []
        self._first_ready = 0.0
        self.read_bytes = 0
        self.since, self.changes = Since(), list[tuple[str, dict[str, Any]]]()
        self._shared = ray.put(task)
        for place in range(count):
            self._start(place)

    @property
    def ready(self) -> int:
        """How many workers can compute."""
        return len(self._ready)

    @property
    def seconds(self) -> float:
        """Seconds since the first workers were started."""
        return round(time.monotonic() - self._opened, 3)

    def put(self, values: Sequence[np.ndarray | None]) -> Any:
        """Makes arrays available to the workers, and returns a reference."""
        self.read_bytes = sum(value.nbytes for value in values if value is not None)
        return self._ray.put(list(values))

    def _start(self, place: int) -> None:
        actor = (
            self._ray.remote(Worker).options(num_cpus=1, max_restarts=0).remote(self._shared, place)
        )
        self._workers[self._numbers] = _Process(place, actor, None, [actor.prepare.remote()])
        self._numbers += 1

    def submit(self, worker: int, ticket: Ticket, job: Job) -> None:
        """Gives a job to an idle worker."""
        process = self._workers[worker]
        assert not process.refs
        self.since.waiting_seconds += time.monotonic() - process.idle_since
        process.ticket, process.refs = (
            ticket,
            process.actor.run.options(num_returns=self._returns).remote(job),
        )
        if process.version != job.version:
            process.version = job.version
            self.since.moved_bytes += self.read_bytes

    def poll(self) -> list[Joined | Lost | Unserved | Finished]:
        """Waits a moment for news of the workers.

        Raises:
            ConfigError: what a worker says about settings or an example.
            WorkersLost: if workers die again and again without having done anything, or none can be
                started.
            HeadLost: if the head of the cluster does not answer.
        """
        if self._head is not None:
            self._head.check()
        # The arrays come last: what is waited for is here as a whole, and nobody who is cut off
        # while sending it is waited for.
        which = 0 if self._task.owners else -1
        pending = {
            process.refs[which]: worker for worker, process in self._workers.items() if process.refs
        }
        asked = self._ask_idle()
        refs = [*pending, *asked]
        done, _ = self._ray.wait(refs, num_returns=1, timeout=_NEWS_SECONDS)
        if done:
            done, _ = self._ray.wait(refs, num_returns=len(refs), timeout=0)
        elif not self._ready and time.monotonic() - self._begun > _FIRST_WORKER_SECONDS:
            free = self._ray.available_resources().get("CPU", 0)
            raise WorkersLost(
                f"no worker has started within {_FIRST_WORKER_SECONDS:.0f} s; Ray has {free:g} free"
                " CPUs"
            )
        news = [self._read(pending[ref], ref) for ref in done if ref in pending]
        news += [lost for ref in done if ref in asked and (lost := self._answered(asked[ref], ref))]
        if self._early is None:
            return news
        self._early += news
        if not self._ready or (
            self.ready < self.count and time.monotonic() - self._first_ready < _TOGETHER_SECONDS
        ):
            return []
        news, self._early = self._early, None
        return news

    def _ask_idle(self) -> dict[Any, int]:
        """Returns the calls under way that ask idle workers whether they live."""
        now = time.monotonic()
        for process in self._workers.values():
            if (
                not process.refs
                and process.asked is None
                and now - max(process.idle_since, process.asked_at) > _IDLE_SECONDS
            ):
                process.asked, process.asked_at = process.actor.alive.remote(), now
        return {
            process.asked: worker
            for worker, process in self._workers.items()
            if process.asked is not None
        }

    def _answered(self, worker: int, ref: Any) -> Lost | None:
        if worker not in self._workers:  # its slice has told already
            return None
        self._workers[worker].asked = None
        try:
            self._ray.get(ref)
        except self._ray.exceptions.RayError as error:
            return self._lost(worker, error)
        return None

    def _read(self, worker: int, ref: Any) -> Joined | Lost | Unserved | Finished:
        process = self._workers[worker]
        try:
            found, *arrays = (
                self._ray.get(process.refs)
                if not self._task.owners
                else (self._ray.get(ref), *process.refs[1:])
            )
        except self._ray.exceptions.RayTaskError as error:
            if not isinstance(error.cause, self._ray.exceptions.RayError) or process.ticket is None:
                raise error.cause from error
            process.idle_since, ticket = time.monotonic(), process.ticket
            process.refs, process.ticket = [], None
            return Unserved(worker, ticket)
        except self._ray.exceptions.RayError as error:
            return self._lost(worker, error)
        if isinstance(found, Refusal):
            raise ConfigError(found.field, found.value, found.remedy)
        process.idle_since, ticket = time.monotonic(), process.ticket
        process.refs, process.ticket = [], None
        if ticket is None:
            if not self._ready:
                self._first_ready = time.monotonic()
            self._ready.add(worker)
            self._note("worker joined", process, **found)
            return Joined(worker)
        self._in_a_row = 0
        self.since.slices[process.place] += 1
        self.since.moved_bytes += found.pop("bytes")
        return Finished(worker, ticket, found, arrays)

    def _lost(self, worker: int, error: Exception) -> Lost:
        process = self._workers.pop(worker)
        self._ready.discard(worker)
        self._ray.kill(process.actor)  # in case it can only not be reached
        self._in_a_row, self._begun = self._in_a_row + 1, time.monotonic()
        if self._in_a_row > 2 * self.count:
            said = " ".join(str(error).split())[:500]
            raise WorkersLost(
                f"{self._in_a_row} workers in a row died before they had done anything; the last"
                f" one: {said}"
            )
        self._note("worker lost", process, reason=type(error).__name__)
        self._start(process.place)
        return Lost(worker, process.ticket)

    def _note(self, event: str, process: _Process, **facts: Any) -> None:
        self.changes.append((event, {"seconds": self.seconds, "worker": process.place, **facts}))

    def close(self) -> None:
        """Ends all workers."""
        if self._head is not None:
            self._head.close()
        for process in self._workers.values():
            self._ray.kill(process.actor)
        self._workers.clear()
