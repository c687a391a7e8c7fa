"""Reads weights from files of others, and writes those of a run, or its whole evaluation, for
others to use.
"""

import dataclasses
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import safetensors.numpy
from flax import nnx

from jaxdp.config import TrainConfig
from jaxdp.data.augment import Preprocess
from jaxdp.data.npz_file import NpzFile
from jaxdp.data.sources import Description
from jaxdp.inference import predictor
from jaxdp.inference.apply import create_apply
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
    try:
        if path.suffix == ".safetensors":
            return _read_safetensors(path)
        if path.suffix == ".npz":
            with NpzFile(path) as arrays:
                return {name: arrays.read(name) for name in arrays.names}, False
        if path.suffix in (".pt", ".pth"):
            return _read_torch(path), False
    except ConfigError:
        raise
    except (OSError, ValueError, EOFError, RuntimeError) as error:
        raise ConfigError("weights", path, f"cannot be read: {_first_line(error)}") from error
    except Exception as error:  # safetensors and pickle have errors of their own kinds
        if type(error).__name__ not in ("SafetensorError", "UnpicklingError"):
            raise
        raise ConfigError("weights", path, f"cannot be read: {_first_line(error)}") from error
    raise ConfigError("weights", path, "must end in .safetensors, .npz, .pt or .pth")


def _read_safetensors(path: pathlib.Path) -> tuple[dict[str, np.ndarray], bool]:
    with safetensors.safe_open(path, framework="numpy") as file:  # pyright: ignore
        own = (file.metadata() or {}).get("format") == "jaxdp"
        names = list(file.keys())
        found = {name: _read_tensor(file, name, path) for name in names}
    return found, own


def _read_tensor(file: Any, name: str, path: pathlib.Path) -> np.ndarray:
    dtype = file.get_slice(name).get_dtype()
    try:
        array = file.get_tensor(name)
    except (AttributeError, KeyError, TypeError) as error:  # of a dtype that NumPy does not have
        raise _of_another_dtype(path, name, dtype) from error
    return array.astype(np.float32) if dtype == "BF16" else array


def _of_another_dtype(path: pathlib.Path, name: str, dtype: str) -> ConfigError:
    remedy = f"{name} is {dtype}, which cannot be read; save it as float32, float16 or bfloat16"
    return ConfigError("weights", path, remedy)


def _read_torch(path: pathlib.Path) -> dict[str, np.ndarray]:
    try:
        import torch  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ConfigError(
            "weights", path, "needs PyTorch: pip install torch, or save it as .safetensors"
        ) from None
    content = torch.load(path, map_location="cpu", weights_only=True)
    for key in ("state_dict", "model"):  # as training scripts often wrap it
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping) or not all(
        hasattr(value, "detach") for value in content.values()
    ):
        raise ConfigError("weights", path, "holds no state dict: save model.state_dict()")
    return {name: _of_torch(value, name, path) for name, value in content.items()}


def _of_torch(tensor: Any, name: str, path: pathlib.Path) -> np.ndarray:
    dtype = str(tensor.dtype).removeprefix("torch.")
    tensor = tensor.detach()
    try:
        # Which NumPy does not have.
        return (tensor.float() if dtype == "bfloat16" else tensor).numpy()
    except (RuntimeError, TypeError) as error:
        raise _of_another_dtype(path, name, dtype) from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def load_exported(model: Any, weights: Mapping[str, np.ndarray]) -> None:
    """Loads what `export` wrote; nothing is changed unless all of it fits."""
    arrays = nnx.state(model, (nnx.Param, nnx.BatchStat))
    paths, structure = jax.tree_util.tree_flatten_with_path(nnx.to_pure_dict(arrays))
    expected = {
        jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in paths
    }
    fitting, problems = fit_weights(weights, expected)
    if problems:
        raise ConfigError("", None, f"the weights are not those of this network: {problems}")
    loaded = [jax.device_put(fitting[name]) for name in expected]
    nnx.replace_by_pure_dict(arrays, jax.tree.unflatten(structure, loaded))
    nnx.update(model, arrays)


def export(
    run_dir: str, output: pathlib.Path, step: int | None, plugins: Sequence[str] = ()
) -> str:
    """Writes weights (averaged ones where the run has them) or a program.

    The file is complete or not there at all.

    Args:
        output: NAME.safetensors or NAME.stablehlo, beside which NAME.stablehlo.json holds class
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
    beside = output.with_name(output.name + ".json")
    check_file("output", beside, "model.stablehlo.json")
    run = RunDirectory(pathlib.Path(run_dir))
    config = run.load_trusted_config(plugins)
    description = predictor.read_description(run)
    found, state = predictor.restore(run, config, description, step)
    content = (_safetensors if output.suffix == ".safetensors" else _stablehlo)(
        state, config, description
    )
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        if output.suffix == ".stablehlo":  # which has no place for it
            replace_file(
                resolved(beside),
                json.dumps(_about(config, description) | {"step": found}, indent=2) + "\n",
            )
        replace_file(resolved(output), content)
    except OSError as error:
        raise ConfigError("output", output, f"cannot be written ({error.strerror})") from error
    more = f"; classes and normalization in {beside}" if output.suffix == ".stablehlo" else ""
    return f"{output}: step {found} of {run_dir}, {len(content):,} bytes{more}"


def _about(config: TrainConfig, description: Description) -> dict[str, Any]:
    """Returns what whoever serves a model must know of it."""
    values = config.mask_values
    about = {
        "model": config.model,
        "model_kwargs": config.model_kwargs,
        "normalize": config.normalize,
    }
    about |= {"mask_values": str(values)} if values is not None else {}
    return about | dataclasses.asdict(description)


def _safetensors(state: TrainState, config: TrainConfig, description: Description) -> bytes:
    params, batch_stats = (state.params, state.batch_stats) if state.ema is None else state.ema
    leaves = [
        leaf for tree in (params, batch_stats) for leaf in jax.tree_util.tree_leaves_with_path(tree)
    ]
    arrays = {
        jax.tree_util.keystr(path, simple=True, separator="."): np.asarray(leaf)
        for path, leaf in leaves
    }
    return safetensors.numpy.save(
        arrays, metadata={"format": "jaxdp", "about": json.dumps(_about(config, description))}
    )


def _stablehlo(state: TrainState, config: TrainConfig, description: Description) -> bytes:
    """Returns a program that `jax.export.deserialize` reads: its `call` maps stored pixels (batch,
    H, W, C) to the model's outputs.

    Their dtype is that of the dataset; what becomes 0 to 255 of them, mean and standard deviation
    are in the program.
    """
    per_image = config.normalize == "image"
    apply = create_apply(
        Preprocess(
            description.mean,
            description.std,
            per_image=per_image,
            pixel_range=description.pixel_range,
        )
    )
    shape = (*jax.export.symbolic_shape("batch"), *description.image_shape)
    images = jax.ShapeDtypeStruct(shape, jnp.dtype(description.dtype))
    placed = jax.tree.map(jnp.asarray, state)
    program = jax.jit(lambda images: apply(placed, images))
    return bytes(jax.export.export(program, platforms=PLATFORMS)(images).serialize())
