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
# An error says in one line what is wrong with a file.
logging.getLogger("tifffile").setLevel(logging.CRITICAL)


@dataclasses.dataclass(frozen=True)
class Plane:
    """An example in a TIFF file, and where its pixels are.

    Attributes:
        size: height and width.
        channels: 1 for grey, 3 for colour, otherwise as many as there are.
        dtype: of the stored pixels, with their byte order.
        axes: of a stored plane.
        stack: shape of the series: how many stored planes it has, and their shape.
        numbers: of the stored planes that are the example's channels, in their series.
        series: number of the series in the file.
        pages: numbers in the file of the pages that hold the planes.
        has_own_pages: whether each plane has a page; otherwise one page holds all.
        offset: of the first plane of an uncompressed series, in bytes; None for others.
        converted: whether Pillow has to make grey or colour of the stored pixels.
        transparent: whether one more channel is the opacity.
    """

    size: Size
    channels: int
    dtype: np.dtype[Any]
    axes: str
    stack: tuple[int, ...]
    numbers: tuple[int, ...]
    series: int
    pages: tuple[int, ...]
    has_own_pages: bool
    offset: int | None
    converted: bool
    transparent: bool


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
        planes = _read_planes(path, plane)
    except (ValueError, KeyError):  # a compression that takes the package imagecodecs
        if len(plane.numbers) > 1:
            raise
        return None
    if "S" in plane.axes:
        planes = [np.moveaxis(each, plane.axes.index("S"), -1) for each in planes]
    else:
        planes = [each.reshape(*each.shape[-2:], 1) for each in planes]
    pixels = np.concatenate(planes, axis=-1)
    return pixels.astype(pixels.dtype.newbyteorder("="), copy=False)


@functools.lru_cache(maxsize=256)
def _read_headers(
    path: pathlib.Path, version: tuple[int, int], choice: str | None
) -> tuple[Plane, ...]:
    import tifffile

    with tifffile.TiffFile(path) as file:
        page: Any = file.pages.first
        _check_count(page.description, version[1])
        if not page.imagelength * page.imagewidth:
            raise ValueError("it has no pixels")
        return tuple(
            plane
            for number, series in enumerate(_used(file))
            for plane in _planes_of(file, number, series, choice)
        )


def _check_count(description: str, size: int) -> None:
    """Raises ValueError for metadata of more planes than a file of this size can hold: tifffile
    would list them all.
    """
    sizes = [  # OME
        re.findall(r"\bSize[ZCT]=\"(\d{1,18})\"", pixels)
        for pixels in description.split("<Pixels")[1:]
    ]
    own = re.match(r"\{\"shape\": \[([\d, ]{1,400})\]", description)  # tifffile's
    if own is not None:
        sizes.append(own[1].split(",")[:-2])
    count = sum(math.prod(map(int, numbers)) for numbers in sizes)
    if count > size:
        raise ValueError(f"its metadata tell of {count} planes, and it has {size} bytes")


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
    rows = _channels_of_examples(series, "YX" + "S" * ("S" in axes), choice)
    samples, channels = page.samplesperpixel if "S" in axes else 1, rows.shape[1]
    photometric, alone = getattr(page.photometric, "name", ""), channels == 1
    converted = photometric in _CONVERTED and alone and series.dtype.itemsize == 1
    is_colour = converted and photometric != "MINISWHITE" and axes == page.axes
    opacity = bool(page.extrasamples) and int(page.extrasamples[-1]) in (1, 2)
    with_opacity = (photometric, samples) in (("RGB", 4), ("MINISBLACK", 2))
    transparent = with_opacity and alone and opacity
    own = len(series.pages) == count and all(
        page is not None and page.parent is file for page in series.pages
    )
    return [
        Plane(
            size=(int(page.imagelength), int(page.imagewidth)),
            channels=3 if is_colour else channels * samples - transparent,
            dtype=np.dtype(series.dtype).newbyteorder(file.byteorder),
            axes=axes,
            stack=(count, *shape),
            numbers=tuple(row),
            series=number,
            pages=tuple(series.pages[index].index if own else page.index + index for index in row),
            has_own_pages=own,
            offset=series.dataoffset if count > 1 else None,
            converted=converted,
            transparent=transparent,
        )
        for row in rows.tolist()
    ]


def _channels_of_examples(series: Any, within: str, choice: str | None) -> np.ndarray:
    """Returns the numbers of a series' planes that are the channels of each example, (examples,
    channels).

    Args:
        within: axes of a plane.
    """

    def is_channel(axis: str) -> bool:
        return axis in _CHANNEL_AXES if choice is None else choice == "channels"

    sides = zip(series.axes, series.shape, strict=True)
    stacked = [(axis, length) for axis, length in sides if axis not in within]
    order = sorted(range(len(stacked)), key=lambda position: is_channel(stacked[position][0]))
    channels = math.prod(length for axis, length in stacked if is_channel(axis))
    lengths = [length for _, length in stacked]
    numbers = np.arange(math.prod(lengths)).reshape(lengths)
    return numbers.transpose(order).reshape(-1, channels)


def _read_planes(path: pathlib.Path, plane: Plane) -> list[np.ndarray]:
    """Returns the stored planes of an example, without reading the others where their places in the
    file are known.
    """
    if plane.offset is not None:  # ImageJ writes no header for each
        stack = np.memmap(path, plane.dtype, "r", plane.offset, plane.stack)
        return [np.array(stack[number]) for number in plane.numbers]
    import tifffile

    with tifffile.TiffFile(path) as file:
        if plane.has_own_pages:
            pages: Any = file.pages
            return [pages[page].asarray().reshape(plane.stack[1:]) for page in plane.pages]
        check_memory(math.prod(plane.stack) * plane.dtype.itemsize)
        return list(_used(file)[plane.series].asarray().reshape(plane.stack)[list(plane.numbers)])
