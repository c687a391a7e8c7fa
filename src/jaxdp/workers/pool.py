"""Starts the workers of a run, assigns jobs to them, and replaces lost workers."""

import dataclasses
import time
from typing import Any

import jax
import numpy as np

from jaxdp.runtime.ray_cluster import Head
from jaxdp.runtime.running_time import running_seconds
from jaxdp.text.messages import one_line
from jaxdp.workers.actor import launch, result_of
from jaxdp.workers.scheduler import SliceId, Work
from jaxdp.workers.worker import Job, SliceResult, WorkerSpec

_WORKER = "jaxdp.workers.worker:Worker"
_FIRST_WORKER_SECONDS = 300.0  # in which one worker must have started
_TOGETHER_SECONDS = 20.0  # how long the first worker waits for the others before it starts
_POLL_SECONDS = 0.05  # how often idle workers are reconsidered


class WorkersLost(OSError):
    """There are no workers, and starting workers would not help."""


@dataclasses.dataclass(frozen=True)
class Joined:
    """A worker is ready."""

    worker: int


@dataclasses.dataclass(frozen=True)
class Lost:
    """A worker's process or machine has died, and its current slice is lost."""

    worker: int
    slice_id: SliceId | None


@dataclasses.dataclass(frozen=True)
class Finished:
    """A worker has computed a slice."""

    worker: int
    slice_id: SliceId
    result: SliceResult


@dataclasses.dataclass
class _Member:
    place: int
    actor: Any
    call: Any  # reference to the result of its call; None while it is idle
    slice_id: SliceId | None = None
    joined: bool = False
    idle_since: float = 0.0
    version: int = -1  # version of its parameters


class Pool:
    """Workers, each in its own process.

    Args:
        ray: the module, connected.
        spec: the settings that all workers share.
        count: number of workers.
        work: counts the work of the workers.
        head: head for a cluster that may lose it.

    Attributes:
        count: number of workers, including workers that are starting.
        read_bytes: bytes of the parameters that a worker reads.
        changes: joined and lost workers, as (event, facts). The caller empties the list.
    """

    def __init__(
        self,
        ray: Any,
        spec: WorkerSpec,
        count: int,
        work: Work,
        head: Head | None,
    ) -> None:
        self._ray = ray
        self.count = count
        self._work = work
        self._head = head
        self._precision = spec.config.precision
        self._members: dict[int, _Member] = {}
        self._opened, self._waits_since = time.monotonic(), running_seconds()
        self._losses = 0  # since a result
        self._begun = False
        self._started = 0
        self.read_bytes = 0
        self.changes: list[tuple[str, dict[str, Any]]] = []
        self._spec = ray.put(spec)
        for place in range(count):
            self._start(place)

    @property
    def ready(self) -> int:
        """The number of workers that can compute."""
        return sum(member.joined for member in self._members.values())

    @property
    def seconds(self) -> float:
        """Seconds since the first workers were started."""
        return round(time.monotonic() - self._opened, 3)

    def note(self, event: str, **facts: Any) -> None:
        """Records a change of workers, and its time."""
        self.changes.append((event, {"seconds": self.seconds, **facts}))

    def _start(self, place: int) -> None:
        actor, started = launch(
            self._ray, _WORKER, self._precision, self._spec, place, num_cpus=1, max_restarts=0
        )
        self._members[self._started] = _Member(place, actor, started)
        self._started += 1

    def put(self, leaves: list[np.ndarray]) -> Any:
        """Returns a reference to arrays, which workers read from this process for their next
        jobs.
        """
        self.read_bytes = sum(leaf.nbytes for leaf in leaves)
        return self._ray.put(leaves)

    def submit(self, worker: int, slice_id: SliceId, job: Job) -> None:
        """Assigns a job to an idle worker."""
        member = self._members[worker]
        assert member.call is None
        self._work.waiting_seconds += time.monotonic() - member.idle_since
        member.slice_id = slice_id
        member.call = member.actor.call.remote("run", job)
        if member.version != job.version:
            member.version = job.version
            self._work.moved_bytes += self.read_bytes

    def poll(self) -> list[Joined | Lost | Finished]:
        """Waits briefly for events of the workers. The first worker waits longer for the others.

        Raises:
            ConfigError: the error of a worker about settings or an example.
            WorkersLost: if workers die repeatedly without any result, or if no worker can be
                started.
            HeadLost: if the head of the cluster does not answer.
        """
        if self._head is not None:
            self._head.check()
        calls = {
            member.call: worker
            for worker, member in self._members.items()
            if member.call is not None
        }
        refs = [*calls]
        done, _ = self._ray.wait(refs, num_returns=1, timeout=_POLL_SECONDS)
        if done:
            seconds = 0 if self._begun else _TOGETHER_SECONDS
            done, _ = self._ray.wait(refs, num_returns=len(refs), timeout=seconds)
            self._begun = True
        elif not self.ready and running_seconds() - self._waits_since > _FIRST_WORKER_SECONDS:
            free = self._ray.available_resources().get("CPU", 0)
            raise WorkersLost(
                f"no worker has started within {_FIRST_WORKER_SECONDS:.0f} s; Ray has {free:g} free"
                " CPUs"
            )
        news: list[Joined | Lost | Finished] = []
        for ref in done:
            try:
                news.append(self._read(calls[ref]))
            except self._ray.exceptions.RayError as error:
                news.append(self._lost(calls[ref], error))
        return news

    def _read(self, worker: int) -> Joined | Finished:
        """Returns the result of a worker's call."""
        member = self._members[worker]
        result = result_of(self._ray, member.call)
        member.idle_since = time.monotonic()
        member.call = None
        if member.slice_id is None:
            member.joined = True
            self.note("worker joined", worker=member.place, **result)
            return Joined(worker)
        self._losses = 0
        self._work.slices[member.place] += 1
        grads, *_ = result.means
        self._work.moved_bytes += sum(leaf.nbytes for leaf in jax.tree.leaves(grads))
        return Finished(worker, member.slice_id, result)

    def _lost(self, worker: int, error: Exception) -> Lost:
        member = self._members.pop(worker)
        self._ray.kill(member.actor)  # in case it is only unreachable
        self._losses, self._waits_since = self._losses + 1, running_seconds()
        if self._losses > 2 * self.count:
            raise WorkersLost(
                f"{self._losses} workers in a row died before they had done anything; the last one:"
                f" {one_line(error)[:500]}"
            )
        self.note("worker lost", worker=member.place, reason=type(error).__name__)
        self._start(member.place)
        return Lost(worker, member.slice_id)

    def close(self) -> None:
        """Ends all workers."""
        if self._head is not None:
            self._head.close()
        for member in self._members.values():
            self._ray.kill(member.actor)
        self._members.clear()
