"""`python -m jaxdp.launch -n 2 -- train ...`: starts the processes of a run on this machine and
looks after them.

`launch slurm --nodes 3 --gpus-per-node 4 -- train ...` prints or submits a script with which Slurm
starts them, and `launch ray --workers 4 -- train ...` starts them on the nodes of a Ray cluster.
"""

import dataclasses
import sys
from collections.abc import Sequence

from jaxdp import command_line
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
)
from jaxdp.registry import ConfigError
from jaxdp.runtime import launcher, ray_launcher, slurm

DESCRIPTION = "Start processes: launch -n 2 -- train ... (launch slurm --help, launch ray --help)"
_OTHERS = {
    "slurm": (
        slurm.SlurmConfig,
        "Print or submit a batch script: launch slurm --nodes 3 ... -- train ...",
    ),
    "ray": (
        ray_launcher.RayConfig,
        "Train on a Ray cluster: launch ray --workers 4 ... -- train ...",
    ),
}
_OWN_FLAGS = ("--coordinator", "--num-processes", "--process-id", "--distributed")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LaunchConfig(Settings):
    """Flags that choose how many processes start here, with which devices."""

    num_processes: int = setting(
        REQUIRED,
        "processes to start",
        POSITIVE,
        at_most(MOST_PROCESSES),
        alias="-n",
    )
    devices_per_process: int | None = setting(
        None,
        "devices of each process: GPUs, or simulated ones on a CPU (default: the GPUs "
        "divided, or 1)",
        POSITIVE,
        at_most(MOST_DEVICES),
    )
    max_restarts: int = setting(
        0,
        "how often to start all again from the last checkpoint after one has failed",
        NON_NEGATIVE,
    )
    log_dir: str | None = setting(
        None,
        "folder to which what process N prints is appended as well, as process-N.log",
        metavar="PATH",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `python -m jaxdp.launch` with these arguments, by default the process's own, and returns
    the exit code.
    """
    return command_line.main(_main, argv, "jaxdp.launch")


def _main(argv: Sequence[str]) -> int:
    words = list(argv)
    own, command = (
        (words[: words.index("--")], words[words.index("--") + 1 :])
        if "--" in words
        else (words, [])
    )
    other = own[0] if own and own[0] in _OTHERS else ""
    kind, description = _OTHERS[other] if other else (LaunchConfig, DESCRIPTION)
    prog = f"python -m jaxdp.launch {other}".rstrip()
    config = command_line.parse(
        kind, own[bool(other) :], prog=prog, description=description, defaults_file=False
    )
    if command[:1] != ["train"]:
        raise ConfigError(
            "", command[:1], "write what to start after the flags: -- train --model pyramidnet ..."
        )
    for word in command:
        if word.split("=")[0] in _OWN_FLAGS:
            raise ConfigError(word.split("=")[0][2:], "", "is set by the launcher; leave it out")
    # A usage error shows once, and before the job has queued or anything has started.
    settings = command_line.parse(
        TrainConfig, command[1:], prog="python -m jaxdp.train", description=""
    )
    if isinstance(config, ray_launcher.RayConfig):
        return ray_launcher.launch(command[1:], config, settings)
    if isinstance(config, LaunchConfig):
        return launcher.launch(
            command[1:],
            config.num_processes,
            config.devices_per_process,
            config.max_restarts,
            heartbeat_timeout=settings.heartbeat_timeout,
            log_dir=config.log_dir,
        )
    assert isinstance(config, slurm.SlurmConfig)
    script = slurm.script(config, command[1:])
    print(slurm.submit(script) if config.submit else script, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
