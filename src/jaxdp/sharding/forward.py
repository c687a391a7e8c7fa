"""Computes a function that treats the examples of a batch separately, on devices of this
process.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Shaped

from jaxdp.sharding.mesh import DATA_AXIS, data_mesh, replicated, split_over_data
from jaxdp.sharding.tracing import own_trace


class Forward:
    """A pure function of a state and a batch, compiled for the number of devices of a call.

    Each device computes its slice of the batch without communication, as a single device would.

    Args:
        function: of the state and of arrays with the batch as their first dim.
        state: the state, which is copied to the used devices.
    """

    def __init__(self, function: Callable[[Any, Array], Array], state: Any) -> None:
        self._function = own_trace(function)
        self._programs: dict[Any, Callable[[Any, Any], Array]] = {}
        self.replace_state(state)

    def replace_state(self, state: Any) -> None:
        """Replaces the state by a state of the same shapes, which requires no compilation."""
        self._state, self._placed = state, dict[Any, Any]()

    def __call__(self, batch: Shaped[Any, "batch ..."], shards: int = 1) -> Array:
        """Returns the outputs for a batch, on the devices.

        Args:
            shards: how many devices compute. The first devices are used, and their number divides
                the batch.
        """
        devices = tuple(jax.local_devices()[:shards])
        mesh = data_mesh(devices)
        if devices not in self._programs:  # JAX may also have been restarted with more devices
            self._programs[devices] = self._compile(mesh)
        if devices not in self._placed:
            with jax.ensure_compile_time_eval():  # even if the first call only requests shapes
                self._placed[devices] = jax.device_put(self._state, replicated(mesh))
        batch = jax.device_put(batch, split_over_data(mesh))
        return self._programs[devices](self._placed[devices], batch)

    def _compile(self, mesh: Mesh) -> Callable[[Any, Any], Array]:
        examples = PartitionSpec(DATA_AXIS)
        # Only the state is replicated, and no gradient of it is computed, so there is nothing to
        # check.
        return jax.jit(
            jax.shard_map(
                self._function,
                mesh=mesh,
                in_specs=(PartitionSpec(), examples),
                out_specs=examples,
                check_vma=False,
            )
        )
