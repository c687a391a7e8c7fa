"""Opens the dataset of a run, or takes the one that was given, and finds its task."""

import dataclasses
from collections.abc import Callable
from typing import cast

from jaxdp import models, tasks
from jaxdp.build.inputs import NOTHING, Inputs
from jaxdp.config import TrainConfig
from jaxdp.data.resize import Resize
from jaxdp.data.sources import TARGET_FIELDS, Dataset, Split, check_dataset, open_dataset
from jaxdp.errors import ConfigError, flag
from jaxdp.plugins.loading import load_plugins

# Mean and standard deviation of red, green and blue over ImageNet, in units of 0 to 255. Source:
# torchvision's `ImageClassification` transforms, (0.485, 0.456, 0.406) and (0.229, 0.224, 0.225).
IMAGENET_MEAN, IMAGENET_STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
DEFAULT_DATASETS = {
    "classification": "digits",
    "segmentation": "cells",
    "regression": "digits-denoise",
}


def open_data(config: TrainConfig, inputs: Inputs = NOTHING) -> tuple[TrainConfig, Dataset]:
    """Returns the settings with the names of dataset and task, and the dataset."""
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
            remedy = f"is for {dataset.task}, and {who} for {' or '.join(served)}"
            raise ConfigError("", "", f"the dataset {config.dataset} {remedy}")
        config = config.replace(image_size=config.image_size or _image_size(dataset))
        if dataset.settings is not None:  # with which a run opens it again
            config = config.replace(columns=dataset.settings.columns)
    else:
        dataset = _open_named(config, served, own_task=task is not None)
        config = config.replace(dataset=config.dataset or DEFAULT_DATASETS[dataset.kind])
    name = task.name if task is not None else config.task or dataset.task
    dataset = dataclasses.replace(dataset, task=name, kind=kind_of(name))
    if task is not None and not dataset.num_classes:  # of fields that only the task understands
        names = {"num_classes": task.num_classes, "class_names": task.class_names}
        dataset = dataclasses.replace(dataset, **names)
    if config.normalize == "imagenet":
        dataset = _normalized_as_imagenet(dataset)
    return config.replace(task=name), dataset


def _image_size(dataset: Dataset) -> str | None:
    """Returns the `--image-size` by which a dataset was opened, if prediction and evaluation would
    otherwise not resize images in the same way. Those of a classifier are stretched.
    """
    resize = next(iter(cast(dict[str, Split], dataset.splits()).values())).resize
    if resize is None or resize.kind == "pad":
        return None
    if dataset.kind == "classification" and resize == Resize(resize.size):
        return None
    return str(resize)


def _normalized_as_imagenet(dataset: Dataset) -> Dataset:
    """Returns the dataset with ImageNet's mean and standard deviation."""
    channels = dataset.image_shape[-1]
    if channels != 3:
        remedy = (
            f"is of red, green and blue, and the images have {channels} channels; open a folder"
            f" with {flag('channels', 3)}, or repeat the channel of other images"
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
        remedy = f"{config.model} is for {' and '.join(served)}; choose another {flag('model')}"
        raise ConfigError("task", config.task, remedy)
    defaults = [DEFAULT_DATASETS[name] for name in possible if name in DEFAULT_DATASETS]
    if config.dataset is None:
        if not defaults:
            raise ConfigError("dataset", "", f"has no default for {possible[0]}; give one")
        config = config.replace(dataset=defaults[0])
    return open_dataset(config, possible, tasks.kind_of)
