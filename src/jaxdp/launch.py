"""`python -m jaxdp.launch -n 2 -- train ...`: starts the processes of a run on this machine and looks after them.

`python -m jaxdp.launch slurm ...` has Slurm do it (`jaxdp/slurm.py`).
"""

import contextlib
import ctypes
import dataclasses
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Annotated

import tyro

from jaxdp import command_line, slurm
from jaxdp.config import OptionalInt, validate
from jaxdp.registry import ConfigError
from jaxdp.train import EXIT_DIVERGED, EXIT_STOPPED

DESCRIPTION = "Start processes here: launch -n 2 -- train ...; by Slurm: launch slurm --help"
# After one process has failed the others find out by themselves, and say so; a process that hangs does not.
GRACE_SECONDS = 15.0
_OWN_FLAGS = ("--coordinator", "--num-processes", "--process-id", "--distributed")
_PR_SET_PDEATHSIG = 1


@dataclasses.dataclass(frozen=True)
class LaunchConfig:
    num_processes: Annotated[int, tyro.conf.arg(aliases=["-n"])]
    """processes to start"""
    devices_per_process: OptionalInt = None
    """devices of each process: GPUs, or simulated ones on a CPU (default: the GPUs divided, or 1)"""
    max_restarts: int = 0
    """how often to start all again from the last checkpoint after one has failed"""

    def __post_init__(self) -> None:
        validate(self)


def main(argv: Sequence[str] | None = None) -> int:
    return command_line.main(_main, argv, "jaxdp.launch")


def _main(argv: Sequence[str]) -> int:
    words = list(argv)
    own, command = (words[: words.index("--")], words[words.index("--") + 1 :]) if "--" in words else (words, [])
    by_slurm = own[:1] == ["slurm"]
    if by_slurm and {"-h", "--help"} & set(own):
        return slurm.main(own[1:], [])
    config = None if by_slurm else _parse(own)
    if command[:1] != ["train"]:
        raise ConfigError("", command[:1], "write what to start after the flags: -- train --model pyramidnet ...")
    for word in command:
        if word.split("=")[0] in _OWN_FLAGS:
            raise ConfigError(word.split("=")[0][2:], "", "is set by the launcher; leave it out")
    return slurm.main(own[1:], command[1:]) if config is None else launch(config, command[1:])


def _parse(words: list[str]) -> LaunchConfig:
    return command_line.parse(LaunchConfig, words, prog="python -m jaxdp.launch", description=DESCRIPTION, defaults_file=False)


def launch(config: LaunchConfig, flags: list[str]) -> int:
    """Runs the processes to their end, all of them again after a failure where that is wanted.

    Returns:
        0 if all ended well, otherwise the exit code of the first one that did not; 128 + N if signal N ended it.
    """
    environments = [os.environ | visible for visible in device_shares(config)]
    if config.devices_per_process is not None:
        flags = [*flags, "--devices", str(config.devices_per_process)]
    restarts = 0
    while True:
        code = _Processes(flags, environments).wait()
        # What a mistake, a divergence or a signal ended would end in the same way again.
        if code in (0, command_line.EXIT_USAGE_ERROR, EXIT_DIVERGED, EXIT_STOPPED) or restarts == config.max_restarts:
            return code
        restarts += 1
        _say(f"a process ended with {code}; starting all again ({restarts} of at most {config.max_restarts})")


class _Processes:
    """The processes of one attempt. Each is a session of its own: Ctrl-C reaches them once, through the launcher."""

    def __init__(self, flags: list[str], environments: list[dict[str, str]]) -> None:
        self._port = hold_port()
        coordinator = f"127.0.0.1:{self._port.getsockname()[1]}"
        count = len(environments)
        self._running: list[subprocess.Popen[str]] = []
        self._readers: list[threading.Thread] = []
        for index, environment in enumerate(environments):
            where = ["--coordinator", coordinator, "--num-processes", str(count), "--process-id", str(index)]
            # The first one shows the progress: a bar where there is a terminal.
            shows = index == 0 and sys.stderr.isatty()
            process = subprocess.Popen(
                [sys.executable, "-m", "jaxdp.train", *flags, *where],
                env=environment,
                stdout=None if index == 0 else subprocess.PIPE,
                stderr=None if shows else subprocess.PIPE,
                text=True,
                errors="backslashreplace",
                start_new_session=True,
                preexec_fn=end_with_parent,
            )
            self._running.append(process)
            for stream, target in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
                if stream is not None:
                    reader = threading.Thread(target=_copy, args=(stream, target, f"[{index}] "), daemon=True)
                    reader.start()
                    self._readers.append(reader)

    def wait(self) -> int:
        failed, deadline = 0, float("inf")
        with forwarding(self.send):
            while any(process.poll() is None for process in self._running):
                time.sleep(0.05)
                codes = [process.poll() for process in self._running]
                bad = [code for code in codes if code not in (None, 0, EXIT_STOPPED)]
                if bad and not failed:
                    failed, deadline = bad[0] or 0, time.monotonic() + GRACE_SECONDS
                if time.monotonic() > deadline:
                    self.send(signal.SIGKILL)
        for reader in self._readers:
            reader.join()
        self._port.close()
        code = failed or max(process.returncode for process in self._running)
        return code if code >= 0 else 128 - code

    def send(self, number: int) -> None:
        for process in self._running:
            if process.poll() is None:
                process.send_signal(number)


def hold_port() -> socket.socket:
    """Returns a socket bound to a free port, which keeps it from being handed out again before a process listens there.

    A second run that got the same one would end both. Who asks for it by number can listen, since this one does not.
    """
    held = socket.socket()
    for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
        held.setsockopt(socket.SOL_SOCKET, option, 1)
    held.bind(("127.0.0.1", 0))
    return held


def _copy(source: IO[str], target: IO[str], prefix: str) -> None:
    for line in source:
        target.write(prefix + line)
        target.flush()


def end_with_parent() -> None:
    """Runs in the new process: if the launcher is killed, its processes get a SIGTERM, and save."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


@contextlib.contextmanager
def forwarding(send: Callable[[int], None]) -> Iterator[None]:
    """Calls `send` with the signals that would stop this process, until the block ends."""
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    previous = {number: signal.signal(number, lambda received, frame: send(received)) for number in signals}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def device_shares(config: LaunchConfig) -> list[dict[str, str]]:
    """Returns for each process the environment variables that give it its share of the GPUs; nothing without GPUs.

    Raises:
        ConfigError: if there are too few, or they cannot be shared out evenly.
    """
    count, each = config.num_processes, config.devices_per_process
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    found = [path.name.removeprefix("nvidia") for path in pathlib.Path("/dev").glob("nvidia[0-9]*")]
    gpus = [word for word in visible.split(",") if word] if visible is not None else sorted(found, key=int)
    if not gpus or os.environ.get("JAX_PLATFORMS") == "cpu":
        return [{} for _ in range(count)]
    if each is None:
        if len(gpus) % count:
            raise ConfigError("num_processes", count, f"does not divide {len(gpus)} GPUs; give --devices-per-process, or hide some")
        each = len(gpus) // count
    if each * count > len(gpus):
        raise ConfigError("devices_per_process", each, f"{count} processes need {each * count} GPUs; there are {len(gpus)}")
    return [{"CUDA_VISIBLE_DEVICES": ",".join(gpus[index * each : (index + 1) * each])} for index in range(count)]


def _say(message: str) -> None:
    print(f"jaxdp.launch: {message}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
