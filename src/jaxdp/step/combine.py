"""Combines the results for parts of a batch, from replicas, microbatches or slices.

Floats are averaged. Integers and booleans, such as a counter or a flag of a model, keep their
dtype. The combined value is the largest value, which all parts share if they count steps.
"""

import operator
from typing import Any

import jax
import jax.numpy as jnp

from jaxdp.step.state import Tree


def is_float(leaf: Any) -> bool:
    """Returns whether an array is averaged, which is true for floats and false for integers and
    booleans.
    """
    return bool(jnp.issubdtype(leaf.dtype, jnp.inexact))


def add(total: Tree, part: Tree) -> Tree:
    """Adds a part to the sum of the previous parts. For integers and booleans, keeps the largest
    value.
    """
    return jax.tree.map(
        lambda one, other: one + other if is_float(one) else jnp.maximum(one, other), total, part
    )


def add_with_sums(total: tuple[Tree, Tree], part: tuple[Tree, Tree]) -> tuple[Tree, Tree]:
    """Adds a part to the previous parts, as pairs of what is averaged and of what is summed."""
    return add(total[0], part[0]), jax.tree.map(operator.add, total[1], part[1])


def divide(total: Tree, count: Any) -> Tree:
    """Returns the mean of the parts that `add` combined."""
    return jax.tree.map(lambda leaf: leaf / count if is_float(leaf) else leaf, total)


def nothing(shapes: Tree) -> Tree:
    """Returns the value to which the first part is added."""

    def create(leaf: Any) -> jax.Array:
        if is_float(leaf) or leaf.dtype == bool:
            return jnp.zeros_like(leaf)
        return jnp.full_like(leaf, jnp.iinfo(leaf.dtype).min)

    return jax.tree.map(create, shapes)
