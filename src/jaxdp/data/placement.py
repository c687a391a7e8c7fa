"""Datasets in device memory: reading them whole, and gathering batches of them in the compiled step.

One that streams from the host gives the same batches, bit by bit.
"""

import concurrent.futures
from collections.abc import Callable, Mapping

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxdp.data.checking import READ_THREADS, CheckedSource

_CHUNK = 256  # examples read at a time


def read_all(source: CheckedSource, advance: Callable[[int, int], None] = lambda done, total: None) -> dict[str, np.ndarray]:
    """Reads every example of a split; `weights` are 0 for those that were left out.

    Args:
        advance: is told how many examples are read, and how many there are.
    """
    arrays: dict[str, np.ndarray] = {}
    starts = range(0, len(source), _CHUNK)
    with concurrent.futures.ThreadPoolExecutor(READ_THREADS) as pool:
        chunks = pool.map(lambda start: source.read(range(start, min(start + _CHUNK, len(source)))), starts)
        for start, chunk in zip(starts, chunks, strict=True):
            for name, values in chunk.items():
                if name not in arrays:
                    arrays[name] = np.empty((len(source), *values.shape[1:]), values.dtype)
                arrays[name][start : start + len(values)] = values
            advance(start + len(chunk["weights"]), len(source))
    return arrays


def gather_examples(batch: Mapping[str, Array], data: Mapping[str, Array]) -> dict[str, Array]:
    """Completes a batch of `indices` and `weights` from the dataset on the device; one that streams is complete already.

    Args:
        data: the arrays of `read_all`, or nothing.
    """
    gathered = dict(batch)
    for prefix in ("", "partner_"):
        if prefix + "indices" in batch:
            rows = {prefix + name: jnp.take(array, batch[prefix + "indices"], axis=0) for name, array in data.items()}
            if rows:
                gathered |= rows | {prefix + "weights": rows[prefix + "weights"] * batch[prefix + "weights"]}
    return gathered
