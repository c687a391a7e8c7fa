"""Computes a function of a batch in which examples do not meet, on devices of this process."""

from collections.abc import Callable
from typing import Any

import jax
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
        self._programs: dict[Any, Callable[[Any], Array]] = {}

    def __call__(self, batch: Shaped[Any, "batch ..."], shards: int = 1) -> Array:
        """Returns the answers to a batch, on the devices.

        Args:
            shards: how many devices compute, the first ones; they divide the batch.
        """
        devices = tuple(jax.local_devices()[:shards])
        if devices not in self._programs:  # JAX may also have been started anew, with more
            self._programs[devices] = self._compile(devices)
        return self._programs[devices](batch)

    def _compile(self, devices: tuple[Any, ...]) -> Callable[[Any], Array]:
        mesh = data_mesh(devices)
        whole, examples = PartitionSpec(), PartitionSpec(DATA_AXIS)
        # Only the state is replicated, and no gradient of it is taken: there is nothing to check.
        function = jax.jit(
            jax.shard_map(
                self._function,
                mesh=mesh,
                in_specs=(whole, examples),
                out_specs=examples,
                check_vma=False,
            )
        )
        with jax.ensure_compile_time_eval():  # also if the first call asks for shapes only
            state = jax.device_put(self._state, NamedSharding(mesh, whole))
        sharding = NamedSharding(mesh, examples)
        return lambda batch: function(state, jax.device_put(batch, sharding))
