"""Which datasets are there? One file each; it registers a function that returns a `Dataset`."""

import dataclasses
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import numpy as np

from jaxdp.data.augment import Augmentation
from jaxdp.registry import Registry


@runtime_checkable
class Source(Protocol):
    """Random access to the examples of one split: `source[i]` is `{"images": uint8 (H, W, C), "labels": int}`."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> dict[str, np.ndarray]: ...


@dataclasses.dataclass(frozen=True)
class ArraySource:
    """A split that fits in memory.

    Attributes:
        images: uint8 (N, H, W, C).
        labels: int32 (N,).
    """

    images: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        return {"images": self.images[index], "labels": self.labels[index]}


@dataclasses.dataclass(frozen=True)
class Dataset:
    """The splits of a dataset, and what every user of it needs to know.

    Attributes:
        image_shape: (height, width, channels).
        mean, std: per channel, in the units of the stored pixels; images are normalized by them inside the compiled step.
        augmentations: applied in turn to training images.
    """

    train: Source
    test: Source
    num_classes: int
    image_shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augmentations: tuple[Augmentation, ...] = ()


_datasets: Registry[Callable[[], Dataset]] = Registry("dataset", "jaxdp.data.sources")
register = _datasets.register
names = _datasets.entries


def open_dataset(name: str) -> Dataset:
    """Raises ConfigError for an unknown name."""
    return _datasets[name]()
