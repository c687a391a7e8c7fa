"""`jaxdp COMMAND` and `python -m jaxdp COMMAND`: the same as `python -m jaxdp.COMMAND`."""

import importlib
import sys

from jaxdp.registry import nearest

COMMANDS = {
    "train": "train a model",
    "launch": "start several processes of train, here or with Slurm",
    "sweep": "train with combinations of settings, and compare",
    "devices": "show the devices and their memory",
    "plan": "print what a training step takes, and which batch fits",
    "bench": "measure throughput over strategies, batches and devices",
    "report": "write a page that compares runs",
    "evaluate": "evaluate a checkpoint of a run",
    "predict": "predict on images with a trained model",
    "convert": "import and export weights",
    "check": "compare training on one and on many devices",
}


def main() -> int:
    """Runs the command that the first argument of the process names, and returns its exit code."""
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in COMMANDS:
        return importlib.import_module(f"jaxdp.{name}").main(sys.argv[2:])
    if name in ("--version", "-V"):
        from jaxdp import __version__

        print(__version__)
        return 0
    if name in ("--help", "-h"):
        print(
            "usage: jaxdp COMMAND ...\n\n"
            + "\n".join(f"  {command:<13}{text}" for command, text in COMMANDS.items())
        )
        return 0
    print(f"jaxdp: error: {name}: unknown command; {nearest(name, COMMANDS)}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
