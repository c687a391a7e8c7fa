"""Determines the order of the examples, and runs the threads that read and place batches ahead of
use.

The order is a pure function of (seed, step). A resumed run requests its next step, and replays
nothing.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from jaxdp.data.split import Split

HostBatch = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class TrainingOrder:
    """A new seeded permutation for each epoch, split into global batches.

    Examples beyond the last whole batch of an epoch are dropped. Indexing with a step returns the
    example numbers of its global batch.
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
        return permutation[
            position * self.global_batch_size : (position + 1) * self.global_batch_size
        ]


@functools.lru_cache(maxsize=2)  # two, because background threads read across the end of an epoch
def _permutation(num_examples: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng((seed, epoch)).permutation(num_examples)


@dataclasses.dataclass(frozen=True)
class CallOrder:
    """The batches of all steps of each call to the devices.

    Indexing with a call returns example numbers (batch, steps).

    Args:
        calls: the steps of each, counted from 0.
    """

    order: TrainingOrder
    calls: Sequence[range]

    def __len__(self) -> int:
        return len(self.calls)

    def __getitem__(self, call: int) -> np.ndarray:
        return np.stack([self.order[step] for step in self.calls[call]], -1)


@dataclasses.dataclass(frozen=True)
class EvaluationOrder:
    """Every example once, in order. The last batch is padded with -1, which is an example of weight
    0.
    """

    num_examples: int
    global_batch_size: int

    def __len__(self) -> int:
        return -(-self.num_examples // self.global_batch_size)

    def __getitem__(self, step: int) -> np.ndarray:
        numbers = np.arange(self.global_batch_size) + int(step) * self.global_batch_size
        return np.where(numbers < self.num_examples, numbers, -1)


def load(source: Split, numbers: np.ndarray) -> HostBatch:
    """Reads examples into one batch. -1 means padding."""
    rest = index_batch(numbers)
    batch = source.read(rest["indices"].tolist())
    return batch | rest | {"weights": batch["weights"] * rest["weights"]}


def index_batch(numbers: np.ndarray) -> HostBatch:
    """Returns the rest of a batch if its examples are already on the devices."""
    return {
        "indices": np.maximum(numbers, 0).astype(np.int32),
        "weights": (numbers >= 0).astype(np.float32),
    }


def share_of(
    numbers: np.ndarray,
    read: Callable[[np.ndarray], HostBatch],
    index: int,
    count: int,
    *,
    paired: bool = False,
    layout: np.ndarray | None = None,
) -> HostBatch:
    """Reads one of `count` equal slices of a global batch.

    Args:
        numbers: of the examples of the global batch.
        read, paired, layout: as for `batches`.
    """
    layout = np.arange(len(numbers)) if layout is None else layout
    share = len(layout) // count
    positions = layout[index * share : (index + 1) * share]
    if not paired:
        return read(numbers[positions])
    with_partners = [positions, (positions - 1) % len(numbers)]
    needed, places = np.unique(with_partners, return_inverse=True)
    fields = read(numbers[needed])
    own, partners = places.reshape(2, share)
    pairs = {f"partner_{name}": values[partners] for name, values in fields.items()}
    return {name: values[own] for name, values in fields.items()} | pairs


def batches(  # noqa: PLR0913 - what is read, in which order, where it goes, and whose share it is
    read: Callable[[np.ndarray], HostBatch],
    order: TrainingOrder | CallOrder | EvaluationOrder,
    place: Callable[[HostBatch], Any],
    *,
    start: int = 0,
    process_index: int = 0,
    process_count: int = 1,
    paired: bool = False,
    layout: np.ndarray | None = None,
    threads: int = 2,
) -> Iterator[Any]:
    """Yields this process's share of the batches from step `start` on, read and placed by
    background threads ahead of use.

    Args:
        read: `load` of a source, or `index_batch`.
        place: puts a host batch on this process's devices. Up to 4 placed batches wait on the
            devices, or as many as there are threads.
        process_index: process p reads the p-th of `process_count` equal slices of each global
            batch. Neither the union nor the groups of batch norm therefore depend on the number of
            processes.
        paired: whether each example has a partner for mixing, in fields `partner_...`. The partner
            is the previous example of the global batch, so that pairs do not depend on processes or
            devices.
        layout: positions in the global batch in the order in which they are placed, in which a
            position may be repeated; None for ascending order.
        threads: number of threads that read and place. Decoding releases the GIL, so that they use
            as many cores.
    """
    import grain  # 0.2 s, for which the compiled step need not wait

    def read_share(numbers: np.ndarray) -> Any:
        fields = share_of(numbers, read, process_index, process_count, paired=paired, layout=layout)
        return place(fields)

    steps: Any = order
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=max(4, threads))
    return iter(grain.MapDataset.source(steps)[start:].map(read_share).to_iter_dataset(options))
