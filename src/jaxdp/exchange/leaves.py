"""States on their way between processes: lists of arrays, in which the place of an array that
another server holds is None.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np


def of(tree: Any) -> list[np.ndarray | None]:
    """Returns the arrays of a tree, None in the place of one that is not there."""
    return [None if leaf is None else np.asarray(leaf) for leaf in places(tree)]


def places(tree: Any) -> list[Any]:
    """Returns the leaves of a tree, of which None is one, too."""
    return jax.tree.leaves(tree, is_leaf=_is_none)


def structure(tree: Any) -> Any:
    """Returns what `joined` needs to make such a tree again."""
    return jax.tree.structure(tree, is_leaf=_is_none)


def joined(structure: Any, parts: Sequence[Sequence[Any]]) -> Any:
    """Returns the tree that several lists make together."""
    chosen = [
        next((leaf for leaf in each if leaf is not None), None) for each in zip(*parts, strict=True)
    ]
    return jax.tree.unflatten(structure, chosen)


def _is_none(leaf: Any) -> bool:
    return leaf is None
