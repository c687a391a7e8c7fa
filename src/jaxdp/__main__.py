"""Runs `python -m jaxdp.COMMAND` for `jaxdp COMMAND` and `python -m jaxdp COMMAND`."""

import importlib
import sys
from collections.abc import Sequence

import jaxdp
from jaxdp.cli.command_line import program
from jaxdp.config import deprecation
from jaxdp.errors import ConfigError
from jaxdp.text.messages import nearest

COMMANDS = {
    "train": "train a model",
    "launch": "start several processes of train, here or with Slurm",
    "devices": "show the devices and their memory",
    "plan": "print what a training step takes, and which batch fits",
    "evaluate": "evaluate a checkpoint of a run",
    "predict": "predict on images with a trained model",
    "convert": "import and export weights",
    "check": "compare training on one and on many devices",
}


def main() -> int:
    """Runs the command that the first argument of the process names, and returns its exit code."""
    if sys.argv[1:2] and sys.argv[1] in COMMANDS:
        return importlib.import_module(f"jaxdp.{sys.argv[1]}").main(sys.argv[2:])
    return _about()


@program("jaxdp")
def _about(words: Sequence[str]) -> int:
    name = words[0] if words else "--help"
    if name in ("--version", "-V"):
        print(jaxdp.__version__)
    elif name in ("--help", "-h"):
        print(
            "usage: jaxdp COMMAND ...\n\n"
            + "\n".join(f"  {command:<13}{text}" for command, text in COMMANDS.items())
        )
    else:
        unknown = f"unknown command; {nearest(name, COMMANDS)}"
        raise ConfigError("", "", f"{name}: {deprecation.COMMANDS.get(name, unknown)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
