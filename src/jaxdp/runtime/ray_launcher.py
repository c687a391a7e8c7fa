"""Runs the processes of a training on the nodes of a Ray cluster, on fewer when one dies, and on more when one joins.

Each width is an attempt of its own: all processes end, and start again from the last checkpoint. When a node joins they are asked
to save first, so that no step is lost; when one dies the others cannot go on, and steps after the last checkpoint are repeated.
"""

import dataclasses
import signal
import sys
import time
from collections.abc import Sequence
from typing import Annotated

import tyro

from jaxdp.config import NON_NEGATIVE, POSITIVE, OptionalInt, Settings, TrainConfig
from jaxdp.exit_codes import EXIT_DIVERGED, EXIT_STOPPED, EXIT_USAGE_ERROR
from jaxdp.registry import ConfigError
from jaxdp.runtime import launcher, ray_cluster
from jaxdp.runtime.ray_cluster import Node, Room
from jaxdp.runtime.ray_process import Lost, RemoteProcess

_LOST_SECONDS = 5.0  # after a loss the others may still save, where the lost one does; those that cannot are killed
_JOIN_SECONDS = 2.0  # between looks at what the cluster has; what is there twice is there to stay
_LOCKED_SECONDS = 60.0  # for the file system to notice that the writer of the run folder is gone
_LOCKED = "is being written by"  # run_lock says so

Address = Annotated[str | None, tyro.conf.arg(metavar="auto|HOST:PORT", help_behavior_hint="")]


@dataclasses.dataclass(frozen=True)
class RayConfig(Settings):
    """Flags that choose how many workers train on a Ray cluster, and what each gets."""

    workers: Annotated[int, POSITIVE]
    """processes to train with, wherever the cluster has room"""
    min_workers: Annotated[OptionalInt, POSITIVE] = None
    """go on with as few as these when nodes die, and with more again when nodes join: always with the largest number that divides
    the batch (default: as many as --workers; then the run waits until there is room)"""
    address: Address = None
    """cluster to use: auto for the one that this machine belongs to, or HOST:PORT of its head (default: one on this machine alone,
    for this command)"""
    cpus_per_worker: Annotated[int, POSITIVE] = 1
    """CPUs that Ray sets aside for each worker"""
    gpus_per_worker: Annotated[OptionalInt, NON_NEGATIVE] = None
    """GPUs of each worker (default: 1 where the cluster has any, otherwise 0)"""
    max_restarts: Annotated[int, NON_NEGATIVE] = 0
    """how often to start all again from the last checkpoint after a worker has failed on a node that lives; nodes that die or join
    do not count"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fewest > self.workers:
            raise ConfigError("min_workers", self.min_workers, f"must not be more than --workers, which is {self.workers}")

    @property
    def fewest(self) -> int:
        return self.workers if self.min_workers is None else self.min_workers


def check(config: RayConfig, train: TrainConfig) -> None:
    """Checks that a run gives the same result with any number of workers, where they may come and go.

    Raises:
        ConfigError: if it would not.
    """
    if config.fewest == config.workers:
        return
    size, remedy = train.optimization.global_batch_size, "with --min-workers their number changes"
    if not isinstance(size, int):
        raise ConfigError("global_batch_size", size or "", f"{remedy}: give a number, which they divide, e.g. 128")
    if str(train.model.batch_norm) == "replica":
        raise ConfigError("batch_norm", "replica", f"{remedy}, and the result with it; use group:N")
    if train.sharding.mesh is not None:
        raise ConfigError("mesh", train.sharding.mesh, f"{remedy}, and a mesh is for one number; leave one of them out")
    if all(size % workers for workers in range(config.fewest, config.workers + 1)):
        raise ConfigError("global_batch_size", size, f"no number of workers from {config.fewest} to {config.workers} divides it")


def widest(room: int, config: RayConfig, train: TrainConfig, devices: int) -> int | None:
    """Returns with how many workers to train, None if there are too few.

    Args:
        room: workers that the cluster has room for.
        devices: of each worker.
    """
    if config.fewest == config.workers:
        return config.workers if room >= config.workers else None
    size, parts = train.optimization.global_batch_size, devices * train.optimization.accumulate_steps
    assert isinstance(size, int)
    widths = range(min(room, config.workers), config.fewest - 1, -1)
    return next((width for width in widths if size % (width * parts) == 0), None)


def launch(flags: Sequence[str], config: RayConfig, train: TrainConfig) -> int:
    """Runs `jaxdp.train` on a Ray cluster to its end.

    Args:
        flags: of `jaxdp.train`.
        train: what they say.

    Returns:
        0 if all ended well, otherwise the exit code of the first one that did not; 128 + N if signal N ended it.

    Raises:
        ConfigError: if Ray is missing or cannot be reached, or the run would depend on the number of workers.
    """
    check(config, train)
    with ray_cluster.connected(config.address, cpus=config.workers * config.cpus_per_worker):
        return _Launch(flags, config, train).run()


class _Launch:
    """The attempts of one run."""

    def __init__(self, flags: Sequence[str], config: RayConfig, train: TrainConfig) -> None:
        self._flags, self._config, self._train = flags, config, train
        self._room = Room(config.cpus_per_worker, config.gpus_per_worker)
        self._signals: list[int] = []
        self._restarts = 0
        self._locked_until = 0.0

    def run(self) -> int:
        with launcher.forwarding(self._signals.append):
            while True:
                places = self._wait_for_room()
                if places is None:
                    return EXIT_STOPPED
                attempt = _Attempt(self._flags, places, self._room, self._signals)
                try:
                    code = attempt.wait(self._has_grown(len(places)))
                finally:
                    attempt.close()
                if not self._starts_again(attempt, code):
                    return code

    def _width(self) -> tuple[dict[Node, int], int | None]:
        slots = self._room.slots()
        devices = self._room.gpus or self._train.sharding.devices or 1
        return slots, widest(sum(slots.values()), self._config, self._train, devices)

    def _wait_for_room(self) -> list[Node] | None:
        """Returns the nodes of the workers; None if a signal came first."""
        said = False
        while not self._signals:
            slots, width = self._width()
            if width is not None:
                if said or self._restarts or width < self._config.workers:
                    say(f"starting {width} workers of {self._config.workers}")
                return ray_cluster.place(slots, width, pack=bool(self._room.gpus))
            if not said:
                fewest, room = self._config.fewest, sum(slots.values())
                say(f"the cluster has room for {room} workers; waiting until there is for {fewest}")
                said = True
            time.sleep(0.5)
        return None

    def _has_grown(self, width: int) -> "_Growth":
        return _Growth(self, width)

    def could_be(self) -> int:
        """Returns how many workers there could be now."""
        return self._width()[1] or 0

    def _starts_again(self, attempt: "_Attempt", code: int) -> bool:
        if code == 0 or self._signals:
            return False
        if attempt.lost:
            self._locked_until = time.monotonic() + _LOCKED_SECONDS
            for node in attempt.lost:
                self._room.distrust(node)
            return True
        if attempt.was_widened and code == EXIT_STOPPED:
            return True
        if code == EXIT_USAGE_ERROR and attempt.locked and time.monotonic() < self._locked_until:
            time.sleep(2)
            return True
        if code in (EXIT_USAGE_ERROR, EXIT_DIVERGED, EXIT_STOPPED) or self._restarts == self._config.max_restarts:
            return False
        self._restarts += 1
        say(f"a worker ended with {code}; starting all again ({self._restarts} of at most {self._config.max_restarts})")
        return True


class _Growth:
    """Tells whether the cluster has had room for more workers for a while."""

    def __init__(self, owner: _Launch, width: int) -> None:
        self._owner, self._width, self._looked, self._seen = owner, width, time.monotonic(), width

    def __call__(self) -> bool:
        if time.monotonic() - self._looked < _JOIN_SECONDS:
            return False
        self._looked = time.monotonic()
        before, self._seen = self._seen, self._owner.could_be()
        return min(before, self._seen) > self._width


class _Attempt:
    """The processes of one width.

    Attributes:
        lost: nodes that have died or do not answer.
        locked: whether the folder of the run had another writer.
        was_widened: whether they were asked to save because there could be more.
    """

    def __init__(self, flags: Sequence[str], places: Sequence[Node], room: Room, signals: list[int]) -> None:
        self.lost: list[Node] = []
        self.locked = self.was_widened = False
        self._signals, self._sent, self._failed, self._deadline = signals, 0, 0, float("inf")
        self._processes = [RemoteProcess(node, room) for node in places]
        self._running = dict(enumerate(self._processes))
        try:
            address, port = self._processes[0].address()
        except Lost as loss:
            self._lose(0, loss)
            return
        where = ["--coordinator", f"{address}:{port}", "--num-processes", str(len(places))]
        for index, process in enumerate(self._processes):
            process.start(["-m", "jaxdp.train", *flags, *where, "--process-id", str(index)])

    def wait(self, has_grown: _Growth) -> int:
        """Waits until all have ended, and returns the exit code of the run."""
        if self.lost:
            return 1
        codes = [0]
        while self._running:
            time.sleep(0.1)
            for index, process in [*self._running.items()]:
                try:
                    code = process.poll()
                except Lost as loss:
                    self._lose(index, loss)
                    continue
                self._show(index, process)
                if code is not None:
                    del self._running[index]
                    codes.append(code)
                    if code not in (0, EXIT_STOPPED) and not self._failed:
                        self._failed = code
                        self._deadline = min(self._deadline, time.monotonic() + launcher.GRACE_SECONDS)
            self._pass_signals_on(has_grown)
            if time.monotonic() > self._deadline:
                self._send(signal.SIGKILL)
        code = self._failed or max(codes) or int(bool(self.lost))
        return code if code >= 0 else 128 - code

    def _lose(self, index: int, loss: Lost) -> None:
        process = self._running.pop(index)
        if process.node not in self.lost:
            self.lost.append(process.node)
            say(f"node {process.node.address} of worker {index} {loss}")
        process.close()
        self._deadline = min(self._deadline, time.monotonic() + _LOST_SECONDS)

    def _pass_signals_on(self, has_grown: _Growth) -> None:
        for number in self._signals[self._sent :]:
            self._send(number)
            self._sent += 1
        if not (self.was_widened or self._sent or self.lost or self._failed) and has_grown():
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
            print(f"{prefix}{line}", end="", file=sys.stderr if is_error else sys.stdout, flush=True)

    def close(self) -> None:
        for process in self._running.values():
            process.close()


def say(message: str) -> None:
    """Prints a message of the launcher on standard error."""
    print(f"jaxdp.launch: {message}", file=sys.stderr, flush=True)
