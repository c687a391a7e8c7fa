"""Combines what is computed from parts of a batch: by replicas, from microbatches or in slices.

Floats are means. Integers and booleans, such as the counter or the flag of a model, keep their
dtype: they are the largest value, which is the value of every part that counts steps alike.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp.step.state import Tree


def is_float(leaf: Any) -> bool:
    """Whether an array has a mean: floats, not integers and booleans."""
    return bool(jnp.issubdtype(leaf.dtype, jnp.inexact))


def add(total: Tree, part: Tree) -> Tree:
    """Adds a part to those before it; of integers and booleans the largest stays."""
    return jax.tree.map(
        lambda one, other: one + other if is_float(one) else jnp.maximum(one, other), total, part
    )


def divide(total: Tree, count: Any) -> Tree:
    """Returns the mean of the parts that `add` put together."""
    return jax.tree.map(lambda leaf: leaf / count if is_float(leaf) else leaf, total)


def nothing(shapes: Tree) -> Tree:
    """Returns that to which the first part is added."""

    def create(leaf: Any) -> jax.Array:
        if is_float(leaf) or leaf.dtype == bool:
            return jnp.zeros_like(leaf)
        return jnp.full_like(leaf, jnp.iinfo(leaf.dtype).min)

    return jax.tree.map(create, shapes)


def difference(new: Tree, old: Tree) -> Tree:
    """Returns by how much arrays on the host have changed; booleans by whether."""

    def subtract(one: Any, other: Any) -> Any:
        return (np.subtract if one.dtype != bool else np.logical_xor)(one, other)

    return jax.tree.map(subtract, new, old)


def changed(old: Tree, by: Tree) -> Tree:
    """Returns arrays on the host that have changed by a `difference`."""

    def change(one: Any, other: Any) -> Any:
        return (np.add if one.dtype != bool else np.logical_xor)(one, other)

    return jax.tree.map(change, old, by)
