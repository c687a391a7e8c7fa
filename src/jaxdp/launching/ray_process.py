"""Runs a process on a node of a Ray cluster, and notices when the node is lost."""

import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

from jaxdp.errors import ConfigError
from jaxdp.launching.local_process import LocalProcess
from jaxdp.runtime.coordinator import hold_port
from jaxdp.runtime.ray_cluster import SILENCE_SECONDS, ClusterCapacity, Node

# When the launcher is killed, Ray ends the actors. Their processes must save instead of being
# killed.
_ACTOR_ENVIRONMENT = {"RAY_kill_child_processes_on_worker_exit": "0"}
_START_SECONDS = 120.0  # for Ray to start the actor
# For the lock of a lost process to vanish, because NFS takes 90 s to notice.
LOCKED_SECONDS = 180.0
# Variables of this process that also apply on the nodes.
_FORWARDED = ("JAX_", "XLA_", "NCCL_", "LIBTPU_", "TFDS_", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE")


class NodeLost(Exception):
    """A process can no longer be reached, because its node, or Ray's process on it, has died."""


class RemoteProcess:
    """A process on a node, started by an actor to which Ray assigns the CPUs and GPUs.

    Args:
        node: the node on which it runs.
        capacity: its CPUs and GPUs.
    """

    def __init__(self, node: Node, capacity: ClusterCapacity) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._ray, self.node = ray, node
        self.where = f"node {node.address}"
        actor = ray.remote(ProcessActor).options(
            num_cpus=capacity.cpus,
            num_gpus=capacity.gpus,
            max_restarts=0,
            runtime_env={"env_vars": _ACTOR_ENVIRONMENT},
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
        )
        self._actor: Any = actor.remote(not capacity.gpus)
        self._starting: Any = None  # the response to `start`
        self._code: int | None = None
        self._lines: list[tuple[bool, str]] = []

    def address(self) -> tuple[str, int]:
        """Waits until the actor has started, and returns its host and a free port on it."""
        return self._get(self._actor.address.remote(), _START_SECONDS)

    def start(self, arguments: Sequence[str]) -> None:
        """Starts Python with these arguments in the folder of this process after the actor has
        started. Does not wait.
        """
        forwarded = {
            name: value for name, value in os.environ.items() if name.startswith(_FORWARDED)
        }
        self._starting = self._actor.start.remote([*arguments], forwarded, os.getcwd())

    def poll(self) -> int | None:
        """Returns the exit code, negative for a signal; None while the process runs.

        Raises:
            ConfigError: if the node does not see the folder of this process.
            NodeLost: if the node has died or does not answer.
        """
        if self._starting is not None:
            self._get(self._starting, _START_SECONDS)
            self._starting = None
        if self._code is None:
            lines, self._code = self._get(self._actor.look.remote(), SILENCE_SECONDS)
            self._lines += lines
        return self._code

    def lines(self) -> list[tuple[bool, str]]:
        lines, self._lines = self._lines, []
        return lines

    def send_signal(self, number: int) -> None:
        if self._code is None:
            self._actor.send_signal.remote(int(number))

    def close(self) -> None:
        """Ends the actor. Its process gets a SIGTERM if it still runs."""
        self._ray.kill(self._actor)

    def _get(self, answer: Any, seconds: float) -> Any:
        """Returns a response of the actor, and waits at most this time for it."""
        exceptions = self._ray.exceptions
        try:
            for _ in range(round(seconds)):  # after a pause of this process, the rest still counts
                with contextlib.suppress(exceptions.GetTimeoutError):
                    return self._ray.get(answer, timeout=1.0)
            raise NodeLost(f"has not answered for {seconds:g} s")
        except exceptions.RayTaskError as error:
            raise error.cause from None
        except (exceptions.RayActorError, exceptions.ActorUnschedulableError) as error:
            raise NodeLost("has died") from error


class ProcessActor:
    """The actor, which starts one process.

    Args:
        on_cpu: whether the process gets no GPU.
    """

    def __init__(self, on_cpu: bool) -> None:
        self._on_cpu, self._held = on_cpu, hold_port()
        self._process: LocalProcess | None = None

    def address(self) -> tuple[str, int]:
        import ray

        return ray.util.get_node_ip_address(), self._held.getsockname()[1]

    def start(self, arguments: Sequence[str], environment: Mapping[str, str], folder: str) -> None:
        variables = {"JAX_PLATFORMS": "cpu"} if self._on_cpu else {}
        variables |= environment
        try:
            self._process = LocalProcess(arguments, variables, folder=folder)
        except OSError as error:
            remedy = "all nodes must see this folder and the data"
            problem = f"{error.filename or folder}: {error.strerror} on node {self.address()[0]}"
            raise ConfigError("", "", f"{problem}; {remedy}") from error

    def look(self) -> tuple[list[tuple[bool, str]], int | None]:
        """Returns the lines printed since the last call, and the exit code, which is None while the
        process runs.
        """
        assert self._process is not None
        code = self._process.poll()
        return self._process.lines(), code

    def send_signal(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)
