"""Gives images to a network in batches of one shape, spread over the devices, and returns answers
in the order of the images.
"""

import collections
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Shaped

Pixels = Shaped[np.ndarray, "height width channels"]
# Batches of images that are read ahead, so that those of one shape come together: they, and their
# answers, are held.
_WINDOW = 4
# Images for a device: XLA:CPU computes one alone by other operations, which round otherwise.
_FEWEST = 2


@dataclasses.dataclass(eq=False)
class PendingImage:
    """An image whose turn to be returned has not come.

    Attributes:
        pixels: as the network takes them; None once a batch has them.
        limit: how many such images a device takes at a time.
        share: of a batch, that it takes.
        batch: the answers to the batch that it is in, which may be under way.
        position: its place in that batch.
    """

    pixels: Pixels | None
    limit: int
    share: float
    batch: Any = None
    position: int = 0

    def answer(self) -> np.ndarray:
        """Waits for the answer, and returns it."""
        return np.asarray(self.batch)[self.position]


class Batches:
    """Batches for one network, and which programs it has.

    Args:
        network: maps images (batch, height, width, channels), and the number of devices that share
            them, to answers.
        devices: how many there are.
    """

    def __init__(self, network: Callable[[np.ndarray, int], Any], devices: int) -> None:
        self._network = network
        self._devices = devices
        self._programs: dict[tuple[int, ...], set[tuple[int, int]]] = collections.defaultdict(set)

    def compute(self, images: Sequence[Pixels]) -> Any:
        """Returns the answers to images of one shape, and behind them answers to what fills the
        batch up.

        A batch of another size would be another program, so it is filled up to one that there is,
        if any is large enough.
        """
        count, shape = len(images), images[0].shape
        each = 1 << (-(-count // self._devices) - 1).bit_length()  # on a device
        each = max(each, _FEWEST) if count > 1 else each
        fitting = [program for program in self._programs[shape] if program[0] * program[1] >= count]
        each, shards = min(
            fitting,
            key=lambda program: (program[0], -program[1]),
            default=(each, -(-count // each)),
        )
        self._programs[shape].add((each, shards))
        filled = [*images, *[images[-1]] * (each * shards - count)]
        return self._network(np.stack(filled), shards)

    def in_order(self, images: Iterable[tuple[Pixels, int]]) -> Iterator[np.ndarray]:
        """Yields the answer to each image, in the order in which they come.

        Some batches are given to the devices ahead: while the answers of one are used, the next one
        is computed.

        Args:
            images: pixels, and how many such images a device takes at a time, a power of two.
        """
        pending: collections.deque[PendingImage] = collections.deque()
        groups: dict[Any, list[PendingImage]] = collections.defaultdict(list)
        held = 0.0

        def give(kind: tuple[tuple[int, ...], int]) -> None:
            group = groups.pop(kind)
            batch = self.compute([image.pixels for image in group if image.pixels is not None])
            for position, image in enumerate(group):
                image.pixels = None
                image.batch, image.position = batch, position

        for pixels, limit in images:
            kind, most = (pixels.shape, limit), self._devices * limit
            pending.append(PendingImage(pixels, limit, 1 / most))
            groups[kind].append(pending[-1])
            if len(groups[kind]) == most:
                give(kind)
            held += 1 / most
            while held > _WINDOW:
                first = pending.popleft()
                held -= first.share
                if first.pixels is not None:
                    give((first.pixels.shape, first.limit))
                yield first.answer()
        for kind in list(groups):
            give(kind)
        while pending:
            yield pending.popleft().answer()
