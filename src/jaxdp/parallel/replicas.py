"""Which collective turns per-replica values into one? The only file that names pmean, psum and pcast."""

import dataclasses
from typing import Any

import jax


@dataclasses.dataclass(frozen=True)
class Replicas:
    """How one program sees its fellow replicas.

    Attributes:
        axis: name of the mapped axis over which a replica's program communicates; None where one program sees the whole batch.
        per_program: how many replicas one program computes; above 1 only under jit over a mesh.
        typed: whether the transform tracks which values differ between replicas (shard_map does). It then sums the gradient of
            a replicated value by itself, so parameters are cast to per-replica ones before they are differentiated.
    """

    axis: str | None = None
    per_program: int = 1
    typed: bool = False

    def local(self, tree: Any) -> Any:
        """Returns `tree` as values of this replica alone, ready to be differentiated."""
        if self.axis is None or not self.typed:
            return tree
        return jax.tree.map(lambda leaf: jax.lax.pcast(leaf, self.axis, to="varying"), tree)

    def mean(self, tree: Any) -> Any:
        return tree if self.axis is None else jax.lax.pmean(tree, self.axis)

    def sum(self, tree: Any) -> Any:
        return tree if self.axis is None else jax.lax.psum(tree, self.axis)
