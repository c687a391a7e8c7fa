"""Settings that depend on dataset, model and devices: filled in where none are given, checked where
they are.
"""

import pathlib

import optax

from jaxdp.components import Objects
from jaxdp.config import BatchNormMode, TrainConfig
from jaxdp.config.values import MOST_STEPS
from jaxdp.data.sources import Dataset, Split
from jaxdp.registry import ConfigError
from jaxdp.rundir.layout import RunDirectory
from jaxdp.sharding.strategy import nearest_divisor
from jaxdp.step import optim
from jaxdp.training.intervals import Intervals

DEFAULT_EPOCHS = 20
# Saving a small state takes as long as several of its steps: default checkpoints are at least this
# many steps apart.
MIN_DEFAULT_CHECKPOINT_STEPS = 100
# A dataset is held on the devices by default where it takes no more than this share of their
# memory.
DEVICE_DATA_FRACTION = 0.25

# Examples that share batch-norm statistics by default: as many as one device often has.
DEFAULT_GROUP = 32


def with_saved_defaults(config: TrainConfig) -> TrainConfig:
    """Returns the settings with batch norm and batch size of the run that they resume, where none
    are given: defaults change.
    """
    folder = config.run_dir
    if (
        folder is None
        or config.resume == "never"
        or not (run := RunDirectory(pathlib.Path(folder))).file("config.yaml").is_file()
    ):
        return config
    saved, sizes = run.load_config(), config
    if config.batch_norm is None and sizes.global_batch_size in (
        None,
        saved.global_batch_size,
    ):
        config = config.replace(batch_norm=saved.batch_norm)
    if sizes.global_batch_size is None and sizes.per_device_batch_size is None:
        config = config.replace(global_batch_size=saved.global_batch_size)
    return config


def check_learning(config: TrainConfig, dataset: Dataset) -> None:
    """Raises ConfigError for a sampler without classes, and for stopping early without validation
    data.
    """
    if config.sampler is not None and "labels" not in dataset.fields():
        remedy = (
            f"draws classes equally often, and {dataset.task} has none; it is for classification"
        )
        raise ConfigError("sampler", config.sampler, remedy)
    if config.early_stop is None:
        return
    if dataset.validation is None:
        remedy = (
            "stops by validation data, and this dataset has none; set some apart, e.g. with"
            " --validation 0.1"
        )
        raise ConfigError("early_stop", config.early_stop, remedy)
    if any(str(each).partition(":")[0] == "early_stopping" for each in config.callbacks):
        raise ConfigError(
            "early_stop",
            config.early_stop,
            "--callbacks has early_stopping, too; give one of them",
        )


def with_batch_size(
    config: TrainConfig, dataset: Dataset, data_shards: int, *, is_default: bool
) -> TrainConfig:
    """Returns the settings with the global batch size as a number, which for `auto` is 1 until it
    is known.

    Args:
        is_default: whether a size that there is already is the dataset's own, which holds where it
            fits.
    """
    per_device, parts = (
        config.per_device_batch_size,
        data_shards * config.accumulate_steps,
    )
    given = per_device * parts if per_device else config.global_batch_size
    if given is None or (is_default and given != "auto" and given > len(dataset.train)):
        given = optim.default_batch_size(len(dataset.train))
    batch_size = 1 if given == "auto" else given
    if batch_size > len(dataset.train):
        remedy = f"larger than the training set; use at most {len(dataset.train)}"
        raise ConfigError("global_batch_size", batch_size, remedy)
    return config.replace(global_batch_size=batch_size, per_device_batch_size=None)


def with_batch_norm(config: TrainConfig, *, grouped: bool) -> TrainConfig:
    """Returns the settings with a batch-norm mode.

    Args:
        grouped: whether the default is groups. Without batch norms of ours it is not: Flax's own
            normalizes over what one device sees. Nor is it where a batch size is looked for, which
            groups of another would restrict.
    """
    if config.batch_norm is not None:
        return config
    microbatch = max(int(config.global_batch_size or 1) // config.accumulate_steps, 1)
    mode = (
        BatchNormMode("group", nearest_divisor(microbatch, DEFAULT_GROUP))
        if grouped
        else BatchNormMode("replica")
    )
    return config.replace(batch_norm=mode)


def with_placement(
    config: TrainConfig, dataset: Dataset, device_memory: float | int
) -> TrainConfig:
    """Returns the settings with the dataset's placement, once they fit each other.

    Args:
        device_memory: bytes of a device.
    """
    if config.data_placement is None:
        needed = sum(
            source.bytes for source in dataset.splits().values() if isinstance(source, Split)
        )
        fits = needed <= DEVICE_DATA_FRACTION * device_memory
        config = config.replace(data_placement="device" if fits else "host")
    if config.steps_per_execution > 1 and config.data_placement == "host":
        raise ConfigError(
            "steps_per_execution",
            config.steps_per_execution,
            "needs the dataset on the devices; see --data-placement",
        )
    return config


def create_schedule(
    config: TrainConfig, train_examples: int, objects: Objects
) -> tuple[Intervals, optax.Schedule]:
    """Returns when what happens, and the learning rate as a function of the step."""
    steps_per_epoch = train_examples // int(config.global_batch_size or 1)
    total_steps = config.steps or (config.epochs or DEFAULT_EPOCHS) * steps_per_epoch
    if total_steps > MOST_STEPS:
        remedy = f"makes {total_steps} steps; give at most {MOST_STEPS // steps_per_epoch}"
        raise ConfigError("epochs", config.epochs, remedy)
    profiled = config.profile
    epochs_between_checkpoints = -(-MIN_DEFAULT_CHECKPOINT_STEPS // steps_per_epoch)
    intervals = Intervals(
        total_steps=total_steps,
        steps_per_epoch=steps_per_epoch,
        log_every=config.log_every,
        eval_every=config.eval_every or steps_per_epoch,
        checkpoint_every=config.checkpoint_every or epochs_between_checkpoints * steps_per_epoch,
        steps_per_execution=config.steps_per_execution,
        boundaries=(profiled.first - 1, profiled.last) if profiled is not None else (),
    )
    if profiled is not None and profiled.first > intervals.total_steps:
        raise ConfigError(
            "profile", config.profile, f"begins after the last step, {intervals.total_steps}"
        )
    if objects.schedule is not None:
        return intervals, objects.schedule
    return intervals, optim.create_schedule(config, intervals.total_steps, steps_per_epoch)
