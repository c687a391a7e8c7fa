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
class Waiting:
    """An image whose turn to be returned has not come.

    Attributes:
        item: what it is returned with.
        pixels: as the network takes them; None for an image that the network is not given here, and
            which keeps its place.
        share: of a batch, that it takes.
        batch: the answers to the batch that it is in, which may be under way.
        position: its place in that batch.
        number: of the batch, in the order in which the devices are given them.
    """

    item: Any
    pixels: Pixels | None
    share: float
    batch: Any = None
    position: int = 0
    number: int = -1

    def answer(self) -> Any:
        """Waits for the answer, and returns it; None where the network was not asked."""
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
        self._given = 0

    def most(self, shape: tuple[int, ...]) -> int:
        """Returns how many images of this shape all devices take at a time."""
        return self._devices * self._limit(shape)

    def compute(self, images: Sequence[Pixels]) -> Any:
        """Returns the answers to images of one shape, at most `most`.

        Behind them are answers to what fills the batch up.

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
        self._given += 1
        filled = [*images, *[images[-1]] * (each * shards - count)]
        return self._network(np.stack(filled), shards)

    def in_order(
        self, images: Iterable[tuple[Any, Pixels | None]], share_of: Callable[[Any], float]
    ) -> Iterator[Waiting]:
        """Yields each image once its batch was given to the devices, in the order in which they
        come.

        While the answers of a batch are used, the next one is computed: an image is held back until
        there is a later batch, or no further image.

        Args:
            images: items and the pixels that stand for them, as `Waiting` has them.
            share_of: returns which share of a batch an item is that has no pixels.
        """
        window = _Window(self._give)
        for item, pixels in images:
            group = window.add(
                Waiting(
                    item, pixels, share_of(item) if pixels is None else 1 / self.most(pixels.shape)
                )
            )
            if pixels is not None and len(group) == self.most(pixels.shape):
                window.give(pixels.shape)
            while window.held > _WINDOW or window.is_first_ready(self._given):
                yield window.first()
        for shape in list(window.groups):
            window.give(shape)
        while window.waiting:
            yield window.first()

    def _give(self, some: Sequence[Waiting]) -> None:
        answers = self.compute([each.pixels for each in some if each.pixels is not None])
        for position, each in enumerate(some):
            each.batch = answers
            each.position = position
            each.number = self._given
            each.pixels = None


class _Window:
    """The images that are held, in their order, and those of each shape that no batch has yet.

    `held` are their shares.
    """

    def __init__(self, give: Callable[[Sequence[Waiting]], None]) -> None:
        self._give = give
        self.waiting: collections.deque[Waiting] = collections.deque()
        self.groups: dict[tuple[int, ...], list[Waiting]] = {}
        self.held = 0.0

    def add(self, each: Waiting) -> Sequence[Waiting]:
        """Returns the images of its shape that no batch has yet."""
        self.waiting.append(each)
        self.held += each.share
        if each.pixels is None:
            return ()
        self.groups.setdefault(each.pixels.shape, []).append(each)
        return self.groups[each.pixels.shape]

    def give(self, shape: tuple[int, ...]) -> None:
        self._give(self.groups.pop(shape))

    def is_first_ready(self, given: int) -> bool:
        """Returns whether the first image is in an earlier batch than the last one of those that
        were given, or in none.
        """
        return (
            bool(self.waiting) and self.waiting[0].pixels is None and self.waiting[0].number < given
        )

    def first(self) -> Waiting:
        if (pixels := self.waiting[0].pixels) is not None:
            self.give(pixels.shape)
        self.held -= self.waiting[0].share
        return self.waiting.popleft()
