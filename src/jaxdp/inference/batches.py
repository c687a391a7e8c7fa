"""Passes images to a network in batches of one shape over all devices, and returns predictions in
the order of the images.
"""

import collections
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Shaped

Pixels = Shaped[np.ndarray, "_height _width _channels"]
# Number of batches that are read ahead, so that images of the same shape are batched together.
_WINDOW = 4
# Minimum number of images for a device, because XLA:CPU computes a single image with other
# operations, which round differently.
_FEWEST = 2


class Batches:
    """Batches for one network, and its compiled programs.

    Args:
        network: maps images (batch, height, width, channels), and the number of devices that share
            them, to predictions.
        devices: how many there are.
        limit: returns how many images of a shape a device computes at a time, a power of two.
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
        self._programs: dict[tuple[int, ...], tuple[int, int]] = {}

    def in_order(self, images: Iterable[Pixels]) -> Iterator[np.ndarray]:
        """Yields the prediction for each image, in order.

        While the caller uses predictions, the devices compute the next predictions.
        """
        under_way: list[tuple[Any, int]] = []
        for ahead in itertools.chain(map(self._start, self._together(images)), [[]]):
            last, values = None, np.empty(0)
            for batch, position in under_way:
                if batch is not last:
                    last, values = batch, np.asarray(batch)
                yield values[position]
            under_way = ahead

    def _together(self, images: Iterable[Pixels]) -> Iterator[list[Pixels]]:
        """Yields the images that are read together and grouped by shape."""
        some, held = list[Pixels](), 0.0
        for image in images:
            some.append(image)
            held += 1 / (self._devices * self._limit(image.shape))
            if held >= _WINDOW:
                yield some
                some, held = [], 0.0
        yield some

    def _start(self, images: Sequence[Pixels]) -> list[tuple[Any, int]]:
        """Returns, for each image, the predictions of its batch and its position in the batch."""
        groups: dict[tuple[int, ...], list[int]] = collections.defaultdict(list)
        for index, image in enumerate(images):
            groups[image.shape].append(index)
        answers: dict[int, tuple[Any, int]] = {}
        for shape, indices in groups.items():
            most = self._devices * self._limit(shape)
            for start in range(0, len(indices), most):
                part = indices[start : start + most]
                batch = self._compute([images[index] for index in part])
                answers |= {index: (batch, position) for position, index in enumerate(part)}
        return [answers[index] for index in range(len(images))]

    def _compute(self, images: Sequence[Pixels]) -> Any:
        """Returns the predictions for images of one shape, followed by predictions for padding.

        A batch of another size would require another program, so it is padded to the size of the
        previous batch if that is large enough.
        """
        count, shape = len(images), images[0].shape
        each, shards = self._programs.get(shape, (0, 0))
        if each * shards < count:
            each = 1 << (-(-count // self._devices) - 1).bit_length()  # on a device
            each = max(each, _FEWEST) if count > 1 else each
            shards = -(-count // each)
            self._programs[shape] = each, shards
        padded = [*images, *[images[-1]] * (each * shards - count)]
        return self._network(np.stack(padded), shards)
