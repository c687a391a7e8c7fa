"""Defines the strategy `central`: the first device scatters batch and parameters, gathers
gradients, and updates alone.

PyTorch's DataParallel and TensorFlow's CentralStorageStrategy work like this. It is slow by design,
and there to be compared with the others: all gradients pass through one device, which holds the
only lasting copy of the parameters. Among themselves devices exchange only what batch norm over
more examples than one holds asks for.
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
from jaxdp.registry import ConfigError
from jaxdp.sharding import mesh, strategy
from jaxdp.sharding.own_trace import own_trace
from jaxdp.sharding.replicas import Replicas
from jaxdp.step import step
from jaxdp.step.state import Constants, TrainState


@strategy.register("central")
class Central(strategy.Strategy):
    """The strategy with a central device, for several devices of one process.

    Raises:
        ConfigError: with several processes.
    """

    name = "central"
    refuses: ClassVar[Mapping[str, str]] = {
        "steps_per_execution": "has a step of several programs; use 1"
    }

    def _build(self) -> None:
        if jax.process_count() > 1:
            raise ConfigError(
                "strategy",
                self.name,
                "works in one process; with several use pmap, shard_map or sharded",
            )
        recipe, devices = self.recipe, len(self.devices)

        def compute(state: TrainState, batch: step.Batch, constants: Constants) -> Any:
            replicas = Replicas(axis=mesh.DATA_AXIS)
            (grads, batch_stats, weight), sums = step.accumulate_gradients(
                state, batch, constants, recipe=recipe, replicas=replicas
            )
            return (grads, batch_stats, weight), sums

        def split(batch: step.Batch, data: Mapping[str, Any]) -> dict[str, jax.Array]:
            return {
                name: leaf.reshape(devices, -1, *leaf.shape[1:])
                for name, leaf in gather_examples(batch, data).items()
            }

        def add(found: Any) -> Any:
            return jax.tree.map(lambda leaf: functools.reduce(jnp.add, leaf), found)

        def update(state: TrainState, found: Any, constants: Constants) -> Any:
            means, sums = add(found)
            grads, batch_stats, weight = jax.tree.map(lambda leaf: leaf / devices, means)
            return step.update_state(
                state, grads, batch_stats, weight, sums, constants, recipe=recipe
            )

        wrap = functools.partial(
            jax.pmap, axis_name=mesh.DATA_AXIS, in_axes=(None, 0, None), devices=self.devices
        )
        self._compute = wrap(own_trace(compute))
        evaluate = functools.partial(step.eval_step, recipe=recipe, replicas=Replicas())
        self._evaluate = wrap(own_trace(evaluate))
        # A program of jit runs where its arguments are.
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

    def _scatter(
        self, whole: Any, batch: Mapping[str, Any], data: Mapping[str, Any]
    ) -> tuple[Any, Any]:
        """Returns `whole` on each device, and on each its share of the batch."""
        return jax.device_put((whole, self._split(batch, data)), self._scattered)

    def _train_step(self, state: TrainState, batch: Mapping[str, Any], constants: Constants) -> Any:
        own = dataclasses.replace(constants, examples={})
        needed = (
            dataclasses.replace(state, opt_state=(), ema=None),
            dataclasses.replace(own, learning_rates=()),
        )
        (scattered, own_constants), parts = self._scatter(needed, batch, constants.examples)
        found = self._compute(scattered, parts, own_constants)
        return self._update(state, jax.device_put(found, self.devices[0]), own)

    def _eval_step(
        self, state: TrainState, batch: Mapping[str, Any], data: Mapping[str, Any]
    ) -> Any:
        scattered, parts = self._scatter(dataclasses.replace(state, opt_state=()), batch, data)
        return self._add(jax.device_put(self._evaluate(scattered, parts, {}), self.devices[0]))
