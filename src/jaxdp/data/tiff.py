"""Reads TIFF files: finds which planes are examples and which are channels, and reads an example at
its stored depth.
"""

import contextlib
import dataclasses
import functools
import html
import logging
import math
import pathlib
import re
from typing import Any

import numpy as np

from jaxdp.data.dataset import native
from jaxdp.data.source import Size
from jaxdp.runtime.free_memory import check_memory

SUFFIXES = (".tif", ".tiff")
ORIENTATION = 0x0112  # tag of TIFF and EXIF
SIDEWAYS = (5, 6, 7, 8)  # its values that swap height and width
_CHANNEL_AXES = "CS"  # of ImageJ and OME; S are the samples of an interleaved pixel
# Photometric interpretations that Pillow converts to grey or colour.
_CONVERTED = ("PALETTE", "CMYK", "SEPARATED", "YCBCR", "CIELAB")
# Series for which tifffile knows only the pages and, from its own writer, the axes.
_PLAIN = ("shaped", "uniform", "generic")
# Bits of NewSubfileType: a reduced image (thumbnail, level of a pyramid), and the opacity of
# another page.
_OF_ANOTHER_PAGE = 0b101
# Values of ExtraSamples, which state whether colours are multiplied by the opacity.
ASSOCIATED, UNASSOCIATED = 1, 2
# Units of ImageJ and OME in micrometres or seconds. A size in another unit is ignored.
UNITS = dict.fromkeys(("micron", "um", "µm", r"\u00B5m", "s"), 1.0) | {
    "nm": 1e-3,
    "mm": 1e3,
    "cm": 1e4,
    "inch": 25400.0,
    "ms": 1e-3,
}
# Facts of ImageJ that also hold for labels of the objects in an image, besides the unit.
_FACTS = "yunit zunit spacing finterval fps tunit".split()
# Values of the tag ResolutionUnit. Printers and screens have pixels of more than 10 micrometres
# (up to 2400 dots an inch), so that only a smaller pixel is one of a microscope.
_OF_TAG = {2: "inch", 3: "cm"}
_FINEST_PRINT = 10.0
# An error describes the problem of a file in one line.
logging.getLogger("tifffile").setLevel(logging.CRITICAL)


@dataclasses.dataclass(frozen=True)
class Plane:
    """An example in a TIFF file, and the location of its pixels.

    Attributes:
        size: height and width after rotation.
        orientation: value of the tag Orientation, which determines the rotation.
        channels: 1 for grey, 3 for colour, otherwise the stored number.
        dtype: of the stored pixels, with their byte order.
        axes, shape: of a stored plane.
        pages: numbers in the file of the pages that are the example's channels.
        offsets: offsets of the channels in bytes, if pages follow each other without their own
            headers; otherwise empty.
        sample: number of the plane in its page, if separate samples are examples; otherwise None.
        converted: whether Pillow must convert the stored pixels to grey or colour.
        opacity: value of ExtraSamples if an additional channel is the opacity, otherwise 0.
        unclear: whether it is unclear if the channel is an opacity, because tifffile tags any four
            planes as colour and opacity. Pictures have 8 bits, and store the samples of a pixel
            side by side.
        ends: highest number of its depth, if 0 is white and the program that wrote it is unknown,
            so that the stored numbers may be inverted. Otherwise 0.
        place: its indices along the axes T, Z and C; None without such an axis.
        pixel_size: height and width of a pixel in micrometres; empty if the file has no pixel size.
        facts: the unit, the distance of slices and the like, as ImageJ names them.
    """

    size: Size
    orientation: int
    channels: int
    dtype: np.dtype[Any]
    axes: str
    shape: tuple[int, ...]
    pages: tuple[int, ...]
    offsets: tuple[int, ...]
    sample: int | None
    converted: bool
    opacity: int
    unclear: bool
    ends: int
    place: list[Any]
    pixel_size: list[float]
    facts: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Stack:
    """The examples of a file.

    Attributes:
        left_out: how many pages, and images below pages, are not examples.
    """

    planes: tuple[Plane, ...]
    left_out: int


def read_stack(path: pathlib.Path, choice: str | None) -> Stack:
    """Returns the examples of a file, in the order of their pages. Reads the headers of all pages
    once, unless the file changes.

    Args:
        choice: how to read the planes of a stack, as `pages` or `channels`; None uses the metadata.

    Raises:
        ValueError: for a file without pixels, and for pages that cannot be examples of one dataset.
    """
    status = path.stat()
    return _read_headers(path.absolute(), (status.st_mtime_ns, status.st_size), choice)


def read(path: pathlib.Path, plane: Plane) -> np.ndarray | None:
    """Returns the stored pixels (H, W, C) of an example, rotated; None if Pillow must read them."""
    if plane.converted:
        return None
    import tifffile

    check_memory(math.prod(plane.size) * plane.channels * plane.dtype.itemsize)
    count = math.prod(plane.shape)
    planes = [np.fromfile(path, plane.dtype, count, offset=offset) for offset in plane.offsets]
    try:
        if not planes:
            with tifffile.TiffFile(path) as file:
                planes = [file.pages[page].asarray() for page in plane.pages]
            if plane.sample is not None:
                planes = [each[plane.sample] for each in planes]
    # A compression, or a number of bits, that requires the package imagecodecs.
    except (ValueError, KeyError, NotImplementedError):
        if len(plane.pages) > 1:
            raise
        return None
    if any(each.dtype.name != plane.dtype.name for each in planes):
        raise ValueError("the types of its pages are not what its metadata say")
    size = plane.size[::-1] if plane.orientation in SIDEWAYS else plane.size
    shape = plane.shape if "S" in plane.axes else (*size, 1)
    # Without samples, `find` gives the last axis.
    planes = [np.moveaxis(each.reshape(shape), plane.axes.find("S"), -1) for each in planes]
    pixels = native(np.concatenate(planes, axis=-1))
    # Swaps sides first, and then mirrors them.
    if plane.orientation in SIDEWAYS:
        pixels = pixels.swapaxes(0, 1)
    rows = -1 if plane.orientation in (3, 4, 7, 8) else 1
    columns = -1 if plane.orientation in (2, 3, 6, 7) else 1
    return pixels[::rows, ::columns]


def is_known_writer(software: object, description: object) -> bool:
    """Returns whether the file was written by a program that does not invert numbers if 0 is
    white.
    """
    own = '{"shape"', "ImageJ="
    return str(software).startswith("tifffile") or str(description).startswith(own)


@functools.lru_cache(maxsize=256)
def _read_headers(path: pathlib.Path, version: tuple[int, int], choice: str | None) -> Stack:
    import tifffile

    with tifffile.TiffFile(path) as file:
        page: Any = file.pages.first
        _check_count(page.description, version[1])
        if not page.imagelength * page.imagewidth:
            raise ValueError("it has no pixels")
        series: list[Any] = []
        with contextlib.suppress(RuntimeError):  # the few headers that tifffile reads are equal
            series = list(file.series)
        plain = not series or series[0].kind in _PLAIN
        if plain:
            used = _plain_series(file, series, choice)
        else:
            # Other series of microscope formats may be thumbnails.
            whole = file.is_imagej or file.is_lsm or file.is_svs or file.is_ndpi or file.is_scn
            used = series[:1] if whole and not file.is_ome else series
            used = [each for each in used if each.keyframe is not None]
        planes = [plane for series in used for plane in _planes_of(file, series, choice)]
        if odd := [plane for plane in planes if plane.channels != planes[0].channels and plain]:
            raise ValueError(
                f"page {odd[0].pages[0]} has {odd[0].channels} channels, unlike page"
                f" {planes[0].pages[0]} with {planes[0].channels}; save them in separate files"
            )
        # One header may represent many pages.
        pages = [max(len(each.pages), len(each)) for each in used]
        below = [len(each.keyframe.subifds or ()) * len(each.pages) for each in used]
        return Stack(tuple(planes), max(len(file.pages) - sum(pages), 0) + sum(below))


def _plain_series(file: Any, series: list[Any], choice: str | None) -> list[Any]:
    """Returns the series of pages with examples, for any other file, in file order.

    tifffile sorts such pages by type and size, treats smaller pages as levels of a pyramid, and
    checks only a few of many pages. Here, each page counts, unless its header makes it part of
    another page.

    Args:
        series: tifffile's.
    """
    import tifffile

    found = [each for each in series if not each.keyframe.is_subifd]
    stacked = any(math.prod(each.shape) > math.prod(each.keyframe.shape) for each in found)
    if not stacked or series[0].kind != "shaped":
        file.pages.useframes = False
        pages = [page.aspage() for page in file.pages]
        found = [tifffile.TiffPageSeries([page]) for page in pages if page.shape]
    whole = [each for each in found if not each.keyframe.subfiletype & _OF_ANOTHER_PAGE]
    if not whole and any(each.keyframe.subifds for each in found):
        raise ValueError("its whole image lies below a thumbnail; save it as a page of its own")
    found = whole or found  # if all pages are marked, the marks are meaningless
    first, *others = [each.keyframe for each in found]
    if len(found) < 2 or any(len(each.pages) > 1 for each in found):
        return found
    if all(_kind_of(page) == _kind_of(first) for page in others):
        shape = (len(found), *first.shape)
        return [tifffile.TiffPageSeries([first, *others], shape, first.dtype, "I" + first.axes)]
    if choice == "channels":
        raise ValueError("its pages differ in size or type, and so are no channels of one image")
    return found


def _kind_of(page: Any) -> tuple[Any, ...]:
    """Returns the properties that stacked pages must share."""
    stored = page.shape, page.axes, page.dtype, page.bitspersample
    return *stored, page.photometric, page.extrasamples, page.tags.valueof(ORIENTATION, 1)


def _check_count(description: str, size: int) -> None:
    """Raises ValueError for metadata of more planes than a file of this size can hold, because
    tifffile would list all of them.
    """
    counts = re.findall(r"\bSize[ZCT]=\"(\d{1,18})\"", description.partition("</Pixels>")[0])
    own = re.match(r"\{\"shape\": \[([\d, ]{1,400})\]", description)  # tifffile's
    count = math.prod(map(int, own[1].split(",")[:-2] if own else counts))
    if count > size:
        raise ValueError(f"its metadata claim {count} planes, and it has {size} bytes")


def _planes_of(file: Any, series: Any, choice: str | None) -> list[Plane]:
    page = series.keyframe
    # If planes are pages, separate samples are also pages.
    apart = choice == "pages" and page.axes.startswith("S")
    axes, shape = (page.axes[1:], page.shape[1:]) if apart else (page.axes, page.shape)
    rows = _channels_of_examples(series, "YX" + "S" * ("S" in axes), choice)
    samples, alone = page.samplesperpixel if "S" in axes else 1, rows.shape[1] == 1
    photometric = getattr(page.photometric, "name", "")
    converted = photometric in _CONVERTED and alone and series.dtype.itemsize == 1
    is_colour = converted and axes == page.axes
    opacity = int(page.extrasamples[-1]) if page.extrasamples else 0
    named = alone and choice != "channels" and opacity in (ASSOCIATED, UNASSOCIATED)
    if not named or (photometric, samples) not in (("RGB", 4), ("MINISBLACK", 2)):
        opacity = 0
    orientation = page.tags.valueof(ORIENTATION, 1)
    sideways = orientation in SIDEWAYS
    height, width = int(page.imagelength), int(page.imagewidth)
    pixel_size, facts = _calibration(file, series)
    start, count = series.dataoffset, math.prod(shape)
    step = count * series.dtype.itemsize
    each_page = page.samplesperpixel if apart else 1
    # Does not apply if one header represents all pages.
    own = len(series.pages) * each_page == rows.size
    if any(each is None or each.parent is not file for each in series.pages) or not (own or start):
        raise ValueError("its planes lie in other files, or are compressed together")
    pages = [series.pages[number // each_page if own else 0].index for number in range(rows.size)]
    return [
        Plane(
            size=(width, height) if sideways else (height, width),
            orientation=orientation,
            channels=3 if is_colour else rows.shape[1] * samples - (opacity > 0),
            dtype=np.dtype(series.dtype).newbyteorder(file.byteorder),
            axes=axes,
            shape=shape,
            pages=tuple(pages[number] for number in row),
            offsets=tuple(start + number * step for number in row) if start is not None else (),
            sample=row[0] % each_page if apart else None,
            converted=converted,
            opacity=opacity,
            unclear=opacity > 0 and (series.dtype != np.uint8 or page.axes.startswith("S")),
            ends=_ends(file, page),
            place=list(map(dict(zip(series.axes, first, strict=True)).get, "TZC")),
            pixel_size=pixel_size[:: -1 if sideways else 1],
            facts=facts,
        )
        for row in rows.tolist()
        for first in [np.unravel_index(row[0] * count, series.shape)]
    ]


def _ends(file: Any, page: Any) -> int:
    """Returns the highest number of a page's depth, if 0 is white and its writer is unknown."""
    first = file.pages.first
    known = is_known_writer(first.software, first.description)
    unclear = not known and getattr(page.photometric, "name", "") == "MINISWHITE"
    return 2**page.bitspersample - 1 if unclear and page.dtype.kind in "bui" else 0


def _calibration(file: Any, series: Any) -> tuple[list[float], dict[str, Any]]:
    """Returns height and width of a pixel in micrometres, and `Plane.facts`."""
    sizes, facts, page, unit = list[float](), dict[str, Any](), series.keyframe, "um"
    with contextlib.suppress(Exception):  # metadata may be anything
        if file.is_ome:
            elements = re.findall("<Pixels[^>]*>", file.ome_metadata)
            pixels = html.unescape(dict(zip(file.series, elements, strict=True))[series])
            found = dict(re.findall(r'\b(\w+)="([^"]+)"', pixels))

            def measure(name: str) -> float:
                return float(found[name]) * UNITS[found.get(f"{name}Unit", "um")]

            sizes = [measure(f"PhysicalSize{axis}") for axis in "YX"]
            for fact, name in (("spacing", "PhysicalSizeZ"), ("finterval", "TimeIncrement")):
                if name in found:
                    facts[fact] = measure(name)
        else:
            unit = tag = _OF_TAG.get(page.tags.valueof("ResolutionUnit", 2), "")
            if file.is_imagej:
                named = file.imagej_metadata
                facts = {
                    fact: named[fact] for fact in _FACTS if str(named.get(fact, "µ")).isascii()
                }
                unit = named["unit"]
            # The one pair for which ImageJ heeds the tag of a file with a unit.
            scale = UNITS["cm" if (tag, unit) == ("cm", "um") else unit]
            sizes = [scale / density for density in page.get_resolution()[::-1]]
            if max(sizes) >= _FINEST_PRINT and (unit == "inch" or not file.is_imagej):
                sizes = []
    # TIFF can hold no others in every unit.
    if not sizes or not all(1e-5 < size < 1e6 for size in sizes):
        return [], facts
    return sizes, facts | {"unit": unit if unit.isascii() else "um"}


def _channels_of_examples(series: Any, within: str, choice: str | None) -> np.ndarray:
    """Returns the numbers of the planes of a series that are the channels of each example,
    (examples, channels).

    Args:
        within: axes of a plane.
    """
    channel_axes = {None: _CHANNEL_AXES, "pages": "", "channels": series.axes}[choice]
    sides = zip(series.axes, series.shape, strict=True)
    stacked = [(axis in channel_axes, length) for axis, length in sides if axis not in within]
    order = np.argsort([is_channel for is_channel, _ in stacked], kind="stable")
    channels = math.prod(length for is_channel, length in stacked if is_channel)
    lengths = [length for _, length in stacked]
    numbers = np.arange(math.prod(lengths)).reshape(lengths)
    return numbers.transpose(order).reshape(-1, channels)
