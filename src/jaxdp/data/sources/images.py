"""Pictures on disk: which files are pictures, what their headers say, and decoding them as
arrays.
"""

import contextlib
import dataclasses
import io
import logging
import os
import pathlib
from collections.abc import Callable, Iterator

import numpy as np
from PIL import Image, ImageOps

from jaxdp.config.values import MaskValues
from jaxdp.data.dataset import BadExample
from jaxdp.data.sources import tiff
from jaxdp.data.sources.conversion import (
    bits_of,
    convert_array,
    convert_picture,
    dtype_of,
    dtype_of_mode,
    is_grey,
)
from jaxdp.data.sources.masks import to_class_numbers
from jaxdp.parsing import resolved
from jaxdp.registry import ConfigError

# What is wrong with a file is said in one line, by whoever reads it.
logging.getLogger("PIL").setLevel(logging.CRITICAL)

Size = tuple[int, int]  # height, width
Reduction = Callable[[Size], int]  # by which factor an image of a size may be smaller: 1, 2, 4 or 8

SUFFIXES = (
    ".bmp",
    ".gif",
    ".jfif",
    ".jpeg",
    ".jpg",
    ".pbm",
    ".pgm",
    ".png",
    ".ppm",
    ".tif",
    ".tiff",
    ".webp",
)
_PHOTOGRAPHS = ("JPEG", "MPO")
_TURNED = (5, 6, 7, 8)  # values of the EXIF tag Orientation that swap height and width
_ORIENTATION = 0x0112


@dataclasses.dataclass(frozen=True)
class Picture:
    """An image in a file.

    Attributes:
        page: its number, in a TIFF file of several.
        tiff: what the planes of a TIFF file are, `pages` or `channels`, whatever its metadata say.
    """

    path: pathlib.Path
    page: int | None = None
    tiff: str | None = None

    def __str__(self) -> str:
        return str(self.path) if self.page is None else f"{self.path}[{self.page}]"


@dataclasses.dataclass(frozen=True)
class Header:
    """What `decode_image` would give.

    Attributes:
        channels: 1 for grey, 3 for colour; otherwise as many as there are.
        sizes: height and width of each page.
    """

    channels: int
    dtype: str
    sizes: tuple[Size, ...]


def is_hidden(name: str) -> bool:
    """Returns whether a file or folder of this name is none of the user's own."""
    return name.startswith(".") or name == "__MACOSX"


def find_pictures(folder: pathlib.Path) -> list[pathlib.Path]:
    """Returns the pictures at any depth, those of a folder before those of its folders, each in the
    order of their names.

    Hidden files and folders, files of other kinds, pipes and the like do not count. Links are
    followed, except to what is looked through anyway: no picture counts twice because of them.
    """
    return list(_pictures_in(folder, resolved(folder), set()))


def _pictures_in(
    place: pathlib.Path, root: pathlib.Path, known: set[tuple[int, int]]
) -> Iterator[pathlib.Path]:
    """Yields the pictures in a folder and below.

    Args:
        root: where the search began, without links.
        known: device and number of the folders that were looked through.
    """
    try:
        status = place.stat()
        with os.scandir(place) as entries:
            seen = sorted(
                (entry for entry in entries if not is_hidden(entry.name)),
                key=lambda entry: entry.name,
            )
    except OSError as error:
        raise ConfigError(
            "", place, f"{place}: the folder cannot be read ({error.strerror})"
        ) from error
    if (status.st_dev, status.st_ino) in known:
        return
    known.add((status.st_dev, status.st_ino))
    for entry in seen:
        if pathlib.PurePath(entry.name).suffix.lower() in SUFFIXES and _is(entry.is_file):
            yield pathlib.Path(entry.path)
    for entry in seen:
        if _is(entry.is_dir) and not (
            entry.is_symlink() and leads_back(pathlib.Path(entry.path), root)
        ):
            yield from _pictures_in(pathlib.Path(entry.path), root, known)


def _is(ask: Callable[[], bool]) -> bool:
    try:
        return ask()
    except OSError:  # a link to itself
        return False


def leads_back(link: pathlib.Path, root: pathlib.Path) -> bool:
    """Whether a link leads to the folder in which the search began, one above it, or one in it that
    is looked through anyway.
    """
    target = resolved(link)
    if root in target.parents:
        return not any(map(is_hidden, target.relative_to(root).parts))
    return target == root or target in root.parents


def read_header(path: pathlib.Path, choice: str | None = None) -> Header | None:
    """Returns what a file holds, from its header alone.

    None if that cannot be read, which whoever decodes it will say.

    Args:
        choice: of `--tiff`.
    """
    with contextlib.suppress(Exception):
        if is_tiff(path):
            layouts = tiff.read_layout(path, choice)
            first = layouts[0]
            sizes = tuple(layout.size for layout in layouts for _ in range(len(layout)))
            return Header(first.channels, dtype_of(first.dtype), sizes)
        with Image.open(path) as image:
            return Header(1 if is_grey(image) else 3, dtype_of_mode(image.mode), (_size_of(image),))
    return None


def _size_of(image: Image.Image) -> Size:
    """Returns height and width as they will be once it is turned."""
    turned = image.format in _PHOTOGRAPHS and image.getexif().get(_ORIENTATION) in _TURNED
    return image.size if turned else (image.height, image.width)


def pages_of(path: pathlib.Path, header: Header | None, choice: str | None = None) -> list[Picture]:
    """Returns the images in a file; one that cannot be read counts as one."""
    count = len(header.sizes) if header is not None else 1
    return [Picture(path, page if count > 1 else None, choice) for page in range(count)]


def decode_image(
    data: bytes | pathlib.Path | Picture,
    where: object,
    channels: int | None = None,
    dtype: str | None = None,
    reduction: Reduction | None = None,
) -> np.ndarray:
    """Returns pixels (H, W, C) as uint8, uint16 or float32.

    Photographs are turned as their EXIF data say.

    Palettes, CMYK and the like become RGB. Unless four channels are asked for, what is transparent
    is laid on black: below full transparency lies whatever the program left there.

    Args:
        where: names the picture in errors.
        channels: 1 makes it grey, 3 colour, 4 colour and opacity; None leaves it grey or colour.
            Other numbers of channels, which TIFF files may have, are not converted.
        dtype: that it must have; None for any.
        reduction: tells by its size how much smaller a photograph may be, which is then decoded at
            that scale; None for not at all.

    Raises:
        BadExample: if it cannot be read, has another dtype or number of channels, or NaN or
            infinite pixels.
    """
    picture = (
        data
        if isinstance(data, Picture)
        else Picture(data)
        if isinstance(data, pathlib.Path)
        else None
    )
    found, layout = _read_tiff(picture, where)
    if isinstance(found, int):
        source = picture.path if picture is not None else data
        assert not isinstance(source, Picture)
        with _opened(source, where, found, reduction) as image:
            pixels = convert_picture(image, channels, where)
        if layout is not None and not layout.converted and pixels.dtype != dtype_of(layout.dtype):
            raise BadExample(
                where,
                "is compressed in a way that takes pip install imagecodecs; or save it"
                " uncompressed",
            )
    else:
        assert layout is not None
        pixels = convert_array(found, channels, where, transparent=layout.transparent)
    if dtype is not None and pixels.dtype != dtype:
        problem = (
            f"has {bits_of(pixels.dtype)} bits a channel ({pixels.dtype}), not"
            f" {bits_of(np.dtype(dtype))} ({dtype})"
        )
        raise BadExample(where, f"{problem}; save it as those")
    if pixels.dtype.kind == "f" and not np.isfinite(pixels).all():
        raise BadExample(where, "has NaN or infinite pixels")
    if channels is not None and pixels.shape[2] != channels:
        raise BadExample(where, f"has {pixels.shape[2]} channels, not {channels}")
    return pixels


def decode_mask(
    data: bytes | pathlib.Path | Picture, where: object, values: MaskValues | None = None
) -> np.ndarray:
    """Returns uint8 (H, W): the numbers of the classes.

    Of a picture with a palette the places in it, or its colours.

    Args:
        values: of `--mask-values`; colours there are looked up, of palettes as well.

    Raises:
        BadExample: if it cannot be read, or has several channels or values that are no class
            numbers.
    """
    return to_class_numbers(read_mask(data, where, values), values, where)


def read_mask(
    data: bytes | pathlib.Path | Picture, where: object, values: MaskValues | None = None
) -> np.ndarray:
    """Returns a mask as it is stored: numbers (H, W), or colours (H, W, C).

    Raises:
        BadExample: if it cannot be read.
    """
    picture = (
        data
        if isinstance(data, Picture)
        else Picture(data)
        if isinstance(data, pathlib.Path)
        else None
    )
    found, _ = _read_tiff(picture, where)
    if not isinstance(found, int):
        return found[..., 0] if found.shape[2] == 1 else found
    source = picture.path if picture is not None else data
    assert not isinstance(source, Picture)
    with _opened(source, where, found) as image:
        if image.mode == "P" and values is not None and values.colours:
            return np.asarray(image.convert("RGB"))
        if image.mode in ("L", "P", "1", "I", "F") or image.mode.startswith("I;16"):
            return np.asarray(image)
        return np.asarray(image.convert("RGBA" if image.has_transparency_data else "RGB"))


def is_tiff(path: pathlib.Path) -> bool:
    """Returns whether the name of a file says that it is TIFF."""
    return path.suffix.lower() in tiff.SUFFIXES


def _read_tiff(
    picture: Picture | None, where: object
) -> tuple[np.ndarray | int, tiff.Layout | None]:
    """Returns what `tiff.read` does, and of a file of another format its first frame."""
    if picture is None or not is_tiff(picture.path):
        return 0, None
    try:
        return tiff.read(picture.path, picture.page or 0, picture.tiff)
    except Exception as error:
        if _is_no_tiff(picture.path):  # whatever its name says
            return 0, None
        raise BadExample(where, f"cannot be read as an image ({_cause(error)})") from error


def _is_no_tiff(path: pathlib.Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(2) not in (b"II", b"MM")
    except OSError:
        return False


@contextlib.contextmanager
def _opened(
    data: bytes | pathlib.Path, where: object, frame: int = 0, reduction: Reduction | None = None
) -> Iterator[Image.Image]:
    # Broken data make Pillow's decoders raise almost anything.
    try:
        image = Image.open(io.BytesIO(data) if isinstance(data, bytes) else data)
    except Exception as error:
        raise BadExample(where, f"cannot be read as an image ({_cause(error)})") from error
    with image:
        try:
            if frame:
                image.seek(frame)
            if reduction is not None and image.format in _PHOTOGRAPHS:
                factor = reduction(_size_of(image))
                image.draft(None, (image.width // factor, image.height // factor))
            image.load()
            if image.format in _PHOTOGRAPHS:
                ImageOps.exif_transpose(image, in_place=True)
        except Exception as error:
            raise BadExample(where, f"cannot be read as an image ({_cause(error)})") from error
        yield image


def _cause(error: Exception) -> str:
    if isinstance(error, Image.UnidentifiedImageError):
        return "no known format"
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split()) or type(error).__name__
