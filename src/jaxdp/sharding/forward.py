"""Computes a function of a batch in which examples do not meet, on one device or several of this
process.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Shaped

from jaxdp.sharding.mesh import DATA_AXIS, data_mesh
from jaxdp.sharding.own_trace import own_trace


class Forward:
    """A pure function of a state and a batch, compiled for as many devices as a call asks for.

    Each device computes, with no communication, what one device would compute of its slice of the
    batch.

    Args:
        function: of the state and of arrays whose first dim is the batch.
        state: is copied to the devices that are used.
    """

    def __init__(self, function: Callable[[Any, Array], Array], state: Any) -> None:
        self._function, self._state = own_trace(function), state
        self._alone, self._placed = jax.jit(self._function), jax.device_put(state)
        self._spread: dict[
            tuple[Any, ...], tuple[Any, Callable[[Any, Array], Array], NamedSharding]
        ] = {}

    def __call__(self, batch: Shaped[Any, "batch ..."], shards: int = 1) -> Array:
        """Returns the answers to a batch, on the devices.

        Args:
            shards: how many devices compute, the first ones; they divide the batch.
        """
        if shards == 1:
            return self._alone(self._placed, jnp.asarray(batch))
        devices = tuple(jax.local_devices()[:shards])
        if devices not in self._spread:  # other ones where JAX was started anew, with more
            mesh, examples = data_mesh(devices), PartitionSpec(DATA_AXIS)
            # Nothing is replicated but the state, of which no gradient is taken: there is nothing
            # to check.
            function = jax.shard_map(
                self._function,
                mesh=mesh,
                in_specs=(PartitionSpec(), examples),
                out_specs=examples,
                check_vma=False,
            )
            state = jax.device_put(self._state, NamedSharding(mesh, PartitionSpec()))
            self._spread[devices] = state, jax.jit(function), NamedSharding(mesh, examples)
        state, function, sharding = self._spread[devices]
        return function(state, jax.device_put(batch, sharding))
