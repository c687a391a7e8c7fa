"""Makes hosts with addresses of their own out of network namespaces of this machine, for tests of
several machines.

    with network.hosts(2) as (one, other):
        server = one.popen(["python", "server.py", one.address])
        other.run(["python", "client.py", one.address], check=True)
        other.cut_link()

Each host has a network, a name (host-0, host-1, ...) and a file /etc/hosts of its own. In that its
own name stands for 127.0.1.1, as in Debian, and those of the others for their addresses. Files and
processes are those of this machine. Nothing else can be reached from a host: its only network link, a TUN
device, ends at a relay, a process that passes packets on. The namespaces last as long as that
process and those that run in them; both are ended with the block. It takes Linux, root, iproute2
and util-linux; where that is missing, the test is skipped.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import pathlib
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

_NEW_MOUNTS, _NEW_NAME, _NEW_NETWORK = 0x20000, 0x4000000, 0x40000000  # of unshare
_SET_INTERFACE, _TUN, _NO_HEADER = 0x400454CA, 0x0001, 0x1000


class Host:
    """Attributes:
    name: which stands for 127.0.1.1 on the host itself, and for its address on the others.
    address: IPv4, at which the others reach it.
    started: by `popen`.
    """

    def __init__(
        self, index: int, relay: "subprocess.Popen[str]", namespaces: Sequence[int]
    ) -> None:
        self.name, self.address = f"host-{index}", _address(index)
        self._index, self._relay = index, relay
        self._paths = [f"/proc/{relay.pid}/fd/{number}" for number in namespaces]
        self._network = os.stat(self._paths[0]).st_ino
        self.started: list[subprocess.Popen[Any]] = []

    def popen(self, command: Sequence[str], **kwargs: Any) -> "subprocess.Popen[Any]":
        """Starts a process on this host, with the arguments of `subprocess.Popen`.

        Its pid is that of the command.
        """
        flags = [
            f"--{kind}={path}"
            for kind, path in zip(("net", "uts", "mount"), self._paths, strict=True)
        ]
        # Who enters other mounts has left the working directory.
        there = ["sh", "-c", 'cd "$0" && exec "$@"', os.path.abspath(kwargs.pop("cwd", "."))]
        process = subprocess.Popen(["nsenter", *flags, "--", *there, *command], **kwargs)
        self.started.append(process)
        return process

    def run(
        self, command: Sequence[str], *, check: bool = True, timeout: float = 120
    ) -> "subprocess.CompletedProcess[str]":
        """Runs a command on this host to its end, and returns its exit code and what it printed."""
        with self.popen(
            command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            try:
                out, err = process.communicate(timeout=timeout)
            finally:
                process.kill()
        assert not check or process.returncode == 0, err
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def cut_link(self) -> None:
        """From now on no packet leaves or reaches this host, those under way included.

        No process is notified.
        """
        self._tell("pull")

    def restore_link(self) -> None:
        self._tell("plug")

    def pids(self) -> list[int]:
        """Returns the processes that run on this host."""
        found = []
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if (folder / "ns/net").stat().st_ino == self._network and int(
                    folder.name
                ) != self._relay.pid:
                    found.append(int(folder.name))
        return found

    def _tell(self, word: str) -> None:
        assert self._relay.stdin is not None
        assert self._relay.stdout is not None
        print(word, self._index, file=self._relay.stdin, flush=True)
        assert self._relay.stdout.readline() == "done\n"


@contextlib.contextmanager
def hosts(count: int, *, own_folders: Sequence[str] = ()) -> Iterator[list[Host]]:
    """Yields hosts that reach each other, and ends all that runs on them.

    Args:
        own_folders: of which each host has one of its own, empty at first; the other files are
            those of this machine.
    """
    import pytest

    if reason := _missing():
        pytest.skip(reason)
    with (
        tempfile.TemporaryFile("w+") as errors,
        tempfile.TemporaryDirectory(prefix="jaxdp-hosts-") as folder,
    ):
        command = [sys.executable, __file__, folder, str(count), *own_folders]
        relay = subprocess.Popen(
            command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
        )
        made: list[Host] = []
        try:
            assert relay.stdout is not None
            line = relay.stdout.readline()
            errors.seek(0)
            text = errors.read()
            if "PermissionError" in text:
                pytest.skip(f"namespaces are not allowed here: {text.splitlines()[-1]}")
            assert line, text
            made += [
                Host(index, relay, namespaces) for index, namespaces in enumerate(json.loads(line))
            ]
            yield made
            assert relay.poll() is None, "the relay has ended"
        finally:
            while left := [pid for host in made for pid in host.pids()]:
                for pid in left:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                time.sleep(0.02)
            for process in [process for host in made for process in host.started]:
                process.wait()
                for stream in (process.stdin, process.stdout, process.stderr):
                    if stream is not None:
                        stream.close()
            relay.kill()
            relay.communicate()


def _address(index: int) -> str:
    return f"10.77.0.{index + 1}"


def _missing() -> str:
    """Returns what this machine lacks, if anything."""
    if sys.platform != "linux" or os.getuid() != 0:
        return "network namespaces take Linux and root"
    if not os.path.exists("/dev/net/tun"):
        return "there is no /dev/net/tun"
    programs = [program for program in ("ip", "nsenter", "mount") if shutil.which(program) is None]
    return f"{', '.join(programs)} not found: install iproute2 and util-linux" if programs else ""


# From here on: the relay, a process of its own.


def _make_host(
    index: int, count: int, folder: str, own_folders: Sequence[str]
) -> tuple[int, list[int]]:
    """Moves this process to a new host, and returns the host's end of its network link and descriptors of
    its namespaces.
    """
    library = ctypes.CDLL(None, use_errno=True)
    if library.unshare(_NEW_MOUNTS | _NEW_NAME | _NEW_NETWORK) != 0:
        # PermissionError, where that is the reason.
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    name, known = f"host-{index}", pathlib.Path(folder, f"hosts-{index}")
    own = {index: "127.0.1.1"}
    known.write_text(
        "127.0.0.1 localhost\n"
        + "".join(f"{own.get(i, _address(i))} host-{i}\n" for i in range(count))
    )
    library.sethostname(name.encode(), len(name))
    mounts = [(known, "/etc/hosts")]
    for number, path in enumerate(own_folders):
        mounts.append((pathlib.Path(folder, f"own-{index}-{number}"), path))
        mounts[-1][0].mkdir()
        os.makedirs(path, exist_ok=True)  # what there is to mount it on
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tun, _SET_INTERFACE, struct.pack("16sH22x", b"eth0", _TUN | _NO_HEADER))
    for command in (
        "mount --make-rprivate /",
        *(f"mount --bind {source} {target}" for source, target in mounts),
        "ip link set lo up",
        "ip link set eth0 up mtu 9000",
        f"ip address add {_address(index)}/24 dev eth0",
    ):
        subprocess.run(command.split(), check=True, stdout=subprocess.DEVNULL)
    return tun, [os.open(f"/proc/self/ns/{kind}", os.O_RDONLY) for kind in ("net", "uts", "mnt")]


def _relay(devices: Sequence[int]) -> None:
    """Passes packets on between TUN devices until standard input, which takes commands, ends."""
    numbers = {bytes(map(int, _address(i).split("."))): i for i in range(len(devices))}
    pulled: set[int] = set()
    while True:
        for ready in select.select([0, *devices], [], [])[0]:
            if ready == 0:
                words = sys.stdin.readline().split()
                if not words:
                    return
                (pulled.add if words[0] == "pull" else pulled.discard)(int(words[1]))
                print("done", flush=True)
                continue
            with contextlib.suppress(OSError):
                packet = os.read(ready, 1 << 16)
                receiver = numbers.get(packet[16:20]) if packet[0] >> 4 == 4 else None
                if receiver is not None and not {devices.index(ready), receiver} & pulled:
                    os.write(devices[receiver], packet)


def _main(folder: str, count: str, *own_folders: str) -> None:
    made = [_make_host(index, int(count), folder, own_folders) for index in range(int(count))]
    print(json.dumps([namespaces for _, namespaces in made]), flush=True)
    _relay([tun for tun, _ in made])


if __name__ == "__main__":
    _main(*sys.argv[1:])
