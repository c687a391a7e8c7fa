"""Determines how arrays of a state are sharded over devices (ZeRO-3, FSDP).

Source: Rajbhandari et al. 2020, ZeRO, stage 3.
"""

import math
from typing import Any

import jax
from jax.sharding import PartitionSpec

from jaxdp.sharding.mesh import DATA_AXIS

# Gathering a smaller array costs time, and sharding it saves little memory.
MIN_ELEMENTS = 1024


def spec(shape: tuple[int, ...], shards: int) -> PartitionSpec:
    """Returns the dim of an array that is sharded, which is the first dim that the devices divide.

    The dims of inputs and outputs, which are the last two, come first. Vectors, small arrays and
    arrays without such a dim are replicated. A gradient, a momentum and an average have the shape
    of their parameter, and therefore its sharding.

    Args:
        shape: of the array.
        shards: size of the axis data.
    """
    dims = [*range(len(shape))]
    if shards > 1 and len(shape) > 1 and math.prod(shape) >= MIN_ELEMENTS:
        for dim in dims[-2:] + dims[:-2]:
            if shape[dim] % shards == 0:
                return PartitionSpec(*[None] * dim, DATA_AXIS)
    return PartitionSpec()


def bytes_per_device(abstract: Any) -> int:
    """Returns the shapes that one device holds of a tree: its share of a leaf with a sharding, and
    the whole of any other leaf.
    """
    total = 0
    for leaf in jax.tree.leaves(abstract):
        sharding = getattr(leaf, "sharding", None)
        shape = leaf.shape if sharding is None else sharding.shard_shape(leaf.shape)
        total += math.prod(shape) * leaf.dtype.itemsize
    return total
