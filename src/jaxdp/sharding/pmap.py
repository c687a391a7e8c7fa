"""Defines the strategy `pmap`, the default: each device holds all parameters and computes a share
of the batch.

Gradients are averaged over the devices.
"""

import functools
from collections.abc import Mapping

import jax
from jax.sharding import Sharding

from jaxdp.data.pipeline import HostBatch
from jaxdp.sharding import mesh, strategy
from jaxdp.sharding.communication import Communication


@strategy.register("pmap")
class Pmap(strategy.Strategy):
    """The strategy that wraps the step in `jax.pmap` over this process's devices.

    Its collectives span all processes.

    State and metrics enter and leave replicated (axis None), never stacked. Neither the state nor a
    checkpoint therefore has a leading device dim, and a step passes fewer buffers.
    """

    name = "pmap"

    def _build(self) -> None:
        self._local_mesh = mesh.data_mesh(self.devices)
        wrap = functools.partial(
            jax.pmap,
            axis_name=mesh.DATA_AXIS,
            in_axes=(None, 0, None),
            out_axes=None,
            devices=list(self.mesh.devices.flat),
        )
        train_step, eval_step = self._steps(Communication(axis=mesh.DATA_AXIS, flat=self.on_cpu))
        self.train_step, self.eval_step = wrap(train_step, donate_argnums=0), wrap(eval_step)

    @property
    def _state_sharding(self) -> Sharding:
        return mesh.replicated(self._local_mesh)

    def abstract_batch(
        self, batch: Mapping[str, jax.ShapeDtypeStruct]
    ) -> Mapping[str, jax.ShapeDtypeStruct]:
        return {
            name: jax.ShapeDtypeStruct(
                (len(self.devices), leaf.shape[0] // self.num_devices, *leaf.shape[1:]), leaf.dtype
            )
            for name, leaf in batch.items()
        }

    def shard_batch(self, batch: HostBatch) -> Mapping[str, jax.Array]:
        stacked = {
            name: array.reshape(len(self.devices), -1, *array.shape[1:])
            for name, array in batch.items()
        }
        return jax.device_put(stacked, mesh.split_over_data(self._local_mesh))
