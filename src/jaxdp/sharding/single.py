"""Defines the strategy `single`, in which one device computes the whole batch, as a baseline."""

import jax

from jaxdp.errors import ConfigError, flag
from jaxdp.sharding import strategy
from jaxdp.sharding.communication import Communication


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
            remedy = f"use {flag('devices', 1)} or {flag('strategy', 'pmap')}"
            problem = f"{flag('strategy', 'single')} uses one; {remedy}"
            raise ConfigError("devices", self.num_devices, problem)
        train_step, eval_step = self._steps(Communication())
        everywhere = self._state_sharding  # including for arguments that are only described
        self.train_step = jax.jit(train_step, in_shardings=everywhere, donate_argnums=0)
        self.eval_step = jax.jit(eval_step, in_shardings=everywhere)
