"""Runs the processes of a training on the nodes of a Ray cluster, on fewer when one dies, and on
more when one joins.

Each width is an attempt of its own: all processes end, and start again from the last checkpoint.
When a node joins they are asked to save first, so that no step is lost; when one dies the others
cannot go on, and steps after the last checkpoint are repeated.
"""

import collections
import dataclasses
import signal
import sys
import time
from collections.abc import Callable, Sequence

from jaxdp.config import NON_NEGATIVE, POSITIVE, REQUIRED, Settings, TrainConfig, setting
from jaxdp.exit_codes import EXIT_DIVERGED, EXIT_STOPPED, EXIT_USAGE_ERROR
from jaxdp.registry import ConfigError
from jaxdp.runtime import launcher, ray_cluster
from jaxdp.runtime.ray_cluster import HeadLost, Node, Room
from jaxdp.runtime.ray_process import Lost, RemoteProcess

# After a loss the others may still save, where the lost one does; those that cannot are killed.
_LOST_SECONDS = 5.0
# Of one node: then it is not the node that dies, but Ray's process on it, of too little memory for
# one.
_MOST_LOSSES = 3
_JOIN_SECONDS = 2.0  # between looks at what the cluster has; what is there twice is there to stay
_LOCKED_SECONDS = 180.0  # for the writer that is gone to lose its lock: NFS takes 90 s to notice
_LOCKED = "is being written by"  # rundir.lock says so


@dataclasses.dataclass(frozen=True, kw_only=True)
class RayConfig(Settings):
    """Flags that choose how many workers train on a Ray cluster."""

    workers: int = setting(
        REQUIRED,
        "processes to train with, wherever the cluster has room",
        POSITIVE,
    )
    min_workers: int | None = setting(
        None,
        "go on with as few as these when nodes die, and with more again when nodes join: "
        "always with the largest number that divides the batch (default: as many as "
        "--workers; then the run waits until there is room)",
        POSITIVE,
    )
    address: str | None = setting(
        None,
        "cluster to use: auto for the one that this machine belongs to, or HOST:PORT of its "
        "head (default: one on this machine alone, for this command)",
        metavar="auto|HOST:PORT",
    )
    cpus_per_worker: int = setting(
        1,
        "CPUs that Ray sets aside for each worker",
        POSITIVE,
    )
    gpus_per_worker: int | None = setting(
        None,
        "GPUs of each worker (default: 1 where the cluster has any, otherwise 0)",
        NON_NEGATIVE,
    )
    max_restarts: int = setting(
        0,
        "how often to start all again from the last checkpoint after a worker has failed on "
        "a node that lives; nodes that die or join do not count",
        NON_NEGATIVE,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fewest > self.workers:
            raise ConfigError(
                "min_workers",
                self.min_workers,
                f"must not be more than --workers, which is {self.workers}",
            )

    @property
    def fewest(self) -> int:
        return self.workers if self.min_workers is None else self.min_workers


def check(config: RayConfig, train: TrainConfig) -> None:
    """Checks that a run gives the same result with any number of workers, where they may come and
    go.

    Raises:
        ConfigError: if it would not.
    """
    if config.fewest == config.workers:
        return
    size, remedy = train.global_batch_size, "with --min-workers their number changes"
    if not isinstance(size, int):
        raise ConfigError(
            "global_batch_size", size or "", f"{remedy}: give a number, which they divide, e.g. 128"
        )
    if str(train.batch_norm) == "replica":
        raise ConfigError("batch_norm", "replica", f"{remedy}, and the result with it; use group:N")
    if train.mesh is not None:
        raise ConfigError(
            "mesh",
            train.mesh,
            f"{remedy}, and a mesh is for one number; leave one of them out",
        )
    if all(size % workers for workers in range(config.fewest, config.workers + 1)):
        raise ConfigError(
            "global_batch_size",
            size,
            f"no number of workers from {config.fewest} to {config.workers} divides it",
        )


def widest(room: int, config: RayConfig, train: TrainConfig, devices: int) -> int | None:
    """Returns with how many workers to train, None if there are too few.

    Args:
        room: workers that the cluster has room for.
        devices: of each worker.
    """
    if config.fewest == config.workers:
        return config.workers if room >= config.workers else None
    size, parts = (
        train.global_batch_size,
        devices * train.accumulate_steps,
    )
    assert isinstance(size, int)
    widths = range(min(room, config.workers), config.fewest - 1, -1)
    return next((width for width in widths if size % (width * parts) == 0), None)


def launch(flags: Sequence[str], config: RayConfig, train: TrainConfig) -> int:
    """Runs `jaxdp.train` on a Ray cluster to its end.

    Args:
        flags: of `jaxdp.train`.
        train: what they say.

    Returns:
        0 if all ended well, otherwise the exit code of the first one that did not; 128 + N if
        signal N ended it.

    Raises:
        ConfigError: if Ray is missing or cannot be reached, or the run would depend on the number
            of workers.
    """
    check(config, train)
    with ray_cluster.connected(
        config.address, "jaxdp.launch", cpus=config.workers * config.cpus_per_worker
    ):
        return _Launch(flags, config, train).run()


class _Launch:
    """The attempts of one run."""

    def __init__(self, flags: Sequence[str], config: RayConfig, train: TrainConfig) -> None:
        self._flags, self._config, self._train = flags, config, train
        self._room = Room(config.cpus_per_worker, config.gpus_per_worker)
        self._signals: list[int] = []
        self._attempts = self._restarts = 0
        self._locked_until = 0.0
        self._losses: collections.Counter[str] = collections.Counter()

    def run(self) -> int:
        with launcher.forwarding(self._signals.append):
            while True:
                places = self._wait_for_room()
                if places is None:
                    return EXIT_STOPPED
                self._attempts += 1
                attempt = _Attempt(self._flags, places, self._room, self._signals)
                try:
                    code = attempt.wait(lambda: self._width()[1] or 0)
                finally:
                    attempt.close()
                if not self._starts_again(attempt, code):
                    return code

    def _width(self) -> tuple[dict[Node, int], int | None]:
        slots = self._room.slots()
        devices = self._room.gpus or self._train.devices or 1
        return slots, widest(sum(slots.values()), self._config, self._train, devices)

    def _wait_for_room(self) -> list[Node] | None:
        """Returns the nodes of the workers; None if a signal came first."""
        said = False
        while not self._signals:
            slots, width = self._width()
            if width is not None:
                if said or self._attempts or width < self._config.workers:
                    say(f"starting with {width} of {self._config.workers} workers")
                return ray_cluster.place(slots, width, pack=bool(self._room.gpus))
            if not said:
                say(
                    f"the cluster has room for {self._room.text(slots)}; waiting until there is for"
                    f" {self._config.fewest}"
                )
                said = True
            time.sleep(0.5)
        return None

    def _starts_again(self, attempt: "_Attempt", code: int) -> bool:
        if code == 0 or self._signals:
            return False
        if attempt.lost:
            self._locked_until = time.monotonic() + _LOCKED_SECONDS
            for node in attempt.lost:
                self._room.distrust(node)
            self._losses.update(node.id for node in attempt.lost)
            # A node that dies comes back as another.
            return max(self._losses.values()) < _MOST_LOSSES
        if attempt.was_widened and code == EXIT_STOPPED:
            return True
        if code == EXIT_USAGE_ERROR and attempt.locked and time.monotonic() < self._locked_until:
            say("the run folder is still locked by a node that is gone; trying again")
            time.sleep(2)
            return True
        if (
            code in (EXIT_USAGE_ERROR, EXIT_DIVERGED, EXIT_STOPPED)
            or self._restarts == self._config.max_restarts
        ):
            return False
        self._restarts += 1
        say(
            f"a worker ended with {code}; starting all again ({self._restarts} of at most"
            f" {self._config.max_restarts})"
        )
        return True


class _Attempt:
    """The processes of one width.

    Attributes:
        lost: nodes that have died or do not answer.
        locked: whether the folder of the run had another writer.
        was_widened: whether they were asked to save because there could be more.
    """

    def __init__(
        self, flags: Sequence[str], places: Sequence[Node], room: Room, signals: list[int]
    ) -> None:
        self.lost: list[Node] = []
        self.locked = self.was_widened = False
        self._head_lost: HeadLost | None = None
        self._codes: list[int] = []
        self._looked, self._seen = 0.0, 0  # when, and how many workers there could be then
        self._signals, self._sent, self._failed, self._deadline = signals, 0, 0, float("inf")
        self._processes = [RemoteProcess(node, room) for node in places]
        self._running = dict(enumerate(self._processes))
        addresses: list[tuple[str, int]] = []
        for index, process in enumerate(
            self._processes
        ):  # until all are there: what starts first does not wait long for the others
            try:
                addresses.append(process.address())
            except Lost as loss:
                self._lose(index, loss)
        if self.lost:
            self.close()
            return
        where = [
            "--coordinator",
            "{}:{}".format(*addresses[0]),
            "--num-processes",
            str(len(places)),
        ]
        for index, process in enumerate(self._processes):
            process.start(["-m", "jaxdp.train", *flags, *where, "--process-id", str(index)])

    def wait(self, could_be: Callable[[], int]) -> int:
        """Waits until all have ended, and returns the exit code of the run.

        Args:
            could_be: returns how many workers there could be now.

        Raises:
            HeadLost: once they have saved, where the head of the cluster has died.
        """
        while self._running:
            time.sleep(0.1)
            for index, process in [*self._running.items()]:
                self._poll(index, process)
            self._pass_signals_on()
            self._look_at_cluster(could_be)
            if time.monotonic() > self._deadline:
                self._send(signal.SIGKILL)
                if self._head_lost is not None:
                    break
        if self._head_lost is not None:
            raise self._head_lost
        code = self._failed or max(self._codes, default=0) or int(bool(self.lost))
        return code if code >= 0 else 128 - code

    def _poll(self, index: int, process: RemoteProcess) -> None:
        try:
            code = process.poll()
        except Lost as loss:
            self._lose(index, loss)
            return
        self._show(index, process)
        if code is not None:
            del self._running[index]
            self._codes.append(code)
            if code not in (0, EXIT_STOPPED) and not self._failed:
                self._failed = code
                self._deadline = min(self._deadline, time.monotonic() + launcher.GRACE_SECONDS)

    def _lose(self, index: int, loss: Lost) -> None:
        process = self._running.pop(index)
        if process.node not in self.lost:
            self.lost.append(process.node)
            say(f"node {process.node.address} of worker {index} {loss}")
        process.close()
        self._deadline = min(self._deadline, time.monotonic() + _LOST_SECONDS)

    def _pass_signals_on(self) -> None:
        for number in self._signals[self._sent :]:
            self._send(number)
            self._sent += 1

    def _look_at_cluster(self, could_be: Callable[[], int]) -> None:
        """Has all save if there could be more of them, or if the head is gone, without which Ray
        ends them a minute later.
        """
        if self._head_lost is not None or time.monotonic() - self._looked < _JOIN_SECONDS:
            return
        self._looked = time.monotonic()
        try:
            before, self._seen = self._seen, could_be()
        except HeadLost as error:
            self._head_lost = error
            say(f"{error}; all save")
            self._send(signal.SIGTERM)
            self._deadline = min(self._deadline, time.monotonic() + launcher.GRACE_SECONDS)
            return
        if min(before, self._seen) > len(self._processes) and not (
            self.was_widened or self._sent or self.lost or self._failed
        ):
            self.was_widened = True
            say("the cluster has room for more workers; all save and start again")
            self._send(signal.SIGTERM)

    def _send(self, number: int) -> None:
        for process in self._running.values():
            process.send_signal(number)

    def _show(self, index: int, process: RemoteProcess) -> None:
        for is_error, line in process.lines():
            self.locked |= _LOCKED in line
            prefix = f"[{index}] " if is_error or index else ""
            print(
                f"{prefix}{line}", end="", file=sys.stderr if is_error else sys.stdout, flush=True
            )

    def close(self) -> None:
        """Gives back what the processes have; those that run save if they can."""
        while self._running:
            self._running.popitem()[1].close()


def say(message: str) -> None:
    """Prints a message of the launcher on standard error."""
    print(f"jaxdp.launch: {message}", file=sys.stderr, flush=True)
