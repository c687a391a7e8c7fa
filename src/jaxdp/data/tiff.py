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

from jaxdp.data.dataset import Size
from jaxdp.free_memory import check_memory

SUFFIXES = (".tif", ".tiff")
_CHANNEL_AXES = "CS"  # of ImageJ and OME; S are the samples of an interleaved pixel
# What Pillow makes grey or colour.
_CONVERTED = ("PALETTE", "CMYK", "SEPARATED", "YCBCR", "MINISWHITE", "CIELAB")


@dataclasses.dataclass(frozen=True)
class Plane:
    """An example in a TIFF file, and where its pixels are.

    Attributes:
        size: height and width.
        channels: 1 for grey, 3 for colour, otherwise as many as there are.
        dtype: of the stored pixels, with their byte order.
        axes, shape: of a stored plane.
        numbers: of the stored planes that are its channels, in their series.
        count: how many stored planes the series has.
        series: number of the series in the file.
        pages: numbers in the file of the pages that hold the planes, or of the page that holds all.
        offset: of the first plane of an uncompressed series, in bytes; None for others.
        converted: whether Pillow has to make grey or colour of the stored pixels.
        transparent: whether one more channel is the opacity.
    """

    size: Size
    channels: int
    dtype: np.dtype[Any]
    axes: str
    shape: tuple[int, ...]
    numbers: tuple[int, ...]
    count: int
    series: int
    pages: tuple[int, ...]
    has_own_pages: bool
    offset: int | None
    converted: bool
    transparent: bool


@functools.cache
def _library() -> Any:
    import tifffile

    # An error says in one line what is wrong with a file.
    logging.getLogger("tifffile").setLevel(logging.CRITICAL)
    return tifffile


def read_stacks(path: pathlib.Path, choice: str | None) -> tuple[Plane, ...]:
    """Returns the examples of a file. The headers of all pages are read once, unless the file
    changes.

    Args:
        choice: `pages` or `channels` says what the planes of a stack are; None leaves that to the
            metadata.
    """
    status = path.stat()
    return _read_headers(path.absolute(), (status.st_mtime_ns, status.st_size), choice)


def read(path: pathlib.Path, plane: Plane) -> np.ndarray | None:
    """Returns the pixels (H, W, C) of an example as they are stored, or None if Pillow has to read
    them.
    """
    if plane.converted:
        return None
    check_memory(math.prod(plane.size) * plane.channels * plane.dtype.itemsize)
    try:
        stored = _read_planes(path, plane)
    except (ValueError, KeyError):  # a compression that takes the package imagecodecs
        if len(plane.numbers) > 1:
            raise
        return None
    channels = [_channels_last(each, plane.axes) for each in stored]
    pixels = np.concatenate(channels, axis=-1)
    return pixels.astype(pixels.dtype.newbyteorder("="), copy=False)


@functools.lru_cache(maxsize=256)
def _read_headers(
    path: pathlib.Path, version: tuple[int, int], choice: str | None
) -> tuple[Plane, ...]:
    with _library().TiffFile(path) as file:
        page = file.pages.first
        _check_count(page.description, version[1])
        if not page.imagelength * page.imagewidth:
            raise ValueError("it has no pixels")
        stacks = [
            plane
            for number, series in enumerate(_used(file))
            for plane in _planes_of(file, number, series, choice)
        ]
    return tuple(stacks)


def _check_count(description: str, size: int) -> None:
    """Raises ValueError for metadata of more planes than a file of this size can hold: tifffile
    would list them all.
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


def _planes_of(file: Any, number: int, series: Any, choice: str | None) -> list[Plane]:
    page = series.keyframe
    # Where planes are pages, separate samples are also pages.
    apart = choice == "pages" and page.axes.startswith("S")
    axes, shape = (page.axes[1:], page.shape[1:]) if apart else (page.axes, page.shape)
    count = math.prod(series.shape) // math.prod(shape)
    rows = _stacked(series, "YX" + "S" * ("S" in axes), choice)
    samples, channels = page.samplesperpixel if "S" in axes else 1, rows.shape[1]
    photometric = getattr(page.photometric, "name", "")
    alone = channels == 1
    converted = photometric in _CONVERTED and alone and series.dtype.itemsize == 1
    is_colour = photometric != "MINISWHITE" and axes == page.axes
    opacity = bool(page.extrasamples) and int(page.extrasamples[-1]) in (1, 2)
    with_opacity = (photometric, samples) in (("RGB", 4), ("MINISBLACK", 2))
    transparent = with_opacity and alone and opacity
    own = len(series.pages) == count and all(
        page is not None and page.parent is file for page in series.pages
    )
    pages = [page.index for page in series.pages] if own else [series.keyframe.index]
    shared = Plane(
        size=(int(page.imagelength), int(page.imagewidth)),
        channels=3 if is_colour and converted else channels * samples - transparent,
        dtype=np.dtype(series.dtype).newbyteorder(file.byteorder),
        axes=axes,
        shape=tuple(shape),
        numbers=(),
        count=count,
        series=number,
        pages=(),
        has_own_pages=own,
        offset=series.dataoffset if count > 1 else None,
        converted=converted,
        transparent=transparent,
    )
    planes: list[Plane] = []
    for row in rows.tolist():
        held = [pages[index] for index in row] if own else [pages[0] + row[0]]
        planes.append(dataclasses.replace(shared, numbers=tuple(row), pages=tuple(held)))
    return planes


def _stacked(series: Any, within: str, choice: str | None) -> np.ndarray:
    """Returns the planes of a series that are the channels of each example, (examples, channels).

    Args:
        within: axes of a plane.
    """
    stacked = [
        (axis, length)
        for axis, length in zip(series.axes, series.shape, strict=True)
        if axis not in within
    ]

    def is_channel(axis: str) -> bool:
        return axis in _CHANNEL_AXES if choice is None else choice == "channels"

    lengths = [length for _, length in stacked]
    order = sorted(range(len(stacked)), key=lambda position: is_channel(stacked[position][0]))
    channels = math.prod(length for axis, length in stacked if is_channel(axis))
    numbers = np.arange(math.prod(lengths)).reshape(lengths)
    return numbers.transpose(order).reshape(-1, channels) if lengths else numbers.reshape(1, 1)


def _read_planes(path: pathlib.Path, plane: Plane) -> list[np.ndarray]:
    """Returns the stored planes of an example, without reading the others where their places in the
    file are known.
    """
    whole = (plane.count, *plane.shape)
    if plane.offset is not None:  # ImageJ writes no header for each
        stack = np.memmap(path, plane.dtype, "r", plane.offset, whole)
        return [np.array(stack[number]) for number in plane.numbers]
    with _library().TiffFile(path) as file:
        if plane.has_own_pages:
            return [file.pages[page].asarray().reshape(plane.shape) for page in plane.pages]
        check_memory(math.prod(whole) * plane.dtype.itemsize)
        return list(_used(file)[plane.series].asarray().reshape(whole)[list(plane.numbers)])


def _channels_last(plane: np.ndarray, axes: str) -> np.ndarray:
    if "S" not in axes:
        return plane.reshape(*plane.shape[-2:], 1)
    return np.moveaxis(plane, axes.index("S"), -1)
