"""Trains on the nodes of a Ray cluster, on fewer nodes after a node dies and on more after a node
joins.

Each number of workers is an attempt. Between attempts, all processes end, and start again from the
last checkpoint. When a node joins, the processes first save, so that no step is lost. When a node
dies, the others cannot continue, and the steps after the last checkpoint are repeated.
"""

import collections
import contextlib
import signal
import time
from collections.abc import Sequence

from jaxdp.cli.exit_codes import EXIT_STOPPED
from jaxdp.config import (
    NON_NEGATIVE,
    POSITIVE,
    REQUIRED,
    Settings,
    TrainConfig,
    setting,
    settings_group,
)
from jaxdp.errors import ConfigError, flag
from jaxdp.launching import launcher, supervisor
from jaxdp.launching.ray_process import LOCKED_SECONDS, NodeLost, RemoteProcess
from jaxdp.launching.supervisor import Restarts, Supervisor, say
from jaxdp.runtime import ray_cluster, ray_connection
from jaxdp.runtime.ray_cluster import ClusterCapacity, HeadLost, Node
from jaxdp.runtime.signals import forwarding

# After a loss, the others may still save if the lost process does. Otherwise they are killed.
_LOST_SECONDS = 5.0
# If one node is lost this often, the node itself is alive, but Ray's process on it dies for lack of
# memory.
_MOST_LOSSES = 3


@settings_group
class RayConfig(Settings):
    """The number of workers that train on a Ray cluster."""

    workers: int = setting(
        REQUIRED,
        "processes to train with, on the nodes that have CPUs and GPUs for them",
        POSITIVE,
    )
    min_workers: int | None = setting(
        None,
        """go on with as few as these when nodes die, and with more again when nodes join: always
        with the largest number that divides the batch (default: as many as --workers; then the run
        waits until all fit)""",
        POSITIVE,
    )
    address: str | None = setting(
        None,
        """cluster to use: auto for the one that this machine belongs to, or HOST:PORT of its head
        (default: one on this machine alone, for this command)""",
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
        """how often to start all again from the last checkpoint after a worker has failed on a
        node that lives; nodes that die or join do not count""",
        NON_NEGATIVE,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fewest > self.workers:
            raise ConfigError(
                "min_workers",
                self.min_workers,
                f"must not be more than {flag('workers')}, which is {self.workers}",
            )

    @property
    def fewest(self) -> int:
        return self.workers if self.min_workers is None else self.min_workers


def check(config: RayConfig, train: TrainConfig) -> None:
    """Checks that the result does not depend on the number of workers, if this number may change.

    Raises:
        ConfigError: if the result depends on it.
    """
    if config.fewest == config.workers:
        return
    size, remedy = train.global_batch_size, f"with {flag('min_workers')} their number changes"
    if not isinstance(size, int):
        raise ConfigError(
            "global_batch_size", size or "", f"{remedy}: give a number, which they divide, e.g. 128"
        )
    if str(train.batch_norm) == "replica":
        raise ConfigError("batch_norm", "replica", f"{remedy}, and the result with it; use group:N")
    if all(size % workers for workers in range(config.fewest, config.workers + 1)):
        raise ConfigError(
            "global_batch_size",
            size,
            f"no number of workers from {config.fewest} to {config.workers} divides it",
        )


def widest(capacity: int, config: RayConfig, train: TrainConfig, devices: int) -> int | None:
    """Returns how many workers train; None if there are too few.

    Args:
        capacity: number of workers that fit on the cluster.
        devices: of each worker.
    """
    if config.fewest == config.workers:
        return config.workers if capacity >= config.workers else None
    size = train.global_batch_size
    parts = devices * train.accumulate_steps
    assert isinstance(size, int)
    widths = range(min(capacity, config.workers), config.fewest - 1, -1)
    return next((width for width in widths if size % (width * parts) == 0), None)


def launch(flags: Sequence[str], config: RayConfig, train: TrainConfig) -> int:
    """Runs `jaxdp.train` on a Ray cluster to its end.

    Args:
        flags: of `jaxdp.train`.
        train: the settings that the flags give.

    Returns:
        as `Supervisor.wait` does.

    Raises:
        ConfigError: if Ray is missing or cannot be reached, or the result would depend on the
            number of workers.
        HeadLost: if the head of the cluster is lost. Workers that train save first.
    """
    check(config, train)
    with ray_connection.connected(config.address, cpus=config.workers * config.cpus_per_worker):
        return _Launch(flags, config, train).run()


class _Launch:
    """The attempts of one run."""

    def __init__(self, flags: Sequence[str], config: RayConfig, train: TrainConfig) -> None:
        self._flags, self._train = flags, train
        self._config = config
        self._capacity = ClusterCapacity(config.cpus_per_worker, config.gpus_per_worker)
        self._signals: list[int] = []
        self._restarts, self._locked_until = Restarts(config.max_restarts), 0.0
        self._losses: collections.Counter[str] = collections.Counter()
        # Of the attempt; whether it ends because more workers fit.
        self._width, self._widens = 0, False
        self._head_lost: HeadLost | None = None

    def run(self) -> int:
        with forwarding(self._signals.append):
            while nodes := self._wait_for_nodes():
                self._width, self._widens = len(nodes), False
                processes = [RemoteProcess(node, self._capacity) for node in nodes]
                attempt = Supervisor(processes, "worker", supervisor.GRACE_SECONDS)
                with contextlib.closing(attempt):
                    self._start(processes, attempt)
                    code = attempt.wait(self._signals, self._watch)
                if self._head_lost is not None:
                    raise self._head_lost
                if not self._starts_again(attempt, code):
                    return code
        return EXIT_STOPPED

    def _fitting(self) -> tuple[dict[Node, int], int]:
        """Returns how many workers fit on each node, and how many train together, or 0 for none."""
        slots = self._capacity.slots()
        devices = self._capacity.gpus or self._train.devices or 1
        return slots, widest(sum(slots.values()), self._config, self._train, devices) or 0

    def _wait_for_nodes(self) -> list[Node]:
        """Returns the node of each worker; none if a signal arrives first."""
        slots, width = self._fitting()
        is_first = not self._width and width == self._config.workers
        if not width:
            needs = f"{self._capacity.cpus} CPUs and {self._capacity.gpus} GPUs"
            fits = f"the cluster can hold {sum(slots.values())} workers with {needs} each"
            say(f"{fits}; waiting until there is for {self._config.fewest}")
        while not width and not self._signals:
            time.sleep(0.5)
            slots, width = self._fitting()
        if self._signals:
            return []
        if not is_first:
            say(f"starting with {width} of {self._config.workers} workers")
        return ray_cluster.place(slots, width)

    def _start(self, processes: Sequence[RemoteProcess], attempt: Supervisor) -> None:
        # Starts all actors first, so that the first process does not wait long for the others.
        addresses = list[str]()
        for index, process in enumerate(processes):
            try:
                addresses.append("{}:{}".format(*process.address()))
            except NodeLost as loss:
                attempt.lose(index, loss)
        if attempt.lost:
            attempt.close()
            return
        group = ["--coordinator", addresses[0], "--num-processes", str(len(processes))]
        for index, process in enumerate(processes):
            process.start([*launcher.TRAIN, *self._flags, *group, "--process-id", str(index)])

    def _watch(self, attempt: Supervisor) -> None:
        """Makes all processes save if more workers fit, or if the head is lost, because Ray would
        then end them soon.
        """
        if attempt.lost:
            attempt.limit(_LOST_SECONDS)
        if self._head_lost is not None:
            return
        try:
            width = self._fitting()[1]
        except HeadLost as error:
            self._head_lost = error
            say(f"{error}; all save")
            attempt.send(signal.SIGTERM)
            attempt.limit(supervisor.GRACE_SECONDS)
            return
        disturbed = self._widens or self._signals or attempt.lost or attempt.failures
        if width > self._width and not disturbed:
            self._widens = True
            say("the cluster can hold more workers; all save and start again")
            attempt.send(signal.SIGTERM)

    def _starts_again(self, attempt: Supervisor, code: int) -> bool:
        if code == 0 or self._signals:
            return False
        if attempt.lost:
            self._locked_until = time.monotonic() + LOCKED_SECONDS
            for node in {each.node for each in attempt.lost if isinstance(each, RemoteProcess)}:
                self._capacity.exclude(node)
                self._losses[node.id] += 1
            # A node that dies comes back as another node.
            return max(self._losses.values()) < _MOST_LOSSES
        if self._widens and code == EXIT_STOPPED:
            return True
        if attempt.locked and time.monotonic() < self._locked_until:
            say("the run folder is still locked by a node that is gone; trying again")
            time.sleep(2)
            return True
        attempt.explain()
        return self._restarts.again("worker", code)
