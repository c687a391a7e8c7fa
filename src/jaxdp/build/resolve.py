"""Fills in the defaults that depend on other settings, the dataset, the model or the devices.

Most constant defaults are in the declarations of their settings, in `config/`.

`with_saved` keeps what the run to be resumed had. `with_dataset` takes what the dataset decides,
crops and a small U-Net for large images, and AdamW with its own rate for a training set of fewer
than 512 examples. `with_task` fills in the loss, `with_strategy` the settings of the strategy, and
`with_devices` what model and devices decide. `with_lengths` fills in the lengths, and the learning
rate if it is still open.
After that no setting is None unless None is a value of its own (`config.facts.Facts.none`), or
an optimizer or schedule that a program gave takes the place of the setting.
"""

import inspect
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from jaxdp.build.inputs import Inputs
from jaxdp.build.intervals import lengths
from jaxdp.config import (
    DEFAULT_OPTIMIZER,
    OBJECT,
    BatchNormMode,
    OptimizationConfig,
    TrainConfig,
    displaced_by,
)
from jaxdp.config.values import MOST_STEPS
from jaxdp.data.augment.geometry import crop_sides
from jaxdp.data.sources import Dataset, Split
from jaxdp.errors import ConfigError, flag
from jaxdp.rundir.layout import RunDirectory
from jaxdp.sharding import strategy as strategies
from jaxdp.sharding.memory import power_below
from jaxdp.sharding.strategy import nearest_divisor
from jaxdp.step.optim import DEFAULT_BATCH_SIZE
from jaxdp.tasks import Task
from jaxdp.text.console import say

Config = TypeVar("Config", bound=OptimizationConfig)

DEFAULT_EPOCHS = 20
# Steps of an epoch: the default batch is at most a quarter of a small training set.
FEWEST_DEFAULT_STEPS = 4
# Peak learning rates. That of Muon was the best of four for a PyramidNet on digits and a U-Net on
# cells.
RATES = {"sgd": 0.1, "momentum": 0.1, "nesterov": 0.1, "muon": 0.01}
OTHER_RATE = 0.001
# Learning rates of AdamW, which diverged with them on none of 21 small sets. The rate of regression
# was not measured. Sources: experiments/scripts/small_sets.py, and instances.py for instances.
SMALL_SET_RATES = {
    "classification": 3e-4,
    "segmentation": 1e-3,
    "regression": 1e-3,
    "instances": 1e-2,
}
WARMUP_EPOCHS = 5
ONECYCLE_WARMUP = 0.3
# Saving a small state takes as long as several of its steps: default checkpoints are at least this
# many steps apart.
MIN_DEFAULT_CHECKPOINT_STEPS = 100
# By default the devices hold a dataset that takes no more than this share of their memory.
DEVICE_DATA_FRACTION = 0.25
# Examples that share batch-norm statistics by default: as many as one device often has.
DEFAULT_GROUP = 32
# A U-Net trains on crops of this side if the images are larger, and with fewer channels than its
# own 64: then a step of 128 examples, the largest default batch, takes 5 GB.
CROP, BASE_CHANNELS = 128, 16
# An epoch of crops sees only a part of each image, so that epochs do not measure the length of
# training. By default a run sees at least so many crops, in batches of at least so many if the set
# has them. Fewer were not tried. What they reach: experiments/scripts/real_cells.py.
FEWEST_CROPS, CROPS_OF_STEP = 16_000, 8
DEFAULT_EVALUATIONS = 10  # of a run on crops


def with_saved(config: TrainConfig, dataset: Dataset | None = None) -> TrainConfig:
    """Returns the settings with what the resumed run used, because defaults may have changed since
    it began: its batch norm unless another batch size is given, its batch size, its augmentation,
    the keywords of its model, and its optimizer with the learning rate unless an optimizer is
    given.

    Args:
        dataset: given as an object, perhaps with an augmentation of its own.
    """
    if config.run_dir is None or config.resume == "never":
        return config
    run = RunDirectory(pathlib.Path(config.run_dir))
    if not run.file("config.yaml").is_file():
        return config
    saved, size = run.load_config(), config.global_batch_size
    if config.augment is None and not (dataset and (dataset.settings or dataset).augment):
        config = config.replace(augment=saved.augment)
    if config.model == saved.model and not _without_encoder(config.model_kwargs):
        config = config.replace(model_kwargs={**saved.model_kwargs, **config.model_kwargs})
    if config.batch_norm is None and size in (None, saved.global_batch_size):
        config = config.replace(batch_norm=saved.batch_norm)
    if size is None and config.per_device_batch_size is None:
        config = config.replace(global_batch_size=saved.global_batch_size)
    if config.optimizer is None and saved.optimizer != OBJECT:
        config = config.replace(optimizer=saved.optimizer)
        if config.learning_rate is None:
            keep = config.fill if "learning_rate" in saved.filled else config.replace
            config = keep(learning_rate=saved.learning_rate)
    return config


def with_dataset(config: TrainConfig, dataset: Dataset, inputs: Inputs) -> TrainConfig:
    """Returns the settings with the dataset's own defaults for what is not given, and with an
    optimizer.
    """
    settings, defaults = config.flat(), dict[str, Any]()
    optimizer = config.optimizer or dataset.defaults.get("optimizer", DEFAULT_OPTIMIZER)
    if config.optimizer is None and _takes_small_set_rate(config, dataset, inputs):
        kind = "instances" if dataset.instances else dataset.kind
        optimizer, defaults["learning_rate"] = "adamw", SMALL_SET_RATES[kind]
    defaults["optimizer"] = optimizer
    given = [name for name, value in settings.items() if value is not None]
    displaced = displaced_by(TrainConfig, given)
    if config.augment is None:
        defaults |= {"augment": dataset.augment} | _of_large_images(config, dataset)
    for name, value in dataset.defaults.items():
        if name == "model_kwargs":
            own = dict(value.get(config.model, {}))
            if "encoder" in config.model_kwargs:  # which is not cut short for small images
                own.pop("levels", None)
            defaults[name] = own | config.model_kwargs
        elif settings[name] is not None or name in displaced:
            continue
        elif name != "learning_rate":
            defaults[name] = value
        elif inputs.schedule is None:
            defaults[name] = value.get(optimizer)
    return config.replace(**defaults)


def _without_encoder(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns keywords of a U-Net without that which weights decide."""
    return {name: value for name, value in kwargs.items() if name != "encoder"}


def _of_large_images(config: TrainConfig, dataset: Dataset) -> dict[str, Any]:
    """Returns crops and the size of a U-Net for large images, and prints them, if neither the
    settings nor the dataset determine them.

    They do not depend on the devices, because the same command gives the same model everywhere.
    """
    kwargs = _without_encoder(config.model_kwargs)
    given = (dataset.settings or dataset).augment or kwargs or dataset.defaults
    height, width, _ = dataset.image_shape
    if config.model != "unet" or given or max(height, width) <= CROP:
        return {}
    side, kwargs = min(CROP, height, width), {"base_channels": BASE_CHANNELS}
    word = "crop_foreground" if dataset.instances else "crop"
    words = (f"{word}:{side}", *dataset.augment)
    if "flip_vertical" in words:  # no direction is special, and a crop is square
        words += ("rotate90",)
    say(
        f"note: {config.dataset}: images of {height}x{width}: {flag('augment', words)} and"
        f" {flag('model_kwargs', kwargs)} by default; an epoch sees"
        f" 1/{round(height * width / side**2)} of each image"
    )
    return {"augment": words, "model_kwargs": {**config.model_kwargs, **kwargs}}


def _sees_crops(config: TrainConfig, dataset: Dataset) -> bool:
    """Whether training for each pixel sees crops of at most a quarter of an image."""
    if dataset.kind == "classification":
        return False
    height, width, _ = dataset.image_shape
    return any(4 * side**2 <= height * width for side in crop_sides(config.augment))


def _takes_small_set_rate(config: TrainConfig, dataset: Dataset, inputs: Inputs) -> bool:
    """Whether the training set is so small that SGD at its default rate may diverge, and neither
    the settings nor the dataset say anything of optimizer or rate.
    """
    own = {"optimizer", "learning_rate"} & dataset.defaults.keys()
    rate = inputs.schedule if config.learning_rate is None else config.learning_rate
    is_given = own or rate is not None or config.optimizer_kwargs
    is_small = default_batch_size(dataset.train_examples) < DEFAULT_BATCH_SIZE
    return is_small and not is_given and config.lr_scaling == "none"


def default_batch_size(examples: int) -> int:
    """Returns the default batch size: of a small training set the largest power of two that is at
    most a quarter of it.

    It depends on the set alone, so that the result does not depend on the devices; powers of two
    are what most numbers of devices divide.

    Args:
        examples: of the training set.
    """
    return min(DEFAULT_BATCH_SIZE, power_below(examples // FEWEST_DEFAULT_STEPS))


def with_task(config: TrainConfig, task: Task, inputs: Inputs) -> TrainConfig:
    """Returns the settings with the loss of a task that has several."""
    is_given = inputs.task is not None or "loss" in config.task_kwargs
    if is_given or "loss" not in inspect.signature(type(task)).parameters:
        return config
    return config.fill(loss=getattr(task, "loss", None))


def with_strategy(config: TrainConfig) -> TrainConfig:
    """Returns the settings with those that only its strategy has."""
    defaults = strategies.of(config).settings
    return config.fill(**{name: value for name, value in defaults.items() if value is not None})


def with_devices(
    config: TrainConfig,
    given: TrainConfig,
    dataset: Dataset,
    *,
    examples: int,
    num_devices: int,
    device_memory: float | int,
    grouped: bool,
    largest_batch: Callable[[TrainConfig], int],
) -> TrainConfig:
    """Returns the settings with a batch size, a batch norm and a placement of the dataset.

    Args:
        given: the settings without the dataset's own defaults, which hold only if they fit.
        examples: of the training set.
        num_devices: of all processes.
        device_memory: bytes of a device.
        grouped: whether the default batch norm is groups.
        largest_batch: returns the largest batch that fits in memory, for `auto`. It gets settings
            with a batch of 1 whose batch norm restricts the batch only if it was given.
    """
    automatic = config.global_batch_size == "auto"
    if config.per_device_batch_size is None and _sees_crops(config, dataset):
        size = max(default_batch_size(examples), min(CROPS_OF_STEP, examples))
        config = config.fill(global_batch_size=size)
    sized = _with_batch_size(config, given, examples, num_devices)
    if automatic:
        probe = _with_placement(_with_batch_norm(sized, grouped=False), dataset, device_memory)
        config = config.replace(global_batch_size=largest_batch(probe))
        sized = _with_batch_size(config, config, examples, num_devices)
    return _with_placement(_with_batch_norm(sized, grouped=grouped), dataset, device_memory)


def _with_batch_size(
    config: TrainConfig, given: TrainConfig, examples: int, num_devices: int
) -> TrainConfig:
    """Returns the settings with the global batch size as a number; for `auto` it is 1."""
    size = config.global_batch_size
    if config.per_device_batch_size:
        size = config.per_device_batch_size * num_devices * config.accumulate_steps
    elif size == "auto":
        size = 1
    elif size is None or (given.global_batch_size is None and size > examples):
        size = default_batch_size(examples)
    if size > examples:
        remedy = f"larger than the training set; use at most {examples}"
        raise ConfigError("global_batch_size", size, remedy)
    return config.replace(global_batch_size=size, per_device_batch_size=None)


def _with_batch_norm(config: TrainConfig, *, grouped: bool) -> TrainConfig:
    if config.batch_norm is not None:
        return config
    mode = BatchNormMode()
    if grouped:
        microbatch = max(int(config.global_batch_size or 1) // config.accumulate_steps, 1)
        mode = BatchNormMode("group", nearest_divisor(microbatch, DEFAULT_GROUP))
    return config.replace(batch_norm=mode)


def _with_placement(
    config: TrainConfig, dataset: Dataset, device_memory: float | int
) -> TrainConfig:
    if config.data_placement is None:
        splits = [split for split in dataset.splits().values() if isinstance(split, Split)]
        fits = sum(split.bytes for split in splits) <= DEVICE_DATA_FRACTION * device_memory
        if fits and any(split.source.may_change for split in splits):
            fits = False
            once = f"{flag('data_placement', 'device')} reads them once"
            say(f"note: the examples of {dataset.name} are asked for in each epoch; {once}")
        config = config.replace(data_placement="device" if fits else "host")
    if config.steps_per_execution > 1 and config.data_placement == "host":
        remedy = f"needs the dataset on the devices; see {flag('data_placement')}"
        raise ConfigError("steps_per_execution", config.steps_per_execution, remedy)
    return config


def with_lengths(
    config: TrainConfig, dataset: Dataset, examples: int, inputs: Inputs
) -> TrainConfig:
    """Returns the settings with the length of training, the intervals and the learning rate.

    Args:
        config: with a batch size.
        examples: of the training set.
    """
    crops = _sees_crops(config, dataset)
    if config.steps is None and config.epochs is None and crops:
        fewest = max(DEFAULT_EPOCHS * examples, FEWEST_CROPS)
        config = config.fill(steps=-(-fewest // int(config.global_batch_size or 1)))
    if config.steps is None:
        config = config.fill(epochs=DEFAULT_EPOCHS)
    steps_per_epoch, total_steps = lengths(config, examples)
    if total_steps > MOST_STEPS:
        remedy = f"makes {total_steps} steps; give at most {MOST_STEPS // steps_per_epoch}"
        raise ConfigError("epochs", config.epochs, remedy)
    tenth = -(-total_steps // DEFAULT_EVALUATIONS) if crops else 0
    epochs_between_checkpoints = -(-MIN_DEFAULT_CHECKPOINT_STEPS // steps_per_epoch)
    config = config.fill(
        eval_every=max(steps_per_epoch, tenth),
        checkpoint_every=epochs_between_checkpoints * steps_per_epoch,
    )
    if inputs.optimizer is not None or inputs.schedule is not None:
        return config  # the object has its own rate
    return with_rate(config, total_steps, steps_per_epoch)


def with_rate(config: Config, total_steps: int, steps_per_epoch: int = 0) -> Config:
    """Returns the settings with a peak learning rate, and a warm-up to it."""
    warmup = ONECYCLE_WARMUP if config.schedule == "onecycle" else 0.0
    is_large = int(config.global_batch_size or 0) > DEFAULT_BATCH_SIZE
    if config.lr_scaling != "none" and config.schedule != "onecycle" and is_large:
        warmup = min(WARMUP_EPOCHS * steps_per_epoch / total_steps, ONECYCLE_WARMUP)
    rate = RATES.get(config.optimizer or DEFAULT_OPTIMIZER, OTHER_RATE)
    return config.fill(learning_rate=rate, warmup_fraction=warmup)
