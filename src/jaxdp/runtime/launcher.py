"""Starts the processes of a run on this machine and looks after them: ports, shares of the GPUs, signals, restarts."""

import contextlib
import ctypes
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import IO

from jaxdp.exit_codes import EXIT_DIVERGED, EXIT_STOPPED, EXIT_USAGE_ERROR
from jaxdp.registry import ConfigError

# After one process has failed the others find out by themselves, and say so; a process that hangs does not.
GRACE_SECONDS = 15.0
_PR_SET_PDEATHSIG = 1


def launch(flags: Sequence[str], num_processes: int, devices_per_process: int | None, max_restarts: int = 0) -> int:
    """Runs `jaxdp.train` in several processes to their end, all of them again after a failure where that is wanted.

    Args:
        flags: of `jaxdp.train`.
        devices_per_process: GPUs, or simulated devices on a CPU; None for the GPUs divided, or 1.
        max_restarts: how often to start all again.

    Returns:
        0 if all ended well, otherwise the exit code of the first one that did not; 128 + N if signal N ended it.

    Raises:
        ConfigError: if there are too few GPUs, or they cannot be shared out evenly.
    """
    environments = [os.environ | visible for visible in device_shares(num_processes, devices_per_process)]
    if devices_per_process is not None:
        flags = [*flags, "--devices", str(devices_per_process)]
    restarts = 0
    while True:
        code = _Processes(flags, environments).wait()
        # What a usage error, a divergence or a signal ended would end in the same way again.
        if code in (0, EXIT_USAGE_ERROR, EXIT_DIVERGED, EXIT_STOPPED) or restarts == max_restarts:
            return code
        restarts += 1
        again = f"starting all again ({restarts} of at most {max_restarts})"
        print(f"jaxdp.launch: a process ended with {code}; {again}", file=sys.stderr, flush=True)


class _Processes:
    """The processes of one attempt. Each is a session of its own: Ctrl-C reaches them once, through the launcher."""

    def __init__(self, flags: Sequence[str], environments: Sequence[dict[str, str]]) -> None:
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


def device_shares(count: int, each: int | None = None) -> list[dict[str, str]]:
    """Returns for each process the environment variables that give it its share of the GPUs; nothing without GPUs.

    Args:
        count: of processes.
        each: GPUs of a process; None for all of them divided.

    Raises:
        ConfigError: if there are too few, or they cannot be shared out evenly.
    """
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
