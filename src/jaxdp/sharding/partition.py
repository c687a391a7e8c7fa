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
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxdp.sharding.mesh import DATA_AXIS, replicated
from jaxdp.step.state import array_name

# A parameter with fewer elements is replicated: gathering it costs more time than sharding it saves
# memory.
MIN_ELEMENTS = 1024

# The first pattern that matches a parameter's whole path decides which dims may be sharded, the
# preferred one first: the first dim that the devices divide, or else the one that needs the least
# padding. A parameter without a pattern shards any dim, the largest first.
RULES: tuple[tuple[str, tuple[int, ...]], ...] = (
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
    spec: PartitionSpec = PartitionSpec()


def place(path: str, shape: tuple[int, ...], shards: int) -> Placement:
    """Returns where one parameter is placed by the rules.

    Args:
        path: of the parameter in the state, e.g. `params/head/kernel`.
        shape: in the model.
        shards: size of the axis data.
    """
    stored = list(shape)
    spec: list[str | None] = [None] * len(shape)
    largest_first = sorted(range(len(shape)), key=lambda dim: -shape[dim])
    dims = next((dims for pattern, dims in RULES if re.fullmatch(pattern, path)), largest_first)
    possible = [dim % len(shape) for dim in dims if -len(shape) <= dim < len(shape)]
    if math.prod(shape) >= MIN_ELEMENTS and shards > 1 and possible:
        padded = {dim: math.ceil(shape[dim] / shards) * shards for dim in possible}
        chosen = min(possible, key=lambda dim: padded[dim] / shape[dim])  # of equals the first
        spec[chosen], stored[chosen] = DATA_AXIS, padded[chosen]
    return Placement(tuple(shape), tuple(stored), PartitionSpec(*spec))


def pad(array: Any, stored: tuple[int, ...], pad_with: Callable[..., Any] = np.pad) -> Any:
    """Returns an array with zeros appended up to the stored shape.

    Args:
        pad_with: `np.pad`, or `jnp.pad` inside a program.
    """
    if array.shape == stored:
        return array
    return pad_with(
        array, [(0, long - short) for short, long in zip(array.shape, stored, strict=True)]
    )


class Layout:
    """The placements of all arrays of a state on a mesh.

    Every array with the name and the shape of a parameter is placed like it: gradients, momentum,
    moving averages. All others are replicated.

    Args:
        mesh: with the axis data, and maybe space.
        params: of the model, or their shapes.
    """

    def __init__(self, mesh: Mesh, params: Any) -> None:
        self.mesh = mesh
        self._placements = {
            name: place(f"params/{name}", np.shape(leaf), mesh.shape[DATA_AXIS])
            for name, leaf in (
                (array_name(path), leaf) for path, leaf in jax.tree.leaves_with_path(params)
            )
        }

    def find(self, path: Any, shape: tuple[int, ...]) -> Placement:
        """Returns the placement of a leaf by its path in any tree and its shape, padded or not."""
        parts = array_name(path).split("/")
        for start in range(len(parts)):
            found = self._placements.get("/".join(parts[start:]))
            if found is not None and shape in (found.shape, found.stored):
                return found
        return Placement(shape, shape)

    def abstract(self, tree: Any) -> Any:
        """Returns the stored shapes of a tree, with shardings; nothing is computed."""

        def describe(path: Any, leaf: Any) -> jax.ShapeDtypeStruct:
            placement = self.find(path, np.shape(leaf))
            sharding = NamedSharding(self.mesh, placement.spec)
            return jax.ShapeDtypeStruct(placement.stored, leaf.dtype, sharding=sharding)

        return jax.tree.map_with_path(describe, tree)

    def put(self, tree: Any) -> Any:
        """Places a tree of host arrays.

        A device receives its own shard only. Arrays that are placed already stay.
        """

        def put(leaf: Any, like: jax.ShapeDtypeStruct) -> jax.Array:
            if isinstance(leaf, jax.Array) and leaf.sharding == like.sharding:
                return leaf
            padded = pad(np.asarray(leaf), like.shape)
            return jax.make_array_from_callback(
                like.shape, like.sharding, lambda index: padded[index]
            )

        return jax.tree.map(put, tree, self.abstract(tree))

    def store(self, tree: Any) -> Any:
        """Returns arrays with the model's shapes as they are stored, padded and sharded.

        For use inside a program.
        """
        return jax.tree.map(
            lambda leaf, like: jax.lax.with_sharding_constraint(
                pad(leaf, like.shape, jnp.pad), like.sharding
            ),
            tree,
            self.abstract(tree),
        )

    def use(self, tree: Any) -> Any:
        """Returns stored arrays with the model's shapes, by an all-gather over data.

        For use inside a program.
        """
        everywhere = replicated(self.mesh)

        def use(path: Any, leaf: jax.Array) -> jax.Array:
            whole = self.crop(path, jax.lax.with_sharding_constraint(leaf, everywhere))
            return jax.lax.with_sharding_constraint(whole, everywhere)

        return jax.tree.map_with_path(use, tree)

    def crop(self, path: Any, leaf: Any) -> Any:
        """Returns an array without its padding, if it has any."""
        shape = self.find(path, leaf.shape).shape
        return leaf if leaf.shape == shape else leaf[tuple(map(slice, shape))]


def bytes_per_device(abstract: Any) -> int:
    """Returns what one device holds of a tree of shapes: its share of a leaf with a sharding, and
    all of any other leaf.
    """
    total = 0
    for leaf in jax.tree.leaves(abstract):
        sharding = getattr(leaf, "sharding", None)
        shape = leaf.shape if sharding is None else sharding.shard_shape(leaf.shape)
        total += math.prod(shape) * leaf.dtype.itemsize
    return total
