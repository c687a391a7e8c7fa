"""Tells what the nodes of a Ray cluster have room for, and that its head is lost."""

import contextlib
import dataclasses
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from jaxdp.runtime import ray_connection
from jaxdp.runtime.ray_connection import HeadLost

# What is cut off says nothing; Ray by itself takes over a minute to declare it dead. One answer
# takes milliseconds.
SILENCE_SECONDS = 8.0
_WATCH_SECONDS = 1.0  # between looks at the nodes
_MOMENT_SECONDS = 3.0
_AGAIN_SECONDS = 120.0  # before a node that did not answer is trusted again


@dataclasses.dataclass(frozen=True)
class Node:
    """A machine of a cluster, as Ray tells it.

    Attributes:
        cpus: how many Ray gives out.
        gpus: how many Ray gives out.
        kind: of its GPUs; empty without.
    """

    id: str
    address: str
    host: str
    alive: bool
    cpus: float
    gpus: float
    memory_bytes: float
    kind: str

    def slots(self, cpus: int, gpus: int) -> int:
        """Returns how many processes with so many CPUs and GPUs have room."""
        return int(min(self.cpus // cpus, self.gpus // gpus if gpus else float("inf")))


@contextlib.contextmanager
def connected(address: str | None, prog: str, *, cpus: int = 0) -> Iterator[None]:
    """Connects to a cluster until the block ends.

    If the head is lost meanwhile, the process ends with 1, and a line that says so.

    Args:
        address: HOST:PORT of its head node, or auto for the one that runs on this machine; None to
            start one here.
        prog: the command, for that line.
        cpus: that a new cluster has at least.

    Raises:
        ConfigError: if Ray is missing, or the cluster cannot be reached.
    """
    with ray_connection.connected(address, cpus=cpus):
        try:
            yield
        except HeadLost as error:
            # Ray would try for a minute to say goodbye, and then abort.
            print(
                f"{prog}: error: {error}; start the cluster again, and the same command continues",
                file=sys.stderr,
                flush=True,
            )
            os._exit(1)


def import_ray() -> Any:
    """Returns the module, to be imported once it is needed, since that takes a second."""
    import ray

    return ray


def nodes() -> list[Node]:
    """Returns the nodes of the cluster, those that have died included."""
    found = []
    for row in import_ray().nodes():
        resources = row["Resources"]
        kind = next(
            (name.partition(":")[2] for name in resources if name.startswith("accelerator_type:")),
            "",
        )
        found.append(
            Node(
                row["NodeID"],
                row["NodeManagerAddress"],
                row["NodeManagerHostname"],
                row["Alive"],
                resources.get("CPU", 0.0),
                resources.get("GPU", 0.0),
                resources.get("memory", 0.0),
                kind,
            )
        )
    return sorted(found, key=lambda node: (not node.alive, node.address, node.id))


def free() -> dict[str, float]:
    """Returns how many CPUs and GPUs of the cluster nobody uses now."""
    available = import_ray().available_resources()
    return {
        name: available.get(resource, 0.0) for name, resource in (("cpus", "CPU"), ("gpus", "GPU"))
    }


def gpus_per_worker(found: Iterable[Node]) -> int:
    """Returns how many GPUs a worker gets by default: 1 where a living node has any."""
    return int(any(node.alive and node.gpus for node in found))


def needs_text(cpus: int, gpus: int) -> str:
    """Says what a worker takes, all of it on one node."""
    texts = [
        f"{count} {name}{'s' if count > 1 else ''}"
        for count, name in ((cpus, "CPU"), (gpus, "GPU"))
        if count
    ]
    return " and ".join(texts)


class Head:
    """Looks at the nodes again and again.

    A thread does, since a head that is gone answers no question.

    Attributes:
        nodes: what the last look found.
    """

    def __init__(self) -> None:
        self.nodes = nodes()
        self._asked = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._ended.wait(_WATCH_SECONDS):
            # The connection ends with the command, or with the head.
            with contextlib.suppress(Exception):
                self.nodes = nodes()
                self._asked = time.monotonic()

    def check(self) -> None:
        """Raises HeadLost if it does not answer."""
        if time.monotonic() - self._asked > SILENCE_SECONDS:
            raise HeadLost(f"the head of the cluster has not answered for {SILENCE_SECONDS:g} s")

    @property
    def answers(self) -> bool:
        """Whether it did a moment ago.

        Else starting something might take as long as Ray tries to reach it.
        """
        return time.monotonic() - self._asked < _MOMENT_SECONDS

    def close(self) -> None:
        """Asks no more, before the connection ends."""
        self._ended.set()
        self._thread.join(timeout=1.0)


class Room:
    """Which nodes processes can run on, and how many on each.

    Args:
        cpus: of each process.
        gpus: of each process; None for 1 where the cluster has any.

    Attributes:
        head: of the cluster.
    """

    def __init__(self, cpus: int, gpus: int | None) -> None:
        self.head = Head()
        self.cpus = cpus
        self.gpus = gpus_per_worker(self.head.nodes) if gpus is None else gpus
        self._distrusted: dict[str, float] = {}

    def distrust(self, node: Node) -> None:
        """Leaves out a node that does not answer, though Ray may still think that it is there."""
        self._distrusted[node.id] = time.monotonic() + _AGAIN_SECONDS

    def slots(self) -> dict[Node, int]:
        """Returns how many processes each living node has room for.

        Raises:
            HeadLost: if the head does not answer.
        """
        self.head.check()
        now = time.monotonic()
        usable = [
            node
            for node in self.head.nodes
            if node.alive and self._distrusted.get(node.id, 0.0) < now
        ]
        return {node: node.slots(self.cpus, self.gpus) for node in usable}

    def text(self, slots: Mapping[Node, int]) -> str:
        """Says for how many workers there is room, and where all nodes together may have what none
        of them has alone.
        """
        alone = ", which no node has" if slots and not any(slots.values()) else ""
        return f"{sum(slots.values())} workers of {needs_text(self.cpus, self.gpus)}{alone}"


def place(slots: Mapping[Node, int], count: int, *, pack: bool) -> list[Node]:
    """Returns a node for each process, those on one node next to each other.

    Args:
        slots: processes that each node has room for; together at least `count`.
        pack: fill one node after the other, rather than giving all about as many.
    """
    taken = dict.fromkeys(slots, 0)
    for _ in range(count):
        free = [node for node in slots if taken[node] < slots[node]]
        node = free[0] if pack else min(free, key=lambda node: taken[node])
        taken[node] += 1
    return [node for node, number in taken.items() for _ in range(number)]
