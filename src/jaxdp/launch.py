"""`python -m jaxdp.launch -n 2 -- train ...`: starts and supervises the processes of a run, or with
`-- script.py ...` those of a script that creates a `Trainer`.

`launch slurm --nodes 3 --gpus-per-node 4 -- train ...` prints a script with which Slurm starts
them.
"""

import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

from jaxdp.cli import command_line
from jaxdp.config import TrainConfig, deprecation
from jaxdp.errors import ConfigError, flag
from jaxdp.launching import launcher, slurm

# By the first word: settings, function, and one line for --help.
_LAUNCHERS: dict[str, tuple[type[Any], Callable[..., int], str]] = {
    "": (
        launcher.LaunchConfig,
        launcher.launch,
        "Start processes: launch -n 2 -- train ... (launch slurm --help)",
    ),
    "slurm": (
        slurm.SlurmConfig,
        slurm.launch,
        "Print a batch script: launch slurm --nodes 3 ... -- train ...",
    ),
}
_OWN_SETTINGS = {"coordinator", "num_processes", "process_id", "distributed"}


@command_line.program("jaxdp.launch")
def main(argv: Sequence[str]) -> int:
    """Runs the command and returns its exit code."""
    words = list(argv)
    end = words.index("--") if "--" in words else len(words)
    own, command = words[:end], words[end + 1 :]
    if sentence := deprecation.COMMANDS.get(" ".join(["launch", *own[:1]])):
        raise ConfigError("", "", f"{own[0]}: {sentence}")
    name = own.pop(0) if own and own[0] in _LAUNCHERS else ""
    settings, launch, description = _LAUNCHERS[name]
    prog = f"python -m jaxdp.launch {name}".rstrip()
    config = command_line.parse(
        settings, own, prog=prog, description=description, defaults_file=False
    )
    if launch is launcher.launch and pathlib.Path((*command, "")[0]).suffix == ".py":
        return launcher.launch_script(command, config)
    if command[:1] != ["train"]:
        example = f"-- train {flag('model', 'pyramidnet')} ..."
        example += ", or -- script.py" * (launch is launcher.launch)
        raise ConfigError("", command[:1], f"write what to start after the flags: {example}")
    for name in sorted(command_line.given_flags(command) & _OWN_SETTINGS):
        raise ConfigError(name, "", "is set by the launcher; leave it out")
    # A usage error is printed once, before the job is queued or a process starts.
    train = command_line.parse(
        TrainConfig, command[1:], prog="python -m jaxdp.train", description=""
    )
    return launch(command[1:], config, train)


if __name__ == "__main__":
    sys.exit(main())
