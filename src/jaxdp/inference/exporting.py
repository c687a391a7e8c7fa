"""Writes the weights of a trained model, or its evaluation as a program, for other programs."""

import importlib.util
import json
import pathlib

from jaxdp.config import TrainConfig
from jaxdp.data.dataset import Description
from jaxdp.errors import ConfigError
from jaxdp.inference import weights
from jaxdp.rundir.write import check_file, write_output
from jaxdp.step.state import TrainState


def check_output(output: pathlib.Path) -> None:
    """Raises ConfigError if the file cannot be written, or is of another type."""
    if output.suffix not in (".safetensors", ".stablehlo"):
        raise ConfigError("output", output, "must end in .safetensors or .stablehlo")
    check_file("output", output, "model.safetensors")
    check_file("output", _about_file(output), "model.stablehlo.json")
    if output.suffix == ".stablehlo" and importlib.util.find_spec("flatbuffers") is None:
        raise ConfigError("output", output, "needs flatbuffers: pip install '.[export]'")


def write(
    state: TrainState, config: TrainConfig, description: Description, output: pathlib.Path
) -> str:
    """Writes weights (averaged weights if the run has an EMA) or a program. The file is either
    complete or absent.

    Returns:
        What was written, for people.
    """
    if output.suffix == ".safetensors":
        content = weights.to_safetensors(state, config, description)
        write_output("output", output, content)
        return f"{len(content):,} bytes"
    program = weights.program_facts(description)
    content = weights.to_stablehlo(state, config, description)
    about = weights.about(config, description)  # a program has no place for it
    about |= {"step": int(state.step), "program": program}
    write_output("output", _about_file(output), json.dumps(about, indent=2) + "\n")
    write_output("output", output, content)
    return (
        f"{len(content):,} bytes; classes and normalization in {_about_file(output)}; it returns"
        f" {program['outputs']}; written by JAX {program['jax']}, it runs on this version and on"
        " versions up to six months newer"
    )


def _about_file(output: pathlib.Path) -> pathlib.Path:
    return output.with_name(output.name + ".json")
