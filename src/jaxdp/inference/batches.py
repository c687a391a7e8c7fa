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
        item: what it is returned with.
        pixels: as the network takes them; None for an image that no batch is to have.
        share: of a batch, that it takes.
        batch: the answers to the batch that it is in, which may be under way.
        position: its place in that batch.
    """

    item: Any
    pixels: Pixels | None
    share: float
    batch: Any = None
    position: int = 0

    def answer(self) -> np.ndarray | None:
        """Waits for the answer, and returns it; None if the network was not asked."""
        return None if self.batch is None else np.asarray(self.batch)[self.position]


class Batches:
    """Batches for one network, and which programs it has.

    Args:
        network: maps images (batch, height, width, channels), and the number of devices that share
            them, to answers.
        devices: how many there are.
        limit: returns how many images of a shape a device takes at a time, a power of two.
    """

    def __init__(
        self,
        network: Callable[[np.ndarray, int], Any],
        devices: int,
        limit: Callable[[tuple[int, ...]], int],
    ) -> None:
        self._network = network
        self._devices = devices
        self._limit = limit
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

    def in_order(
        self, images: Iterable[tuple[Any, Pixels | None]], share_of: Callable[[Any], float]
    ) -> Iterator[tuple[Any, np.ndarray | None]]:
        """Yields each item with the answer to its pixels, in the order in which they come.

        Some batches are given to the devices ahead: while the answers of one are used, the next one
        is computed.

        Args:
            images: items and the pixels that stand for them; None for an item that the network is
                not given here, and which keeps its place.
            share_of: returns which share of a batch an item is that has no pixels.
        """
        pending: collections.deque[PendingImage] = collections.deque()
        groups: dict[tuple[int, ...], list[PendingImage]] = collections.defaultdict(list)
        held = 0.0

        def give(shape: tuple[int, ...]) -> None:
            group = groups.pop(shape)
            batch = self.compute([image.pixels for image in group if image.pixels is not None])
            for position, image in enumerate(group):
                image.pixels = None
                image.batch, image.position = batch, position

        for item, pixels in images:
            if pixels is None:
                pending.append(PendingImage(item, None, share_of(item)))
            else:
                most = self._devices * self._limit(pixels.shape)
                pending.append(PendingImage(item, pixels, 1 / most))
                groups[pixels.shape].append(pending[-1])
                if len(groups[pixels.shape]) == most:
                    give(pixels.shape)
            held += pending[-1].share
            while held > _WINDOW:
                first = pending.popleft()
                held -= first.share
                if first.pixels is not None:
                    give(first.pixels.shape)
                yield first.item, first.answer()
        for shape in list(groups):
            give(shape)
        while pending:
            first = pending.popleft()
            yield first.item, first.answer()
