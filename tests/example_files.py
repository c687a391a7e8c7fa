"""What tests of datasets write, open, read and refuse."""

import contextlib
import dataclasses
import io
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import tifffile
from PIL import Image

from jaxdp.config import DataConfig
from jaxdp.data.sources import ArraySource, BadExample, Dataset, Split, open_dataset
from jaxdp.errors import ConfigError
from jaxdp.text.flags import for_command

ROOT = pathlib.Path("set")  # each test has a working folder of its own


def noise(seed: int, *shape: int, high: int = 256) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, high, shape, np.uint8)


def png(pixels: np.ndarray, kind: str = "PNG") -> io.BytesIO:
    buffer = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[2:] == (1,) else pixels).save(buffer, kind)
    buffer.seek(0)
    return buffer


def write(files: Mapping[str, Any], root: pathlib.Path = ROOT, **options: Any) -> pathlib.Path:
    """Writes arrays and pictures as images, and text as it is; the options are tifffile's."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str):
            path.write_text(content)
        elif path.suffix == ".tif" and isinstance(content, np.ndarray):
            tifffile.imwrite(path, content, **({"photometric": "minisblack"} | options))
        else:
            (content if isinstance(content, Image.Image) else Image.fromarray(content)).save(path)
    return root


def split_classes(count: int, tests: int = 4) -> dict[str, np.ndarray]:
    """Returns 8x8 photos of the classes a and b in train/ and test/."""
    numbers = {"train": range(count), "test": range(tests)}
    return {
        f"{split}/{'ab'[number % 2]}/{number:02d}.png": noise(number, 8, 8, 3)
        for split, some in numbers.items()
        for number in some
    }


def with_masks(masks: list[Any], *splits: str, suffix: str = "png") -> dict[str, Any]:
    """Returns masks, each with an image of its size, in each of the splits' folders."""
    return {
        f"{split}{part}/{number:02d}.{suffix}": content
        for split in splits or ("",)
        for number, mask in enumerate(masks)
        for part, content in (
            ("images", noise(number, *np.shape(mask)[:2])),
            ("masks", mask),
        )
    }


def opened(root: pathlib.Path = ROOT, **settings: Any) -> Dataset:
    """Opens a folder."""
    return open_dataset(DataConfig.of(dataset=f"folder:{root}", **settings))


def read(source: Any) -> dict[str, np.ndarray]:
    """Reads all examples of a split."""
    assert isinstance(source, Split)
    return source.read(range(len(source)))


def read_splits(dataset: Dataset, field: str) -> set[bytes]:
    """Returns a field of all examples of all splits."""
    splits = dataset.splits().values()
    return {value.tobytes() for source in splits for value in read(source)[field]}


def sizes(dataset: Dataset) -> list[int]:
    return [len(source) for source in dataset.splits().values()]


@contextlib.contextmanager
def refused(message: str, kind: type[ConfigError] = ConfigError) -> Iterator[Any]:
    """Asserts that what is done is refused in one line, which names settings by keywords as in a
    program, or by flags as in a command.
    """
    with pytest.raises(kind) as caught:
        yield caught
    by_keywords, by_flags = str(caught.value), for_command(caught.value)
    assert re.search(message, by_flags) or re.search(message, by_keywords), by_flags
    assert "\n" not in by_flags


def bad_example(message: str) -> Any:
    """Asserts that an example is refused in one line."""
    return refused(message, BadExample)


def skipped(split: Any) -> dict[int, str]:
    """Returns the bad examples that a split has left out, and why."""
    return {index: f"{each.where}: {each.problem}" for index, each in split.errors.items()}


@dataclasses.dataclass(frozen=True)
class Broken(ArraySource):
    """Arrays of which some examples cannot be read."""

    bad: Sequence[int] = (2,)

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index in self.bad:
            raise BadExample(f"file {index}", "is truncated")
        return super().__getitem__(index)
