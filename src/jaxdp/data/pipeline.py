"""Which examples are in step s, and how do they reach the device in time?

The order is a pure function of (seed, step): a resumed run asks for its next step, and nothing is replayed.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import grain
import numpy as np

from jaxdp.data.sources import Source

HostBatch = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class TrainingOrder:
    """A new seeded permutation each epoch, cut into global batches; what is left of an epoch after the last whole batch is dropped.

    Indexing with a step returns the example numbers of its global batch.
    """

    num_examples: int
    global_batch_size: int
    seed: int
    total_steps: int

    @property
    def steps_per_epoch(self) -> int:
        return self.num_examples // self.global_batch_size

    def __len__(self) -> int:
        return self.total_steps

    def __getitem__(self, step: int) -> np.ndarray:
        epoch, position = divmod(int(step), self.steps_per_epoch)
        permutation = _permutation(self.num_examples, self.seed, epoch)
        return permutation[position * self.global_batch_size : (position + 1) * self.global_batch_size]


@functools.lru_cache(maxsize=2)  # two: background threads read across the border of an epoch
def _permutation(num_examples: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng((seed, epoch)).permutation(num_examples)


@dataclasses.dataclass(frozen=True)
class EvaluationOrder:
    """Every example once, in order; the last batch is filled up with -1, which becomes an example of weight 0."""

    num_examples: int
    global_batch_size: int

    def __len__(self) -> int:
        return -(-self.num_examples // self.global_batch_size)

    def __getitem__(self, step: int) -> np.ndarray:
        numbers = np.arange(self.global_batch_size) + int(step) * self.global_batch_size
        return np.where(numbers < self.num_examples, numbers, -1)


def load(source: Source, numbers: np.ndarray) -> HostBatch:
    """Reads the examples of these numbers into one batch; -1 stands for padding."""
    examples = [source[max(int(number), 0)] for number in numbers]
    batch = {name: np.stack([example[name] for example in examples]) for name in examples[0]}
    return batch | {"indices": np.maximum(numbers, 0).astype(np.int32), "weights": (numbers >= 0).astype(np.float32)}


def batches(
    source: Source,
    order: TrainingOrder | EvaluationOrder,
    place: Callable[[HostBatch], Any],
    *,
    start: int = 0,
    process_index: int = 0,
    process_count: int = 1,
) -> Iterator[Any]:
    """Yields this process's share of the batches from step `start` on, read and placed by background threads ahead of use.

    Args:
        place: puts a host batch on this process's devices; up to 4 placed batches wait there.
        process_index: a process takes the p-th of `process_count` equal slices of each global batch, so that neither the union
            nor the groups of a grouped batch norm depend on the number of processes.
    """

    def read(numbers: np.ndarray) -> Any:
        share = len(numbers) // process_count
        return place(load(source, numbers[process_index * share : (process_index + 1) * share]))

    # Two threads: one reads while the other places. More would only compete with the step for the interpreter's lock.
    reads: Any = order
    options = grain.ReadOptions(num_threads=2, prefetch_buffer_size=4)
    return iter(grain.MapDataset.source(reads)[start:].map(read).to_iter_dataset(options))
