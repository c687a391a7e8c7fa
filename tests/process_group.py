"""Starts processes of a run one by one, so that a test can disturb one of them."""

import contextlib
import ipaddress
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import network
import numpy as np

from jaxdp.checkpoint import integrity
from jaxdp.checkpoint.restore import SavedCheckpoints
from jaxdp.rundir.read import read_lines
from jaxdp.runtime.coordinator import hold_port
from jaxdp.training.reader import MEASURED

FLAGS = (
    "--model cnn --model-kwargs width=4 hidden=16 --global-batch-size 32 --batch-norm group:4"
    " --learning-rate 0.01 --schedule constant --log-every 1 --run-dir run --heartbeat-timeout 5"
    " --distributed-timeout 120"
).split()
TRAIN = "import sys\nfrom jaxdp import train\nsys.exit(train.main(sys.argv[1:]))\n"
# Prints the addresses at which a process listens when it begins to train.
LISTENING = (
    "import os\nfrom jaxdp.training.loop import Loop\n"
    "def look(*args):\n"
    "    paths = [f'/proc/self/fd/{name}' for name in os.listdir('/proc/self/fd')]\n"
    "    own = {os.readlink(path) for path in paths if os.path.islink(path)}\n"
    "    for name in ('tcp', 'tcp6'):\n"
    "        for line in open('/proc/self/net/' + name).readlines()[1:]:\n"
    "            words = line.split()\n"
    "            if words[3] == '0A' and f'socket:[{words[9]}]' in own:\n"
    "                print('listens at', words[1].split(':')[0], flush=True)\n"
    "    return train_loop(*args)\n"
    "train_loop, Loop.train = Loop.train, look\n"
)


def slow_steps(seconds: float | str, begin: str = "") -> str:
    """Returns a prelude for a run that is still under way when the test gets to it."""
    return (
        "import time\nfrom jaxdp.data import pipeline\nbatches = pipeline.batches\n"
        f"def slow(*args, **kwargs):\n{begin}    for batch in batches(*args, **kwargs):\n"
        f"        time.sleep({seconds})\n        yield batch\n"
        "pipeline.batches = slow\n"
    )


def arrays(run_dir: str, step: int) -> dict[str, np.ndarray]:
    folder = pathlib.Path(run_dir, "checkpoints")
    return SavedCheckpoints(folder, best_metric=("accuracy", True)).arrays(step)


def rows_of(run_dir: str) -> list[dict[str, Any]]:
    """Returns the rows of a run without what depends on the machine."""
    rows = read_lines(pathlib.Path(run_dir, "metrics.jsonl"))
    return [{name: row[name] for name in row.keys() - {*MEASURED}} for row in rows]


def assert_same_run(one: str, other: str, step: int) -> None:
    expected, found = arrays(one, step), arrays(other, step)
    assert expected.keys() == found.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(array, found[name], err_msg=name)
    assert rows_of(one) == rows_of(other)


def newest(run_dir: str = "run") -> int:
    return max(integrity.steps(pathlib.Path(run_dir, "checkpoints")), default=0)


def largest(folder: pathlib.Path) -> pathlib.Path:
    """Returns the largest file of a checkpoint, which holds arrays."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return max(files, key=lambda path: path.stat().st_size)


def flip(path: pathlib.Path) -> None:
    """Changes one bit of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def listening(output: str) -> set[str]:
    """Returns the addresses in what `LISTENING` has printed: hexadecimal numbers of 4 bytes in the
    machine's order.
    """
    numbers = [line.rpartition(" ")[2] for line in output.splitlines() if "listens at " in line]
    words = [
        [
            int(text[place : place + 8], 16).to_bytes(4, sys.byteorder)
            for place in range(0, len(text), 8)
        ]
        for text in numbers
    ]
    found = {ipaddress.ip_address(b"".join(each)) for each in words}
    return {str(getattr(address, "ipv4_mapped", None) or address) for address in found}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def environment() -> dict[str, str]:
    """This process's, with its time to compile, but for its number of simulated devices."""
    flags = [
        flag for flag in os.environ["XLA_FLAGS"].split() if "host_platform_device_count" not in flag
    ]
    return os.environ | {"XLA_FLAGS": " ".join(flags)}


def family(pid: int) -> list[int]:
    """Returns a process and all that come from it."""
    found = [pid]
    for parent in found:
        with contextlib.suppress(FileNotFoundError):
            for thread in pathlib.Path(f"/proc/{parent}/task").iterdir():
                found += [int(word) for word in (thread / "children").read_text().split()]
    return found


def send(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


class Command:
    """A command of jaxdp under way, in the folder of the test, on this machine or on one of its
    hosts.

    Args:
        words: of Python: a module and its arguments, or -c and a program.
        env: variables in addition to those of `environment`.
        name: in the names of the files with its output.
    """

    def __init__(
        self,
        *words: str,
        env: dict[str, str] | None = None,
        host: network.Host | None = None,
        name: str = "",
    ) -> None:
        self._out, self._err = pathlib.Path(f"out{name}.txt"), pathlib.Path(f"err{name}.txt")
        with self._out.open("w") as out, self._err.open("w") as err:
            popen = host.popen if host else subprocess.Popen
            self.process: subprocess.Popen[str] = popen(
                [sys.executable, *([] if words[0] == "-c" else ["-m"]), *words],
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
        """Waits until it has printed a text on standard error, or a file has the text.

        Returns how long that took.
        """
        begin, path = time.monotonic(), file or self._err
        while not path.is_file() or text not in path.read_text():
            assert self.process.poll() is None, self.err
            assert time.monotonic() - begin < seconds, self.err
            time.sleep(0.05)
        return time.monotonic() - begin

    def code(self, seconds: float = 600) -> int:
        try:
            return self.process.wait(timeout=seconds)
        finally:
            send(family(self.process.pid), signal.SIGKILL)


class Processes:
    """Args:
    flags: of the run, after the `common` ones.
    preludes: of some processes Python lines to execute before anything else.
    own_flags: of some processes further flags.
    program: what each of them runs, in Python.
    hosts: on which to run them, by index; None for this machine.
    coordinator: name or address of the first host; None for its address.
    """

    def __init__(
        self,
        *flags: str,
        count: int = 2,
        devices: int = 1,
        preludes: dict[int, str] | None = None,
        own_flags: dict[int, Sequence[str]] | None = None,
        common: Sequence[str] = FLAGS,
        program: str = TRAIN,
        hosts: Sequence[network.Host] | None = None,
        coordinator: str | None = None,
    ) -> None:
        self._port = hold_port()
        address = coordinator or (hosts[0].address if hosts else "127.0.0.1")
        coordinator = f"{address}:{self._port.getsockname()[1]}"
        self._commands: list[Command] = []
        for index in range(count):
            where = (
                f"--devices {devices} --coordinator {coordinator} --num-processes {count}"
                f" --process-id {index}".split()
            )
            lines = (preludes or {}).get(index, "") + program
            words = ["-c", lines, *common, *flags, *where, *(own_flags or {}).get(index, ())]
            host = hosts[index] if hosts else None
            self._commands.append(Command(*words, host=host, name=f"-{index}"))
        self.running = [command.process for command in self._commands]

    def wait_for(self, text: str) -> None:
        """Waits until the first process has printed a text on standard error."""
        self._commands[0].wait_for(text)

    def end_with(self, *codes: int, seconds: float = 200) -> None:
        """Waits for all, and compares their exit codes."""
        found = self.codes(seconds)
        assert found == [*codes], "".join(map(self.errors, range(len(codes))))

    def codes(self, seconds: float = 200) -> list[int]:
        """Waits for all and returns their exit codes."""
        try:
            return [process.wait(timeout=seconds) for process in self.running]
        finally:
            for process in self.running:
                process.kill()
            self._port.close()

    def errors(self, index: int) -> str:
        return self._commands[index].err

    def error_lines(self, index: int) -> list[str]:
        """What a process printed on standard error, but for progress and what Gloo's threads write
        into one another's lines.
        """
        return [
            line
            for line in self.errors(index).splitlines()
            if not line.startswith(("step ", "continuing ", "waiting ", "[Gloo]"))
            and not line.endswith(" examples")  # the first line
            and line.strip(" .:0123456789")
        ]

    def output(self, index: int) -> str:
        return self._commands[index].out
