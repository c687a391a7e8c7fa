"""Finds the dataset, task and model that settings name, or takes the objects that stand in for
them.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, cast

from flax import nnx

from jaxdp import models, tasks
from jaxdp.build.inputs import NOTHING, Inputs
from jaxdp.config import DEFAULT_OPTIMIZER, TrainConfig, displaced_by
from jaxdp.data.sources import TARGET_FIELDS, Dataset, Split, check_dataset, open_dataset
from jaxdp.errors import ConfigError
from jaxdp.plugins.loading import load_plugins
from jaxdp.step.optim import DEFAULT_BATCH_SIZE, default_batch_size

# Mean and standard deviation of red, green and blue over ImageNet, in units of 0 to 255. Source:
# torchvision's `ImageClassification` transforms, (0.485, 0.456, 0.406) and (0.229, 0.224, 0.225).
IMAGENET_MEAN, IMAGENET_STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
# Learning rates of AdamW, which never blew up on 21 small sets (`experiments/small_sets.py`).
# Instances do well with SGD there; regression was not measured.
SMALL_SET_RATES = {"classification": 3e-4, "segmentation": 1e-3, "regression": 1e-3}
DEFAULT_DATASETS = {
    "classification": "digits",
    "segmentation": "cells",
    "regression": "digits-denoise",
}
# Keywords of every model or task that have values already.
_DECIDED = {
    "name": "use --model or --task",
    "dtype": "use --precision",
    "rngs": "use --seed",
    "num_classes": "comes from the dataset",
    "in_channels": "comes from the images; see --channels",
    "class_names": "use --class-names",
}


def open_data(config: TrainConfig, inputs: Inputs = NOTHING) -> tuple[TrainConfig, Dataset]:
    """Opens the dataset, and returns the configuration with what model and dataset decide filled
    in.
    """
    load_plugins(config.plugins)
    kind_of, task = _kind_of(inputs), inputs.task
    served = tuple(TARGET_FIELDS)
    if task is not None:
        served = (kind_of(task.name),)
    elif inputs.model is None:
        served = models.tasks_of(config.model)
    if inputs.dataset is not None:
        dataset = check_dataset(inputs.dataset, config, kind_of)
        if dataset.kind not in served:
            who = "the task" if task is not None else config.model
            remedy = f"is for {dataset.kind}, and {who} for {' or '.join(served)}"
            raise ConfigError("", "", f"the dataset {config.dataset} {remedy}")
        config = config.replace(image_size=config.image_size or _image_size(dataset))
    else:
        dataset = _open_named(config, served, own_task=task is not None)
        config = config.replace(dataset=config.dataset or DEFAULT_DATASETS[dataset.kind])
    name = task.name if task is not None else config.task or dataset.task
    dataset = dataclasses.replace(dataset, task=name, kind=kind_of(name))
    if config.normalize == "imagenet":
        dataset = _normalized_as_imagenet(dataset)
    return _with_defaults(config.replace(task=name), dataset, inputs), dataset


def _image_size(dataset: Dataset) -> str | None:
    """Returns the `--image-size` by which a dataset whose answers have the size of the images was
    opened, so that prediction and evaluation resize images, too.
    """
    resize = next(iter(cast(dict[str, Split], dataset.splits()).values())).resize
    if dataset.kind == "classification" or resize is None or resize.kind != "stretch":
        return None
    height, width = resize.size
    return f"{height}x{width}"


def _with_defaults(config: TrainConfig, dataset: Dataset, inputs: Inputs) -> TrainConfig:
    """Returns the settings with the dataset's own defaults for what is not given."""
    settings, filled = config.flat(), dict[str, Any]()
    optimizer = config.optimizer or dataset.defaults.get("optimizer", DEFAULT_OPTIMIZER)
    if config.optimizer is None and _is_small(config, dataset, inputs):
        optimizer, filled["learning_rate"] = "adamw", SMALL_SET_RATES[dataset.kind]
    filled["optimizer"] = optimizer
    given = [name for name, value in settings.items() if value is not None]
    displaced = displaced_by(TrainConfig, given)
    if config.augment is None:
        filled["augment"] = dataset.augment
    for name, value in dataset.defaults.items():
        if name == "model_kwargs":
            filled[name] = dict(value.get(config.model, {})) | config.model_kwargs
        elif settings[name] is not None or name in displaced:
            continue
        elif name != "learning_rate":
            filled[name] = value
        elif inputs.schedule is None:
            filled[name] = value.get(optimizer)
    return config.replace(**filled)


def _is_small(config: TrainConfig, dataset: Dataset, inputs: Inputs) -> bool:
    """Whether the training set is so small that SGD at its default rate may diverge, and neither
    the settings nor the dataset say anything of optimizer or rate.
    """
    own = dataset.instances or {"optimizer", "learning_rate"} & dataset.defaults.keys()
    is_given = own or inputs.schedule or config.learning_rate or config.optimizer_kwargs
    is_small = default_batch_size(dataset.train_examples) < DEFAULT_BATCH_SIZE
    return is_small and not is_given and config.lr_scaling == "none"


def _normalized_as_imagenet(dataset: Dataset) -> Dataset:
    """Returns the dataset with ImageNet's mean and standard deviation."""
    channels = dataset.image_shape[-1]
    if channels != 3:
        remedy = (
            f"is of red, green and blue, and the images have {channels} channels; give --channels 3"
            " for a folder, or leave it out"
        )
        raise ConfigError("normalize", "imagenet", remedy)
    return dataclasses.replace(dataset, mean=IMAGENET_MEAN, std=IMAGENET_STD)


def _kind_of(inputs: Inputs) -> Callable[[str], str]:
    """Returns a function from a task's name to the built-in task that it is like.

    A task object need not be registered.
    """
    task = inputs.task
    if task is None:
        return tasks.kind_of
    return lambda name: task.kind if name == task.name else tasks.kind_of(name)


def _open_named(config: TrainConfig, served: tuple[str, ...], *, own_task: bool) -> Dataset:
    """Opens the dataset that the settings name, or the default for the tasks that are served."""
    possible = served if own_task else tasks.candidates(config.task, served)
    if not possible:
        remedy = f"{config.model} is for {' and '.join(served)}; choose another --model"
        raise ConfigError("task", config.task, remedy)
    defaults = [DEFAULT_DATASETS[name] for name in possible if name in DEFAULT_DATASETS]
    if config.dataset is None:
        if not defaults:
            raise ConfigError("dataset", "", f"has no default for {possible[0]}; give one")
        config = config.replace(dataset=defaults[0])
    return open_dataset(config, possible, tasks.kind_of)


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

    Args:
        dataset: what has `num_classes` and `image_shape`.
        factory: makes the model; None for what the name stands for now.
    """
    if inputs.model is not None:
        return nnx.clone(inputs.model)
    load_plugins(config.plugins)
    _check_decided("model_kwargs", config.model_kwargs)
    return models.create(
        factory or config.model,
        num_classes=dataset.num_classes,
        in_channels=dataset.image_shape[-1],
        rngs=rngs,
        dtype=dtype,
        **config.model_kwargs,
    )


def _check_decided(field: str, keywords: Mapping[str, Any]) -> None:
    """Raises ConfigError for a keyword that the dataset, or a setting of its own, decides."""
    for name in keywords:
        if name in _DECIDED:
            raise ConfigError(field, {name: keywords[name]}, _DECIDED[name])


def create_task(
    config: TrainConfig,
    dataset: Any,
    inputs: Inputs = NOTHING,
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
    if inputs.task is not None:
        classes = inputs.task.num_classes
        if classes != dataset.num_classes:
            remedy = f"is for {classes} classes, and {config.dataset} has {dataset.num_classes}"
            raise ConfigError("task", config.task, remedy)
        return inputs.task
    names = {"num_classes": dataset.num_classes, "class_names": dataset.class_names}
    if inputs.loss is not None:
        return tasks.from_loss(inputs.loss, kind=dataset.kind, **names)
    load_plugins(config.plugins)
    _check_decided("task_kwargs", config.task_kwargs)
    flags = {
        "loss": config.loss,
        "label_smoothing": config.label_smoothing,
        "class_weights": class_weights,
    }
    flags = {name: value for name, value in flags.items() if value}
    for name, value in flags.items():
        if name in config.task_kwargs:
            given = f"{name}={config.task_kwargs[name]}"
            remedy = f"is also among --task-kwargs: {given}; give one of them"
            raise ConfigError(name, value, remedy)
    kwargs = flags | config.task_kwargs
    if class_weights and dataset.task == "segmentation" and "dice" not in str(kwargs.get("loss")):
        kwargs = {"weighted_over": "batch"} | kwargs
    try:
        return tasks.create(dataset.task, **names, **kwargs)
    except ConfigError as error:
        keyword = next(iter(error.value)) if isinstance(error.value, dict) else None
        if keyword not in flags:
            raise
        remedy = f"{error.remedy} (for {dataset.task})"
        raise ConfigError(keyword, getattr(config, keyword), remedy) from error


def has_own_code(config: TrainConfig, inputs: Inputs) -> bool:
    """Whether a step runs code of the user's: a model, a task or a loss that jaxdp does not
    have.
    """
    model = inputs.model if inputs.model is not None else models.factory(config.model)
    parts = [part for part in (model, inputs.task, inputs.loss) if part is not None]
    # An object has the module of its class.
    modules = [getattr(part, "__module__", None) or "" for part in parts]
    return not all(module.startswith("jaxdp.") for module in modules)
