"""TIFF files: which of their planes are examples and which are channels, and reading one example at its stored depth."""

import dataclasses
import functools
import logging
import math
import pathlib
from typing import Any

import numpy as np

SUFFIXES = (".tif", ".tiff")
_CHANNEL_AXES = "CS"  # of ImageJ and OME; S are the samples of an interleaved pixel
_CONVERTED = ("PALETTE", "CMYK", "SEPARATED", "YCBCR", "MINISWHITE", "CIELAB")  # what Pillow makes grey or colour


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

    logging.getLogger("tifffile").setLevel(logging.CRITICAL)  # what is wrong with a file is said in one line, elsewhere
    return tifffile


def read_layout(path: pathlib.Path, choice: str | None) -> list[Layout]:
    """Returns the layout of each series of a file: one of all its planes, or several where they differ in size.

    Args:
        choice: `pages` or `channels` says what the planes of a stack are; None leaves that to the metadata.
    """
    with _library().TiffFile(path) as file:
        return [_layout(series, choice) for series in _used(file)]


def read(path: pathlib.Path, page: int, choice: str | None) -> tuple[np.ndarray | int, Layout]:
    """Returns the pixels (H, W, C) of an example as they are stored, or the number of the frame that Pillow has to read.

    Args:
        page: number of the example.
        choice: as for `read_layout`.
    """
    with _library().TiffFile(path) as file:
        for series in _used(file):
            layout = _layout(series, choice)
            if page >= len(layout):
                page -= len(layout)
                continue
            numbers = layout.planes[page].tolist()
            frame = series.keyframe.index + numbers[0]
            if layout.converted:
                return frame, layout
            try:
                planes = _planes(series, numbers, choice)
            except (ValueError, KeyError):  # a compression that takes the package imagecodecs
                if len(numbers) > 1:
                    raise
                return frame, layout
            pixels = np.concatenate([_channels_last(plane, _plane(series, choice)[0]) for plane in planes], axis=-1)
            return pixels.astype(pixels.dtype.newbyteorder("="), copy=False), layout
    raise IndexError(f"there is no page {page} in it")


def _used(file: Any) -> list[Any]:
    """Returns the series that hold examples: other than the first one there may be thumbnails."""
    if file.is_ome or not (file.is_imagej or file.is_lsm or file.is_svs or file.is_ndpi or file.is_scn or file.is_bif):
        return [series for series in file.series if series.keyframe is not None]
    return list(file.series[:1])


def _plane(series: Any, choice: str | None) -> tuple[str, tuple[int, ...]]:
    """Returns axes and shape of a plane; where planes are pages, what is stored as separate samples is, too."""
    page = series.keyframe
    apart = choice == "pages" and page.axes.startswith("S")
    return (page.axes[1:], page.shape[1:]) if apart else (page.axes, page.shape)


def _layout(series: Any, choice: str | None) -> Layout:
    page = series.keyframe
    plane_axes, _ = _plane(series, choice)
    samples = page.samplesperpixel if "S" in plane_axes else 1
    within = "YX" + "S" * ("S" in plane_axes)
    stacked = [(axis, length) for axis, length in zip(series.axes, series.shape, strict=True) if axis not in within]
    lengths = [length for _, length in stacked]
    numbers = np.arange(math.prod(lengths)).reshape(lengths)

    def is_channel(axis: str) -> bool:
        return axis in _CHANNEL_AXES if choice is None else choice == "channels"

    order = sorted(range(len(stacked)), key=lambda position: is_channel(stacked[position][0]))
    channels = math.prod(length for axis, length in stacked if is_channel(axis))
    planes = numbers.transpose(order).reshape(-1, channels) if lengths else numbers.reshape(1, 1)
    photometric = getattr(page.photometric, "name", "")
    is_colour = photometric in ("RGB", *_CONVERTED) and photometric != "MINISWHITE" and channels == 1 and plane_axes == page.axes
    opacity = bool(page.extrasamples) and int(page.extrasamples[-1]) in (1, 2)
    transparent = (photometric, samples) in (("RGB", 4), ("MINISBLACK", 2)) and channels == 1 and opacity
    converted = photometric in _CONVERTED and channels == 1 and series.dtype.itemsize == 1
    size = (int(page.imagelength), int(page.imagewidth))
    total = 3 if is_colour and converted else channels * samples - transparent
    return Layout(size, total, np.dtype(series.dtype), planes, converted, transparent)


def _planes(series: Any, numbers: list[int], choice: str | None) -> list[np.ndarray]:
    """Returns planes of a series, without reading the others where their places in the file are known."""
    _, shape = _plane(series, choice)
    count = math.prod(series.shape) // math.prod(shape)
    if count == 1:
        return [series.asarray().reshape(shape)]
    if series.dataoffset is not None:  # one after the other and uncompressed: ImageJ writes no header for each
        file = series.parent
        dtype = np.dtype(series.dtype).newbyteorder(file.byteorder)
        stack = np.memmap(file.filehandle.path, dtype, "r", series.dataoffset, (count, *shape))
        return [np.array(stack[number]) for number in numbers]
    if len(series.pages) == count:
        return [series.pages[number].asarray() for number in numbers]
    return list(series.asarray().reshape(count, *shape)[numbers])


def _channels_last(plane: np.ndarray, axes: str) -> np.ndarray:
    if "S" not in axes:
        return plane.reshape(*plane.shape[-2:], 1)
    return np.moveaxis(plane, axes.index("S"), -1)
