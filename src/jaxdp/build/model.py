"""Creates the model of a run."""

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
from flax import nnx

from jaxdp import models
from jaxdp.build.inputs import NOTHING, Inputs
from jaxdp.config import TrainConfig
from jaxdp.errors import ConfigError, flag
from jaxdp.runtime import platform

# Keywords of every model or task that have values already.
_DECIDED = {
    "name": f"use {flag('model')} or {flag('task')}",
    "dtype": f"use {flag('precision')}",
    "rngs": f"use {flag('seed')}",
    "num_classes": "comes from the dataset",
    "in_channels": f"comes from the images; see {flag('channels')}",
    "class_names": f"use {flag('class_names')}",
}


def create_model(
    config: TrainConfig,
    dataset: Any,
    inputs: Inputs = NOTHING,
    *,
    rngs: nnx.Rngs,
    dtype: Any,
    factory: Callable[..., Any] | None = None,
) -> nnx.Module:
    """Copies the model that was given, or creates the one that the settings name, for the classes
    and channels of a dataset.

    In a copy, Flax's layers without a format of their own compute in the format of the run. Their
    parameters stay float32.

    Args:
        dataset: what has `num_classes` and `image_shape`.
        factory: makes the model; None for what the name stands for now.
    """
    if inputs.model is not None:
        return _in_format(nnx.clone(inputs.model), dtype)
    check_decided("model_kwargs", config.model_kwargs)
    return models.create(
        factory or config.model,
        num_classes=dataset.num_classes,
        in_channels=dataset.image_shape[-1],
        rngs=rngs,
        dtype=dtype,
        **config.model_kwargs,
    )


def _in_format(model: nnx.Module, dtype: Any) -> nnx.Module:
    """Returns the model whose layers compute in a format, if it is no float32.

    Raises:
        ConfigError: for a model without such a layer.
    """
    layers = [
        layer for _, layer in nnx.iter_modules(model) if getattr(layer, "dtype", dtype) is None
    ]
    if jnp.dtype(dtype).name in platform.HALF_PRECISION and not layers:
        remedy = "no layer of the model has dtype=None; give dtype to the layers where it is made"
        raise ConfigError("precision", jnp.dtype(dtype).name, remedy)
    for layer in layers if dtype != jnp.float32 else ():
        layer.dtype = dtype  # pyright: ignore[reportAttributeAccessIssue]
    return model


def check_decided(field: str, keywords: Mapping[str, Any]) -> None:
    """Raises ConfigError for a keyword that the dataset, or a setting of its own, decides."""
    for name in keywords:
        if name in _DECIDED:
            raise ConfigError(field, {name: keywords[name]}, _DECIDED[name])


def has_own_code(config: TrainConfig, inputs: Inputs) -> bool:
    """Whether a step runs code of the user's: a model, a task or a loss that jaxdp does not
    have.
    """
    model = inputs.model if inputs.model is not None else models.factory(config.model)
    parts = [part for part in (model, inputs.task, inputs.loss) if part is not None]
    # An object has the module of its class.
    modules = [getattr(part, "__module__", None) or "" for part in parts]
    return not all(module.startswith("jaxdp.") for module in modules)
