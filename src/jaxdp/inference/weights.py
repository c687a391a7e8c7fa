"""Reads weights from files of others, and writes those of a run, or its whole evaluation, for
others to use.
"""

import dataclasses
import json
import pathlib
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy
from flax import nnx

from jaxdp.config import TrainConfig
from jaxdp.data.npz_file import open_npz, read_array
from jaxdp.data.sources import Description
from jaxdp.inference.apply import create_apply, create_preprocess
from jaxdp.inference.saved_model import read_description, restore
from jaxdp.models.weights import fit_weights
from jaxdp.parsing import resolved
from jaxdp.registry import ConfigError
from jaxdp.rundir.layout import RunDirectory
from jaxdp.rundir.write import check_file, replace_file
from jaxdp.step.state import TrainState

PLATFORMS = ("cpu", "cuda", "tpu")  # on which an exported program can run


def read_weights(path: str | pathlib.Path) -> tuple[dict[str, np.ndarray], bool]:
    """Returns arrays by name, and whether `export` wrote them.

    Raises:
        ConfigError: for a file that cannot be read, or holds more than arrays.
    """
    path = pathlib.Path(path)
    if not path.is_file():
        raise ConfigError("weights", path, "there is no such file")
    if path.suffix not in _READERS:
        raise ConfigError("weights", path, "must end in .safetensors, .npz, .pt or .pth")
    try:
        return _READERS[path.suffix](path)
    except ConfigError:
        raise
    except _UNREADABLE as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError("weights", path, f"cannot be read: {reason}") from error


def _read_safetensors(path: pathlib.Path) -> tuple[dict[str, np.ndarray], bool]:
    arrays: dict[str, np.ndarray] = {}
    with safetensors.safe_open(path, framework="numpy") as file:  # pyright: ignore
        for name in file.keys():  # noqa: SIM118 - a file is no dict
            dtype = file.get_slice(name).get_dtype()
            try:
                array = file.get_tensor(name)
            except (AttributeError, KeyError, TypeError) as error:
                raise _unknown_dtype(path, name, dtype) from error
            arrays[name] = array.astype(np.float32) if dtype == "BF16" else array
        return arrays, (file.metadata() or {}).get("format") == "jaxdp"


def _read_npz(path: pathlib.Path) -> tuple[dict[str, np.ndarray], bool]:
    with open_npz(path) as file:
        return {name: read_array(file, name) for name in file.files}, False


def _read_torch(path: pathlib.Path) -> tuple[dict[str, np.ndarray], bool]:
    try:
        import torch  # pyright: ignore[reportMissingImports]
    except ImportError:
        remedy = "needs PyTorch: pip install torch, or save it as .safetensors"
        raise ConfigError("weights", path, remedy) from None
    content = torch.load(path, map_location="cpu", weights_only=True)
    for key in ("state_dict", "model"):  # as training scripts often wrap it
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping) or not all(
        hasattr(value, "detach") for value in content.values()
    ):
        raise ConfigError("weights", path, "holds no state dict: save model.state_dict()")
    arrays: dict[str, np.ndarray] = {}
    for name, tensor in content.items():
        dtype = str(tensor.dtype).removeprefix("torch.")
        try:
            arrays[name] = (tensor.float() if dtype == "bfloat16" else tensor).detach().numpy()
        except (RuntimeError, TypeError) as error:
            raise _unknown_dtype(path, name, dtype) from error
    return arrays, False


_READERS = {
    ".safetensors": _read_safetensors,
    ".npz": _read_npz,
    ".pt": _read_torch,
    ".pth": _read_torch,
}
_UNREADABLE = (
    OSError,
    ValueError,
    EOFError,
    RuntimeError,
    pickle.UnpicklingError,
    safetensors.SafetensorError,
)


def _unknown_dtype(path: pathlib.Path, name: str, dtype: str) -> ConfigError:
    """Returns the error for a dtype that NumPy does not have."""
    remedy = f"{name} is {dtype}, which cannot be read; save it as float32, float16 or bfloat16"
    return ConfigError("weights", path, remedy)


def load_exported(model: Any, weights: Mapping[str, np.ndarray]) -> None:
    """Loads what `export` wrote; nothing is changed unless all of it fits."""
    arrays = nnx.state(model, (nnx.Param, nnx.BatchStat))
    tree = nnx.to_pure_dict(arrays)
    expected = _by_name(tree)
    fitting, problems = fit_weights(weights, expected)
    if problems:
        raise ConfigError("", None, f"the weights are not those of this network: {problems}")
    loaded = [jax.device_put(fitting[name]) for name in expected]
    nnx.replace_by_pure_dict(arrays, jax.tree.unflatten(jax.tree.structure(tree), loaded))
    nnx.update(model, arrays)


def _by_name(tree: Any) -> dict[str, Any]:
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def export(
    run_dir: str, output: pathlib.Path, step: int | None, plugins: Sequence[str] = ()
) -> str:
    """Writes weights (averaged ones where the run has them) or a program.

    The file is complete or not there at all.

    Args:
        output: NAME.safetensors or NAME.stablehlo; for the latter NAME.stablehlo.json holds class
            names, normalization and the like.
        step: of the checkpoint; None for the best by validation data, or the newest where there are
            none.
        plugins: files or modules that the run was trained with.

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
    run = RunDirectory(pathlib.Path(run_dir))
    config = run.load_trusted_config(plugins)
    description = read_description(run)
    found, state = restore(run, config, description, step)
    is_program = output.suffix == ".stablehlo"
    content = (_stablehlo if is_program else _safetensors)(state, config, description)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        if is_program:  # which has no place for it
            about = _about(config, description) | {"step": found}
            replace_file(resolved(about_file), json.dumps(about, indent=2) + "\n")
        replace_file(resolved(output), content)
    except OSError as error:
        raise ConfigError("output", output, f"cannot be written ({error.strerror})") from error
    more = f"; classes and normalization in {about_file}" if is_program else ""
    return f"{output}: step {found} of {run_dir}, {len(content):,} bytes{more}"


def _about(config: TrainConfig, description: Description) -> dict[str, Any]:
    """Returns what a program that serves a model must know of the model."""
    about = {
        "model": config.model,
        "model_kwargs": config.model_kwargs,
        "normalize": config.normalize,
    }
    if config.mask_values is not None:
        about["mask_values"] = str(config.mask_values)
    return about | dataclasses.asdict(description)


def _safetensors(state: TrainState, config: TrainConfig, description: Description) -> bytes:
    params, batch_stats = state.ema or (state.params, state.batch_stats)
    leaves = _by_name(params) | _by_name(batch_stats)
    arrays = {name: np.asarray(leaf) for name, leaf in leaves.items()}
    about = json.dumps(_about(config, description))
    return safetensors.numpy.save(arrays, metadata={"format": "jaxdp", "about": about})


def _stablehlo(state: TrainState, config: TrainConfig, description: Description) -> bytes:
    """Returns a program that `jax.export.deserialize` reads: its `call` maps stored pixels (batch,
    H, W, C) to the model's outputs.

    Their dtype is that of the dataset; what becomes 0 to 255 of them, mean and standard deviation
    are in the program.
    """
    apply = create_apply(create_preprocess(config, description))
    shape = (*jax.export.symbolic_shape("batch"), *description.image_shape)
    images = jax.ShapeDtypeStruct(shape, jnp.dtype(description.dtype))
    placed = jax.tree.map(jnp.asarray, state)
    program = jax.jit(lambda images: apply(placed, images))
    return bytes(jax.export.export(program, platforms=PLATFORMS)(images).serialize())
