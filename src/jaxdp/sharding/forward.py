"""Computes a function of a batch in which examples do not meet, on devices of this process."""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Shaped

from jaxdp.sharding.mesh import DATA_AXIS, data_mesh
from jaxdp.sharding.tracing import own_trace


class Forward:
    """A pure function of a state and a batch, compiled for as many devices as a call asks for.

    Each device computes, with no communication, what one device would compute of its slice of the
    batch.

    Args:
        function: of the state and of arrays with the batch as their first dim.
        state: is copied to the devices that are used.
    """

    def __init__(self, function: Callable[[Any, Array], Array], state: Any) -> None:
        self._function = own_trace(function)
        self._programs: dict[Any, Callable[[Any, Any], Array]] = {}
        self.replace_state(state)

    def replace_state(self, state: Any) -> None:
        """Takes another state of the same shapes, for which nothing is compiled anew."""
        self._state, self._placed = state, dict[Any, Any]()

    def __call__(self, batch: Shaped[Any, "batch ..."], shards: int = 1) -> Array:
        """Returns the answers to a batch, on the devices.

        Args:
            shards: how many devices compute, the first ones; they divide the batch.
        """
        devices = tuple(jax.local_devices()[:shards])
        mesh = data_mesh(devices)
        if devices not in self._programs:  # JAX may also have been started anew, with more
            self._programs[devices] = self._compile(mesh)
        if devices not in self._placed:
            with jax.ensure_compile_time_eval():  # also if the first call asks for shapes only
                everywhere = NamedSharding(mesh, PartitionSpec())
                self._placed[devices] = jax.device_put(self._state, everywhere)
        batch = jax.device_put(batch, NamedSharding(mesh, PartitionSpec(DATA_AXIS)))
        return self._programs[devices](self._placed[devices], batch)

    def _compile(self, mesh: Mesh) -> Callable[[Any, Any], Array]:
        examples = PartitionSpec(DATA_AXIS)
        # Only the state is replicated, and no gradient of it is taken: there is nothing to check.
        return jax.jit(
            jax.shard_map(
                self._function,
                mesh=mesh,
                in_specs=(PartitionSpec(), examples),
                out_specs=examples,
                check_vma=False,
            )
        )
