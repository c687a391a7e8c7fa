"""Converts states to lists of leaves for transfer. In each list, None replaces a leaf of another
server.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxdp.step.state import TrainState


def needed(state: TrainState) -> TrainState:
    """Returns the part of a state that gradients depend on."""
    return dataclasses.replace(state, opt_state=(), ema=None)


def to_host(tree: Any) -> list[np.ndarray | None]:
    """Returns the leaves of a tree, with None for a leaf of another server."""
    leaves = jax.tree.leaves(tree, is_leaf=_is_none)
    return [None if leaf is None else np.asarray(leaf) for leaf in leaves]


def structure(tree: Any) -> Any:
    """Returns the structure that `join` requires to rebuild such a tree."""
    return jax.tree.structure(tree, is_leaf=_is_none)


def join(structure: Any, parts: Sequence[Sequence[Any]]) -> Any:
    """Returns the tree from the lists of all servers."""
    leaves = [
        next((leaf for leaf in candidates if leaf is not None), None)
        for candidates in zip(*parts, strict=True)
    ]
    return jax.tree.unflatten(structure, leaves)


def divide(leaves: Sequence[Any], owners: Sequence[int]) -> list[list[Any]]:
    """Returns a list for each server.

    Args:
        owners: the server of each leaf.
    """
    return [
        [leaf if owner == server else None for leaf, owner in zip(leaves, owners, strict=True)]
        for server in range(max(owners) + 1)
    ]


def balance(sizes: Sequence[int], servers: int) -> tuple[int, ...]:
    """Returns which server holds which leaf, so that each server has about the same number of
    elements. Assigns the largest leaf first, to the server with the fewest elements.

    Source: Graham 1969, Bounds on Multiprocessing Timing Anomalies: at most a third more than the
    best division.
    """
    held, owners = [0] * servers, [0] * len(sizes)
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        owners[index] = min(range(servers), key=lambda server: held[server])
        held[owners[index]] += sizes[index]
    return tuple(owners)


def _is_none(leaf: Any) -> bool:
    return leaf is None
