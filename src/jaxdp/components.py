"""Finds the dataset, task and model that settings name, or takes the objects that stand in for
them.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from jaxdp import models, tasks
from jaxdp.config import TrainConfig, displaced_by
from jaxdp.data.sources import TARGET_FIELDS, Dataset, check_dataset, open_dataset
from jaxdp.models.layers import BatchNorm
from jaxdp.registry import ConfigError, load_plugins
from jaxdp.runtime import platform
from jaxdp.step.state import array_name

# Mean and standard deviation of red, green and blue over ImageNet, in units of 0 to 255. Source:
# torchvision's `ImageClassification` transforms, (0.485, 0.456, 0.406) and (0.229, 0.224, 0.225).
IMAGENET_MEAN, IMAGENET_STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
DEFAULT_DATASETS = {
    "classification": "digits",
    "segmentation": "cells",
    "regression": "digits-denoise",
}


@dataclasses.dataclass(frozen=True)
class Objects:
    """What a run was given as objects rather than by name; None for what its settings name.

    Attributes:
        model: maps normalized images, float32 (N, H, W, C), to outputs.
        task: its losses, sums and metrics.
        loss: a loss function `(outputs, targets) -> (N,)` instead of a task.
        optimizer: has its own learning rate.
        schedule: learning rate as a function of the step.
    """

    model: nnx.Module | None = None
    dataset: Dataset | None = None
    task: tasks.Task | None = None
    loss: Callable[..., Any] | None = None
    optimizer: optax.GradientTransformation | None = None
    schedule: optax.Schedule | None = None


# Keywords of every model or task that have values already.
_DECIDED = {
    "name": "use --model or --task",
    "dtype": "use --precision",
    "rngs": "use --seed",
    "num_classes": "is that of the dataset",
    "in_channels": "is that of the images; see --channels",
    "class_names": "use --class-names",
}
NOTHING = Objects()  # everything by name


def open_data(config: TrainConfig, objects: Objects = NOTHING) -> tuple[TrainConfig, Dataset]:
    """Opens the dataset, and returns the configuration with what model and dataset decide filled
    in.
    """
    load_plugins(config.plugins)
    if objects.dataset is not None:
        dataset = check_dataset(objects.dataset, config, _kind_of(objects))
        _check_purpose(config, objects, dataset)
    else:
        dataset = _open_named(config, objects)
        config = config.replace(dataset=config.dataset or DEFAULT_DATASETS[dataset.kind])
    task = objects.task.name if objects.task is not None else config.task or dataset.task
    kind = _kind_of(objects)(task)
    dataset = _normalized(config, dataclasses.replace(dataset, task=task, kind=kind))
    filled: dict[str, Any] = {"task": task}
    settings = config.flat()
    given = [name for name, value in settings.items() if value is not None]
    displaced = displaced_by(TrainConfig, given)
    if config.augment is None:
        filled["augment"] = dataset.augment
    for name, value in dataset.defaults.items():
        if name == "model_kwargs":
            filled[name] = dict(value.get(config.model, {})) | config.model_kwargs
        elif name == "learning_rate":
            if settings[name] is None and objects.schedule is None:
                filled[name] = value.get(config.optimizer)
        elif settings[name] is None and name not in displaced:
            filled[name] = value
    return config.replace(**filled), dataset


def _normalized(config: TrainConfig, dataset: Dataset) -> Dataset:
    """Returns the dataset with ImageNet's mean and standard deviation, where the settings ask for
    them.
    """
    if config.normalize != "imagenet":
        return dataset
    channels = dataset.image_shape[-1]
    if channels != 3:
        remedy = (
            f"is of red, green and blue, and the images have {channels} channels; give --channels 3"
            " for a folder, or leave it out"
        )
        raise ConfigError("normalize", "imagenet", remedy)
    return dataclasses.replace(dataset, mean=IMAGENET_MEAN, std=IMAGENET_STD)


def _kind_of(objects: Objects) -> Callable[[str], str]:
    """Returns a function that tells which of the three tasks here a task is like.

    The task that was given need not have a name.
    """
    task = objects.task
    if task is None:
        return tasks.kind_of
    kind = task.name if task.name in TARGET_FIELDS else getattr(task, "kind", "classification")
    return lambda name: kind if name == task.name else tasks.kind_of(name)


def _served(config: TrainConfig, objects: Objects) -> tuple[str, ...]:
    """Returns which of the three tasks the model serves, or the task that was given asks for."""
    if objects.task is not None:
        return (_kind_of(objects)(objects.task.name),)
    return tuple(TARGET_FIELDS) if objects.model is not None else models.tasks_of(config.model)


def _check_purpose(config: TrainConfig, objects: Objects, dataset: Dataset) -> None:
    served = _served(config, objects)
    if dataset.kind not in served:
        who = "the task" if objects.task is not None else config.model
        raise ConfigError(
            "",
            "",
            f"the dataset {config.dataset} is for {dataset.kind}, and {who} for"
            f" {' or '.join(served)}",
        )


def _open_named(config: TrainConfig, objects: Objects) -> Dataset:
    served = _served(config, objects)
    possible = served if objects.task is not None else tasks.candidates(config.task, served)
    if not possible:
        raise ConfigError(
            "task",
            config.task,
            f"{config.model} is for {' and '.join(served)}; choose another --model",
        )
    default = next((DEFAULT_DATASETS[name] for name in possible if name in DEFAULT_DATASETS), None)
    if config.dataset is None and default is None:
        raise ConfigError("dataset", "", f"has no default for {possible[0]}; give one")
    return open_dataset(config.replace(dataset=config.dataset or default), possible, tasks.kind_of)


def create_model(
    config: TrainConfig,
    dataset: Any,
    *,
    rngs: nnx.Rngs,
    dtype: Any,
    factory: Callable[..., Any] | None = None,
) -> nnx.Module:
    """Creates the model that the settings name, for the classes and channels of a dataset.

    Args:
        dataset: what has `num_classes` and `image_shape`.
        factory: makes the model; None for what the name stands for now.
    """
    load_plugins(config.plugins)
    _check_decided("model_kwargs", config.model_kwargs)
    kwargs: dict[str, Any] = config.model_kwargs | {"dtype": dtype}
    return models.create(
        factory or config.model,
        num_classes=dataset.num_classes,
        in_channels=dataset.image_shape[-1],
        rngs=rngs,
        **kwargs,
    )


def _check_decided(field: str, keywords: Mapping[str, Any]) -> None:
    """Raises ConfigError for a keyword that the dataset, or a setting of its own, decides."""
    for name in keywords:
        if name in _DECIDED:
            raise ConfigError(field, {name: keywords[name]}, _DECIDED[name])


def create_task(
    config: TrainConfig,
    dataset: Any,
    objects: Objects = NOTHING,
    *,
    class_weights: tuple[float, ...] = (),
) -> tasks.Task:
    """Returns the task that was given, or creates the one that the settings name.

    Args:
        class_weights: what `--class-weights` comes to on the training set; nothing where no loss is
            computed.

    Raises:
        ConfigError: for keywords that it does not take, and a task made for another number of
            classes than the dataset has.
    """
    if objects.task is not None:
        classes = getattr(objects.task, "num_classes", dataset.num_classes)
        if classes != dataset.num_classes:
            raise ConfigError(
                "task",
                config.task,
                f"is for {classes} classes, and {config.dataset} has {dataset.num_classes}",
            )
        return objects.task
    if objects.loss is not None:
        return tasks.from_loss(
            objects.loss,
            kind=dataset.kind,
            num_classes=dataset.num_classes,
            class_names=dataset.class_names,
        )
    load_plugins(config.plugins)
    _check_decided("task_kwargs", config.task_kwargs)
    flags: dict[str, Any] = {
        "loss": config.loss,
        "label_smoothing": config.label_smoothing,
    }
    flags["class_weights"] = class_weights
    flags = {name: value for name, value in flags.items() if value}
    for name, value in flags.items():
        if name in config.task_kwargs:
            raise ConfigError(
                name,
                value,
                f"is among --task-kwargs, too: {name}={config.task_kwargs[name]}; give one of them",
            )
    loss = str(config.loss or config.task_kwargs.get("loss", ""))
    of_batch = "class_weights" in flags and dataset.task == "segmentation" and "dice" not in loss
    kwargs = flags | ({"weighted_over": "batch"} if of_batch else {}) | config.task_kwargs
    try:
        return tasks.create(
            dataset.task, num_classes=dataset.num_classes, class_names=dataset.class_names, **kwargs
        )
    except ConfigError as error:
        for name, value in flags.items():
            if isinstance(error.value, dict) and name in error.value:
                value = getattr(config, name, value)
                raise ConfigError(name, value, f"{error.remedy} (for {dataset.task})") from error
        raise


def has_own_code(config: TrainConfig, objects: Objects) -> bool:
    """Whether a step runs code of the user's: a model, a task or a loss that jaxdp does not
    have.
    """
    parts = [type(each) for each in (objects.model, objects.task) if each is not None]
    parts += [objects.loss] if objects.loss is not None else []
    parts += [models.factory(config.model)] if objects.model is None else []
    modules = [getattr(part, "__module__", None) or "" for part in parts]
    return not all(module.startswith("jaxdp.") for module in modules)


def array_shapes(
    config: TrainConfig, dataset: Any, objects: Objects = NOTHING
) -> tuple[dict[str, jax.ShapeDtypeStruct], dict[str, jax.ShapeDtypeStruct]]:
    """Returns shapes and dtypes of a model's parameters, and of its batch statistics, by name.

    Nothing is computed. A name is, for example, `head/kernel`.

    Args:
        dataset: whatever tells `num_classes` and `image_shape`.
    """
    model = abstract_model(config, dataset, objects)
    found = [nnx.to_pure_dict(nnx.state(model, kind)) for kind in (nnx.Param, nnx.BatchStat)]
    named = [jax.tree_util.tree_leaves_with_path(tree) for tree in found]
    params, batch_stats = ({array_name(path): leaf for path, leaf in leaves} for leaves in named)
    return params, batch_stats


def abstract_model(config: TrainConfig, dataset: Any, objects: Objects = NOTHING) -> Any:
    """Returns the model with shapes in place of arrays; nothing is computed."""

    def create() -> nnx.Module:
        if objects.model is not None:
            return nnx.clone(objects.model)
        return create_model(config, dataset, rngs=nnx.Rngs(0), dtype=jnp.float32)

    return nnx.eval_shape(create)


def check_model(
    config: TrainConfig,
    dataset: Dataset,
    task: tasks.Task,
    image_shapes: set[tuple[int, ...]],
    objects: Objects = NOTHING,
) -> tuple[int, bool]:
    """Traces the model on images of the sizes it will meet, which computes nothing.

    Returns:
        The fewest rows that a convolution reads or writes, where one over single rows does not
        count, and whether the model has batch norms whose statistics are set from outside.

    Raises:
        ConfigError: for keywords that it does not take, a size that it cannot work on, or outputs
            that do not fit the task.
    """
    # Batch statistics change in training, so that training mode would need another transform: its
    # shapes are the same.
    model = abstract_model(config, dataset, objects)
    model.eval()
    graphdef, arrays = nnx.split(model)
    rows = []
    for shape in sorted(image_shapes):
        images = jax.ShapeDtypeStruct((1, *shape), jnp.float32)
        try:
            forward = jax.make_jaxpr(lambda arrays, images: nnx.merge(graphdef, arrays)(images))(
                arrays, images
            )
        except ConfigError:
            raise
        except Exception as error:  # whatever a model raises
            if objects.model is None:
                raise
            said = " ".join(str(error).split())[:300]
            remedy = (
                f"cannot be called with images of shape (1, {', '.join(map(str, shape))}):"
                f" {type(error).__name__}: {said}"
            )
            raise ConfigError("model", config.model, remedy) from error
        outputs = forward.out_avals
        dims = 2 if dataset.kind == "classification" else 4
        if (
            len(outputs) != 1
            or len(outputs[0].shape) != dims
            or outputs[0].shape[-1] != dataset.num_classes
        ):
            wanted = (
                (1, dataset.num_classes)
                if dims == 2
                else (1, "height", "width", dataset.num_classes)
            )
            shown = " and ".join(str(each.shape) for each in outputs)
            remedy = (
                f"returns {shown} for an image; {task.name} on {config.dataset} needs"
                f" ({', '.join(map(str, wanted))})"
            )
            raise ConfigError("model", config.model, remedy)
        # A model with a format of its own.
        for name in _formats(forward.jaxpr) & {*platform.HALF_PRECISION}:
            platform.check_precision(name, "model", config.model)
        rows += [shape[0], *_rows_of_convolutions(forward.jaxpr)]
    return min(rows), any(isinstance(module, BatchNorm) for _, module in nnx.iter_modules(model))


def _equations(program: Any) -> Iterator[Any]:
    """Yields the equations of a jaxpr and of those inside it."""
    for equation in program.eqns:
        yield equation
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from _equations(inner)


def _rows_of_convolutions(program: Any) -> Iterator[int]:
    for equation in _equations(program):
        if equation.primitive.name == "conv_general_dilated":
            (read, kernel), (written,) = equation.invars, equation.outvars
            dims = equation.params["dimension_numbers"]
            if kernel.aval.shape[dims.rhs_spec[2]] > 1:
                yield from (read.aval.shape[dims.lhs_spec[2]], written.aval.shape[dims.out_spec[2]])


def _formats(program: Any) -> set[str]:
    """Returns the dtypes in which a program computes."""
    avals = [each.aval for equation in _equations(program) for each in equation.outvars]
    return {str(aval.dtype) for aval in avals if hasattr(aval, "dtype")}
