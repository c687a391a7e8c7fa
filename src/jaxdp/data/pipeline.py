"""The order of the examples, and the threads that read and place batches ahead of use.

The order is a pure function of (seed, step): a resumed run asks for its next step, and nothing is
replayed.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from jaxdp.data.split import Split

HostBatch = dict[str, np.ndarray]

# Streams of random numbers. The order is drawn from (seed, epoch), and validation data from (seed,
# label, 1).
_ROUNDS, _TURNS = 2, 3
_ROUNDS_AT_ONCE = 256


@dataclasses.dataclass(frozen=True)
class TrainingOrder:
    """A new seeded permutation each epoch, split into global batches.

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


@functools.lru_cache(maxsize=2)  # two: background threads read across the border of an epoch
def _permutation(num_examples: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng((seed, epoch)).permutation(num_examples)


@dataclasses.dataclass(frozen=True, eq=False)
class BalancedOrder:
    """Every class equally often: one round of one example of each class after the other, split into
    global batches.

    The classes of a round are in random order. The examples of a class come in a seeded
    permutation, and in a new one once all of them have been drawn, so that those of a rare class
    come more often. An epoch is as many examples as the training set has.

    Indexing with a step returns the example numbers of its global batch.

    Attributes:
        labels: of the examples, integers (N,); those below 0 are left out.
    """

    labels: np.ndarray
    global_batch_size: int
    seed: int
    total_steps: int

    @property
    def steps_per_epoch(self) -> int:
        return len(self.labels) // self.global_batch_size

    @functools.cached_property
    def _examples(self) -> list[np.ndarray]:
        """The example numbers of each class that has any."""
        return [
            np.flatnonzero(self.labels == label)
            for label in np.unique(self.labels[self.labels >= 0])
        ]

    def __len__(self) -> int:
        return self.total_steps

    def __getitem__(self, step: int) -> np.ndarray:
        first = int(step) * self.global_batch_size
        return np.array(
            [self._drawn(position) for position in range(first, first + self.global_batch_size)]
        )

    def draws(self, numbers: np.ndarray) -> np.ndarray:
        """Returns a number for each example of a batch, and another one for each copy."""
        return draw_numbers(numbers, len(self.labels))

    def _drawn(self, position: int) -> int:
        """Returns the example at a position of the run: a class is drawn once in each round, so
        that the round counts its draws.
        """
        number, place = divmod(position, len(self._examples))
        block, row = divmod(number, _ROUNDS_AT_ONCE)
        index = int(_rounds(len(self._examples), self.seed, block)[row, place])
        examples = self._examples[index]
        turn, which = divmod(number, len(examples))
        return int(examples[_turn(len(examples), self.seed, index, turn)[which]])


@functools.lru_cache(maxsize=4)
def _rounds(classes: int, seed: int, block: int) -> np.ndarray:
    order = np.tile(np.arange(classes), (_ROUNDS_AT_ONCE, 1))
    return np.random.default_rng((seed, block, _ROUNDS)).permuted(order, axis=1)


@functools.lru_cache(maxsize=4096)
def _turn(examples: int, seed: int, index: int, turn: int) -> np.ndarray:
    return np.random.default_rng((seed, index, turn, _TURNS)).permutation(examples)


@dataclasses.dataclass(frozen=True)
class CallOrder:
    """The steps of each call to the devices together.

    Indexing with a call returns example numbers (batch, steps).

    Args:
        calls: the steps of each, counted from 0.
    """

    order: TrainingOrder | BalancedOrder
    calls: Sequence[range]

    @property
    def draws(self) -> Callable[[np.ndarray], np.ndarray] | None:
        return getattr(self.order, "draws", None)

    def __len__(self) -> int:
        return len(self.calls)

    def __getitem__(self, call: int) -> np.ndarray:
        return np.stack([self.order[step] for step in self.calls[call]], -1)


@dataclasses.dataclass(frozen=True)
class EvaluationOrder:
    """Every example once, in order. The last batch is padded with -1: an example of weight 0."""

    num_examples: int
    global_batch_size: int

    def __len__(self) -> int:
        return -(-self.num_examples // self.global_batch_size)

    def __getitem__(self, step: int) -> np.ndarray:
        numbers = np.arange(self.global_batch_size) + int(step) * self.global_batch_size
        return np.where(numbers < self.num_examples, numbers, -1)


@dataclasses.dataclass(frozen=True)
class SingleOrder:
    """Each example in a batch of its own, in order, padded with -1."""

    num_examples: int
    global_batch_size: int

    def __len__(self) -> int:
        return self.num_examples

    def __getitem__(self, step: int) -> np.ndarray:
        return np.where(np.arange(self.global_batch_size) == 0, int(step), -1)


def load(source: Split, numbers: np.ndarray) -> HostBatch:
    """Reads examples into one batch; -1 stands for padding."""
    batch = source.read([max(int(number), 0) for number in numbers])
    return batch | index_batch(numbers) | {"weights": batch["weights"] * (numbers >= 0)}


def index_batch(numbers: np.ndarray) -> HostBatch:
    """Returns the rest of a batch if its examples are on the devices already."""
    return {
        "indices": np.maximum(numbers, 0).astype(np.int32),
        "weights": (numbers >= 0).astype(np.float32),
    }


def draw_numbers(numbers: np.ndarray, num_examples: int) -> np.ndarray:
    """Returns for each example number of a batch one that no other has: N more for each time that
    it came before in the batch.

    Args:
        numbers: (batch,), or (batch, steps) of several batches.
        num_examples: N.
    """
    if numbers.ndim > 1:
        return np.stack([draw_numbers(column, num_examples) for column in numbers.T], -1)
    order = np.argsort(numbers, kind="stable")
    ascending, places = numbers[order], np.arange(len(numbers))
    first = np.maximum.accumulate(np.where(np.diff(ascending, prepend=-1) != 0, places, 0))
    drawn = np.empty(len(numbers), np.int32)
    drawn[order] = ascending + num_examples * (places - first)
    return drawn


def share_of(
    numbers: np.ndarray,
    read: Callable[[np.ndarray], HostBatch],
    index: int,
    count: int,
    *,
    draws: HostBatch,
    paired: bool = False,
    layout: np.ndarray | None = None,
) -> HostBatch:
    """Reads one of `count` equal slices of a global batch.

    Args:
        numbers: of the examples of the global batch.
        read, paired, layout: as for `batches`.
        draws: fields of the global batch besides those that are read.
    """
    share = len(numbers) // count
    layout = np.arange(len(numbers)) if layout is None else layout
    positions = layout[index * share : (index + 1) * share]
    with_partners = [positions, (positions - 1) % len(numbers)]
    needed, places = np.unique(with_partners, return_inverse=True)
    needed = needed if paired else positions
    fields = read(numbers[needed]) | {name: values[needed] for name, values in draws.items()}
    if not paired:
        return fields
    own, partners = places.reshape(2, share)
    pairs = {f"partner_{name}": values[partners] for name, values in fields.items()}
    return {name: values[own] for name, values in fields.items()} | pairs


def batches(  # noqa: PLR0913 - what is read, in which order, where it goes, and whose share it is
    read: Callable[[np.ndarray], HostBatch],
    order: TrainingOrder | BalancedOrder | CallOrder | EvaluationOrder | SingleOrder,
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

    Where an example may come twice in a batch, a field `draws` tells the copies apart: each has
    random numbers of its own.

    Args:
        read: `load` of a source, or `index_batch`.
        place: puts a host batch on this process's devices; up to 4 placed batches wait there, or as
            many as there are threads.
        process_index: a process takes the p-th of `process_count` equal slices of each global
            batch, so that neither the union nor the groups of a grouped batch norm depend on the
            number of processes.
        paired: whether each example comes with a partner to be mixed with, in fields `partner_...`:
            the one before it in the global batch, so that pairs do not depend on processes or
            devices either.
        layout: positions in the global batch in the order in which they are placed; None for one
            after the other.
        threads: that read and place; decoding leaves the interpreter's lock, so that they use as
            many cores.
    """
    import grain  # 0.2 s, for which the compiled step need not wait

    draws_of: Callable[[np.ndarray], np.ndarray] | None = getattr(order, "draws", None)

    def read_share(numbers: np.ndarray) -> Any:
        draws = {"draws": draws_of(numbers)} if draws_of is not None else {}
        share = share_of(
            numbers,
            read,
            process_index,
            process_count,
            draws=draws,
            paired=paired,
            layout=layout,
        )
        return place(share)

    steps: Any = order
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=max(4, threads))
    return iter(grain.MapDataset.source(steps)[start:].map(read_share).to_iter_dataset(options))
