"""Reads the headers of all image files of a folder: channels, depth and sizes."""

import collections
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from jaxdp.data import image_file
from jaxdp.data.dataset import DTYPES, BadExample, Size
from jaxdp.data.image_file import Header, Picture
from jaxdp.data.request import Request
from jaxdp.registry import ConfigError
from jaxdp.runtime import platform

Row = tuple[Any, Any]  # an image and its label or mask; None for a partner that is missing


@dataclasses.dataclass(frozen=True)
class HeaderScan:
    """The headers of all images of a folder.

    Attributes:
        headers: of each file; None for a file that cannot be read.
        channels: that all images are decoded to.
        dtype: that most files have, the wider one of two; the others are bad examples.
        request: has `--tiff`, `--mask-values` and `--instances`.
    """

    headers: Mapping[Path, Header | None]
    channels: int
    dtype: str
    request: Request

    @classmethod
    def of(cls, request: Request, files: Sequence[Path]) -> "HeaderScan":
        """Reads the headers of all files.

        Raises:
            ConfigError: for channels that files of several channels cannot be made.
        """
        read = functools.partial(image_file.read_header, choice=request.config.tiff)
        with ThreadPoolExecutor(min(8, platform.cores())) as pool:
            headers = dict(zip(files, pool.map(read, files), strict=True))
        known = {file: header for file, header in headers.items() if header is not None}
        dtypes = collections.Counter(header.dtype for header in known.values())
        dtype = max(dtypes, key=lambda name: (dtypes[name], DTYPES.index(name)), default="uint8")
        return cls(headers, _channels(request, known), dtype, request)

    @functools.cached_property
    def sizes(self) -> list[Size]:
        """The sizes of all images."""
        headers = filter(None, self.headers.values())
        return [size for header in headers for size in header.sizes]

    def image_pages(self, file: Path) -> list[Picture]:
        """Returns the images in a file, its pages."""
        return image_file.pages_of(file, self.headers.get(file), self.request.config.tiff)

    def mask_pages(self, file: Path) -> list[Picture]:
        """Returns the masks in a file: all planes of a stack, whatever its metadata say."""
        header = image_file.read_header(file, "pages") if image_file.is_tiff(file) else None
        return image_file.pages_of(file, header, "pages")

    def pages(self, row: Row) -> list[Row]:
        """Returns the pages of an image with its label or mask."""
        image, target = row
        images = self.image_pages(image) if image is not None else []
        if isinstance(target, int):
            return [(picture, target) for picture in images]
        masks = self.mask_pages(target) if target is not None else []
        if images and masks and len(images) != len(masks):
            return [row]  # a bad example
        count = max(len(images), len(masks))
        return list(zip(images or [None] * count, masks or [None] * count, strict=True))

    def check_dtype(self, picture: Picture) -> None:
        """Raises BadExample for an image that has another depth than most others."""
        header = self.headers.get(picture.path)
        if header is None or header.dtype == self.dtype:
            return
        bits, wanted = (np.dtype(name).itemsize * 8 for name in (header.dtype, self.dtype))
        headers = self.headers.items()
        other = next(file for file, its in headers if its is not None and its.dtype == self.dtype)
        problem = (
            f"has {bits} bits a channel ({header.dtype}), most others {wanted} ({self.dtype}),"
            f" e.g. {other.name}"
        )
        raise BadExample(picture, f"{problem}; convert them to one depth")


def _channels(request: Request, known: Mapping[Path, Header]) -> int:
    """Returns how many channels all images are made: those that are asked for, else 3 if any is in
    colour, and 1 if none is.
    """
    stored: dict[int, Path] = {}
    for file, header in known.items():
        stored.setdefault(header.channels, file)
    several = [channels for channels in stored if channels not in (1, 3)]
    asked = request.config.channels
    if not several:
        return asked or max(stored, default=1)
    first = several[0]
    has_channels = f"{stored[first]} has {first} channels"
    if asked not in (None, first):
        raise ConfigError(
            "channels", asked, f"{has_channels}, which cannot be made {asked}; leave it out"
        )
    if len(stored) > 1:
        other = next(channels for channels in stored if channels != first)
        remedy = "give --tiff pages if the planes of a file are examples, or make them alike"
        raise request.error(f"{has_channels} and {stored[other]} {other}; {remedy}")
    return first
