"""Defines the operations on replicas that a step uses, so that the step does not depend on devices.

`sharding.communication` provides it.
"""

from typing import Any, Protocol, runtime_checkable

from jaxtyping import Array


@runtime_checkable
class Replicas(Protocol):
    """The communication of one program of a step with other replicas.

    `sharding.communication` implements it.
    """

    @property
    def axis(self) -> str | None:
        """The name of the mapped axis over which replicas communicate.

        None if one program sees the whole batch.
        """
        ...

    @property
    def per_program(self) -> int:
        """The number of replicas that one program computes."""
        ...

    def local(self, tree: Any) -> Any:
        """Returns `tree` as values of this replica alone, ready to be differentiated."""
        ...

    def mean(self, tree: Any) -> Any:
        """Returns the mean of each array over all replicas."""
        ...

    def sum(self, tree: Any) -> Any:
        """Returns the sum of each array over all replicas."""
        ...

    def gather(self, array: Array, count: int) -> Array:
        """Returns the arrays of `count` consecutive replicas, this one among them, joined along the
        first dim.
        """
        ...

    def join(self, array: Array) -> Array:
        """Returns the arrays of all replicas, joined along the first dim in the order of the global
        batch. Gradients flow into this replica's part only.
        """
        ...

    def apart(self, array: Array) -> Array:
        """Returns what `join` does, with zeros instead of the parts of other replicas."""
        ...

    def own(self, array: Array, count: int) -> Array:
        """Returns this replica's part of an array that `gather` joined."""
        ...
