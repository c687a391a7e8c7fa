"""Settings that depend on dataset, model and devices: fills in what is not given, and checks what
is.
"""

import pathlib

import optax

from jaxdp.build.inputs import Inputs
from jaxdp.build.intervals import Intervals
from jaxdp.config import OBJECT, BatchNormMode, TrainConfig
from jaxdp.config.values import MOST_STEPS
from jaxdp.data.sources import Dataset, Split
from jaxdp.errors import ConfigError
from jaxdp.rundir.layout import RunDirectory
from jaxdp.sharding.strategy import nearest_divisor
from jaxdp.step import optim

DEFAULT_EPOCHS = 20
# Saving a small state takes as long as several of its steps: default checkpoints are at least this
# many steps apart.
MIN_DEFAULT_CHECKPOINT_STEPS = 100
# By default the devices hold a dataset that takes no more than this share of their memory.
DEVICE_DATA_FRACTION = 0.25
# Examples that share batch-norm statistics by default: as many as one device often has.
DEFAULT_GROUP = 32


def with_saved_defaults(config: TrainConfig) -> TrainConfig:
    """Returns the settings with the batch norm, the batch size, the optimizer and its rate of the
    run that they resume, if none are given: defaults change.
    """
    if config.run_dir is None or config.resume == "never":
        return config
    run = RunDirectory(pathlib.Path(config.run_dir))
    if not run.file("config.yaml").is_file():
        return config
    saved, size = run.load_config(), config.global_batch_size
    if config.batch_norm is None and size in (None, saved.global_batch_size):
        config = config.replace(batch_norm=saved.batch_norm)
    if size is None and config.per_device_batch_size is None:
        config = config.replace(global_batch_size=saved.global_batch_size)
    if config.optimizer is None and saved.optimizer != OBJECT:
        rate = saved.learning_rate if config.learning_rate is None else config.learning_rate
        config = config.replace(optimizer=saved.optimizer, learning_rate=rate)
    return config


def check_learning(config: TrainConfig, dataset: Dataset) -> None:
    """Raises ConfigError for stopping early without validation data."""
    if config.early_stop is not None and dataset.validation is None:
        remedy = (
            "stops by validation data, and this dataset has none; set some apart, e.g. with"
            " --validation 0.1"
        )
        raise ConfigError("early_stop", config.early_stop, remedy)


def with_batch_size(
    config: TrainConfig, given: TrainConfig, examples: int, data_shards: int
) -> TrainConfig:
    """Returns the settings with the global batch size as a number; for `auto` it is 1 at first.

    Args:
        given: the settings without the dataset's own defaults, which hold only if they fit.
        examples: of the training set.
    """
    size = config.global_batch_size
    if config.per_device_batch_size:
        size = config.per_device_batch_size * data_shards * config.accumulate_steps
    elif size == "auto":
        size = 1
    elif size is None or (given.global_batch_size is None and size > examples):
        size = optim.default_batch_size(examples)
    if size > examples:
        remedy = f"larger than the training set; use at most {examples}"
        raise ConfigError("global_batch_size", size, remedy)
    return config.replace(global_batch_size=size, per_device_batch_size=None)


def with_batch_norm(config: TrainConfig, *, grouped: bool) -> TrainConfig:
    """Returns the settings with a batch-norm mode.

    Args:
        grouped: whether the default is groups. It is not for models without batch norms of ours:
            Flax's own normalizes over what one device sees. Nor is it while a batch size is looked
            for, which groups of another would restrict.
    """
    if config.batch_norm is not None:
        return config
    mode = BatchNormMode()
    if grouped:
        microbatch = max(int(config.global_batch_size or 1) // config.accumulate_steps, 1)
        mode = BatchNormMode("group", nearest_divisor(microbatch, DEFAULT_GROUP))
    return config.replace(batch_norm=mode)


def with_placement(
    config: TrainConfig, dataset: Dataset, device_memory: float | int
) -> TrainConfig:
    """Returns the settings with the dataset's placement, once they fit each other.

    Args:
        device_memory: bytes of a device.
    """
    if config.data_placement is None:
        splits = dataset.splits().values()
        needed = sum(split.bytes for split in splits if isinstance(split, Split))
        fits = needed <= DEVICE_DATA_FRACTION * device_memory
        config = config.replace(data_placement="device" if fits else "host")
    if config.steps_per_execution > 1 and config.data_placement == "host":
        remedy = "needs the dataset on the devices; see --data-placement"
        raise ConfigError("steps_per_execution", config.steps_per_execution, remedy)
    return config


def create_schedule(
    config: TrainConfig, train_examples: int, inputs: Inputs
) -> tuple[Intervals, optax.Schedule]:
    """Returns when what happens, and the learning rate as a function of the step."""
    steps_per_epoch = train_examples // int(config.global_batch_size or 1)
    total_steps = config.steps or (config.epochs or DEFAULT_EPOCHS) * steps_per_epoch
    if total_steps > MOST_STEPS:
        remedy = f"makes {total_steps} steps; give at most {MOST_STEPS // steps_per_epoch}"
        raise ConfigError("epochs", config.epochs, remedy)
    epochs_between_checkpoints = -(-MIN_DEFAULT_CHECKPOINT_STEPS // steps_per_epoch)
    intervals = Intervals(
        total_steps=total_steps,
        steps_per_epoch=steps_per_epoch,
        log_every=config.log_every,
        eval_every=config.eval_every or steps_per_epoch,
        checkpoint_every=config.checkpoint_every or epochs_between_checkpoints * steps_per_epoch,
        steps_per_execution=config.steps_per_execution,
    )
    schedule = inputs.schedule or optim.create_schedule(config, total_steps, steps_per_epoch)
    return intervals, schedule
