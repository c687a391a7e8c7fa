"""Combines the values of replicas by collectives.

This is the only file that names pmean, psum, pcast, all_gather and all_to_all.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp.step.combine import is_float

_LARGE = 2**16  # elements, because joining larger arrays costs more than it saves


@dataclasses.dataclass(frozen=True)
class Communication:
    """The communication of one program of a step with the other replicas.

    Attributes:
        axis: name of the mapped axis over which a replica's program communicates; None if one
            program sees the whole batch.
        per_program: number of replicas that one program computes; above 1 only under jit over a
            mesh.
        typed: whether the transform tracks which values differ between replicas, as shard_map does.
            It then sums the gradient of a replicated value itself, so parameters are cast to
            per-replica values before they are differentiated.
        flat: whether small arrays are concatenated for a collective. XLA:CPU waits for all replicas
            once for each array, which takes longer than the transfer, especially between processes.
    """

    axis: str | None = None
    per_program: int = 1
    typed: bool = False
    flat: bool = False

    def local(self, tree: Any) -> Any:
        """Returns `tree` as values of this replica alone, ready to be differentiated."""
        if self.axis is None or not self.typed:
            return tree
        return jax.tree.map(lambda leaf: jax.lax.pcast(leaf, self.axis, to="varying"), tree)

    def mean(self, tree: Any) -> Any:
        leaves, structure = jax.tree.flatten(tree)
        # Joined arrays must have the same dtype.
        floats = [each for each in leaves if is_float(each)]
        others = [each for each in leaves if not is_float(each)]
        means = iter(self._reduce(jax.lax.pmean if self.flat else _mean, floats))
        largest = iter(self._reduce(_largest, others) if others else ())
        return jax.tree.unflatten(
            structure, [next(means if is_float(each) else largest) for each in leaves]
        )

    def sum(self, tree: Any) -> Any:
        return self._reduce(jax.lax.psum, tree)

    def gather(self, array: jax.Array, count: int) -> jax.Array:
        if self.axis is None:
            return array
        replicas = np.arange(jax.lax.axis_size(self.axis)).reshape(-1, count)
        return jax.lax.all_gather(array, self.axis, axis_index_groups=replicas.tolist(), tiled=True)

    def join(self, array: jax.Array) -> jax.Array:
        if self.axis is None:
            return array
        of_all = jax.lax.all_gather(jax.lax.stop_gradient(array), self.axis, tiled=True)
        return jnp.where(self.apart(jnp.ones(array.shape)) > 0, self.apart(array), of_all)

    def apart(self, array: jax.Array) -> jax.Array:
        if self.axis is None:
            return array
        place = jnp.arange(jax.lax.axis_size(self.axis)) == jax.lax.axis_index(self.axis)
        alone = jnp.where(place.reshape(-1, *[1] * array.ndim), array, 0)
        return alone.reshape(-1, *array.shape[1:]).astype(array.dtype)

    def own(self, array: jax.Array, count: int) -> jax.Array:
        if self.axis is None:
            return array
        length = len(array) // count
        return jax.lax.dynamic_slice_in_dim(
            array, jax.lax.axis_index(self.axis) % count * length, length
        )

    def scatter(self, vector: jax.Array) -> jax.Array:
        """Returns this replica's share of the vectors of all replicas, (replicas, length of a
        share).
        """
        count = jax.lax.axis_size(self.axis)
        rows = jnp.pad(vector, (0, -len(vector) % count)).reshape(count, -1)
        return jax.lax.all_to_all(rows, self.axis, 0, 0)

    def collect(self, share: jax.Array) -> jax.Array:
        """Returns the shares of all replicas, joined, with zeros at the end."""
        return jax.lax.all_gather(share, self.axis, tiled=True)

    def _reduce(self, collective: Callable[[Any, str], Any], tree: Any) -> Any:
        if self.axis is None:
            return tree
        if not self.flat:
            return collective(tree, self.axis)
        leaves, structure = jax.tree.flatten(tree)
        # The indices of the leaves of each sent array. Small leaves of the same dtype form one
        # array.
        groups: dict[Any, list[int]] = {}
        for number, leaf in enumerate(leaves):
            groups.setdefault(leaf.dtype if leaf.size < _LARGE else number, []).append(number)
        joined = collective(
            [
                jnp.concatenate([leaves[number].ravel() for number in numbers])
                for numbers in groups.values()
            ],
            self.axis,
        )
        for array, numbers in zip(joined, groups.values(), strict=True):
            ends = np.cumsum([leaves[number].size for number in numbers])
            for number, part in zip(numbers, jnp.split(array, ends[:-1]), strict=True):
                leaves[number] = part.reshape(leaves[number].shape)
        return jax.tree.unflatten(structure, leaves)


def _largest(tree: Any, axis: str) -> Any:
    """Returns the largest values over replicas. Collectives do not support booleans."""
    return jax.tree.map(
        lambda leaf: (
            jax.lax.pmax(leaf.astype(jnp.int32), axis).astype(bool)
            if leaf.dtype == bool
            else jax.lax.pmax(leaf, axis)
        ),
        tree,
    )


def _mean(tree: Any, axis: str) -> Any:
    """Returns means over replicas. The values are divided before they are summed, so that XLA fuses
    the division into the computation of each array.
    """
    count = jax.lax.axis_size(axis)
    return jax.lax.psum(jax.tree.map(lambda leaf: leaf / count, tree), axis)
