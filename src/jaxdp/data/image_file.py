"""Reads headers of image files, and reads images as arrays, in the same way in training and in
prediction.
"""

import contextlib
import dataclasses
import io
import itertools
import logging
import pathlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from jaxdp.config.values import MaskValues
from jaxdp.data import netpbm, tiff
from jaxdp.data.conversion import convert, dtype_of, dtype_of_mode, is_grey
from jaxdp.data.dataset import NOT_FINITE
from jaxdp.data.find_images import conversion
from jaxdp.data.masks import check_zero, to_class_numbers
from jaxdp.data.orientation import size_of, upright
from jaxdp.data.resize import Resize
from jaxdp.data.source import BadExample, Size
from jaxdp.runtime import platform
from jaxdp.text.console import say
from jaxdp.text.messages import one_line

# An error describes the problem of a file in one line.
logging.getLogger("PIL").setLevel(logging.CRITICAL)

# Notes on the conversions of an image for a model.
GREYED = "in colour: made grey, as the model wants it"
COLOURED = "grey: given three equal channels, as the model wants it"
FLATTENED = "transparent: laid on black"
FIRST = "more than one picture: the first is taken"

_AT_A_TIME = 256  # headers that a thread reads
_MANY = 20_000  # files whose headers take seconds
_PHOTOGRAPHS = ("JPEG", "MPO")
# Tags of TIFF.
_BITS, _PHOTOMETRIC, _DESCRIPTION, _SOFTWARE = 258, 262, 270, 305


@dataclasses.dataclass(frozen=True)
class Picture:
    """An image in a file.

    Attributes:
        page: its number in a TIFF file of several pages.
        tiff: how to read the planes of a TIFF file, as `pages` or `channels`, regardless of its
            metadata.
    """

    path: pathlib.Path
    page: int | None = None
    tiff: str | None = None

    def __str__(self) -> str:
        return str(self.path) if self.page is None else f"{self.path}[{self.page}]"


# An encoded image, its place, or an image that Pillow has opened.
Data = bytes | pathlib.Path | Picture | Image.Image


class _Stored(NamedTuple):
    """An image as it is stored.

    Attributes:
        image: Pillow's, or an array (H, W, C) of a TIFF file.
        opacity: whether some of it is transparent; for an array, `tiff.Plane.opacity`.
        images: how many images the file holds. 2 means two or more.
        ends: as `tiff.Plane.ends`.
    """

    image: Image.Image | np.ndarray
    opacity: int
    images: int
    ends: int = 0


@dataclasses.dataclass(frozen=True)
class Header:
    """Facts of the images that `read_image` would return.

    Attributes:
        channels: 1 for grey, 3 for colour, otherwise the number of channels in the file.
        dtype: the most frequent dtype of its pages.
        sizes: height and width of each page.
        left_out: how many pages of a TIFF file are not separate images.
        transparent: whether an image has an opacity.
        unclear: as `tiff.Plane.unclear`.
        ends: as `tiff.Plane.ends`.
        reduced: whether the file stores more bits than `dtype` has, which Pillow drops.
    """

    channels: int
    dtype: str
    sizes: tuple[Size, ...]
    left_out: int = 0
    transparent: bool = False
    unclear: bool = False
    ends: int = 0
    reduced: bool = False


def read_header(path: pathlib.Path, choice: str | None = None) -> Header | None:
    """Returns the content of a file, from its header alone.

    Returns None if it cannot be read, which is an error when it is decoded.

    Args:
        choice: value of `--tiff`.
    """
    with contextlib.suppress(Exception):
        if is_tiff(path):
            stack = tiff.read_stack(path, choice)
            planes, dtypes = stack.planes, [dtype_of(plane.dtype) for plane in stack.planes]
            return Header(
                planes[0].channels,
                max(dtypes, key=dtypes.count),
                tuple(plane.size for plane in planes),
                left_out=stack.left_out,
                transparent=any(plane.opacity for plane in planes),
                unclear=any(plane.unclear for plane in planes),
                ends=max(plane.ends for plane in planes),
            )
        with Image.open(path) as image:
            dtype, tiles = dtype_of_mode(image.mode), getattr(image, "tile", ())
            if (netpbm.largest_number(image) or 0) > 255:
                dtype = "uint16"
            return Header(
                1 if is_grey(image) else 3,
                dtype,
                (size_of(image),),
                transparent=image.has_transparency_data,
                reduced=dtype == "uint8" and any(";16B" in str(tile.args) for tile in tiles),
            )
    return None


def pages_of(path: pathlib.Path, header: Header | None, choice: str | None = None) -> list[Picture]:
    """Returns the images in a file. An unreadable file counts as one image."""
    count = len(header.sizes) if header is not None else 1
    return [Picture(path, page if count > 1 else None, choice) for page in range(count)]


def read_headers(
    files: Iterable[pathlib.Path], choice: str | None = None
) -> dict[pathlib.Path, Header | None]:
    """Returns the content of each file, and prints what is left out of TIFF files and what may be
    inverted.
    """
    files = list(files)
    if len(files) >= _MANY:
        say(f"reading the headers of {len(files):,} files")
    with ThreadPoolExecutor(min(8, platform.cores())) as pool:
        # A task for each file would take as long as reading it.
        parts = [files[first : first + _AT_A_TIME] for first in range(0, len(files), _AT_A_TIME)]
        found = pool.map(lambda part: [read_header(file, choice) for file in part], parts)
        headers = dict(zip(files, itertools.chain.from_iterable(found), strict=True))
    read = {file: header for file, header in headers.items() if header is not None}
    if cut := {file: header.left_out for file, header in read.items() if header.left_out}:
        first, count = next(iter(cut.items()))
        say(
            f"note: {sum(cut.values())} pages of {len(cut)} TIFF files are thumbnails, levels of"
            f" pyramids or the like by their headers, and are left out (e.g. {count} of {first})"
        )
    if white := [file for file, header in read.items() if header.ends]:
        say(
            f"note: in {len(white)} of {len(files)} files 0 is white (e.g. {white[0]}): their"
            " numbers are read as stored, not inverted"
        )
    return headers


def planes_of(picture: Picture) -> tuple[tiff.Plane, ...]:
    """Returns the images in the file of an image, if it is TIFF."""
    with contextlib.suppress(Exception):  # a photograph may be named .tif
        if is_tiff(picture.path):
            return tiff.read_stack(picture.path, picture.tiff).planes
    return ()


def pixel_size(picture: Picture) -> Sequence[float]:
    """Returns height and width of a pixel in micrometres; empty if its file does not have them."""
    planes = planes_of(picture)
    return planes[picture.page or 0].pixel_size if planes else ()


def read_image(
    data: Data,
    where: object,
    channels: int | None = None,
    dtype: str | None = None,
    resize: Resize | None = None,
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Returns pixels (H, W, C) as uint8, uint16 or float32, and notes on their conversions, e.g.
    GREYED.

    Applies the tag Orientation, and converts palettes, CMYK and other modes to RGB. Unless four
    channels are requested, blends transparent pixels with black, because fully transparent pixels
    have arbitrary colours.

    Args:
        where: names the image in errors.
        channels: 1 for grey, 3 for colour, 4 for colour and opacity; None leaves the image grey or
            in colour. Other numbers of channels, which TIFF files may have, are not converted.
        dtype: the required dtype; None for any.
        resize: how it will be resized. A large photo is decoded at reduced scale.

    Raises:
        BadExample: if the image cannot be read, or has another dtype or number of channels, or NaN
            or infinite pixels.
    """
    image, opacity, count, _ = _read_stored(data, where, resize)
    grey = is_grey(image) if isinstance(image, Image.Image) else image.shape[2] == 1 + (opacity > 0)
    try:
        pixels = convert(image, channels, where, opacity=opacity)
    except BadExample:
        raise
    except ValueError as error:
        # Pillow lacks a few pairs of modes.
        raise BadExample(where, f"cannot be converted ({_cause(error)})") from error
    if dtype is not None and pixels.dtype != dtype:
        stored = getattr(image, "dtype", pixels.dtype)
        read = f", read as {pixels.dtype}" * (stored != pixels.dtype)
        raise BadExample(
            where,
            f"has {stored.itemsize * 8} bits a channel ({stored.name}{read}), not"
            f" {np.dtype(dtype).itemsize * 8} ({dtype}); convert all images to one depth",
        )
    if pixels.dtype.kind == "f" and not np.isfinite(pixels).all():
        raise BadExample(where, NOT_FINITE)
    if channels is not None and pixels.shape[2] != channels:
        raise BadExample(where, f"has {pixels.shape[2]} channels, not {channels}")
    happened = {
        COLOURED: channels in (3, 4) and grey,
        GREYED: channels == 1 and not grey,
        FIRST: count > 1 and getattr(data, "page", None) is None,
        FLATTENED: opacity > 0 and channels != 4,
    }
    return pixels, tuple(note for note, holds in happened.items() if holds)


def decode_mask(data: Data, where: object, values: MaskValues | None = None) -> np.ndarray:
    """Returns the class numbers, uint8 (H, W).

    For an image with a palette, they are the indices, or the classes of the colours.

    Args:
        values: value of `--mask-values`. Colours, including colours of palettes, are looked up in
            it.

    Raises:
        BadExample: if it cannot be read, or has several channels or values that are not class
            numbers.
    """
    return to_class_numbers(read_mask(data, where, values), values, where)


def read_mask(data: Data, where: object, values: MaskValues | None = None) -> np.ndarray:
    """Returns a mask as it is stored: numbers (H, W), or colours (H, W, C).

    Raises:
        BadExample: if it cannot be read.
        ConfigError: if it may be inverted and `values` does not resolve it.
    """
    image, opacity, _, ends = _read_stored(data, where)
    if not isinstance(image, Image.Image):
        stored = image[..., 0] if image.shape[2] == 1 else image
    elif image.mode == "P" and values is not None and values.colours:
        stored = np.asarray(image.convert("RGB"))
    elif image.mode == "P" and image.format == "GIF" and _is_grey_palette(image):
        stored = np.asarray(image.convert("L"))
    elif len(image.getbands()) == 1:
        stored = np.asarray(image)
    else:
        stored = np.asarray(image.convert("RGBA" if opacity else "RGB"))
    check_zero(stored, ends, values, where)
    return stored.astype(np.uint8) if stored.dtype == np.bool_ else stored


def _is_grey_palette(image: Image.Image) -> bool:
    """Returns whether a palette represents grey values, for which GIF has no other form."""
    red, green, blue = np.reshape(image.getpalette() or [], (-1, 3)).T
    return bool((red == green).all() and (green == blue).all())


def is_tiff(path: pathlib.Path) -> bool:
    """Returns whether a file has a TIFF suffix."""
    return path.suffix.lower() in tiff.SUFFIXES


def _read_stored(data: Data, where: object, resize: Resize | None = None) -> _Stored:
    # Broken data make decoders raise almost anything.
    try:
        if isinstance(data, Image.Image):
            return _as_stored(data)
        if isinstance(data, bytes):
            return _read_by_pillow(io.BytesIO(data), resize)
        picture = Picture(data) if isinstance(data, pathlib.Path) else data
        if not is_tiff(picture.path) or _is_no_tiff(picture.path):  # regardless of its name
            return _read_by_pillow(picture.path, resize)
        planes = tiff.read_stack(picture.path, picture.tiff).planes
        plane = planes[picture.page or 0]
        pixels = tiff.read(picture.path, plane)
        if pixels is not None:
            return _Stored(pixels, plane.opacity, len(planes), plane.ends)
        stored = _read_by_pillow(picture.path, frame=plane.pages[0])
    except Exception as error:
        problem = conversion(where) or f"cannot be read as an image ({_cause(error)})"
        raise BadExample(where, problem) from error
    assert isinstance(stored.image, Image.Image)
    samples = len(stored.image.getbands()), dtype_of_mode(stored.image.mode)
    wanted = plane.channels + (plane.opacity > 0), dtype_of(plane.dtype)
    if not plane.converted and samples != wanted:
        problem = "is compressed in a way that takes pip install imagecodecs"
        raise BadExample(where, f"{problem}; or save it uncompressed")
    if wanted[0] == 4 and not plane.opacity:  # Pillow reads any fourth sample as opacity
        stored = stored._replace(image=np.asarray(stored.image), opacity=0)
    return stored._replace(images=len(planes), ends=plane.ends)


def _is_no_tiff(path: pathlib.Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) not in (b"II", b"MM")


def _as_stored(opened: Image.Image) -> _Stored:
    """Returns an image that Pillow has opened, with its orientation applied. For PGM, PPM and TIFF,
    it has the stored numbers.

    Pillow inverts grey TIFF of up to 8 bits if 0 is white, and scales 2 and 4 bits to 8. It reads
    TIFF files of other depths as stored, as other programs do.
    """
    largest = netpbm.largest_number(opened)
    if largest is not None:
        return _Stored(netpbm.read_numbers(opened, largest), 0, 1)
    if opened.format == "BMP" and opened.mode == "1":
        for tile in getattr(opened, "tile", ()):
            if tile.args[1] != (opened.width + 31) // 32 * 4:  # bytes in a row
                problem = "two colours of 4 or 8 bits, which Pillow misreads; save it as PNG"
                raise ValueError(problem)
    image = upright(opened)
    opacity = int(image.has_transparency_data)
    if opened.format != "TIFF" or image.mode not in ("1", "L"):
        return _Stored(image, opacity, 1)
    tags, pixels = getattr(opened, "tag_v2", {}), np.asarray(image)
    ends, white = 2 ** tags.get(_BITS, (1,))[0] - 1, not tags.get(_PHOTOMETRIC)
    if white:
        pixels = ~pixels if image.mode == "1" else 255 - pixels
    if 1 < ends < 255:
        pixels = pixels // (255 // ends)
    known = tiff.is_known_writer(tags.get(_SOFTWARE), tags.get(_DESCRIPTION))
    return _Stored(Image.fromarray(pixels), opacity, 1, ends if white and not known else 0)


def _read_by_pillow(file: Any, resize: Resize | None = None, frame: int = 0) -> _Stored:
    with Image.open(file) as image:
        count = 2 if getattr(image, "is_animated", False) else 1
        if frame:
            image.seek(frame)
        if resize is not None and image.format in _PHOTOGRAPHS:
            factor = resize.reduction(size_of(image))
            image.draft(None, (image.width // factor, image.height // factor))
        return _as_stored(image)._replace(images=count)


def _cause(error: Exception) -> str:
    if isinstance(error, Image.UnidentifiedImageError):
        return "no known format"
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return one_line(text) or type(error).__name__
