"""Makes hosts with addresses of their own out of network namespaces of this machine, for tests of
several machines.

    with network.hosts(2, delay_seconds=0.02, bits_per_second=20e6) as (one, other):
        server = one.popen(["python", "server.py", one.address])
        other.run(["python", "client.py", one.address], check=True)
        other.pull_cable()

Each host has a network, a name (host-0, host-1, ...) and a file /etc/hosts of its own. In that its
own name stands for 127.0.1.1, as in Debian, and those of the others for their addresses. Files and
processes are those of this machine. Nothing else can be reached from a host: its only cable, a TUN
device, ends at a relay, a process that passes packets on. The namespaces last as long as that
process and those that run in them; both are ended with the block. It takes Linux, root, iproute2
and util-linux; where that is missing, the test is skipped.
"""

import contextlib
import ctypes
import fcntl
import heapq
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
_MAX_WAIT_SECONDS = 0.5  # of a packet for the cable, before it is dropped, as full buffers do


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

    def pull_cable(self) -> None:
        """From now on no packet leaves or reaches this host, those under way included.

        Nobody is told.
        """
        self._tell("pull")

    def plug_in(self) -> None:
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
def hosts(
    count: int,
    *,
    delay_seconds: float = 0.0,
    bits_per_second: float = 0.0,
    own_folders: Sequence[str] = (),
) -> Iterator[list[Host]]:
    """Yields hosts that reach each other, and ends all that runs on them.

    Args:
        delay_seconds: of a packet from one host to another, one way.
        bits_per_second: of each host's cable, in each direction; 0 for what the relay can do.
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
        command = [
            sys.executable,
            __file__,
            folder,
            str(count),
            str(delay_seconds),
            str(bits_per_second),
            *own_folders,
        ]
        relay = subprocess.Popen(
            command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
        )
        made: list[Host] = []
        try:
            assert relay.stdout is not None
            line = relay.stdout.readline()
            errors.seek(0)
            told = errors.read()
            if "PermissionError" in told:
                pytest.skip(f"namespaces are not allowed here: {told.splitlines()[-1]}")
            assert line, told
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
    index: int, count: int, folder: str, mtu: int, own_folders: Sequence[str]
) -> tuple[int, list[int]]:
    """Moves this process to a new host, and returns the host's end of its cable and descriptors of
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
        f"ip link set eth0 up mtu {mtu}",
        f"ip address add {_address(index)}/24 dev eth0",
    ):
        subprocess.run(command.split(), check=True, stdout=subprocess.DEVNULL)
    return tun, [os.open(f"/proc/self/ns/{kind}", os.O_RDONLY) for kind in ("net", "uts", "mnt")]


class _Relay:
    """Passes packets on between TUN devices: each waits for its turn on the sender's cable and on
    the receiver's.
    """

    def __init__(self, devices: Sequence[int], delay: float, rate: float) -> None:
        self._devices, self._delay, self._rate = devices, delay, rate
        self._number = {
            bytes(map(int, _address(index).split("."))): index for index in range(len(devices))
        }
        # From when on each cable is, to the relay and from it.
        self._free = [[0.0] * len(devices), [0.0] * len(devices)]
        self._pulled: set[int] = set()
        self._queue: list[tuple[float, int, int, int, bytes]] = []
        self._count = 0

    def run(self) -> None:
        """Runs until standard input, which takes commands, is closed."""
        while True:
            wait = max(self._queue[0][0] - time.monotonic(), 0.0) if self._queue else None
            for ready in select.select([0, *self._devices], [], [], wait)[0]:
                if ready == 0:
                    if not self._obey(sys.stdin.readline().split()):
                        return
                else:
                    with contextlib.suppress(OSError):
                        self._take(self._devices.index(ready), os.read(ready, 1 << 16))
            while self._queue and self._queue[0][0] <= time.monotonic():
                _, _, sender, receiver, packet = heapq.heappop(self._queue)
                if not {sender, receiver} & self._pulled:
                    with contextlib.suppress(OSError):
                        os.write(self._devices[receiver], packet)

    def _obey(self, words: list[str]) -> bool:
        if not words:
            return False
        (self._pulled.add if words[0] == "pull" else self._pulled.discard)(int(words[1]))
        print("done", flush=True)
        return True

    def _take(self, sender: int, packet: bytes) -> None:
        receiver = self._number.get(packet[16:20]) if packet[0] >> 4 == 4 else None
        if receiver is None:
            return
        now, seconds = time.monotonic(), 8 * len(packet) / self._rate if self._rate else 0.0
        sent = max(now, self._free[0][sender]) + seconds
        received = max(sent + self._delay, self._free[1][receiver] + seconds)
        if received - self._delay - now > _MAX_WAIT_SECONDS:
            return
        self._free[0][sender], self._free[1][receiver] = sent, received
        self._count += 1
        heapq.heappush(self._queue, (received, self._count, sender, receiver, packet))


def _main() -> None:
    folder, count, delay, rate = (
        sys.argv[1],
        int(sys.argv[2]),
        float(sys.argv[3]),
        float(sys.argv[4]),
    )
    mtu = 1500 if rate else 9000
    made = [_make_host(index, count, folder, mtu, sys.argv[5:]) for index in range(count)]
    print(json.dumps([namespaces for _, namespaces in made]), flush=True)
    _Relay([tun for tun, _ in made], delay, rate).run()


if __name__ == "__main__":
    _main()
