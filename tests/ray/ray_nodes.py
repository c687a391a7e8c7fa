"""Clusters of several nodes on this machine, whose nodes tests kill, cut off and add."""

import contextlib
import os
import pathlib
import secrets
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from process_group import Command as Command
from process_group import family, send

FLAGS = (
    "--model cnn --model-kwargs width=4 hidden=16 --image-size 16 --global-batch-size 64"
    " --batch-norm group:16 --learning-rate 0.01 --schedule constant --log-every 1 --eval-every"
    " 100000"
).split()


def running(pids: list[int], text: str) -> list[int]:
    """Returns those processes whose command line has this text."""

    def says(pid: int) -> bool:
        with contextlib.suppress(OSError):
            return text in pathlib.Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
        return False

    return [pid for pid in pids if says(pid)]


@contextlib.contextmanager
def cluster() -> Iterator["Nodes"]:
    """Yields a cluster without nodes, but for its head, which has a token, and ends it."""
    cluster_utils = pytest.importorskip("ray.cluster_utils", reason="needs pip install '.[ray]'")
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
        """Has it say nothing more, with all connections open, as after a cut network link."""
        send(self.processes(node), signal.SIGSTOP)
