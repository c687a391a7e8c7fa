"""Shards parameters over devices, by rules that are data and a layout that follows them (ZeRO-3,
FSDP).

A dim is sharded into equal shards, which seldom divide the widths of a PyramidNet: then zeros are
appended to that dim. The padding is removed before a parameter is used, and when it is gathered on
a host. With several processes each writes its shards with the padding, and a checkpoint notes the
shapes without it, so that no reader sees it. Padded weights get gradients of zero, and no optimizer
here changes a zero weight without a gradient.

Source: Rajbhandari et al. 2020, ZeRO, stage 3; the padding is ours.
"""

import dataclasses
import math
import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxdp.sharding.mesh import DATA_AXIS, replicated

# A parameter with fewer elements is replicated: gathering it costs more time than sharding it saves
# memory.
MIN_ELEMENTS = 1024

# The first pattern that matches a parameter's whole path decides which dims may be sharded, the
# preferred one first: the first dim that the devices divide, or else the one that needs the least
# padding. A parameter without a pattern shards any dim, the largest first.
Rules = Sequence[tuple[str, tuple[int, ...]]]
RULES: Rules = (
    (r"params/.*kernel", (-2, -1)),  # convolutions and dense layers end in (inputs, outputs)
    (r"params/.*(bias|scale)", (-1,)),
)


@dataclasses.dataclass(frozen=True)
class Placement:
    """How one array is stored on a mesh.

    Attributes:
        shape: in the model.
        stored: the shape with padding.
        spec: the sharding of the stored array.
    """

    shape: tuple[int, ...]
    stored: tuple[int, ...]
    spec: PartitionSpec

    @property
    def padding(self) -> list[tuple[int, int]]:
        """The padding before and after each dim, in elements; empty if there is none."""
        if self.stored == self.shape:
            return []
        return [(0, long - short) for short, long in zip(self.shape, self.stored, strict=True)]


def place(path: str, shape: tuple[int, ...], shards: int, rules: Rules = RULES) -> Placement:
    """Returns where one parameter is placed by the rules.

    Args:
        path: of the parameter in the state, e.g. `params/head/kernel`.
        shape: in the model.
        shards: size of the axis data.
        rules: patterns of paths, and the dims that may be sharded.
    """
    stored = list(shape)
    spec: list[str | None] = [None] * len(shape)
    largest_first = sorted(range(len(shape)), key=lambda dim: -shape[dim])
    preferred = next((dims for pattern, dims in rules if re.fullmatch(pattern, path)), None)
    dims = largest_first if preferred is None else preferred
    possible = [dim % len(shape) for dim in dims if -len(shape) <= dim < len(shape)]
    if math.prod(shape) >= MIN_ELEMENTS and shards > 1 and possible:
        # Of equals the first.
        chosen = min(possible, key=lambda dim: _padded(shape[dim], shards) / shape[dim])
        spec[chosen], stored[chosen] = DATA_AXIS, _padded(shape[chosen], shards)
    return Placement(tuple(shape), tuple(stored), PartitionSpec(*spec))


def _padded(length: int, pieces: int) -> int:
    return -(-length // pieces) * pieces


class Layout:
    """The placements of all arrays of a state on a mesh.

    Every array with the name and the shape of a parameter is placed like it: gradients, momentum,
    moving averages. All others are replicated.

    Args:
        mesh: with the axis data, and maybe space.
        params: of the model, or their shapes.
        rules: patterns of paths, and the dims that may be sharded.
    """

    def __init__(self, mesh: Mesh, params: Any, rules: Rules = RULES) -> None:
        self.mesh = mesh
        named = {
            _name(path): np.shape(leaf)
            for path, leaf in jax.tree_util.tree_leaves_with_path(params)
        }
        self._placements = {
            name: place(f"params/{name}", shape, mesh.shape[DATA_AXIS], rules)
            for name, shape in named.items()
        }

    def find(self, path: Any, shape: tuple[int, ...]) -> Placement:
        """Returns the placement of a leaf by its path in any tree and its shape, padded or not."""
        parts = _name(path).split("/")
        for start in range(len(parts)):
            found = self._placements.get("/".join(parts[start:]))
            if found is not None and tuple(shape) in (found.shape, found.stored):
                return found
        return Placement(tuple(shape), tuple(shape), PartitionSpec())

    def abstract(self, tree: Any) -> Any:
        """Returns the stored shapes of a tree, with shardings; nothing is computed."""

        def describe(path: Any, leaf: Any) -> jax.ShapeDtypeStruct:
            found = self.find(path, np.shape(leaf))
            return jax.ShapeDtypeStruct(
                found.stored, leaf.dtype, sharding=NamedSharding(self.mesh, found.spec)
            )

        return jax.tree_util.tree_map_with_path(describe, tree)

    def shardings(self, tree: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf.sharding, self.abstract(tree))

    def put(self, tree: Any) -> Any:
        """Places a tree of host arrays.

        A device receives its own shard only. Arrays that are placed already stay.
        """

        def put(path: Any, leaf: Any) -> jax.Array:
            found = self.find(path, np.shape(leaf))
            sharding = NamedSharding(self.mesh, found.spec)
            if (
                isinstance(leaf, jax.Array)
                and leaf.sharding == sharding
                and leaf.shape == found.stored
            ):
                return leaf
            array = np.asarray(leaf)
            padded = np.pad(array, found.padding) if found.padding else array
            return jax.make_array_from_callback(found.stored, sharding, lambda index: padded[index])

        return jax.tree_util.tree_map_with_path(put, tree)

    def store(self, tree: Any) -> Any:
        """Returns arrays with the model's shapes as they are stored, padded and sharded.

        For use inside a program.
        """

        def store(path: Any, leaf: jax.Array) -> jax.Array:
            found = self.find(path, leaf.shape)
            padded = (
                jnp.pad(leaf, found.padding)
                if leaf.shape == found.shape and found.padding
                else leaf
            )
            return jax.lax.with_sharding_constraint(padded, NamedSharding(self.mesh, found.spec))

        return jax.tree_util.tree_map_with_path(store, tree)

    def use(self, tree: Any) -> Any:
        """Returns stored arrays with the model's shapes, by an all-gather over data.

        For use inside a program.
        """
        everywhere = replicated(self.mesh)

        def use(path: Any, leaf: jax.Array) -> jax.Array:
            whole = self.crop(path, jax.lax.with_sharding_constraint(leaf, everywhere))
            return jax.lax.with_sharding_constraint(whole, everywhere)

        return jax.tree_util.tree_map_with_path(use, tree)

    def crop(self, path: Any, leaf: Any) -> Any:
        """Returns an array without its padding, if it has any."""
        found = self.find(path, leaf.shape)
        return (
            leaf
            if leaf.shape == found.shape
            else leaf[tuple(slice(length) for length in found.shape)]
        )


def bytes_per_device(abstract: Any) -> int:
    """Returns what one device holds of a tree of shapes: of a leaf with a sharding its share, of
    others all.
    """
    total = 0
    for leaf in jax.tree.leaves(abstract):
        sharding = getattr(leaf, "sharding", None)
        shape = leaf.shape if sharding is None else sharding.shard_shape(leaf.shape)
        total += math.prod(shape) * leaf.dtype.itemsize
    return total


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")
