"""Creates the task of a run, with its loss."""

import dataclasses
from typing import Any

from jaxdp import tasks
from jaxdp.build.inputs import NOTHING, Inputs
from jaxdp.build.model import check_decided
from jaxdp.config import TrainConfig
from jaxdp.errors import ConfigError, flag
from jaxdp.tasks.instance_segmentation import InstanceSegmentation
from jaxdp.tasks.three_classes import CLASS_NAMES, ThreeClasses
from jaxdp.text.console import warn


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
        return _standardized(inputs.task, dataset)
    names = {"num_classes": dataset.num_classes, "class_names": dataset.class_names}
    if inputs.loss is not None:
        return tasks.from_loss(inputs.loss, kind=dataset.answer, **names)
    _check_known(dataset)
    check_decided("task_kwargs", config.task_kwargs)
    flags = {
        "loss": config.loss,
        "label_smoothing": config.label_smoothing,
        "class_weights": class_weights,
    }
    flags = {name: value for name, value in flags.items() if value}
    for name, value in flags.items():
        if name in config.task_kwargs:
            given = f"{name}={config.task_kwargs[name]}"
            remedy = f"is also among {flag('task_kwargs')}: {given}; give one of them"
            raise ConfigError(name, value, remedy)
    kwargs = flags | config.task_kwargs
    if dataset.instances and dataset.class_names == CLASS_NAMES:  # of version 0.3
        return ThreeClasses(**names)
    name = InstanceSegmentation.name if dataset.instances else dataset.task
    if class_weights and dataset.task == "segmentation" and "dice" not in str(kwargs.get("loss")):
        kwargs = {"weighted_over": "batch"} | kwargs
    try:
        return _standardized(tasks.create(name, **names, **kwargs), dataset)
    except ConfigError as error:
        keyword = next(iter(error.value)) if isinstance(error.value, dict) else None
        if keyword not in flags:
            raise
        remedy = f"{error.remedy.template} (for {name})"
        raise ConfigError(keyword, getattr(config, keyword), remedy) from error


def _standardized(task: tasks.Task, dataset: Any) -> tasks.Task:
    """Returns a task for numbers with the mean and standard deviation of the training data."""
    if not isinstance(task, tasks.ScalarRegression) or task.mean:
        return task
    return dataclasses.replace(task, mean=dataset.value_mean, std=dataset.value_std)


def _check_known(dataset: Any) -> None:
    """Raises ConfigError for the dataset of a run with a task object, and warns for the dataset of
    a run with a loss function.
    """
    if own_task := getattr(dataset, "own_task", ""):
        give = "which its folder does not hold: give it in Python, e.g. jaxdp.load(run, task=...)"
        if not dataset.own_loss:
            remedy = f"is a task object of the program that trained the run, {give}"
            raise ConfigError("task", own_task, remedy)
        warn(f"the run was trained with the loss function {own_task}, {give}; losses are others")
