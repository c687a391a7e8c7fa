"""Clusters of several nodes on this machine, whose nodes tests kill, cut off and add."""

import contextlib
import os
import pathlib
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import network
import pytest
from process_group import environment

FLAGS = (
    "--model cnn --model-kwargs width=4 hidden=16 --image-size 16 --global-batch-size 64"
    " --batch-norm group:16 --learning-rate 0.01 --schedule constant --log-every 1 --eval-every"
    " 100000"
).split()


def family(pid: int) -> list[int]:
    """Returns a process and all that come from it."""
    found = [pid]
    for parent in found:
        with contextlib.suppress(FileNotFoundError):
            for thread in pathlib.Path(f"/proc/{parent}/task").iterdir():
                found += [int(word) for word in (thread / "children").read_text().split()]
    return found


def running(pids: list[int], text: str) -> list[int]:
    """Returns those processes whose command line has this text."""

    def says(pid: int) -> bool:
        with contextlib.suppress(OSError):
            return text in pathlib.Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
        return False

    return [pid for pid in pids if says(pid)]


def send(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


@contextlib.contextmanager
def cluster() -> Iterator["Nodes"]:
    """Yields a cluster without nodes, but for its head, which has a token, and ends it."""
    cluster_utils = pytest.importorskip(
        "ray.cluster_utils", reason="needs pip install 'jaxdp[ray]'"
    )
    handler = signal.getsignal(signal.SIGTERM)  # which Ray takes
    with pytest.MonkeyPatch.context() as environ:
        environ.setenv("RAY_AUTH_MODE", "token")
        # Two clusters have the same.
        environ.setenv("RAY_AUTH_TOKEN", os.environ.get("RAY_AUTH_TOKEN", secrets.token_hex(16)))
        environ.setenv("RAY_USAGE_STATS_ENABLED", "0")
        _read_token_again()
        started = cluster_utils.Cluster(
            initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
        )
        found = Nodes(started)
        try:
            yield found
        finally:
            found.clear()
            started.shutdown()
            signal.signal(signal.SIGTERM, handler)
    _read_token_again()


def _read_token_again() -> None:
    """Ray looks at the environment once in a process, in which another test may have imported
    it.
    """
    from ray._raylet import AuthenticationTokenLoader, Config

    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


class Nodes:
    """A cluster whose head has no CPU for runs, so that it is never the one to die."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self.address: str = cluster.address
        self.nodes: list[Any] = []
        self._has_head = True

    def add(self, **resources: Any) -> Any:
        self.nodes.append(self._cluster.add_node(**({"num_cpus": 1} | resources)))
        return self.nodes[-1]

    def remove(self, node: Any) -> None:
        """Ends it in order."""
        self.nodes.remove(node)
        self._cluster.remove_node(node)

    def clear(self) -> None:
        """Ends all nodes, also those that were stopped or killed, and waits until the head, if it
        lives, has noticed.
        """
        for node in [*self.nodes]:
            send(self.processes(node), signal.SIGCONT)
            self.remove(node)
        if self._has_head:
            self._cluster.wait_for_nodes()

    def processes(self, node: Any) -> list[int]:
        (raylet,) = node.all_processes["raylet"]
        return family(raylet.process.pid)

    def running(self, node: Any, text: str) -> list[int]:
        """Returns the processes of a node whose command line has this text."""
        return running(self.processes(node), text)

    def runs(self, text: str) -> bool:
        return any(self.running(node, text) for node in self.nodes)

    def holding(self, text: str) -> Any:
        """Returns the node on which a process runs whose command line has this text."""
        return next(node for node in self.nodes if self.running(node, text))

    def kill_process(self, text: str) -> None:
        for node in self.nodes:
            send(self.running(node, text), signal.SIGKILL)

    def kill_head(self, *names: str) -> None:
        """Ends what keeps the books of the cluster: its processes of these names, all by
        default.
        """
        self._has_head = False
        all_processes = self._cluster.head_node.all_processes
        for processes in [all_processes[name] for name in names or all_processes]:
            send([each.process.pid for each in processes], signal.SIGKILL)

    def kill(self, node: Any) -> None:
        """Ends all of it at one instant, as a power cut does."""
        pids = self.processes(node)
        send(pids, signal.SIGSTOP)
        send(self.processes(node), signal.SIGKILL)

    def cut_off(self, node: Any) -> None:
        """Has it say nothing more, with all connections open, as a pulled cable does."""
        send(self.processes(node), signal.SIGSTOP)


class Command:
    """A command of jaxdp under way, in the folder of the test, on this machine or on one of its
    hosts.
    """

    def __init__(
        self, *words: str, env: dict[str, str] | None = None, host: network.Host | None = None
    ) -> None:
        self._out, self._err = pathlib.Path("out.txt"), pathlib.Path("err.txt")
        with self._out.open("w") as out, self._err.open("w") as err:
            popen = host.popen if host else subprocess.Popen
            self.process: subprocess.Popen[str] = popen(
                [sys.executable, "-m", *words],
                stdout=out,
                stderr=err,
                env=environment() | (env or {}),
                start_new_session=True,
            )

    @property
    def err(self) -> str:
        return self._err.read_text()

    @property
    def out(self) -> str:
        return self._out.read_text()

    def wait_for(self, text: str, seconds: float = 200, file: pathlib.Path | None = None) -> float:
        """Waits until it has said something, or a file has it; returns how long that took."""
        begin = time.monotonic()
        while text not in (
            file.read_text() if file and file.is_file() else "" if file else self.err
        ):
            assert self.process.poll() is None, self.err
            assert time.monotonic() - begin < seconds, self.err
            time.sleep(0.05)
        return time.monotonic() - begin

    def code(self, seconds: float = 600) -> int:
        try:
            return self.process.wait(timeout=seconds)
        finally:
            send(family(self.process.pid), signal.SIGKILL)
