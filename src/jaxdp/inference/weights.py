"""Reads weights from untrusted files, and encodes weights or a whole evaluation for other
programs.
"""

import dataclasses
import json
import pathlib
import pickle
from collections.abc import Mapping
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

from jaxdp.config import TrainConfig
from jaxdp.data.npz_file import open_npz, read_array
from jaxdp.data.sources import Description
from jaxdp.errors import ConfigError
from jaxdp.inference.apply import create_apply, create_preprocess
from jaxdp.step.state import TrainState, model_arrays

PLATFORMS = ("cpu", "cuda", "tpu")  # platforms on which an exported program can run


# Arrays by name, and whether `export` wrote them.
Weights = tuple[dict[str, np.ndarray], bool]


def read_weights(path: str | pathlib.Path) -> Weights:
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


def _read_safetensors(path: pathlib.Path) -> Weights:
    with safetensors.safe_open(path, framework="numpy") as file:  # pyright: ignore
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no dict
        return arrays, (file.metadata() or {}).get("format") == "jaxdp"


def _read_npz(path: pathlib.Path) -> Weights:
    with open_npz(path) as file:
        return {name: read_array(file, name) for name in file.files}, False


def _read_torch(path: pathlib.Path) -> Weights:
    try:
        import torch  # pyright: ignore[reportMissingImports]
    except ImportError:
        remedy = "needs PyTorch: pip install torch, or save it as .safetensors"
        raise ConfigError("weights", path, remedy) from None
    content = torch.load(path, map_location="cpu", weights_only=True)
    for key in ("state_dict", "model"):  # which training scripts often add
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping) or not all(map(torch.is_tensor, content.values())):
        raise ConfigError("weights", path, "holds no state dict: save model.state_dict()")
    halves = {torch.bfloat16: torch.float32}  # which NumPy lacks
    return {
        name: tensor.detach().to(halves.get(tensor.dtype, tensor.dtype)).numpy()
        for name, tensor in content.items()
    }, False


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
    *(AttributeError, KeyError, TypeError),  # for a dtype that NumPy lacks
    pickle.UnpicklingError,
    safetensors.SafetensorError,
)


def about(config: TrainConfig, description: Description) -> dict[str, Any]:
    """Returns the facts of a model that a program requires to serve it."""
    facts = {
        "model": config.model,
        "model_kwargs": config.model_kwargs,
        "normalize": config.normalize,
    }
    if config.mask_values is not None:
        facts["mask_values"] = str(config.mask_values)
    return facts | dataclasses.asdict(description)


def to_safetensors(state: TrainState, config: TrainConfig, description: Description) -> bytes:
    """Returns a file of weights, which are averaged if the run has an EMA."""
    named = model_arrays(state).items()
    # safetensors 0.8.0 writes bytes in memory order, even for a transposed array.
    arrays = {name.replace("/", "."): np.asarray(leaf, order="C") for name, leaf in named}
    facts = json.dumps(about(config, description))
    return safetensors.numpy.save(arrays, metadata={"format": "jaxdp", "about": facts})


def program_facts(description: Description) -> dict[str, Any]:
    """Returns facts of a program that `to_stablehlo` writes: the JAX that wrote it, which older
    versions may be unable to run, and its outputs.
    """
    outputs = "pixels" if description.answer == "regression" else "logits"
    if description.task == "scalar_regression":
        outputs = "numbers"
    return {"jax": jax.__version__, "outputs": outputs}


def to_stablehlo(state: TrainState, config: TrainConfig, description: Description) -> bytes:
    """Returns a program that `jax.export.deserialize` reads: its `call` maps stored pixels (batch,
    H, W, C), of any batch size, to the model's outputs; numbers have the units of the data.

    The pixels have the dtype of the dataset. The program holds the range that becomes 0 to 255, the
    mean and the standard deviation.
    """
    apply = create_apply(create_preprocess(config, description))
    shape = (*jax.export.symbolic_shape("batch"), *description.image_shape)
    images = jax.ShapeDtypeStruct(shape, jnp.dtype(description.dtype))
    placed = jax.tree.map(jnp.asarray, state)
    mean, std = description.value_mean or (0.0,), description.value_std or (1.0,)
    is_number = description.task == "scalar_regression"

    @jax.jit
    def program(images: Any) -> Any:
        outputs = apply(placed, images)
        return outputs * jnp.array(std) + jnp.array(mean) if is_number else outputs

    return bytes(jax.export.export(program, platforms=PLATFORMS)(images).serialize())
