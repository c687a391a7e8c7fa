"""Looks at a model without computing anything: shapes of its arrays and outputs, and formats."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxdp import tasks
from jaxdp.build.inputs import Inputs
from jaxdp.build.model import create_model
from jaxdp.config import TrainConfig
from jaxdp.data.sources import Dataset
from jaxdp.errors import ConfigError
from jaxdp.models.layers import BatchNorm
from jaxdp.runtime import platform
from jaxdp.step.combine import is_float
from jaxdp.step.keys import create_key
from jaxdp.step.state import array_name, call_model


@dataclasses.dataclass(frozen=True)
class ModelFacts:
    """What tracing a model shows.

    Attributes:
        normalizes: whether it has batch norms with statistics that are set from outside.
        outputs: shapes and dtypes of the outputs for one image as the dataset has it.
    """

    normalizes: bool
    outputs: Any


def array_shapes(
    config: TrainConfig, dataset: Any, inputs: Inputs
) -> tuple[dict[str, jax.ShapeDtypeStruct], dict[str, jax.ShapeDtypeStruct]]:
    """Returns shapes and dtypes of a model's parameters, and of its batch statistics, by name.

    Nothing is computed. A name is, for example, `head/kernel`.

    Args:
        dataset: an object with `num_classes` and `image_shape`.
    """
    model = abstract_model(config, dataset, inputs)

    def by_name(kind: type[nnx.Variable[Any]]) -> dict[str, jax.ShapeDtypeStruct]:
        tree = nnx.to_pure_dict(nnx.state(model, kind))
        leaves = jax.tree_util.tree_leaves_with_path(tree)
        return {array_name(path): leaf for path, leaf in leaves}

    return by_name(nnx.Param), by_name(nnx.BatchStat)


def abstract_model(config: TrainConfig, dataset: Any, inputs: Inputs) -> Any:
    """Returns the model with shapes instead of arrays; nothing is computed."""
    return nnx.eval_shape(
        lambda: create_model(
            config, dataset, inputs, rngs=nnx.Rngs(create_key(0)), dtype=jnp.float32
        )
    )


def check_model(
    config: TrainConfig,
    dataset: Dataset,
    task: tasks.Task,
    image_shapes: set[tuple[int, ...]],
    inputs: Inputs,
) -> ModelFacts:
    """Traces the model on images of the sizes it will meet, which computes nothing.

    Raises:
        ConfigError: for keywords that it does not take, a size that it cannot work on, or outputs
            that do not fit the task.
    """
    # Batch statistics change in training, so that training mode would need another transform: its
    # shapes are the same.
    model = abstract_model(config, dataset, inputs)
    model.eval()
    _check_parameters(config, model)
    graphdef, arrays = nnx.split(model)
    further = {
        name: jax.ShapeDtypeStruct((1, *shape), dtype)
        for name, (shape, dtype) in dataset.targets.items()
    }
    outputs = {}
    for shape in sorted(image_shapes):
        images = jax.ShapeDtypeStruct((1, *shape), jnp.float32)
        try:
            forward, outputs[shape] = jax.make_jaxpr(
                lambda arrays, batch: call_model(nnx.merge(graphdef, arrays), batch),
                return_shape=True,
            )(arrays, further | {"images": images})
        except ConfigError:
            raise
        except Exception as error:  # whatever a model raises
            if inputs.model is None:
                raise
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            remedy = f"cannot be called with images of shape {images.shape}: {reason}"
            if isinstance(inputs.model, nnx.bridge.ToNNX):
                remedy += "; it has no parameters before nnx.bridge.lazy_init(model, images)"
            raise ConfigError("model", config.model, remedy) from error
        if not task.free_outputs:
            _check_outputs(config, dataset, task, [each.shape for each in forward.out_avals])
        # A model with a format of its own.
        for name in _formats(forward.jaxpr) & {*platform.HALF_PRECISION}:
            platform.check_precision(name, "model", config.model)
    normalizes = any(isinstance(module, BatchNorm) for _, module in nnx.iter_modules(model))
    return ModelFacts(normalizes, outputs[dataset.image_shape])


def _check_parameters(config: TrainConfig, model: nnx.Module) -> None:
    """Raises ConfigError for a parameter that no optimizer can train."""
    parameters = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    for path, leaf in jax.tree_util.tree_leaves_with_path(parameters):
        if not is_float(leaf):
            remedy = f"its parameter {array_name(path)} is {leaf.dtype}, which has no gradient"
            remedy += "; make it an nnx.BatchStat"
            raise ConfigError("model", config.model, remedy)


def _check_outputs(
    config: TrainConfig, dataset: Dataset, task: tasks.Task, shapes: list[tuple[int, ...]]
) -> None:
    """Raises ConfigError for outputs for one image that do not fit the task."""
    classes = dataset.num_classes
    dims, wanted = 4, f"(1, height, width, {classes})"
    if dataset.kind == "classification":
        dims, wanted = 2, f"(1, {classes})"
    if len(shapes) != 1 or len(shapes[0]) != dims or shapes[0][-1] != classes:
        returned = " and ".join(map(str, shapes))
        remedy = f"returns {returned} for an image; {task.name} on {config.dataset} needs {wanted}"
        if shapes == [(1, 1)] and classes == 2:
            remedy += '; one logit is for labels (N, 1) with task="multilabel"'
        raise ConfigError("model", config.model, remedy)


def _equations(program: Any) -> Iterator[Any]:
    """Yields the equations of a jaxpr and of those inside it."""
    for equation in program.eqns:
        yield equation
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from _equations(inner)


def _formats(program: Any) -> set[str]:
    """Returns the dtypes in which a program computes."""
    avals = [each.aval for equation in _equations(program) for each in equation.outvars]
    return {str(aval.dtype) for aval in avals if hasattr(aval, "dtype")}
