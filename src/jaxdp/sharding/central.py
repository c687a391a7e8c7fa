"""Defines the strategy `central`: the first device scatters batch and parameters, gathers gradients, and updates alone.

PyTorch's DataParallel and TensorFlow's CentralStorageStrategy work like this. It is slow by design, and there to be compared with
the others: all traffic passes through one device, which holds the only lasting copy of the parameters.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Sharding, SingleDeviceSharding

from jaxdp.data.pipeline import HostBatch
from jaxdp.data.placement import gather_examples
from jaxdp.registry import ConfigError
from jaxdp.sharding import strategy
from jaxdp.sharding.replicas import Replicas
from jaxdp.step import step
from jaxdp.step.state import Constants, TrainState


@strategy.register("central")
class Central(strategy.Strategy):
    """The strategy with a central device, for several devices of one process.

    Raises:
        ConfigError: with several processes, or for batch norm over the global batch.
    """

    name = "central"

    def _build(self) -> None:
        if jax.process_count() > 1:
            raise ConfigError("strategy", self.name, "works in one process; with several use pmap, shard_map or sharded")
        if self.recipe.batch_norm.kind == "global":
            remedy = "--strategy central has no statistics across devices; use replica, group:N, or another strategy"
            raise ConfigError("batch_norm", self.recipe.batch_norm, remedy)
        kwargs = {"recipe": self.recipe, "replicas": Replicas()}

        def compute(state: TrainState, batch: step.Batch, constants: Constants) -> Any:
            (grads, batch_stats, weight), sums = step.accumulate_gradients(state, batch, constants, **kwargs)
            return (step.narrowed(grads, recipe=self.recipe), batch_stats, weight), sums

        def update(state: TrainState, found: list[Any], constants: Constants) -> Any:
            means, sums = jax.tree.map(lambda *leaves: sum(leaves[1:], leaves[0]), *found)
            grads, batch_stats, weight = jax.tree.map(lambda leaf: leaf / len(found), means)
            grads = step.widened(grads, state.params)
            return step.update_state(state, grads, batch_stats, weight, sums, constants, recipe=self.recipe)

        # A program runs where its arguments are.
        self._compute, self._update = jax.jit(compute), jax.jit(update, donate_argnums=0)
        self._evaluate = jax.jit(functools.partial(step.eval_step, **kwargs))
        self._split = jax.jit(self._split_batch)
        self._add = jax.jit(lambda found: jax.tree.map(lambda *leaves: sum(leaves[1:], leaves[0]), *found))
        self.train_step, self.eval_step = self._train_step, self._eval_step

    @property
    def _state_sharding(self) -> Sharding:
        return SingleDeviceSharding(self.devices[0])

    def shard_batch(self, batch: HostBatch) -> dict[str, jax.Array]:
        return jax.device_put(batch, self.devices[0])

    def _split_batch(self, batch: step.Batch, data: step.Batch) -> list[dict[str, jax.Array]]:
        gathered = gather_examples(batch, data)
        parts = {name: jnp.split(leaf, len(self.devices)) for name, leaf in gathered.items()}
        return [{name: leaves[number] for name, leaves in parts.items()} for number in range(len(self.devices))]

    def _scatter(self, whole: Any, batch: Mapping[str, Any], data: Mapping[str, Any]) -> Iterator[Any]:
        """Yields `whole` and a shard of the batch, on each device."""
        for device, part in zip(self.devices, self._split(batch, data), strict=True):
            yield jax.device_put((whole, part), device)

    def _train_step(self, state: TrainState, batch: Mapping[str, Any], constants: Constants) -> Any:
        own = dataclasses.replace(constants, examples={})
        needed = dataclasses.replace(state, opt_state=(), ema=None), dataclasses.replace(own, learning_rates=())
        found = [
            self._compute(state, part, constants) for (state, constants), part in self._scatter(needed, batch, constants.examples)
        ]
        return self._update(state, jax.device_put(found, self.devices[0]), own)

    def _eval_step(self, state: TrainState, batch: Mapping[str, Any], data: Mapping[str, Any]) -> Any:
        needed = dataclasses.replace(state, opt_state=())
        found = [self._evaluate(state, part, {}) for state, part in self._scatter(needed, batch, data)]
        return self._add(jax.device_put(found, self.devices[0]))
