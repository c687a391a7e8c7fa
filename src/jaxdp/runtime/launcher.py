"""Starts the processes of a run on this machine and looks after them: ports, shares of the GPUs,
signals, restarts.
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
from typing import Any

from jaxdp.exit_codes import EXIT_DIVERGED, EXIT_STOPPED, EXIT_USAGE_ERROR
from jaxdp.registry import ConfigError
from jaxdp.rundir.write import no_link
from jaxdp.runtime import compilation_cache

# After one process has failed the others find out by themselves within the heartbeat timeout, and
# have so long to say so and leave.
GRACE_SECONDS = 15.0
# What each process has said is enough.
_EXPLAINED = (0, EXIT_USAGE_ERROR, EXIT_DIVERGED, EXIT_STOPPED)
_PR_SET_PDEATHSIG = 1
_PROGRAM = ("-m", "jaxdp.train")
_ERROR = "jaxdp.train: error: "


def launch(
    flags: Sequence[str],
    num_processes: int,
    devices_per_process: int | None,
    max_restarts: int = 0,
    *,
    heartbeat_timeout: float = 30.0,
    log_dir: str | None = None,
) -> int:
    """Runs `jaxdp.train` in several processes to their end, all of them again after a failure where
    that is wanted.

    Args:
        flags: of `jaxdp.train`.
        devices_per_process: GPUs, or simulated devices on a CPU; None for the GPUs divided, or 1.
        max_restarts: how often to start all again.
        heartbeat_timeout: seconds after which the processes miss one that is gone.
        log_dir: folder for a file of each process, to which what it prints is appended.

    Returns:
        0 if all ended well, otherwise the exit code of the first one that did not; 128 + N if
        signal N ended it.

    Raises:
        ConfigError: if there are too few GPUs, they cannot be shared out evenly, or a log cannot be
            written.
    """
    compilation_cache.enable()  # once for all processes, which inherit the choice
    environments = [
        os.environ | visible for visible in device_shares(num_processes, devices_per_process)
    ]
    if devices_per_process is not None:
        flags = [*flags, "--devices", str(devices_per_process)]
    logs = _logs(log_dir, num_processes)
    restarts = 0
    while True:
        processes = _Processes(flags, environments, logs)
        code = processes.wait(heartbeat_timeout + GRACE_SECONDS)
        for line in processes.explain():
            print(f"jaxdp.launch: {line}", file=sys.stderr, flush=True)
        # What a usage error, a divergence or a signal ended would end in the same way again.
        if code in (0, EXIT_USAGE_ERROR, EXIT_DIVERGED, EXIT_STOPPED) or restarts == max_restarts:
            return code
        restarts += 1
        again = f"starting all again ({restarts} of at most {max_restarts})"
        print(f"jaxdp.launch: a process ended with {code}; {again}", file=sys.stderr, flush=True)


def _logs(folder: str | None, count: int) -> list[pathlib.Path | None]:
    """Returns the file of each process, which is there then; None for all without a folder."""
    if folder is None:
        return [None] * count
    paths = [pathlib.Path(folder, f"process-{index}.log") for index in range(count)]
    try:
        pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
        for path in paths:
            with open(path, "a", opener=no_link):
                pass
    except OSError as error:
        raise ConfigError(
            "log_dir", folder, f"cannot be written ({error.strerror}); give another folder"
        ) from error
    return [*paths]


@dataclasses.dataclass
class _Process:
    """One of the processes, and how it has ended.

    Attributes:
        name: as the processes call each other.
        ended: when, by the monotonic clock.
        last_words: its error in one line, or else the last line on its standard error; nothing
            where that is a terminal.
        given_up: whether the launcher has killed it.
        log: to which what it prints is appended.
    """

    name: str
    popen: "subprocess.Popen[str]"
    ended: float = 0.0
    last_words: str = ""
    given_up: bool = False
    log: pathlib.Path | None = None

    @property
    def failed(self) -> bool:
        return self.popen.returncode not in (None, 0, EXIT_STOPPED)

    def outcome(self) -> str:
        """Returns how it has ended."""
        code = self.popen.returncode
        if self.given_up:
            return "did not end by itself and was killed by jaxdp.launch"
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return {0: "was done", EXIT_STOPPED: "was stopped by a signal after saving"}.get(
            code, f"ended with exit code {code}"
        )

    def copy(self, source: Any, target: Any, prefix: str, *, remember: bool) -> None:
        """Shows what it prints, line by line."""
        with source:
            for line in source:
                target.write(prefix + line)
                target.flush()
                if self.log is not None:
                    with (
                        contextlib.suppress(OSError),
                        open(self.log, "a", errors="backslashreplace", opener=no_link) as file,
                    ):  # a full disk, say
                        file.write(line)
                if remember and line.strip() and (_ERROR in line or _ERROR not in self.last_words):
                    self.last_words = line.strip()


class _Processes:
    """The processes of one attempt.

    Each is a session of its own: Ctrl-C reaches them once, through the launcher.
    """

    def __init__(
        self,
        flags: Sequence[str],
        environments: Sequence[dict[str, str]],
        logs: Sequence[pathlib.Path | None],
    ) -> None:
        self._port = hold_port()
        coordinator = f"127.0.0.1:{self._port.getsockname()[1]}"
        count = len(environments)
        self._all: list[_Process] = []
        self._readers: list[threading.Thread] = []
        for index, (environment, log) in enumerate(zip(environments, logs, strict=True)):
            where = [
                "--coordinator",
                coordinator,
                "--num-processes",
                str(count),
                "--process-id",
                str(index),
            ]
            # The first one shows the progress: a bar where there is a terminal.
            shows = index == 0 and log is None and sys.stderr.isatty()
            popen = subprocess.Popen(
                [sys.executable, *_PROGRAM, *flags, *where],
                env=environment,
                stdout=None if index == 0 and log is None else subprocess.PIPE,
                stderr=None if shows else subprocess.PIPE,
                text=True,
                errors="backslashreplace",
                start_new_session=True,
                preexec_fn=end_with_parent,
            )
            process = _Process(
                f"process {index} (pid {popen.pid} on {socket.gethostname()})", popen, log=log
            )
            self._all.append(process)
            for stream, target in ((popen.stdout, sys.stdout), (popen.stderr, sys.stderr)):
                if stream is not None:
                    kwargs = {"remember": target is sys.stderr}
                    # The result of the run.
                    prefix = "" if index == 0 and target is sys.stdout else f"[{index}] "
                    reader = threading.Thread(
                        target=process.copy,
                        args=(stream, target, prefix),
                        kwargs=kwargs,
                        daemon=True,
                    )
                    reader.start()
                    self._readers.append(reader)

    def wait(self, grace_seconds: float) -> int:
        """Waits for all and returns an exit code.

        Args:
            grace_seconds: for the others after one has failed.
        """
        deadline = float("inf")
        with forwarding(self.send):
            while running := [each for each in self._all if not each.ended]:
                time.sleep(0.05)
                for each in running:
                    if each.popen.poll() is not None:
                        each.ended = time.monotonic()
                        deadline = (
                            min(deadline, each.ended + grace_seconds) if each.failed else deadline
                        )
                    elif time.monotonic() > deadline:
                        each.given_up = True
                        each.popen.kill()
        for reader in self._readers:
            reader.join()
        self._port.close()
        failures = self._failures()
        code = (
            failures[0].popen.returncode
            if failures
            else max(each.popen.returncode for each in self._all)
        )
        return code if code >= 0 else 128 - code

    def explain(self) -> list[str]:
        """Returns who ended and why, the first failure first.

        Nothing where each process has said so itself.
        """
        if all(each.popen.returncode in _EXPLAINED for each in self._all):
            return []
        failures = self._failures()
        lines = [f"{failures[0].name} was the first to fail: it {failures[0].outcome()}"]
        lines += [
            f"{each.name} {each.outcome()} {each.ended - failures[0].ended:.1f} s later"
            for each in failures[1:]
        ]
        words = [
            f": {each.last_words.removeprefix(_ERROR)}" if each.last_words else ""
            for each in failures
        ]
        words = [
            f"{word} ({each.log})" if each.log else word
            for word, each in zip(words, failures, strict=True)
        ]
        lines = [line + word for line, word in zip(lines, words, strict=True)]
        return lines + [f"{each.name} {each.outcome()}" for each in self._all if not each.failed]

    def _failures(self) -> list[_Process]:
        return sorted((each for each in self._all if each.failed), key=lambda each: each.ended)

    def send(self, number: int) -> None:
        for each in self._all:
            if each.popen.poll() is None:
                each.popen.send_signal(number)


def hold_port() -> socket.socket:
    """Returns a socket bound to a free port, which keeps it from being handed out again before a
    process listens there.

    A second run that got the same one would end both. Who asks for it by number can listen, since
    this one does not.
    """
    held = socket.socket()
    for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
        held.setsockopt(socket.SOL_SOCKET, option, 1)
    held.bind(("127.0.0.1", 0))
    return held


def end_with_parent() -> None:
    """Runs in the new process: if the launcher is killed, its processes get a SIGTERM, and save."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


@contextlib.contextmanager
def forwarding(send: Callable[[int], None]) -> Iterator[None]:
    """Calls `send` with the signals that would stop this process, until the block ends."""
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    previous = {
        number: signal.signal(number, lambda received, frame: send(received)) for number in signals
    }
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def device_shares(count: int, each: int | None = None) -> list[dict[str, str]]:
    """Returns for each process the environment variables that give it its share of the GPUs.

    Nothing without GPUs.

    Args:
        count: of processes.
        each: GPUs of a process; None for all of them divided.

    Raises:
        ConfigError: if there are too few, or they cannot be shared out evenly.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    found = [path.name.removeprefix("nvidia") for path in pathlib.Path("/dev").glob("nvidia[0-9]*")]
    gpus = (
        [word for word in visible.split(",") if word]
        if visible is not None
        else sorted(found, key=int)
    )
    if not gpus or os.environ.get("JAX_PLATFORMS") == "cpu":
        return [{} for _ in range(count)]
    if each is None:
        if len(gpus) % count:
            raise ConfigError(
                "num_processes",
                count,
                f"does not divide {len(gpus)} GPUs; give --devices-per-process, or hide some",
            )
        each = len(gpus) // count
    if each * count > len(gpus):
        raise ConfigError(
            "devices_per_process",
            each,
            f"{count} processes need {each * count} GPUs; there are {len(gpus)}",
        )
    return [
        {"CUDA_VISIBLE_DEVICES": ",".join(gpus[index * each : (index + 1) * each])}
        for index in range(count)
    ]
