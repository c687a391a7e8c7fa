"""The nodes of a Ray cluster: how many processes fit on each, and whether the head is lost."""

import contextlib
import dataclasses
import threading
import time
from collections.abc import Iterable, Iterator, Mapping

from jaxdp.runtime import ray_connection
from jaxdp.runtime.ray_connection import HeadLost

# A node that is cut off sends nothing, and Ray takes over a minute to declare it dead. An answer
# takes milliseconds.
SILENCE_SECONDS = 8.0
_WATCH_SECONDS = 1.0  # between looks at the nodes
_MOMENT_SECONDS = 3.0
_EXCLUDED_SECONDS = 120.0  # before a node that did not answer is used again


@dataclasses.dataclass(frozen=True)
class Node:
    """A machine of a cluster, as Ray describes it.

    Attributes:
        cpus: how many Ray gives out.
        gpus: how many Ray gives out.
    """

    id: str
    address: str
    alive: bool
    cpus: float
    gpus: float

    def slots(self, cpus: int, gpus: int) -> int:
        """Returns how many processes with this many CPUs and GPUs fit on the node."""
        return int(min(self.cpus // cpus, self.gpus // gpus if gpus else float("inf")))


@contextlib.contextmanager
def connected(address: str | None, *, cpus: int = 0) -> Iterator[None]:
    """Connects to a cluster until the block ends.

    Args:
        address: HOST:PORT of its head node, or auto for the one that runs on this machine; None to
            start one here.
        cpus: that a new cluster has at least.

    Raises:
        ConfigError: if Ray is missing, or the cluster cannot be reached.
        HeadLost: if the head was lost meanwhile, with what to do about it.
    """
    with ray_connection.connected(address, cpus=cpus):
        try:
            yield
        except HeadLost as error:
            remedy = "start the cluster again, and the same command continues"
            raise HeadLost(f"{error}; {remedy}") from error


def nodes() -> list[Node]:
    """Returns the nodes of the cluster, those that have died included."""
    import ray

    listed = list[Node]()
    for row in ray.nodes():
        resources = row["Resources"]
        listed.append(
            Node(
                id=row["NodeID"],
                address=row["NodeManagerAddress"],
                alive=row["Alive"],
                cpus=resources.get("CPU", 0.0),
                gpus=resources.get("GPU", 0.0),
            )
        )
    return sorted(listed, key=lambda node: (not node.alive, node.address, node.id))


def gpus_per_worker(nodes: Iterable[Node]) -> int:
    """Returns how many GPUs a worker gets by default: 1 where a living node has any."""
    return int(any(node.alive and node.gpus for node in nodes))


def needs_text(cpus: int, gpus: int) -> str:
    """Returns what a worker needs, all of it on one node."""
    counts = ((cpus, "CPU"), (gpus, "GPU"))
    return " and ".join(f"{count} {name}{'s' * (count > 1)}" for count, name in counts if count)


class Head:
    """Asks for the nodes again and again, in a thread: a head that is gone does not answer.

    Attributes:
        nodes: the last answer.
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
        """Raises HeadLost if the head does not answer."""
        if time.monotonic() - self._asked > SILENCE_SECONDS:
            raise HeadLost(f"the head of the cluster has not answered for {SILENCE_SECONDS:g} s")

    @property
    def answers(self) -> bool:
        """Whether the head did a moment ago.

        Otherwise starting a process might take as long as Ray tries to reach the head.
        """
        return time.monotonic() - self._asked < _MOMENT_SECONDS

    def close(self) -> None:
        """Stops asking, before the connection ends."""
        self._ended.set()
        self._thread.join(timeout=1.0)


class ClusterCapacity:
    """The nodes on which processes can run, and how many fit on each.

    Args:
        cpus: of each process.
        gpus: of each process; None for 1 if the cluster has any.

    Attributes:
        head: of the cluster.
    """

    def __init__(self, cpus: int, gpus: int | None) -> None:
        self.head = Head()
        self.cpus = cpus
        self.gpus = gpus_per_worker(self.head.nodes) if gpus is None else gpus
        self._excluded_until: dict[str, float] = {}

    def exclude(self, node: Node) -> None:
        """Leaves out a node that does not answer, although Ray may still list it as alive."""
        self._excluded_until[node.id] = time.monotonic() + _EXCLUDED_SECONDS

    def slots(self) -> dict[Node, int]:
        """Returns how many processes fit on each living node.

        Raises:
            HeadLost: if the head does not answer.
        """
        self.head.check()
        now = time.monotonic()
        return {
            node: node.slots(self.cpus, self.gpus)
            for node in self.head.nodes
            if node.alive and self._excluded_until.get(node.id, 0.0) < now
        }

    def text(self, slots: Mapping[Node, int]) -> str:
        """Says how many workers fit.

        All nodes together may have what no node has alone; the text then says so.
        """
        alone = ", which no node has" if slots and not any(slots.values()) else ""
        return f"{sum(slots.values())} workers of {needs_text(self.cpus, self.gpus)}{alone}"


def place(slots: Mapping[Node, int], count: int, *, pack: bool) -> list[Node]:
    """Returns a node for each process; processes on one node are neighbours.

    Args:
        slots: processes that fit on each node; together at least `count`.
        pack: whether to fill one node after the other, rather than all nodes evenly.
    """
    places = [(turn, node) for node, number in slots.items() for turn in range(number)]
    if not pack:
        places.sort(key=lambda each: each[0])
    return sorted((node for _, node in places[:count]), key=[*slots].index)
