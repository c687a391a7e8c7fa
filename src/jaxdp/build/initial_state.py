"""Creates the state in which training starts."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import optax
from flax import nnx

from jaxdp.build.initial_weights import InitialWeights, read_initial
from jaxdp.build.inputs import Inputs
from jaxdp.build.model import create_model
from jaxdp.config import TrainConfig
from jaxdp.data.sources import Dataset
from jaxdp.runtime import garbage_collector
from jaxdp.sharding.strategy import Strategy
from jaxdp.step.keys import create_key
from jaxdp.step.state import TrainState, create_train_state
from jaxdp.step.step import StepConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class InitialState:
    """Makes the initial state of runs that differ in their seeds and schedules alone.

    Attributes:
        config: the settings of the first of these runs.
        dtype: format of the computation.
        factory: makes the model, as it was when the setup was created: a plugin may be imported
            anew. None for a model object.
    """

    config: TrainConfig
    inputs: Inputs
    dataset: Dataset
    step_config: StepConfig
    strategy: Strategy
    schedule: optax.Schedule
    dtype: Any
    factory: Callable[..., Any] | None

    @functools.cached_property
    def weights(self) -> InitialWeights | None:
        """The weights of `--init-from`.

        Raises:
            ConfigError: if they cannot be read, or do not fit.
        """
        path = self.config.init_from
        if path is None:
            return None
        return read_initial(path, self.config, self.dataset, self.inputs)

    @functools.cached_property
    def shapes(self) -> TrainState:
        """The shapes of a state as the model knows it; nothing is computed."""
        return jax.eval_shape(functools.partial(self._create, self.config.seed, self.schedule))

    @garbage_collector.paused()
    def create(self, seed: int, schedule: optax.Schedule) -> TrainState:
        """Creates the state, on the default device or where the strategy wants it."""
        weights = self.weights
        with self.strategy.creation_device():
            return self._create(seed, schedule, weights)

    def _create(
        self, seed: int, schedule: optax.Schedule, weights: InitialWeights | None = None
    ) -> TrainState:
        model = create_model(
            self.config,
            self.dataset,
            self.inputs,
            rngs=nnx.Rngs(create_key(seed)),
            dtype=self.dtype,
            factory=self.factory,
        )
        if weights is not None:
            weights.load_into(model)
        return create_train_state(
            model,
            self.step_config.optimizer(schedule),
            with_ema=self.config.ema_decay > 0,
            with_loss_scale=self.config.precision == "float16",
        )
