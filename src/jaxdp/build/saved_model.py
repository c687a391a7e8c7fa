"""Reads what a run's model knows of its dataset, and the state in a checkpoint.

Neither the run's dataset nor its devices need be there.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from jaxdp import config as config_lib
from jaxdp.build.model import create_model
from jaxdp.build.task import create_task
from jaxdp.checkpoint.restore import SavedCheckpoints
from jaxdp.config import TrainConfig
from jaxdp.data.sources import Description
from jaxdp.errors import ConfigError
from jaxdp.rundir.layout import RunDirectory
from jaxdp.step.keys import create_key
from jaxdp.step.state import TrainState, create_train_state

T = TypeVar("T")


def read_description(run: RunDirectory) -> Description:
    """Returns what the run's model needs to know of its dataset.

    Raises:
        ConfigError: if there is no run, or its dataset.json is damaged.
    """
    return read_facts(run.read("dataset.json"))


def read_facts(facts: Mapping[str, Any]) -> Description:
    """Returns what JSON says of a dataset. A later version may say more."""
    known = {field.name for field in dataclasses.fields(Description)}
    content: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in facts.items()
        if name in known
    }
    return Description(**content)


def read_checkpoint(
    run: RunDirectory,
    config: TrainConfig,
    description: Description,
    step: int | None,
    read: Callable[[SavedCheckpoints, int], T],
) -> tuple[int, T]:
    """Returns the step of a checkpoint, and what `read` makes of it.

    Args:
        step: which; None for the best by validation data, or the newest where there are none.

    Raises:
        ConfigError: if there is no such checkpoint.
    """
    found = None
    if run.checkpoints.is_dir():
        best_metric = None
        if "validation" in description.examples:
            best_metric = description.best_metric or create_task(config, description).best_metric
        checkpoints = SavedCheckpoints(
            run.checkpoints, best_metric=best_metric, settings=config_lib.kept(config)
        )
        found = checkpoints.read_chosen(step, functools.partial(read, checkpoints))
    if found is None:
        raise ConfigError("run_dir", run.path, "holds no checkpoint")
    return found


def restore(
    run: RunDirectory,
    config: TrainConfig,
    description: Description,
    step: int | None,
    model: nnx.Module | None = None,
) -> tuple[int, TrainState]:
    """Returns the step of a checkpoint, and what evaluates of the state in it as NumPy arrays,
    without the optimizer's state.

    Args:
        step: which; None for the best by validation data, or the newest where there are none.
        model: of the same structure as the one that was trained, where that was an object.

    Raises:
        ConfigError: if there is no such checkpoint, or the model does not fit it.
    """

    def create() -> TrainState:
        copy = (
            create_model(
                config, description, rngs=nnx.Rngs(create_key(0)), dtype=jnp.dtype(config.precision)
            )
            if model is None
            else nnx.clone(model)
        )
        return create_train_state(copy, optax.identity(), with_ema=config.ema_decay > 0)

    expected = jax.eval_shape(create)  # computes nothing
    return read_checkpoint(
        run, config, description, step, lambda saved, chosen: saved.restore_model(chosen, expected)
    )
