"""Starts the processes of a run on this machine: ports, shares of the GPUs, logs, restarts."""

import os
import pathlib
import sys
from collections.abc import Sequence

from jaxdp.registry import ConfigError
from jaxdp.run_files import no_link
from jaxdp.runtime import compilation_cache, supervisor
from jaxdp.runtime.coordinator import hold_port
from jaxdp.runtime.local_process import LocalProcess
from jaxdp.runtime.signals import forwarding
from jaxdp.runtime.supervisor import FINAL, Supervisor, say

TRAIN = ("-m", "jaxdp.train")


def launch(
    flags: Sequence[str],
    num_processes: int,
    devices_per_process: int | None,
    max_restarts: int = 0,
    *,
    heartbeat_timeout: float = 30.0,
    log_dir: str | None = None,
) -> int:
    """Runs `jaxdp.train` in several processes to their end, and restarts all of them after a
    failure if `max_restarts` allows it.

    Args:
        flags: of `jaxdp.train`.
        devices_per_process: GPUs, or simulated devices on a CPU; None for the GPUs divided, or 1.
        max_restarts: how often to start all processes again.
        heartbeat_timeout: seconds after which the processes miss one that is gone.
        log_dir: folder for a file of each process, to which its output is appended.

    Returns:
        as `Supervisor.wait` does.

    Raises:
        ConfigError: if there are too few GPUs, they cannot be shared out evenly, or a log cannot be
            written.
    """
    compilation_cache.enable()  # once for all processes, which inherit the choice
    shares = device_shares(num_processes, devices_per_process)
    if devices_per_process is not None:
        flags = [*flags, "--devices", str(devices_per_process)]
    logs = _create_logs(log_dir, num_processes)
    signals, restarts = list[int](), 0
    with forwarding(signals.append):
        while True:
            code = _run(flags, shares, logs, signals, heartbeat_timeout + supervisor.GRACE_SECONDS)
            if code in FINAL or signals or restarts == max_restarts:
                return code
            restarts += 1
            again = f"starting all again ({restarts} of at most {max_restarts})"
            say(f"a process ended with {code}; {again}")


def _run(
    flags: Sequence[str],
    shares: Sequence[dict[str, str]],
    logs: Sequence[pathlib.Path],
    signals: Sequence[int],
    grace_seconds: float,
) -> int:
    with hold_port() as port:
        address = f"127.0.0.1:{port.getsockname()[1]}"
        group = ["--coordinator", address, "--num-processes", str(len(shares))]
        # The first process shows the result, and its progress as a bar if there is a terminal.
        shown = (not logs, not logs and sys.stderr.isatty())
        attempt = Supervisor(
            [
                LocalProcess(
                    [*TRAIN, *flags, *group, "--process-id", str(index)],
                    share,
                    inherits=shown if index == 0 else (False, False),
                )
                for index, share in enumerate(shares)
            ],
            "process",
            grace_seconds,
            logs,
        )
        code = attempt.wait(signals)
    for line in attempt.explain():
        say(line)
    return code


def _create_logs(folder: str | None, count: int) -> list[pathlib.Path]:
    """Creates a file for each process, and returns their paths; returns none without a folder."""
    if folder is None:
        return []
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
    return paths


def device_shares(count: int, each: int | None = None) -> list[dict[str, str]]:
    """Returns the environment variables that give each process its share of the GPUs.

    The variables are empty without GPUs.

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
