"""Runs a process on a node of a Ray cluster, and tells what it prints, how it ends, and whether its
node is still there.
"""

import contextlib
import os
import pathlib
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from jaxdp.registry import ConfigError
from jaxdp.runtime import launcher
from jaxdp.runtime.ray_cluster import SILENCE_SECONDS, Node, Room, import_ray

# When the launcher is killed Ray ends the actors: what they have started is not to be killed with
# them, but to save (`_begin`).
_KEEPER_ENVIRONMENT = {"RAY_kill_child_processes_on_worker_exit": "0"}
_START_SECONDS = 120.0  # for Ray to start the process that starts ours
# What of this process's environment holds on the nodes, too.
_FORWARDED = ("JAX_", "XLA_", "NCCL_", "LIBTPU_", "TFDS_", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE")


class Lost(Exception):
    """A node, or Ray's process there, has died or is out of reach."""


class RemoteProcess:
    """A process on a node, started by an actor of Ray's, to which Ray gives the CPUs and GPUs.

    Args:
        node: where it runs.
        room: what it gets.
    """

    def __init__(self, node: Node, room: Room) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self.node, self._ray = node, import_ray()
        actor = self._ray.remote(_Keeper).options(
            num_cpus=room.cpus,
            num_gpus=room.gpus,
            max_restarts=0,
            runtime_env={"env_vars": _KEEPER_ENVIRONMENT},
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
        )
        self._actor: Any = actor.remote(not room.gpus)
        self._code: int | None = None
        self._starting: Any = None
        self._look: Any = None
        self._asked = 0.0
        self._lines: list[tuple[bool, str]] = []

    def address(self) -> tuple[str, int]:
        """Waits until Ray has made room, and returns the address of its node with a port that is
        free there.
        """
        return self._get(self._actor.address.remote(), _START_SECONDS)

    def start(self, arguments: Sequence[str], log: pathlib.Path | None = None) -> None:
        """Starts Python with these arguments in the folder of this process, as soon as Ray has made
        room; does not wait.

        Args:
            log: file to which its standard error is added, on a file system of all nodes; None for
                `lines`.
        """
        forwarded = {
            name: value for name, value in os.environ.items() if name.startswith(_FORWARDED)
        }
        self._starting = self._actor.start.remote(
            [*arguments], forwarded, os.getcwd(), str(log) if log else None
        )
        self._asked = time.monotonic()

    def poll(self) -> int | None:
        """Returns the exit code, negative for a signal, None while it runs; does not wait.

        Raises:
            ConfigError: if the folder of this process is not there.
            Lost: if the node has died or does not answer.
        """
        if self._code is not None:
            return self._code
        if self._starting is not None:
            if self._is_there(self._starting, _START_SECONDS):
                problem, self._starting = self._get(self._starting, SILENCE_SECONDS), None
                if problem:
                    raise ConfigError(
                        "",
                        "",
                        f"{problem} on node {self.node.address}; all nodes must see this folder and"
                        " the data",
                    )
            return None
        if self._look is None:
            self._look, self._asked = self._actor.look.remote(), time.monotonic()
        if self._is_there(self._look, SILENCE_SECONDS):
            lines, self._code = self._get(self._look, SILENCE_SECONDS)
            self._look = None
            self._lines += lines
            if self._code is not None:
                self.close()
        return self._code

    def _is_there(self, answer: Any, seconds: float) -> bool:
        """Raises Lost if it takes longer than so many seconds."""
        if self._ray.wait([answer], timeout=0)[0]:
            return True
        if time.monotonic() - self._asked > seconds:
            raise Lost(f"has not answered for {seconds:g} s")
        return False

    def lines(self) -> list[tuple[bool, str]]:
        """Returns what it has printed since the last call, each line with whether it was on
        standard error.
        """
        lines, self._lines = self._lines, []
        return lines

    def send_signal(self, sig: int) -> None:
        """Sends a signal, if it still runs and can be reached."""
        if self._code is None:
            self._actor.send.remote(int(sig))

    def close(self) -> None:
        """Gives back what Ray gave; what still runs is killed."""
        self._ray.kill(self._actor)

    def _get(self, reference: Any, seconds: float) -> Any:
        try:
            return self._ray.get(reference, timeout=seconds)
        except self._ray.exceptions.GetTimeoutError as error:
            raise Lost(f"has not answered for {seconds:g} s") from error
        except (
            self._ray.exceptions.RayActorError,
            self._ray.exceptions.ActorUnschedulableError,
        ) as error:
            raise Lost("has died") from error


class _Keeper:
    """The actor: starts one process, and tells what it prints and how it ends.

    Args:
        on_cpu: whether it gets no GPU.
    """

    def __init__(self, on_cpu: bool) -> None:
        self._on_cpu = on_cpu
        self._held = launcher.hold_port()
        self._process: subprocess.Popen[str] | None = None
        self._readers: list[threading.Thread] = []
        self._lines: queue.SimpleQueue[tuple[bool, str]] = queue.SimpleQueue()

    def address(self) -> tuple[str, int]:
        return import_ray().util.get_node_ip_address(), self._held.getsockname()[1]

    def start(
        self, arguments: Sequence[str], environment: Mapping[str, str], folder: str, log: str | None
    ) -> str:
        """Returns what is wrong, nothing if nothing is."""
        gives = {"JAX_PLATFORMS": "cpu"} if self._on_cpu else {}
        try:
            errors = open(log, "ab") if log else subprocess.PIPE  # noqa: SIM115
            self._process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=folder,
                env=os.environ | gives | dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL if log else subprocess.PIPE,
                stderr=errors,
                text=True,
                errors="backslashreplace",
                start_new_session=True,
                preexec_fn=_begin,
            )
        except OSError as error:
            return f"{error.filename or folder}: {error.strerror}"
        for stream, is_error in ((self._process.stdout, False), (self._process.stderr, True)):
            if stream is not None:
                self._readers.append(
                    threading.Thread(target=self._read, args=(stream, is_error), daemon=True)
                )
                self._readers[-1].start()
        return ""

    def _read(self, stream: Any, is_error: bool) -> None:
        for line in stream:
            self._lines.put((is_error, line))

    def look(self) -> tuple[list[tuple[bool, str]], int | None]:
        """Returns what was printed since the last call, and the exit code, None while it runs."""
        code = self._process.poll() if self._process is not None else None
        if code is not None:
            for reader in self._readers:
                reader.join()
        lines = []
        with contextlib.suppress(queue.Empty):
            while True:
                lines.append(self._lines.get_nowait())
        return lines, code

    def send(self, number: int) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)


def _begin() -> None:
    """Runs in the new process: Ray blocks SIGINT, which is to reach it.

    If Ray's process is killed it gets a SIGTERM, and saves.
    """
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGUSR1})
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_DFL)
    launcher.end_with_parent()
