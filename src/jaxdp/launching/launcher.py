"""Starts the processes of a run on this machine: ports, shares of the GPUs, restarts."""

import contextlib
import itertools
import os
import pathlib
import sys
from collections.abc import Sequence

from jaxdp.config import (
    MOST_DEVICES,
    MOST_PROCESSES,
    NON_NEGATIVE,
    POSITIVE,
    REQUIRED,
    Settings,
    TrainConfig,
    at_most,
    setting,
    settings_group,
)
from jaxdp.errors import ConfigError
from jaxdp.launching import supervisor
from jaxdp.launching.local_process import LocalProcess
from jaxdp.launching.supervisor import Restarts, Supervisor
from jaxdp.runtime import compilation_cache
from jaxdp.runtime.coordinator import hold_port
from jaxdp.runtime.processes import LAUNCHED
from jaxdp.runtime.signals import forwarding

TRAIN = ("-m", "jaxdp.train")


@settings_group
class LaunchConfig(Settings):
    """The number of processes on this machine, and their devices."""

    num_processes: int = setting(
        REQUIRED,
        "processes to start",
        POSITIVE,
        at_most(MOST_PROCESSES),
        alias="-n",
    )
    devices_per_process: int | None = setting(
        None,
        """devices of each process: GPUs, or simulated ones on a CPU (default: the GPUs divided, or
        1)""",
        POSITIVE,
        at_most(MOST_DEVICES),
    )
    max_restarts: int = setting(
        0,
        "how often to start all again from the last checkpoint after one has failed",
        NON_NEGATIVE,
    )


def launch(flags: Sequence[str], config: LaunchConfig, train: TrainConfig) -> int:
    """Runs `jaxdp.train` in several processes to their end.

    Args:
        flags: of `jaxdp.train`.
        train: the settings that the flags give.

    Returns:
        as `Supervisor.wait` does.

    Raises:
        ConfigError: if there are too few GPUs, or if they cannot be divided evenly.
    """
    if config.devices_per_process is not None:
        flags = [*flags, "--devices", str(config.devices_per_process)]
    return _launch([*TRAIN, *flags], config, train)


def launch_script(command: Sequence[str], config: LaunchConfig) -> int:
    """Runs a script of the user in several processes to their end. Its `Trainer` finds the other
    processes by variables of the environment.

    Args:
        command: the script and its arguments.

    Raises:
        ConfigError: if there is no such file, and as `launch` does.
    """
    if not pathlib.Path(command[0]).is_file():
        raise ConfigError("", command[0], f"{command[0]}: there is no such script")
    count = config.devices_per_process  # simulated by a CPU
    return _launch(
        command, config, TrainConfig(), {"JAX_NUM_CPU_DEVICES": str(count)} if count else {}
    )


def _launch(
    command: Sequence[str],
    config: LaunchConfig,
    train: TrainConfig,
    variables_of_script: dict[str, str] | None = None,
) -> int:
    compilation_cache.enable()  # once for all processes, which inherit the choice
    shares = device_shares(config.num_processes, config.devices_per_process)
    grace_seconds = train.heartbeat_timeout + supervisor.GRACE_SECONDS
    signals, restarts = list[int](), Restarts(config.max_restarts)
    with forwarding(signals.append):
        while True:
            code = _run(command, shares, signals, grace_seconds, variables_of_script)
            if signals or not restarts.again(code):
                return code


def _run(
    command: Sequence[str],
    shares: Sequence[dict[str, str]],
    signals: Sequence[int],
    grace_seconds: float,
    variables_of_script: dict[str, str] | None,
) -> int:
    """Runs all processes once, and returns the exit code of the run.

    Args:
        variables_of_script: to add to the environment of a script; None for `jaxdp.train`.
    """
    with hold_port() as port:
        processes = list[LocalProcess]()
        for index, share in enumerate(shares):
            place = (f"127.0.0.1:{port.getsockname()[1]}", str(len(shares)), str(index))
            arguments, variables = [*command], {**share}
            if variables_of_script is not None:
                variables |= variables_of_script | dict(zip(LAUNCHED, place, strict=True))
            else:
                words = ("--coordinator", "--num-processes", "--process-id")
                arguments += itertools.chain(*zip(words, place, strict=True))
            # The first process shows the result, and its progress as a bar on a terminal.
            shows = (index == 0, index == 0 and sys.stderr.isatty())
            processes.append(LocalProcess(arguments, variables, inherits=shows))
        attempt = Supervisor(processes, grace_seconds)
        with contextlib.closing(attempt):
            code = attempt.wait(signals)
    attempt.explain()
    return code


def device_shares(count: int, each: int | None = None) -> list[dict[str, str]]:
    """Returns the environment variables that give each process its share of the GPUs.

    The variables are empty without GPUs.

    Args:
        count: of processes.
        each: GPUs of a process; None to divide all GPUs.

    Raises:
        ConfigError: if there are too few, or if they cannot be divided evenly.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        gpus = [word for word in visible.split(",") if word]
    else:
        paths = pathlib.Path("/dev").glob("nvidia[0-9]*")
        gpus = sorted((path.name.removeprefix("nvidia") for path in paths), key=int)
    if not gpus or os.environ.get("JAX_PLATFORMS") == "cpu":
        return [{} for _ in range(count)]
    if each is None and len(gpus) % count:
        problem = (
            f"{count} processes do not divide {len(gpus)} GPUs; take another number, or hide some"
        )
        raise ConfigError("", "", problem)
    size = each or len(gpus) // count
    if size * count > len(gpus):
        remedy = f"{count} processes need {size * count} GPUs; there are {len(gpus)}"
        raise ConfigError("devices_per_process", size, remedy)
    return [
        {"CUDA_VISIBLE_DEVICES": ",".join(gpus[index * size : (index + 1) * size])}
        for index in range(count)
    ]
