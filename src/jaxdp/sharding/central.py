"""Defines the strategy `central`: the first device scatters batch and parameters, gathers
gradients, and updates alone.

PyTorch's DataParallel and TensorFlow's CentralStorageStrategy work in this way. The strategy is for
comparisons, and slow by design. All gradients pass through one device, which holds the only
permanent copy of the parameters. Devices communicate with each other only for batch norm over more
examples than one device holds.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.sharding import Sharding, SingleDeviceSharding

from jaxdp.data.pipeline import HostBatch
from jaxdp.data.placement import gather_examples
from jaxdp.sharding import mesh, strategy
from jaxdp.sharding.communication import Communication
from jaxdp.sharding.tracing import own_trace
from jaxdp.step import combine, step
from jaxdp.step.state import Constants, TrainState


@strategy.register("central")
class Central(strategy.Strategy):
    """The strategy with a central device, for several devices of one process.

    Raises:
        ConfigError: with several processes.
    """

    name = "central"
    one_process = "works in one process; with several use pmap, shard_map or sharded"
    joins_batches = False
    refuses: ClassVar[Mapping[str, str]] = {
        "steps_per_execution": "has a step of several programs; use 1"
    }

    def _build(self) -> None:
        step_config, count = self.step_config, len(self.devices)

        def split(batch: step.Batch, data: Mapping[str, Any]) -> dict[str, jax.Array]:
            return {
                name: leaf.reshape(count, -1, *leaf.shape[1:])
                for name, leaf in gather_examples(batch, data).items()
            }

        def add(stacked: Any) -> Any:
            return jax.tree.map(lambda leaf: functools.reduce(jnp.add, leaf), stacked)

        def update(state: TrainState, stacked: Any, constants: Constants) -> Any:
            totals = jax.tree.map(lambda leaf: functools.reduce(combine.add, leaf), stacked[0])
            means, sums = combine.divide(totals, count), add(stacked[1])
            return step.update_state(state, means, sums, constants, step_config=step_config)

        def on_each(function: Any, replicas: Communication) -> Any:
            return jax.pmap(
                own_trace(functools.partial(function, step_config=step_config, replicas=replicas)),
                axis_name=mesh.DATA_AXIS,
                in_axes=(None, 0, None),
                devices=self.devices,
            )

        self._compute = on_each(step.accumulate_gradients, Communication(axis=mesh.DATA_AXIS))
        self._evaluate = on_each(step.eval_step, Communication())
        # A jitted program runs on the device of its arguments.
        self._split, self._add = jax.jit(split), jax.jit(add)
        self._update = jax.jit(own_trace(update), donate_argnums=0)
        local = mesh.data_mesh(self.devices)
        self._scattered = mesh.replicated(local), mesh.split_over_data(local)
        self.train_step, self.eval_step = self._train_step, self._eval_step

    @property
    def _state_sharding(self) -> Sharding:
        return SingleDeviceSharding(self.devices[0])

    def shard_batch(self, batch: HostBatch) -> dict[str, jax.Array]:
        return jax.device_put(batch, self.devices[0])

    def _on_each(
        self, program: Any, state: TrainState, batch: step.Batch, constants: Constants
    ) -> tuple[Any, Constants]:
        """Runs a program on each device, with the device's share of the batch.

        Returns the results, stacked on the first device, and the constants without examples.
        """
        own = dataclasses.replace(constants, examples={})
        parts = self._split(batch, constants.examples)
        (state, everywhere), parts = jax.device_put(((state, own), parts), self._scattered)
        return jax.device_put(program(state, parts, everywhere), self.devices[0]), own

    def _train_step(self, state: TrainState, batch: step.Batch, constants: Constants) -> Any:
        needed = dataclasses.replace(state, opt_state=(), ema=None)
        return self._update(state, *self._on_each(self._compute, needed, batch, constants))

    def _eval_step(self, state: TrainState, batch: step.Batch, constants: Constants) -> Any:
        needed = dataclasses.replace(state, opt_state=())
        return self._add(self._on_each(self._evaluate, needed, batch, constants)[0])
