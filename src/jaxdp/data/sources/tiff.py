"""TIFF files: which of their planes are examples and which are channels, and reading one example at
its stored depth.
"""

import dataclasses
import functools
import logging
import math
import pathlib
import re
from typing import Any

import numpy as np

from jaxdp.free_memory import check_memory

SUFFIXES = (".tif", ".tiff")
_CHANNEL_AXES = "CS"  # of ImageJ and OME; S are the samples of an interleaved pixel
# What Pillow makes grey or colour.
_CONVERTED = ("PALETTE", "CMYK", "SEPARATED", "YCBCR", "MINISWHITE", "CIELAB")


@dataclasses.dataclass(frozen=True)
class Layout:
    """What the header of a TIFF file says of the examples in it.

    Attributes:
        size: height and width.
        channels: 1 for grey, 3 for colour, otherwise as many as there are.
        dtype: of the stored pixels.
        planes: of the file's series, the planes of each example, int (examples, planes).
        converted: whether Pillow has to make grey or colour of the stored pixels.
        transparent: whether one more channel is the opacity.
    """

    size: tuple[int, int]
    channels: int
    dtype: np.dtype[Any]
    planes: np.ndarray
    converted: bool = False
    transparent: bool = False

    def __len__(self) -> int:
        return len(self.planes)


@functools.cache
def _library() -> Any:
    import tifffile

    # What is wrong with a file is said in one line, elsewhere.
    logging.getLogger("tifffile").setLevel(logging.CRITICAL)
    return tifffile


@dataclasses.dataclass(frozen=True)
class _Series:
    """Where the planes of a series are, so that one can be read without reading the headers of all
    again.

    Attributes:
        number: among the series of its file.
        axes, shape: of a plane.
        count: how many planes there are.
        first: number of its first page in the file.
        offset: of planes that follow each other uncompressed, in bytes; None for others.
        pages: number in the file of the page of each plane; none where a page holds several.
        stored: dtype with its byte order.
    """

    layout: Layout
    number: int
    axes: str
    shape: tuple[int, ...]
    count: int
    first: int
    offset: int | None
    pages: tuple[int, ...]
    stored: np.dtype[Any]


def read_layout(path: pathlib.Path, choice: str | None) -> list[Layout]:
    """Returns the layout of each series of a file: one of all its planes, or several where they
    differ in size.

    Args:
        choice: `pages` or `channels` says what the planes of a stack are; None leaves that to the
            metadata.
    """
    return [series.layout for series in _all_series(path, choice)]


def read(path: pathlib.Path, page: int, choice: str | None) -> tuple[np.ndarray | int, Layout]:
    """Returns the pixels (H, W, C) of an example as they are stored, or the number of the frame
    that Pillow has to read.

    Args:
        page: number of the example.
        choice: as for `read_layout`.
    """
    for series in _all_series(path, choice):
        layout = series.layout
        if page >= len(layout):
            page -= len(layout)
            continue
        numbers = layout.planes[page].tolist()
        frame = series.pages[numbers[0]] if series.pages else series.first + numbers[0]
        if layout.converted:
            return frame, layout
        check_memory(math.prod(layout.size) * layout.channels * layout.dtype.itemsize)
        try:
            planes = _planes(path, series, numbers)
        except (ValueError, KeyError):  # a compression that takes the package imagecodecs
            if len(numbers) > 1:
                raise
            return frame, layout
        pixels = np.concatenate([_channels_last(plane, series.axes) for plane in planes], axis=-1)
        return pixels.astype(pixels.dtype.newbyteorder("="), copy=False), layout
    raise IndexError(f"there is no page {page} in it")


def _all_series(path: pathlib.Path, choice: str | None) -> tuple[_Series, ...]:
    """Reads the headers of all pages, once for a file that does not change."""
    status = path.stat()
    return _read_series(path.absolute(), (status.st_mtime_ns, status.st_size), choice)


@functools.lru_cache(maxsize=256)
def _read_series(
    path: pathlib.Path, version: tuple[int, int], choice: str | None
) -> tuple[_Series, ...]:
    found = []
    with _library().TiffFile(path) as file:
        page = file.pages.first
        _check_count(page.description, version[1])
        if not page.imagelength * page.imagewidth:
            raise ValueError("it has no pixels")
        for number, series in enumerate(_used(file)):
            axes, shape = _plane(series, choice)
            count = math.prod(series.shape) // math.prod(shape)
            own = len(series.pages) == count and all(
                page is not None and page.parent is file for page in series.pages
            )
            pages = tuple(page.index for page in series.pages) if own else ()
            stored = np.dtype(series.dtype).newbyteorder(file.byteorder)
            offset = series.dataoffset if count > 1 else None
            first = series.keyframe.index
            found.append(
                _Series(
                    _layout(series, choice),
                    number,
                    axes,
                    tuple(shape),
                    count,
                    first,
                    offset,
                    pages,
                    stored,
                )
            )
    return tuple(found)


def _check_count(description: str, size: int) -> None:
    """Raises ValueError for metadata that tell of more planes than a file of this size can hold:
    tifffile would list them all.
    """
    pixels = description.split("<Pixels")[1:]
    # OME.
    counts = [
        math.prod(int(number) for number in re.findall(r"\bSize[ZCT]=\"(\d{1,18})\"", each))
        for each in pixels
    ]
    shape = re.match(r"\{\"shape\": \[([\d, ]{1,400})\]", description)  # tifffile's own
    if shape is not None:
        counts.append(math.prod(int(number) for number in shape[1].split(",")[:-2]))
    if sum(counts) > size:
        raise ValueError(f"its metadata tell of {sum(counts)} planes, and it has {size} bytes")


def _used(file: Any) -> list[Any]:
    """Returns the series that hold examples: other than the first one there may be thumbnails."""
    if file.is_ome or not (
        file.is_imagej or file.is_lsm or file.is_svs or file.is_ndpi or file.is_scn or file.is_bif
    ):
        return [series for series in file.series if series.keyframe is not None]
    return list(file.series[:1])


def _plane(series: Any, choice: str | None) -> tuple[str, tuple[int, ...]]:
    """Returns axes and shape of a plane.

    Where planes are pages, what is stored as separate samples is, too.
    """
    page = series.keyframe
    apart = choice == "pages" and page.axes.startswith("S")
    return (page.axes[1:], page.shape[1:]) if apart else (page.axes, page.shape)


def _layout(series: Any, choice: str | None) -> Layout:
    page = series.keyframe
    plane_axes, _ = _plane(series, choice)
    samples = page.samplesperpixel if "S" in plane_axes else 1
    within = "YX" + "S" * ("S" in plane_axes)
    stacked = [
        (axis, length)
        for axis, length in zip(series.axes, series.shape, strict=True)
        if axis not in within
    ]
    lengths = [length for _, length in stacked]
    numbers = np.arange(math.prod(lengths)).reshape(lengths)

    def is_channel(axis: str) -> bool:
        return axis in _CHANNEL_AXES if choice is None else choice == "channels"

    order = sorted(range(len(stacked)), key=lambda position: is_channel(stacked[position][0]))
    channels = math.prod(length for axis, length in stacked if is_channel(axis))
    planes = numbers.transpose(order).reshape(-1, channels) if lengths else numbers.reshape(1, 1)
    photometric = getattr(page.photometric, "name", "")
    is_colour = (
        photometric in ("RGB", *_CONVERTED)
        and photometric != "MINISWHITE"
        and channels == 1
        and plane_axes == page.axes
    )
    opacity = bool(page.extrasamples) and int(page.extrasamples[-1]) in (1, 2)
    transparent = (
        (photometric, samples) in (("RGB", 4), ("MINISBLACK", 2)) and channels == 1 and opacity
    )
    converted = photometric in _CONVERTED and channels == 1 and series.dtype.itemsize == 1
    size = (int(page.imagelength), int(page.imagewidth))
    total = 3 if is_colour and converted else channels * samples - transparent
    return Layout(size, total, np.dtype(series.dtype), planes, converted, transparent)


def _planes(path: pathlib.Path, series: _Series, numbers: list[int]) -> list[np.ndarray]:
    """Returns planes of a series, without reading the others where their places in the file are
    known.
    """
    if series.offset is not None:  # ImageJ writes no header for each
        stack = np.memmap(path, series.stored, "r", series.offset, (series.count, *series.shape))
        return [np.array(stack[number]) for number in numbers]
    with _library().TiffFile(path) as file:
        if series.pages:
            return [
                file.pages[series.pages[number]].asarray().reshape(series.shape)
                for number in numbers
            ]
        check_memory(series.count * math.prod(series.shape) * series.stored.itemsize)
        return list(
            _used(file)[series.number].asarray().reshape(series.count, *series.shape)[numbers]
        )


def _channels_last(plane: np.ndarray, axes: str) -> np.ndarray:
    if "S" not in axes:
        return plane.reshape(*plane.shape[-2:], 1)
    return np.moveaxis(plane, axes.index("S"), -1)
