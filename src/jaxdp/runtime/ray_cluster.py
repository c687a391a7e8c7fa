"""Finds how many processes fit on each node of a Ray cluster, and whether the head is lost."""

import contextlib
import dataclasses
import threading
import time
from collections.abc import Mapping

from jaxdp.runtime.ray_connection import HeadLost
from jaxdp.runtime.running_time import running_seconds

# A node that is cut off sends nothing, and Ray takes over a minute to declare it dead. A response
# takes milliseconds.
SILENCE_SECONDS = 8.0
_WATCH_SECONDS = 1.0  # between checks of the nodes
_EXCLUDED_SECONDS = 120.0  # before using a node again that did not answer


@dataclasses.dataclass(frozen=True)
class Node:
    """A living machine of a cluster, and the CPUs and GPUs that Ray assigns on it."""

    id: str
    address: str
    cpus: float
    gpus: float

    def slots(self, cpus: int, gpus: int) -> int:
        """Returns how many processes with this many CPUs and GPUs fit on the node."""
        return int(min(self.cpus // cpus, self.gpus // gpus if gpus else float("inf")))


def nodes() -> list[Node]:
    """Returns the living nodes of the cluster, ordered by their addresses."""
    import ray

    listed = [
        Node(
            row["NodeID"],
            row["NodeManagerAddress"],
            row["Resources"].get("CPU", 0.0),
            row["Resources"].get("GPU", 0.0),
        )
        for row in ray.nodes()
        if row["Alive"]
    ]
    return sorted(listed, key=lambda node: (node.address, node.id))


class Head:
    """Requests the nodes repeatedly, in a thread, because a lost head does not answer.

    Attributes:
        nodes: the last response.
    """

    def __init__(self) -> None:
        self.nodes = nodes()
        self._answered = running_seconds()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._ended.wait(_WATCH_SECONDS):
            # The connection ends with the command, or with the head.
            with contextlib.suppress(Exception):
                self.nodes = nodes()
                self._answered = running_seconds()

    def check(self) -> None:
        """Raises HeadLost if the head does not answer while this process runs."""
        if running_seconds() - self._answered > SILENCE_SECONDS:
            raise HeadLost(
                f"the head of the cluster has not answered for {SILENCE_SECONDS:g} s: start the"
                " cluster again"
            )

    def close(self) -> None:
        """Stops the requests, before the connection ends."""
        self._ended.set()
        self._thread.join(timeout=1.0)


class ClusterCapacity:
    """The nodes on which processes can run, and the number of processes that fit on each.

    Args:
        cpus: of each process.
        gpus: of each process; None for 1 if the cluster has any.
    """

    def __init__(self, cpus: int, gpus: int | None) -> None:
        self._head = Head()
        self.cpus = cpus
        self.gpus = int(any(node.gpus for node in self._head.nodes)) if gpus is None else gpus
        self._excluded_until: dict[str, float] = {}

    def exclude(self, node: Node) -> None:
        """Excludes a node that does not answer, although Ray may still list it as alive."""
        self._excluded_until[node.id] = time.monotonic() + _EXCLUDED_SECONDS

    def slots(self) -> dict[Node, int]:
        """Returns how many processes fit on each living node.

        Raises:
            HeadLost: if the head does not answer.
        """
        self._head.check()
        now = time.monotonic()
        return {
            node: node.slots(self.cpus, self.gpus)
            for node in self._head.nodes
            if self._excluded_until.get(node.id, 0.0) < now
        }


def place(slots: Mapping[Node, int], count: int) -> list[Node]:
    """Returns a node for each process. Uses all nodes evenly, and processes on the same node have
    consecutive indices.

    Args:
        slots: number of processes that fit on each node, in total at least `count`.
    """
    places = [(turn, node) for node, number in slots.items() for turn in range(number)]
    places.sort(key=lambda each: each[0])
    return sorted((node for _, node in places[:count]), key=[*slots].index)
