"""Evaluates a trained model on the data of its run, or on other data."""

import dataclasses
from typing import Any

import numpy as np

from jaxdp import tasks
from jaxdp.build.data import open_data
from jaxdp.build.evaluator import Evaluator
from jaxdp.build.inputs import NOTHING, Inputs
from jaxdp.build.setup import Setup, create_setup
from jaxdp.config import OBJECT, DataConfig, TrainConfig
from jaxdp.data.dataset import Dataset, Description
from jaxdp.data.opening import check_dataset, with_classes
from jaxdp.data.sources import names, open_dataset
from jaxdp.errors import ConfigError
from jaxdp.inference.predictor import SAME_SCALE
from jaxdp.runtime import devices
from jaxdp.text.console import warn

# The model's, whatever data it is evaluated on.
_NORMALIZATION = ("mean", "std", "pixel_range", "value_mean", "value_std")


def create_evaluator(
    config: TrainConfig,
    description: Description,
    data: Dataset | str | None,
    setup: Setup | None,
    inputs: Inputs = NOTHING,
) -> Evaluator:
    """Returns what evaluates the model of a run.

    Args:
        config: settings of the run.
        description: of the dataset that the model was trained on.
        data: other data; None for the data of the run.
        setup: of the training, to use its compiled steps again; None for a run that was loaded.
        inputs: the model and the task, if they were given as objects.

    Raises:
        ConfigError: for data that the model is not for.
    """
    dataset = _in_form_of_run(config, description, data)
    if setup is not None:
        examples = dataclasses.replace(setup.examples, dataset=dataset)
        return dataclasses.replace(setup.evaluator, examples=examples)
    longest = max(map(len, dataset.splits().values()))
    changes: dict[str, Any] = {
        "dataset": dataset.name,
        "global_batch_size": min(int(config.global_batch_size or 1), longest),
        # What only training needs does not have to fit the data.
        **{"epochs": 1, "steps": None, "schedule": "constant", "steps_per_execution": 1},
    }
    if data is not None:  # which may be larger or smaller than those of the run
        changes["data_placement"] = None
    if config.optimizer == OBJECT:
        changes |= {"optimizer": "sgd", "optimizer_kwargs": {}}
    devices.ensure(config.devices)
    config = config.replace(**changes)
    given = Inputs(model=inputs.model, task=inputs.task, loss=inputs.loss, dataset=dataset)
    return create_setup(config, given, training=False).evaluator


def _in_form_of_run(
    config: TrainConfig, description: Description, data: Dataset | str | None
) -> Dataset:
    """Returns the run's dataset, or another one with its class numbers and its normalization."""
    is_classifier = description.answer == "classification"
    if data is None:
        if (config.dataset or "").partition(":")[0] not in names():
            remedy = "is none that jaxdp opens itself: give the data again, or name its plugin"
            raise ConfigError("dataset", config.dataset, remedy)
        dataset = with_classes(open_data(config)[1], description)
        _warn_of_changes(dataset, description)
    else:
        if isinstance(data, str):
            settings = _settings_of(config, description, data)
            data = open_dataset(settings, (description.task,), tasks.kind_of, description)
        config = config.replace(dataset=data.name)
        data = with_classes(data, description)
        dataset = check_dataset(data, config, lambda task: description.answer)
        _warn_of_pixel_size(dataset, description)
    # Only classifiers are for images of one size.
    for name in ("num_classes", "image_shape", "dtype", "instances"):
        ours, theirs = (getattr(each, name) for each in (description, dataset))
        if name == "image_shape" and not is_classifier:
            ours, theirs = ours[-1:], theirs[-1:]
        if ours != theirs:
            remedy = f"its {name} is {theirs}, and the model's {ours}"
            raise ConfigError("dataset", dataset.name, remedy)
    return dataclasses.replace(
        dataset,
        **{name: getattr(description, name) for name in _NORMALIZATION},
    )


def _warn_of_changes(dataset: Dataset, description: Description) -> None:
    """Warns if the run's dataset has other splits now."""
    now, then = dataset.describe().examples, description.examples
    if now != then:
        sizes = (", ".join(f"{n:,} {split}" for split, n in each.items()) for each in (now, then))
        held = "has {} examples, and had {} when the model was trained".format(*sizes)
        warn(f"{dataset.name} {held}; examples that were trained on may be among those evaluated")


def _warn_of_pixel_size(dataset: Dataset, description: Description) -> None:
    """Warns if objects have more or fewer pixels in other data than in training."""
    sizes = [each.pixel_size for each in (dataset, description)]
    if all(sizes) and not np.allclose(*sizes, rtol=SAME_SCALE):
        now, then = (" x ".join(f"{side:.4g}" for side in size) for size in sizes)
        held = f"{dataset.name}: pixels of {now} micrometres, and {then} in training"
        warn(f"{held}; objects look larger or smaller, and only predict resamples images")


def _settings_of(config: TrainConfig, description: Description, name: str) -> DataConfig:
    """Returns the settings to open other data: only the run's size and colour hold for them."""
    height, width, channels = description.image_shape
    changes: dict[str, Any] = {"dataset": name, "instances": description.instances}
    changes |= dict.fromkeys(("train_split", "validation", "test_split", "class_names"))
    if description.answer == "classification" and config.image_size is None:
        changes["image_size"] = f"{height}x{width}"
    can_convert = description.dtype == "uint8" and channels in (1, 3, 4)
    if not name.startswith(("folder:", "hf:")):  # which others refuse
        changes["channels"] = None
    elif can_convert:
        changes["channels"] = channels
    if not name.startswith("hf:"):
        changes["columns"] = None
    if not name.startswith("folder:"):
        changes["tiff"] = None
    return config.replace(**changes)
