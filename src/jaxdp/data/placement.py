"""Places datasets in device memory: reads them whole, and gathers batches in the compiled step.

A dataset that streams from the host gives the same batches, bit for bit.
"""

import concurrent.futures
import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from jaxdp.data.split import Split

_CHUNK = 256  # examples read at a time
# A TPU's memory is laid out in tiles of 128 columns. Rows that fill the tiles are stored one after
# the other. For other rows, XLA stores the first dim innermost, to waste no memory, and then copies
# the whole array into the layout that a gather requires, in every step.
_LANES = 128
# XLA:TPU cuts an array with longer rows into several arrays, which also copies it (rows of 16 to 29
# KiB, libtpu 0.0.42).
_MOST_ROW_BYTES = 16 * 1024


@functools.partial(jax.tree_util.register_dataclass, data_fields=["rows"], meta_fields=["shape"])
@dataclasses.dataclass(frozen=True)
class Rows:
    """Examples with more than one value each, stored so that no accelerator copies all examples to
    gather a few.

    Attributes:
        rows: shape (examples * pieces, length). The values of an example are in `pieces`
            consecutive rows, and the length is a multiple of 128. Zeros pad the end of each
            example.
        shape: of an example.
    """

    rows: Any
    shape: tuple[int, ...]

    @staticmethod
    def layout(shape: Sequence[int], itemsize: int) -> tuple[int, int]:
        """Returns the number of rows of an example and their length.

        Args:
            shape: of an example.
            itemsize: bytes of a value.
        """
        tiles = -(-math.prod(shape) // _LANES)
        most = max(_MOST_ROW_BYTES // (itemsize * _LANES), 1)
        fewest = -(-tiles // most)
        # Up to twice as many rows, if their number divides the values, so that the array on the
        # host need not be copied.
        pieces = next((count for count in range(fewest, 2 * fewest) if tiles % count == 0), fewest)
        return pieces, -(-tiles // pieces) * _LANES

    @classmethod
    def pack(cls, array: np.ndarray) -> "Rows":
        """Returns an array of examples (examples, ...) as rows.

        Returns a view if the rows need no padding.
        """
        shape = array.shape[1:]
        pieces, length = cls.layout(shape, array.dtype.itemsize)
        values = array.reshape(len(array), math.prod(shape))
        if values.shape[1] != pieces * length:
            values = np.pad(values, ((0, 0), (0, pieces * length - values.shape[1])))
        return cls(values.reshape(len(array) * pieces, length), shape)

    def take(self, indices: Int[Array, "batch"]) -> Array:
        """Returns the examples with these indices, in their own shape."""
        pieces, _ = self.layout(self.shape, self.rows.dtype.itemsize)
        numbers = indices[:, None] * pieces + jnp.arange(pieces, dtype=indices.dtype)
        values = jnp.take(self.rows, numbers.ravel(), axis=0).reshape(len(indices), -1)
        return values[:, : math.prod(self.shape)].reshape(len(indices), *self.shape)


def pack(data: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Returns the arrays of a dataset as they are stored on devices: `Rows`, or plain arrays if an
    example is one number.
    """
    return {name: Rows.pack(array) if array.ndim > 1 else array for name, array in data.items()}


def abstract(example: Mapping[str, np.ndarray], count: int) -> dict[str, Any]:
    """Returns the shapes of the result of `pack` for this number of examples.

    Args:
        example: an example of the dataset, in arrays with a first dim of 1.
    """

    def repeated(array: np.ndarray) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((count * len(array), *array.shape[1:]), array.dtype)

    return jax.tree.map(repeated, pack(example))


def read_all(
    source: Split,
    advance: Callable[[int, int], None] = lambda done, total: None,
    threads: int = 2,
) -> dict[str, np.ndarray]:
    """Reads every example of a split. `weights` are 0 for left-out examples.

    Args:
        advance: progress callback(done, total).
        threads: that read.
    """
    arrays: dict[str, np.ndarray] = {}
    count = len(source)
    parts = [range(start, min(start + _CHUNK, count)) for start in range(0, count, _CHUNK)]
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        for part, chunk in zip(parts, pool.map(source.read, parts), strict=True):
            for name, values in chunk.items():
                if name not in arrays:
                    arrays[name] = np.empty((count, *values.shape[1:]), values.dtype)
                arrays[name][part.start : part.stop] = values
            advance(part.stop, count)
    return arrays


def gather_examples(batch: Mapping[str, Array], data: Mapping[str, Any]) -> dict[str, Array]:
    """Completes a batch of `indices` and `weights` from the dataset on the device.

    A batch that streams is already complete.

    Args:
        data: the result of `pack` for the arrays of `read_all`, or these arrays, or nothing.
    """
    gathered = dict(batch)
    for prefix in ("", "partner_") if data else ():
        if prefix + "indices" in batch:
            indices = batch[prefix + "indices"]
            gathered |= {prefix + name: _take(array, indices) for name, array in data.items()}
            gathered[prefix + "weights"] *= batch[prefix + "weights"]
    return gathered


def _take(array: Any, indices: Array) -> Array:
    return array.take(indices) if isinstance(array, Rows) else jnp.take(array, indices, axis=0)
