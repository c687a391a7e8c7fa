"""A Ray cluster of hosts with addresses of their own, started by what docs/devices.md has users
type.
"""

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
from collections.abc import Iterator

import network
from process_group import environment, send

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "devices.md"
FIRST = "10.0.0.1"  # the first machine, in the documentation


def documented(name: str) -> str:
    """Returns the commands that the documentation gives under a comment, e.g. "on the first
    machine".
    """
    section = PAGE.read_text().partition("\n## Use a Ray cluster\n")[2].partition("\n## ")[0]
    (found,) = re.findall(rf"^```sh\n# {name}[^\n]*\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    return found


class RayHosts:
    """Args:
    hosts: the first one is the head, and computes, too.
    home: of the user, which all hosts see.
    env: further environment of what Ray starts.
    """

    def __init__(self, hosts: list[network.Host], home: pathlib.Path, env: dict[str, str]) -> None:
        self.hosts, self.address = hosts, f"{hosts[0].address}:6379"
        path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
        # Of fonts, for pictures.
        cache = os.environ.get("XDG_CACHE_HOME") or str(pathlib.Path("~/.cache").expanduser())
        self.env = environment() | {"HOME": str(home), "PATH": path, "XDG_CACHE_HOME": cache}
        self.env["RAY_AUTH_MODE"] = "token"  # as the documentation says
        self._ray_env = self.env | env
        self._there: set[int] = set()
        self._start(0, "on the first machine")

    def join(self) -> None:
        """Starts Ray on those hosts that are not there, as after a repair."""
        for index in range(len(self.hosts)):
            if index not in self._there:
                self.hosts[index].restore_link()
                self._start(index, "on each of the others")

    def cut_link(self, index: int) -> None:
        self._there.remove(index)
        self.hosts[index].cut_link()

    def _start(self, index: int, name: str) -> None:
        """Does so again where Ray gives up after 30 seconds, as it does on a machine that is busy
        with other things.
        """
        # All hosts have the cores of one machine.
        script = re.sub(
            r"^(ray start .*?)( *#.*)?$", r"\1 --num-cpus=1", documented(name), flags=re.MULTILINE
        )
        script = "set -e\n" + script.replace(FIRST, self.hosts[0].address)
        file, host = pathlib.Path(self.env["HOME"], f"ray-start-{index}.txt"), self.hosts[index]
        for _ in range(3):
            send(host.pids(), signal.SIGKILL)  # what is left from before
            with file.open("w") as said:  # what Ray leaves running would hold a pipe open
                process = host.popen(
                    ["bash", "-c", script],
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=said,
                    env=self._ray_env,
                )
            if process.wait(timeout=120) == 0:
                self._there.add(index)
                return
            assert "timed out during startup" in file.read_text(), file.read_text()
        raise AssertionError(file.read_text())


@contextlib.contextmanager
def ray_hosts(count: int, home: pathlib.Path, env: dict[str, str]) -> Iterator[RayHosts]:
    """Yields a cluster of so many hosts, and ends it."""
    # Ray's sockets are in this folder, in which it looks for the nodes of its host.
    with network.hosts(count, own_folders=["/tmp/ray"]) as hosts:
        found = RayHosts(hosts, home, env)
        found.join()
        yield found
