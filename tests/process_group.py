"""Starts processes of a run one by one, so that a test can disturb one of them."""

import os
import pathlib
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

from jaxdp.runtime import launcher

FLAGS = (
    "--model cnn --model-kwargs width=4 hidden=16 --global-batch-size 32 --batch-norm group:4 --learning-rate 0.01 "
    "--schedule constant --log-every 1 --run-dir run --heartbeat-timeout 5 --distributed-timeout 120"
).split()
TRAIN = "import sys\nfrom jaxdp import train\nsys.exit(train.main(sys.argv[1:]))\n"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def environment() -> dict[str, str]:
    """This process's, with its time to compile, but for its number of simulated devices."""
    flags = [flag for flag in os.environ["XLA_FLAGS"].split() if "host_platform_device_count" not in flag]
    return os.environ | {"XLA_FLAGS": " ".join(flags)}


class Processes:
    """Args:
    flags: of the run, after the `common` ones.
    preludes: of some processes Python lines to execute before anything else.
    own_flags: of some processes further flags.
    program: what each of them runs, in Python.
    """

    def __init__(
        self, *flags: str, count: int = 2, devices: int = 1, preludes: dict[int, str] | None = None,
        own_flags: dict[int, Sequence[str]] | None = None, common: Sequence[str] = FLAGS, program: str = TRAIN,
    ) -> None:  # fmt: skip
        self._port = launcher.hold_port()
        coordinator = f"127.0.0.1:{self._port.getsockname()[1]}"
        self.running: list[subprocess.Popen[str]] = []
        for index in range(count):
            where = f"--devices {devices} --coordinator {coordinator} --num-processes {count} --process-id {index}".split()
            lines = (preludes or {}).get(index, "") + program
            command = [sys.executable, "-c", lines, *common, *flags, *where, *(own_flags or {}).get(index, ())]
            with open(f"out-{index}.txt", "w") as out, open(f"err-{index}.txt", "w") as err:
                self.running.append(subprocess.Popen(command, stdout=out, stderr=err, env=environment()))

    def wait_for(self, text: str, *, index: int = 0, seconds: float = 200) -> None:
        """Waits until a process has printed something on standard error."""
        deadline = time.monotonic() + seconds
        while text not in self.errors(index):
            assert time.monotonic() < deadline, self.errors(index)
            assert self.running[index].poll() is None, self.errors(index)
            time.sleep(0.05)

    def codes(self, seconds: float = 200) -> list[int]:
        """Waits for all and returns their exit codes."""
        try:
            return [process.wait(timeout=seconds) for process in self.running]
        finally:
            for process in self.running:
                process.kill()
            self._port.close()

    def errors(self, index: int) -> str:
        return pathlib.Path(f"err-{index}.txt").read_text()

    def error_lines(self, index: int) -> list[str]:
        """What a process printed on standard error, but for progress."""
        return [line for line in self.errors(index).splitlines() if not line.startswith(("step ", "continuing "))]

    def output(self, index: int) -> str:
        return pathlib.Path(f"out-{index}.txt").read_text()
