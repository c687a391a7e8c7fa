"""Runs the cells of a sweep on the nodes of a Ray cluster.

One whose node dies goes on elsewhere, after its last checkpoint.
"""

import collections
import contextlib
import pathlib
import time

from jaxdp.exit_codes import EXIT_STOPPED, EXIT_USAGE_ERROR
from jaxdp.runtime import launcher
from jaxdp.runtime.ray_cluster import Node, Room
from jaxdp.runtime.ray_process import Lost, RemoteProcess
from jaxdp.tools import sweep_runs

_LOCKED_SECONDS = 180.0  # for the writer that is gone to lose its lock: NFS takes 90 s to notice
_LOCKED = b"is being written by"  # rundir.lock says so


class OnRay:
    """Places for runs on a cluster, to which this process is connected.

    Args:
        at_a_time: runs at once; None for as many as there is room for.
        room: what each gets.
    """

    def __init__(self, at_a_time: int | None, room: Room) -> None:
        self._at_a_time, self.room = at_a_time, room
        self._runs: list[_MovingRun] = []

    def has_room(self) -> bool:
        """Whether another run may start now."""
        self._runs = [run for run in self._runs if not run.ended]
        slots = sum(self.room.slots().values())
        return len(self._runs) < min(slots, self._at_a_time or slots)

    def start(self, folder: pathlib.Path) -> "sweep_runs.Process":
        """Starts the run in a folder."""
        self._runs.append(_MovingRun(self, folder))
        return self._runs[-1]

    def free_node(self) -> Node | None:
        """Returns the node with most room, None if there is none."""
        free = collections.Counter(self.room.slots())
        free.subtract(
            run.process.node for run in self._runs if run.process is not None and not run.ended
        )
        node, slots = max(free.items(), key=lambda each: each[1], default=(None, 0))
        return node if slots > 0 else None

    def wait_until_saved(self) -> None:
        """Waits for all runs, which were told to stop, to end.

        Without the head Ray ends them a minute later.
        """
        deadline = time.monotonic() + launcher.GRACE_SECONDS
        for run in self._runs:
            run.wait(deadline)


class _MovingRun:
    """A run that goes on elsewhere when its node dies.

    Attributes:
        process: on its present node; None while there is no room.
        ended: whether it has come to an end.
    """

    def __init__(self, place: OnRay, folder: pathlib.Path) -> None:
        self._place, self._folder = place, folder
        self.process: RemoteProcess | None = None
        self.ended = False
        self._stopped = False
        self._not_before = self._locked_until = 0.0
        self._log_start = 0

    def poll(self) -> int | None:
        """Returns the exit code, None while it runs or waits for a node.

        Raises:
            HeadLost: if the head of the cluster does not answer.
        """
        # A run goes on without it, but not for long, and nothing that is lost shows.
        self._place.room.head.check()
        code = self._poll()
        self.ended = code is not None
        return code

    def _poll(self) -> int | None:
        if self.process is None:
            return EXIT_STOPPED if self._stopped else self._begin()
        try:
            code = self.process.poll()
        except Lost as loss:
            sweep_runs.say(
                f"{self._folder.name}: node {self.process.node.address} {loss}; goes on elsewhere"
            )
            self._place.room.distrust(self.process.node)
            self._locked_until = time.monotonic() + _LOCKED_SECONDS
            self._leave()
            return None
        if code == EXIT_USAGE_ERROR and time.monotonic() < self._locked_until and self._is_locked():
            self._leave()
            self._not_before = time.monotonic() + 2
            return None
        return code

    def _begin(self) -> None:
        may = time.monotonic() >= self._not_before and self._place.room.head.answers
        node = self._place.free_node() if may else None
        if node is not None:
            log = sweep_runs.log_file(self._folder)
            self._log_start = log.stat().st_size if log.is_file() else 0
            self.process = RemoteProcess(node, self._place.room)
            self.process.start(sweep_runs.train_arguments(self._folder), log)

    def _leave(self) -> None:
        assert self.process is not None
        self.process.close()
        self.process = None

    def _is_locked(self) -> bool:
        return _LOCKED in sweep_runs.log_file(self._folder).read_bytes()[self._log_start :]

    def send_signal(self, sig: int, /) -> None:
        """Sends a signal to the process; a run that waits for a node ends as stopped."""
        self._stopped = True
        if self.process is not None:
            self.process.send_signal(sig)

    def wait(self, deadline: float) -> None:
        """Waits until the process has ended, or cannot be reached, or it is too late by the
        monotonic clock.
        """
        with contextlib.suppress(Lost):
            while (
                self.process is not None
                and self.process.poll() is None
                and time.monotonic() < deadline
            ):
                time.sleep(0.1)
