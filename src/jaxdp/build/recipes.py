"""The settings of a step, from the settings of a run."""

import functools
from typing import Any

import optax
from flax import nnx

from jaxdp import tasks
from jaxdp.build import initial_weights as transfer
from jaxdp.build.inputs import Inputs
from jaxdp.build.model_check import abstract_model, array_shapes
from jaxdp.config import TrainConfig
from jaxdp.data import augment
from jaxdp.data.sources import Dataset
from jaxdp.step import optim
from jaxdp.step.step import StepConfig


def create_preprocess(config: TrainConfig, dataset: Dataset, *, dense: bool) -> augment.Preprocess:
    """Returns what augments and normalizes batches.

    Args:
        dense: whether targets are masks or images.
    """
    return augment.Preprocess(
        dataset.mean,
        dataset.std,
        augment.create_augmentations(config.augment or (), dense=dense, padded=dataset.padded),
        per_image=config.normalize == "image",
        pixel_range=dataset.pixel_range,
    )


def create_step_config(
    config: TrainConfig,
    dataset: Dataset,
    inputs: Inputs,
    schedule: optax.Schedule,
    task: tasks.Task,
    preprocess: augment.Preprocess,
) -> StepConfig:
    """Returns the settings of a step.

    Raises:
        ConfigError: for an optimizer or a pattern of frozen parameters that does not fit.
    """
    assert config.batch_norm is not None
    # Not a function in this one, which servers could not unpickle.
    create_optimizer = functools.partial(_create_optimizer, inputs.optimizer, config)
    create_optimizer(schedule)  # finds what does not fit
    if inputs.optimizer is not None:
        model = abstract_model(config, dataset, inputs)
        params = nnx.to_pure_dict(nnx.state(model, nnx.Param))
        optim.check_update(inputs.optimizer, params)
    frozen = frozenset[str]()
    if config.freeze is not None:
        frozen = transfer.frozen_names(config.freeze, array_shapes(config, dataset, inputs)[0])
    return StepConfig(
        task=task,
        preprocess=preprocess,
        optimizer=create_optimizer,
        batch_norm=config.batch_norm,
        ema_decay=config.ema_decay,
        on_divergence=config.on_divergence,
        accumulate_steps=config.accumulate_steps,
        remat=config.remat,
        frozen=frozen,
    )


def _create_optimizer(
    given: Any, config: TrainConfig, schedule: optax.Schedule
) -> optax.GradientTransformation:
    """Returns the optimizer that was given, which has its own schedule, or the one that the
    settings name.
    """
    return given if given is not None else optim.create_optimizer(config, schedule)
