"""`python -m jaxdp.convert`: reads weights into a new run, and writes those of a run, or its whole
evaluation, for others.
"""

import dataclasses
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from jaxdp import command_line
from jaxdp.config import REQUIRED, PartsConfig, Settings, TrainConfig, setting
from jaxdp.parsing import printable
from jaxdp.registry import ConfigError, nearest
from jaxdp.runtime import platform

DESCRIPTIONS = {
    "import": "Read PyTorch weights, or weights that export wrote, into a new run.",
    "export": "Write the weights of a run as safetensors, or its evaluation as StableHLO.",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImportConfig(PartsConfig):
    """What `python -m jaxdp.convert import` takes: a model and the dataset that tells its classes
    and normalization.
    """

    weights: str = setting(
        REQUIRED,
        "file of weights: .safetensors, .npz, or where PyTorch is installed .pt or .pth "
        "(loaded with weights_only=True)",
        positional=True,
    )
    run_dir: str = setting(
        REQUIRED,
        "folder of the new run",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportConfig(Settings):
    """Flags that choose what is exported, and to which file."""

    run_dir: str = setting(
        REQUIRED,
        "folder of the run",
        positional=True,
    )
    output: str = setting(
        REQUIRED,
        "file to write: NAME.safetensors (weights) or NAME.stablehlo (program: images as "
        "stored in, outputs out, any batch size; class names and normalization are in "
        "NAME.stablehlo.json)",
    )
    step: int | None = setting(
        None,
        "step of the checkpoint (default: the best by validation data, or the last)",
    )
    plugins: tuple[str, ...] = setting(
        (),
        "Python files or modules that the run was trained with: those that only its folder "
        "names are not run, since they are code of whoever made the folder",
        metavar="FILE.py|MODULE",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `python -m jaxdp.convert` with these arguments, by default the process's own, and
    returns the exit code.
    """
    return command_line.main(_main, argv, "jaxdp.convert")


def _main(argv: Sequence[str]) -> int:
    name, *rest = argv or ["--help"]
    if name in ("--help", "-h"):
        lines = [f"  {command:<8}{text}" for command, text in DESCRIPTIONS.items()]
        print("usage: python -m jaxdp.convert {import,export} ...\n\n" + "\n".join(lines))
        return 0
    if name not in DESCRIPTIONS:
        raise ConfigError(
            "", name, f"{name}: must be import or export; {nearest(name, list(DESCRIPTIONS))}"
        )
    cls: Any = ImportConfig if name == "import" else ExportConfig
    command = command_line.parse(
        cls,
        rest,
        prog=f"python -m jaxdp.convert {name}",
        description=DESCRIPTIONS[name],
        defaults_file=False,
    )
    platform.configure(None)
    platform.check_backend()
    if name == "import":
        from jaxdp.tools.weights_import import import_weights

        config = command.part(TrainConfig)
        print(printable(import_weights(command.weights, config)))
    else:
        from jaxdp.inference.weights import export

        print(
            printable(
                export(command.run_dir, pathlib.Path(command.output), command.step, command.plugins)
            )
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
