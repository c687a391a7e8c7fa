"""`python -m jaxdp.convert`: reads weights into a new run, and writes the weights of a run, or its
whole evaluation, for other programs.
"""

import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from jaxdp.cli import command_line
from jaxdp.config import (
    LOCAL,
    REQUIRED,
    PartsConfig,
    SavedRunConfig,
    TrainConfig,
    setting,
    settings_group,
)
from jaxdp.errors import ConfigError, flag
from jaxdp.runtime import platform
from jaxdp.text.flags import for_command
from jaxdp.text.messages import nearest, some

DESCRIPTIONS = {
    "import": "Read PyTorch weights, or weights that export wrote, into a new run.",
    "export": "Write the weights of a run as safetensors, or its evaluation as StableHLO.",
}


@settings_group
class ImportConfig(PartsConfig):
    """The weights and the new run; model and dataset give its classes and normalization."""

    weights: str = setting(
        REQUIRED,
        """file of weights: .safetensors, .npz, or with PyTorch installed .pt or .pth (loaded with
        weights_only=True)""",
        positional=True,
    )
    run_dir: str = setting(REQUIRED, "folder of the new run", LOCAL)


@settings_group
class ExportConfig(SavedRunConfig):
    """The file or the folder to write."""

    output: str | None = setting(
        None,
        """file to write: NAME.safetensors (weights) or NAME.stablehlo (program: images as stored
        in, outputs out, any batch size; class names and normalization are in
        NAME.stablehlo.json)""",
        LOCAL,
        excludes="hub_layout",
    )
    hub_layout: str | None = setting(
        None,
        """folder to write as a repository of the Hugging Face hub: model.safetensors, config.json
        and a model card; --init-from and jaxdp.load read it""",
        LOCAL,
    )


@command_line.program("jaxdp.convert")
def main(argv: Sequence[str]) -> int:
    """Runs the command and returns its exit code."""
    name, *rest = argv or ["--help"]
    if name in ("--help", "-h"):
        lines = [f"  {command:<8}{text}" for command, text in DESCRIPTIONS.items()]
        print("usage: python -m jaxdp.convert {import,export} ...\n\n" + "\n".join(lines))
        return 0
    if name not in DESCRIPTIONS:
        raise ConfigError(
            "", name, f"{name}: must be import or export; {nearest(name, DESCRIPTIONS)}"
        )
    cls, convert = (ImportConfig, import_weights) if name == "import" else (ExportConfig, export)
    asked: Any = command_line.parse(
        cls,
        rest,
        prog=f"python -m jaxdp.convert {name}",
        description=DESCRIPTIONS[name],
        defaults_file=False,
    )
    print(for_command(convert(asked)))
    return 0


def export(asked: ExportConfig) -> str:
    """Writes weights (averaged weights if the run has an EMA) or a program.

    A file is either complete or absent.

    Returns:
        What was written, for people.

    Raises:
        ConfigError: if there is no such checkpoint, or the output cannot be written.
    """
    from jaxdp.inference import exporting, hub_layout
    from jaxdp.loading import load

    if asked.hub_layout is not None:
        folder = pathlib.Path(asked.hub_layout)
        result = load(asked.run_dir, step=asked.step, plugins=asked.plugins)
        hub_layout.check(folder, result.config, result.description)
        state, config, summary = result.state, result.config, result.summary
        written = hub_layout.write(state, config, result.description, summary, folder)
        return f"{folder}: step {result.step} of {asked.run_dir}, {written}"
    if asked.output is None:
        ways = f"give it, or {flag('hub_layout')}"
        raise ConfigError("output", "(not given)", f"names the file to write; {ways}")
    output = pathlib.Path(asked.output)
    exporting.check_output(output)
    result = load(asked.run_dir, step=asked.step, plugins=asked.plugins)
    written = exporting.write(result.state, result.config, result.description, output)
    return f"{output}: step {result.step} of {asked.run_dir}, {written}"


def import_weights(asked: ImportConfig) -> str:
    """Creates a run that holds imported weights as its step 0; returns a sentence for the user.

    Training continues such a run; evaluation and prediction use it.

    Raises:
        ConfigError: if the file cannot be read, the weights do not fit the network, or the folder
            already holds a run.
    """
    from jaxdp.build.setup import create_setup
    from jaxdp.result import Result

    platform.configure(None)
    config = asked.part(TrainConfig)
    try:
        # The strategy is only for loading. Training may use another strategy.
        setup = create_setup(
            config.replace(resume="never", strategy="single", init_from=asked.weights)
        )
    except ConfigError as error:
        field = "weights" if error.field == "init_from" else error.field
        raise ConfigError(field, error.value, error.remedy) from error
    weights = setup.initial.weights
    assert weights is not None
    for names, problem in ((weights.fresh, "missing"), (weights.skipped, "unexpected")):
        if names:
            raise ConfigError("weights", asked.weights, f"{len(names)} {problem}: {some(names)}")
    result = Result.untrained(setup)
    result.config = setup.config.replace(
        # A run that continues has no weights that would decide the size again.
        **{"strategy": config.strategy, "init_from": None, "image_size": setup.config.image_size}
    )
    run = result.save(setup.config.run_dir or "")
    next_command = f"python -m jaxdp.evaluate {run}"
    return f"{run} holds {len(weights.arrays)} arrays as step 0; next: {next_command}"


if __name__ == "__main__":
    sys.exit(main())
