"""`python -m jaxdp.launch -n 2 -- train ...`: starts the processes of a run on this machine and looks after them.

`python -m jaxdp.launch slurm --nodes 3 --gpus-per-node 4 -- train ...` prints or submits a script with which Slurm starts them.
"""

import dataclasses
import sys
from collections.abc import Sequence
from typing import Annotated

import tyro

from jaxdp import command_line
from jaxdp.config import NON_NEGATIVE, POSITIVE, OptionalInt, Settings, TrainConfig
from jaxdp.registry import ConfigError
from jaxdp.runtime import launcher, slurm

DESCRIPTION = "Start processes here: launch -n 2 -- train ...; by Slurm: launch slurm --help"
SLURM_DESCRIPTION = "Print or submit a batch script: launch slurm --nodes 3 ... -- train ..."
_OWN_FLAGS = ("--coordinator", "--num-processes", "--process-id", "--distributed")


@dataclasses.dataclass(frozen=True)
class LaunchConfig(Settings):
    """Flags that choose how many processes start here, with which devices."""

    num_processes: Annotated[int, POSITIVE, tyro.conf.arg(aliases=["-n"])]
    """processes to start"""
    devices_per_process: Annotated[OptionalInt, POSITIVE] = None
    """devices of each process: GPUs, or simulated ones on a CPU (default: the GPUs divided, or 1)"""
    max_restarts: Annotated[int, NON_NEGATIVE] = 0
    """how often to start all again from the last checkpoint after one has failed"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `python -m jaxdp.launch` with these arguments, by default the process's own, and returns the exit code."""
    return command_line.main(_main, argv, "jaxdp.launch")


def _main(argv: Sequence[str]) -> int:
    words = list(argv)
    own, command = (words[: words.index("--")], words[words.index("--") + 1 :]) if "--" in words else (words, [])
    by_slurm = own[:1] == ["slurm"]
    if by_slurm and {"-h", "--help"} & set(own):
        return _slurm(own[1:], [])
    config = None if by_slurm else command_line.parse(
        LaunchConfig, own, prog="python -m jaxdp.launch", description=DESCRIPTION, defaults_file=False
    )  # fmt: skip
    if command[:1] != ["train"]:
        raise ConfigError("", command[:1], "write what to start after the flags: -- train --model pyramidnet ...")
    for word in command:
        if word.split("=")[0] in _OWN_FLAGS:
            raise ConfigError(word.split("=")[0][2:], "", "is set by the launcher; leave it out")
    if config is None:
        return _slurm(own[1:], command[1:])
    # A usage error shows once, and before anything starts.
    settings = command_line.parse(TrainConfig, command[1:], prog="python -m jaxdp.train", description="").processes
    return launcher.launch(
        command[1:], config.num_processes, config.devices_per_process, config.max_restarts,
        heartbeat_timeout=settings.heartbeat_timeout,
    )  # fmt: skip


def _slurm(own: Sequence[str], flags: Sequence[str]) -> int:
    """Prints or submits a batch script.

    Args:
        own: words after `slurm` and before `--`.
        flags: of `jaxdp.train`.
    """
    prog = "python -m jaxdp.launch slurm"
    config = command_line.parse(slurm.SlurmConfig, own, prog=prog, description=SLURM_DESCRIPTION, defaults_file=False)
    # A usage error shows before the job has queued.
    command_line.parse(TrainConfig, flags, prog="python -m jaxdp.train", description="")
    script = slurm.script(config, flags)
    print(slurm.submit(script) if config.submit else script, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
