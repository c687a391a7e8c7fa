"""Defines the strategy `single`: one device computes the whole batch, as the baseline of every
comparison.
"""

import functools

import jax
from jax.sharding import Sharding, SingleDeviceSharding

from jaxdp.data.pipeline import HostBatch
from jaxdp.registry import ConfigError
from jaxdp.sharding import strategy
from jaxdp.sharding.own_trace import own_trace, scan_steps
from jaxdp.sharding.replicas import Replicas
from jaxdp.step import step
from jaxdp.step.state import TrainState


@strategy.register("single")
class Single(strategy.Strategy):
    """The strategy for one device.

    Raises:
        ConfigError: for more than one device.
    """

    name = "single"
    one_device = True

    def _build(self) -> None:
        if self.num_devices > 1:
            raise ConfigError(
                "devices",
                self.num_devices,
                "--strategy single uses one; use --devices 1 or --strategy pmap",
            )
        kwargs = {"recipe": self.recipe, "replicas": Replicas()}
        train_step = scan_steps(functools.partial(step.train_step, **kwargs), recipe=self.recipe)
        self.train_step = jax.jit(train_step, donate_argnums=0)
        self.eval_step = jax.jit(own_trace(functools.partial(step.eval_step, **kwargs)))

    @property
    def _state_sharding(self) -> Sharding:
        return SingleDeviceSharding(self.devices[0])

    def abstract(self, state: TrainState) -> TrainState:
        where = self._state_sharding
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where), state
        )

    def shard_batch(self, batch: HostBatch) -> dict[str, jax.Array]:
        return jax.device_put(batch, self.devices[0])
