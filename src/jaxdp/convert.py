"""`python -m jaxdp.convert`: reads weights into a new run, and writes the weights of a run, or its
whole evaluation, for other programs.
"""

import importlib.util
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from jaxdp.cli import command_line
from jaxdp.config import (
    LOCAL,
    POSITIVE,
    REQUIRED,
    PartsConfig,
    SavedRunConfig,
    TrainConfig,
    WorkersConfig,
    setting,
    settings_group,
)
from jaxdp.errors import ConfigError
from jaxdp.rundir.write import check_file, replace_file
from jaxdp.runtime import platform
from jaxdp.text.flags import flag, for_command
from jaxdp.text.messages import nearest, printable, some
from jaxdp.text.parsing import resolved

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
    """The file to write."""

    output: str = setting(
        REQUIRED,
        """file to write: NAME.safetensors (weights) or NAME.stablehlo (program: images as stored
        in, outputs out, any batch size; class names and normalization are in
        NAME.stablehlo.json)""",
        LOCAL,
    )
    static_batch: int | None = setting(
        None,
        """NAME.stablehlo: the number of images of each call, for an older JAX, which cannot run a
        program for any number (default: any number)""",
        POSITIVE,
        metavar="IMAGES",
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
            "", name, f"{name}: must be import or export; {nearest(name, DESCRIPTIONS)}"
        )
    cls: Any = ImportConfig if name == "import" else ExportConfig
    command = command_line.parse(
        cls,
        rest,
        prog=f"python -m jaxdp.convert {name}",
        description=DESCRIPTIONS[name],
        defaults_file=False,
    )
    if name == "import":
        print(printable(import_weights(command.weights, command.part(TrainConfig))))
    else:
        given = command.run_dir, pathlib.Path(command.output), command.step, command.plugins
        print(for_command(export(*given, static_batch=command.static_batch)))
    return 0


def export(
    run_dir: str,
    output: pathlib.Path,
    step: int | None,
    plugins: Sequence[str] = (),
    static_batch: int | None = None,
) -> str:
    """Writes weights (averaged weights if the run has an EMA) or a program.

    The file is either complete or absent.

    Args:
        run_dir: folder of the run.
        output: `NAME.safetensors` for weights, `NAME.stablehlo` for a program.
        step: which checkpoint; None for the best by validation data, or for the newest without
            validation data.
        plugins: files or modules that the run was trained with.
        static_batch: the only batch size of a program; None for any.

    Returns:
        What was written, for people.

    Raises:
        ConfigError: if there is no such checkpoint, or the output cannot be written.
    """
    if output.suffix not in (".safetensors", ".stablehlo"):
        raise ConfigError("output", output, "must end in .safetensors or .stablehlo")
    check_file("output", output, "model.safetensors")
    about_file = output.with_name(output.name + ".json")
    check_file("output", about_file, "model.stablehlo.json")
    from jaxdp.inference import weights
    from jaxdp.loading import load

    is_program = output.suffix == ".stablehlo"
    if static_batch is not None and not is_program:
        raise ConfigError("static_batch", static_batch, "is for a program, NAME.stablehlo")
    if is_program and importlib.util.find_spec("flatbuffers") is None:
        raise ConfigError("output", output, "needs flatbuffers: pip install '.[export]'")
    result = load(run_dir, step=step, plugins=plugins)
    given = result.state, result.config, result.description
    program = weights.program_facts(result.description, static_batch)
    if is_program:
        content = weights.to_stablehlo(*given, static_batch)
    else:
        content = weights.to_safetensors(*given)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        if is_program:  # which has no place for it
            about = weights.about(result.config, result.description)
            about |= {"step": result.step, "program": program}
            replace_file(resolved(about_file), json.dumps(about, indent=2) + "\n")
        replace_file(resolved(output), content)
    except OSError as error:
        raise ConfigError("output", output, f"cannot be written ({error.strerror})") from error
    written = f"{output}: step {result.step} of {run_dir}, {len(content):,} bytes"
    if not is_program:
        return written
    return (
        f"{written}; classes and normalization in {about_file}; it returns {program['outputs']};"
        f" written by JAX {program['jax']}, it runs on JAX {program['oldest_jax']} and on versions"
        " up to six months newer than the writer"
        + f"; for an older JAX give {flag('static_batch')}"
        * (static_batch is None)
    )


def import_weights(file: str, config: TrainConfig) -> str:
    """Creates a run that holds imported weights as its step 0; returns a sentence for the user.

    Training continues such a run; evaluation and prediction use it.

    Args:
        file: a PyTorch state dict, or weights that `jaxdp.convert export` wrote.
        config: of the run, with its folder.

    Raises:
        ConfigError: if the file cannot be read, the weights do not fit the network, or the folder
            already holds a run.
    """
    from jaxdp.build.setup import create_setup
    from jaxdp.result import Result

    platform.configure(None)
    # The strategy is only for loading. Training may use another strategy.
    single = config.replace(resume="never", strategy="single", **WorkersConfig().flat())
    try:
        setup = create_setup(single.replace(init_from=file))
    except ConfigError as error:
        field = "weights" if error.field == "init_from" else error.field
        raise ConfigError(field, error.value, error.remedy) from error
    weights = setup.initial.weights
    assert weights is not None
    for names, problem in ((weights.fresh, "missing"), (weights.skipped, "unexpected")):
        if names:
            raise ConfigError("weights", file, f"{len(names)} {problem}: {some(names)}")
    result = Result.untrained(setup)
    result.config = setup.config.replace(strategy=config.strategy, init_from=None)
    run = result.save(setup.config.run_dir or "")
    next_command = f"python -m jaxdp.evaluate {run}"
    return f"{run} holds {len(weights.arrays)} arrays as step 0; next: {next_command}"


if __name__ == "__main__":
    sys.exit(main())
