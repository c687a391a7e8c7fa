"""Defines the strategy `shard_map`: the same division of work as `pmap`, as one program per device
under jit.
"""

import functools

import jax
from jax.sharding import PartitionSpec

from jaxdp.sharding import mesh, strategy
from jaxdp.sharding.own_trace import own_trace, scan_steps
from jaxdp.sharding.replicas import Replicas
from jaxdp.step import step


@strategy.register("shard_map")
class ShardMap(strategy.Strategy):
    """The strategy that wraps the step in `jax.shard_map` over a mesh of all processes' devices."""

    name = "shard_map"

    def _build(self) -> None:
        kwargs = {
            "recipe": self.recipe,
            "replicas": Replicas(axis=mesh.DATA_AXIS, typed=True, flat=self.on_cpu),
        }
        everywhere = PartitionSpec()
        wrap = functools.partial(
            jax.shard_map,
            mesh=self.mesh,
            in_specs=(everywhere, PartitionSpec(mesh.DATA_AXIS), everywhere),
            out_specs=everywhere,
        )
        train_step = scan_steps(functools.partial(step.train_step, **kwargs), recipe=self.recipe)
        self.train_step = jax.jit(wrap(train_step), donate_argnums=0)
        self.eval_step = jax.jit(wrap(own_trace(functools.partial(step.eval_step, **kwargs))))
