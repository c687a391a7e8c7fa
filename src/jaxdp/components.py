"""Which dataset, task and model does a configuration ask for?"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxdp import models, tasks
from jaxdp.config import EXCLUSIVE, TrainConfig
from jaxdp.data.sources import Dataset, open_dataset
from jaxdp.registry import ConfigError, load_plugins

DEFAULT_DATASETS = {"classification": "digits", "segmentation": "cells", "regression": "digits-denoise"}


def open_data(config: TrainConfig) -> tuple[TrainConfig, Dataset]:
    """Opens the dataset, and returns the configuration with what model and dataset decide filled in."""
    load_plugins(config.plugins)
    served = models.tasks_of(config.model)
    possible = tasks.candidates(config.task, served)
    if not possible:
        raise ConfigError("task", config.task, f"{config.model} is for {' and '.join(served)}; choose another --model")
    default = next((DEFAULT_DATASETS[name] for name in possible if name in DEFAULT_DATASETS), None)
    if config.dataset is None and default is None:
        raise ConfigError("dataset", "", f"has no default for {possible[0]}; give one")
    config = dataclasses.replace(config, dataset=config.dataset or default)
    dataset = open_dataset(config, possible, tasks.kind_of)
    task = config.task or dataset.task
    dataset = dataclasses.replace(dataset, task=task, kind=tasks.kind_of(task))
    filled: dict[str, Any] = {"task": task}
    if config.augment is None:
        filled["augment"] = dataset.augment
    for name, value in dataset.defaults.items():
        if name == "model_kwargs":
            filled[name] = dict(value.get(config.model, {})) | config.model_kwargs
        elif getattr(config, name) is None and not any(
            name in pair and any(getattr(config, partner) is not None for partner in pair) for pair in EXCLUSIVE
        ):
            filled[name] = value
    return dataclasses.replace(config, **filled), dataset


def create_model(config: TrainConfig, dataset: Any, *, rngs: nnx.Rngs, dtype: Any) -> nnx.Module:
    """Args:
    dataset: whatever tells `num_classes` and `image_shape`.
    """
    load_plugins(config.plugins)
    if "dtype" in config.model_kwargs:
        raise ConfigError("model_kwargs", {"dtype": config.model_kwargs["dtype"]}, "use --precision")
    kwargs: dict[str, Any] = config.model_kwargs | {"dtype": dtype}
    return models.create(config.model, num_classes=dataset.num_classes, in_channels=dataset.image_shape[-1], rngs=rngs, **kwargs)


def create_task(config: TrainConfig, dataset: Any) -> tasks.Task:
    load_plugins(config.plugins)
    flags = {name: getattr(config, name) for name in ("loss", "label_smoothing") if getattr(config, name)}
    for name, value in flags.items():
        if name in config.task_kwargs:
            raise ConfigError(name, value, f"is among --task-kwargs, too: {name}={config.task_kwargs[name]}; give one of them")
    kwargs = flags | config.task_kwargs
    try:
        return tasks.create(dataset.task, num_classes=dataset.num_classes, class_names=dataset.class_names, **kwargs)
    except ConfigError as error:
        for name, value in flags.items():
            if error.value == {name: value}:
                raise ConfigError(name, value, f"{error.remedy} (for {dataset.task})") from error
        raise


def check_model(config: TrainConfig, dataset: Dataset, task: tasks.Task, image_shapes: set[tuple[int, ...]]) -> int:
    """Traces the model on images of the sizes it will meet, which computes nothing.

    Returns:
        The fewest rows that a convolution reads or writes; one over single rows does not count.

    Raises:
        ConfigError: for keywords that it does not take, or a size that it cannot work on.
    """
    # Batch statistics change in training, so that training mode would need another transform: its shapes are the same.
    model: Any = nnx.eval_shape(lambda: create_model(config, dataset, rngs=nnx.Rngs(0), dtype=jnp.float32))
    model.eval()
    graphdef, arrays = nnx.split(model)
    rows = []
    for shape in sorted(image_shapes):
        images = jax.ShapeDtypeStruct((1, *shape), jnp.float32)
        forward = jax.make_jaxpr(lambda arrays, images: nnx.merge(graphdef, arrays)(images))(arrays, images)
        (outputs,) = forward.out_avals
        wanted = 2 if dataset.kind == "classification" else 4
        assert len(outputs.shape) == wanted, f"{config.model} returns {outputs.shape} for {task.name}"
        rows += [shape[0], *_rows_of_convolutions(forward.jaxpr)]
    return min(rows)


def _rows_of_convolutions(program: Any) -> Iterator[int]:
    for equation in program.eqns:
        if equation.primitive.name == "conv_general_dilated":
            (read, kernel), (written,) = equation.invars, equation.outvars
            dims = equation.params["dimension_numbers"]
            if kernel.aval.shape[dims.rhs_spec[2]] > 1:
                yield from (read.aval.shape[dims.lhs_spec[2]], written.aval.shape[dims.out_spec[2]])
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from _rows_of_convolutions(inner)
