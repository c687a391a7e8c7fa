"""Makes the settings of a step: preprocessing, learning rates, optimizer and frozen parameters."""

import functools
from collections.abc import Callable
from typing import Any

import optax
from flax import nnx

from jaxdp import tasks
from jaxdp.build import initial_weights, resolve
from jaxdp.build.inputs import Inputs
from jaxdp.build.intervals import Intervals
from jaxdp.build.model_check import abstract_model, array_shapes
from jaxdp.config import TrainConfig
from jaxdp.data import augment
from jaxdp.data.sources import Dataset
from jaxdp.inference import apply
from jaxdp.step import optim
from jaxdp.step.step import StepConfig

CreateOptimizer = Callable[[optax.Schedule], optax.GradientTransformation]
WrapOptimizer = Callable[[CreateOptimizer], CreateOptimizer]


def create_preprocess(
    config: TrainConfig, dataset: Dataset, task: tasks.Task
) -> augment.Preprocess:
    """Returns what augments and normalizes batches."""
    augmentations = augment.create_augmentations(
        config.augment or (),
        dense=task.kind != "classification",
        mixes=task.mixes,
        padded=dataset.padded,
    )
    return apply.create_preprocess(config, dataset, augmentations)


def create_schedule(config: TrainConfig, intervals: Intervals, inputs: Inputs) -> optax.Schedule:
    """Returns the learning rate as a function of the step.

    An optimizer that was given as an object ignores it.
    """
    if inputs.schedule is not None:
        return inputs.schedule
    if inputs.optimizer is not None:
        config = resolve.with_rate(config, intervals.total_steps)
    return optim.create_schedule(config, intervals.total_steps)


def create_step_config(
    config: TrainConfig,
    dataset: Dataset,
    inputs: Inputs,
    schedule: optax.Schedule,
    wrap_optimizer: WrapOptimizer,
    **parts: Any,
) -> StepConfig:
    """Returns the settings of a step.

    Args:
        **parts: task, preprocessing, and whether a loop over microbatches stays one.

    Raises:
        ConfigError: for an optimizer or a pattern of frozen parameters that does not fit.
    """
    assert config.batch_norm is not None
    given = inputs.optimizer
    create_optimizer = functools.partial(_create_optimizer, given, config)
    create_optimizer(schedule)  # finds what does not fit
    if given is not None:
        model = abstract_model(config, dataset, inputs)
        optim.check_update(given, nnx.to_pure_dict(nnx.state(model, nnx.Param)))
    frozen = frozenset[str]()
    if config.freeze is not None:
        params, _ = array_shapes(config, dataset, inputs)
        frozen = initial_weights.frozen_names(config.freeze, params)
    return StepConfig(
        optimizer=wrap_optimizer(create_optimizer),
        batch_norm=config.batch_norm,
        ema_decay=config.ema_decay,
        on_divergence=config.on_divergence,
        accumulate_steps=config.accumulate_steps,
        remat=config.remat,
        frozen=frozen,
        views=config.test_time_augmentation,
        **parts,
    )


def _create_optimizer(
    given: Any, config: TrainConfig, schedule: optax.Schedule
) -> optax.GradientTransformation:
    """Returns the optimizer that was given, which has its own schedule, or the one that the
    settings name.
    """
    return given if given is not None else optim.create_optimizer(config, schedule)
