"""Defines the strategy `shard_map`, in which each device computes a share of the batch, as in
`pmap`. `jax.jit` compiles the program, which `jax.shard_map` runs on each device.
"""

import functools

import jax
from jax.sharding import PartitionSpec

from jaxdp.sharding import mesh, strategy
from jaxdp.sharding.communication import Communication


@strategy.register("shard_map")
class ShardMap(strategy.Strategy):
    """The strategy that wraps the step in `jax.shard_map` over a mesh of all processes' devices."""

    name = "shard_map"

    def _build(self) -> None:
        everywhere = PartitionSpec()
        wrap = functools.partial(
            jax.shard_map,
            mesh=self.mesh,
            in_specs=(everywhere, PartitionSpec(mesh.DATA_AXIS), everywhere),
            out_specs=everywhere,
        )
        replicas = Communication(axis=mesh.DATA_AXIS, typed=True, flat=self.on_cpu)
        train_step, eval_step = self._steps(replicas)
        self.train_step = jax.jit(wrap(train_step), donate_argnums=0)
        self.eval_step = jax.jit(wrap(eval_step))
