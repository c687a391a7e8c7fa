"""From a configuration to the pieces of a run: data, model, task, optimizer, strategy and plan."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from jaxdp import models
from jaxdp.config import TrainConfig
from jaxdp.data import pipeline
from jaxdp.data.augment import Preprocess
from jaxdp.data.sources import Dataset, open_dataset
from jaxdp.parallel import platform
from jaxdp.parallel.strategy import Strategy, create_strategy
from jaxdp.registry import ConfigError
from jaxdp.tasks.classification import Classification
from jaxdp.training import optim
from jaxdp.training.loop import Plan, evaluate
from jaxdp.training.state import TrainState, create_train_state
from jaxdp.training.step import Recipe

DEFAULT_BATCH_SIZE = 128
DEFAULT_EPOCHS = 20
# Saving a small state takes as long as several of its steps: default checkpoints are at least this many steps apart.
MIN_DEFAULT_CHECKPOINT_STEPS = 100


@dataclasses.dataclass(frozen=True)
class Setup:
    """Attributes:
    config: with `global_batch_size` filled in.
    dtype: format of the computation.
    """

    config: TrainConfig
    dtype: Any
    dataset: Dataset
    recipe: Recipe
    schedule: optax.Schedule
    strategy: Strategy
    plan: Plan

    @property
    def global_batch_size(self) -> int:
        assert self.config.global_batch_size is not None
        return self.config.global_batch_size

    def create_state(self) -> TrainState:
        """Creates the initial state, on the default device."""
        model = create_model(self.config, self.dataset, rngs=nnx.Rngs(self.config.seed), dtype=self.dtype)
        return create_train_state(model, self.recipe.optimizer, with_ema=self.config.ema_decay > 0)

    def train_batches(self, start: int) -> Iterator[Any]:
        config = self.config
        order = pipeline.TrainingOrder(len(self.dataset.train), self.global_batch_size, config.seed, self.plan.total_steps)
        return self._batches(self.dataset.train, order, start)

    def evaluate(self, state: TrainState) -> dict[str, float]:
        """Returns test figures over every example once, whatever divides what."""
        devices = self.strategy.num_devices
        batch_size = -(-self.global_batch_size // devices) * devices
        order = pipeline.EvaluationOrder(len(self.dataset.test), batch_size)
        return evaluate(self.strategy, state, self._batches(self.dataset.test, order, 0))

    def _batches(self, source: Any, order: Any, start: int) -> Iterator[Any]:
        return pipeline.batches(
            source, order, self.strategy.shard_batch, start=start,
            process_index=jax.process_index(), process_count=jax.process_count(),
        )  # fmt: skip


def create_model(config: TrainConfig, dataset: Dataset, *, rngs: nnx.Rngs, dtype: Any) -> nnx.Module:
    if "dtype" in config.model_kwargs:
        raise ConfigError("model_kwargs", {"dtype": config.model_kwargs["dtype"]}, "use --precision")
    kwargs: dict[str, Any] = config.model_kwargs | {"dtype": dtype}
    return models.create(config.model, num_classes=dataset.num_classes, in_channels=dataset.image_shape[-1], rngs=rngs, **kwargs)


def create_setup(config: TrainConfig, *, training: bool = True, dtype: Any = None) -> Setup:
    """Puts a run together, and finds what does not fit before anything is computed or written.

    Args:
        dtype: format of the computation; None for the configured precision.
        training: whether the batch must divide over the devices; evaluation pads, so it takes any number.

    Raises:
        ConfigError: for the first setting that cannot work.
    """
    dataset = open_dataset(config.dataset)
    nnx.eval_shape(lambda: create_model(config, dataset, rngs=nnx.Rngs(0), dtype=jnp.float32))
    devices = platform.select_devices(1 if config.strategy == "single" and config.devices is None else config.devices)
    per_device = config.per_device_batch_size
    total_devices = len(devices) * jax.process_count()
    batch_size = per_device * total_devices if per_device else config.global_batch_size or DEFAULT_BATCH_SIZE
    config = dataclasses.replace(config, global_batch_size=batch_size, per_device_batch_size=None)
    if batch_size > len(dataset.train):
        remedy = f"larger than the training set; use at most {len(dataset.train)}"
        raise ConfigError("global_batch_size", batch_size, remedy)

    plan = _create_plan(config, len(dataset.train) // batch_size)
    schedule = optim.create_schedule(config, plan.total_steps)
    recipe = Recipe(
        task=Classification(label_smoothing=config.label_smoothing),
        optimizer=optim.create_optimizer(config, schedule),
        preprocess=Preprocess(dataset.mean, dataset.std, dataset.augmentations),
        batch_norm=config.batch_norm,
        ema_decay=config.ema_decay,
        seed=config.seed,
    )
    strategy = create_strategy(config.strategy, recipe, devices)
    if training:
        strategy.check_batch(batch_size)
    return Setup(config, jnp.dtype(dtype or config.precision), dataset, recipe, schedule, strategy, plan)


def _create_plan(config: TrainConfig, steps_per_epoch: int) -> Plan:
    epochs_between_checkpoints = -(-MIN_DEFAULT_CHECKPOINT_STEPS // steps_per_epoch)
    return Plan(
        total_steps=config.steps or (config.epochs or DEFAULT_EPOCHS) * steps_per_epoch,
        steps_per_epoch=steps_per_epoch,
        log_every=config.log_every,
        eval_every=config.eval_every or steps_per_epoch,
        checkpoint_every=config.checkpoint_every or epochs_between_checkpoints * steps_per_epoch,
    )
