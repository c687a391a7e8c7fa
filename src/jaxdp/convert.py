"""`python -m jaxdp.convert`: reads weights into a new run, and writes those of a run, or its whole
evaluation, for other programs.
"""

import contextlib
import dataclasses
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from jaxdp import command_line
from jaxdp.config import REQUIRED, PartsConfig, Settings, TrainConfig, WorkersConfig, setting
from jaxdp.parsing import printable
from jaxdp.registry import ConfigError, nearest
from jaxdp.runtime import platform

DESCRIPTIONS = {
    "import": "Read PyTorch weights, or weights that export wrote, into a new run.",
    "export": "Write the weights of a run as safetensors, or its evaluation as StableHLO.",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImportConfig(PartsConfig):
    """The weights and the new run; model and dataset give its classes and normalization."""

    weights: str = setting(
        REQUIRED,
        "file of weights: .safetensors, .npz, or with PyTorch installed .pt or .pth (loaded with "
        "weights_only=True)",
        positional=True,
    )
    run_dir: str = setting(REQUIRED, "folder of the new run")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportConfig(Settings):
    """The run and the file to write."""

    run_dir: str = setting(REQUIRED, "folder of the run", positional=True)
    output: str = setting(
        REQUIRED,
        "file to write: NAME.safetensors (weights) or NAME.stablehlo (program: images as stored "
        "in, outputs out, any batch size; class names and normalization are in "
        "NAME.stablehlo.json)",
    )
    step: int | None = setting(
        None, "step of the checkpoint (default: the best by validation data, or the last)"
    )
    plugins: tuple[str, ...] = setting(
        (),
        "Python files or modules that the run was trained with; names that only the run's folder "
        "holds are not imported, since they are code of the folder's author",
        metavar="FILE.py|MODULE",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command with these arguments or the process's own; returns the exit code."""
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
        print(printable(import_weights(command.weights, command.part(TrainConfig))))
    else:
        from jaxdp.inference.weights import export

        file = pathlib.Path(command.output)
        print(printable(export(command.run_dir, file, command.step, command.plugins)))
    return 0


def import_weights(file: str, config: TrainConfig) -> str:
    """Creates a run that holds imported weights as its step 0; returns a sentence for the user.

    Training continues such a run; evaluation and prediction use it.

    Args:
        file: a PyTorch state dict, or weights that `jaxdp.convert export` wrote.
        config: of the run, with its folder.

    Raises:
        ConfigError: if the file cannot be read, the weights do not fit the network, or the folder
            holds a run already.
    """
    from flax import nnx

    from jaxdp.checkpoint.checkpoints import Checkpoints
    from jaxdp.components import create_model
    from jaxdp.inference.weights import load_exported, read_weights
    from jaxdp.models.reference_weights import load_reference_weights
    from jaxdp.rundir.start import open_run
    from jaxdp.step.state import create_train_state
    from jaxdp.training.setup import create_setup

    weights, own = read_weights(file)
    # The strategy here is only for loading; training is free to use another one.
    single = config.replace(resume="never", strategy="single", **WorkersConfig().flat())
    setup = create_setup(single)
    model = create_model(setup.config, setup.dataset, rngs=nnx.Rngs(config.seed), dtype=setup.dtype)
    try:
        (load_exported if own else load_reference_weights)(model, weights)
    except ConfigError as error:
        raise ConfigError("weights", file, error.remedy) from error
    description = dataclasses.asdict(setup.dataset.describe())
    run = open_run(setup.config, description, create=True)
    state = setup.strategy.gather(
        setup.strategy.restore(create_train_state(model, setup.recipe.optimizer(setup.schedule)))
    )
    with run.exclusive():
        with contextlib.closing(
            Checkpoints(run.checkpoints, keep=1, best_metric=None)
        ) as checkpoints:
            checkpoints.save(0, state, {}, None)
            checkpoints.wait()
        run.write("dataset.json", description)
        run.write_config(setup.config.replace(strategy=config.strategy))
    return (
        f"{run.path} holds {len(weights)} arrays as step 0; next: python -m jaxdp.evaluate"
        f" {run.path}"
    )


if __name__ == "__main__":
    sys.exit(main())
