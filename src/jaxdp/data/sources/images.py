"""Pictures on disk: which files are pictures, and reading them as arrays of the right size."""

import contextlib
import dataclasses
import io
import os
import pathlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from jaxdp.data.dataset import BadExample, Example, Source
from jaxdp.registry import ConfigError

Size = tuple[int, int]  # height, width

SUFFIXES = (".bmp", ".gif", ".jfif", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
_STANDARD_MODE = {"P": "RGB", "1": "L"}
_PHOTOGRAPHS = ("JPEG", "MPO")
_TURNED = (5, 6, 7, 8)  # values of the EXIF tag Orientation that swap height and width
_ORIENTATION = 0x0112
_LARGEST_SIDE = 65535


def is_hidden(name: str) -> bool:
    """Returns whether a file or folder of this name is none of the user's own."""
    return name.startswith(".") or name == "__MACOSX"


def find_pictures(folder: pathlib.Path) -> list[pathlib.Path]:
    """Returns the pictures at any depth, those of a folder before those of its folders, each in the order of their names.

    Hidden files and folders, and files of other kinds, do not count; links are followed.
    """
    found: list[pathlib.Path] = []
    for place, folders, files in os.walk(folder, followlinks=True):
        folders[:] = sorted(name for name in folders if not is_hidden(name))
        pictures = [name for name in sorted(files) if pathlib.Path(name).suffix.lower() in SUFFIXES and not is_hidden(name)]
        found += [pathlib.Path(place, name) for name in pictures]
    return found


def decode_image(data: bytes | pathlib.Path, where: object, channels: int | None = None) -> np.ndarray:
    """Returns uint8 (H, W, C) with C = 1 for greyscale and 3 for colour; photographs are turned as their EXIF data say.

    Args:
        where: names the picture in errors.
        channels: 1 or 3 converts between grey and colour; None leaves that as it is stored.

    Raises:
        BadExample: if it cannot be read, is transparent, has more than 8 bits a channel, or is neither grey nor colour.
    """
    with _opened(data, where) as image:
        image.info.pop("transparency", None)  # of a palette: Pillow would warn that it is dropped
        mode = _STANDARD_MODE.get(image.mode, image.mode)
        if channels and mode in ("L", "RGB", "RGBA", "CMYK"):
            mode = "L" if channels == 1 else "RGB"
        if mode not in ("L", "RGB"):
            raise BadExample(where, _wrong_mode(mode, "8-bit greyscale (L) or RGB"))
        pixels = np.asarray(image if image.mode == mode else image.convert(mode))
    return pixels if pixels.ndim == 3 else pixels[..., None]


def decode_mask(data: bytes | pathlib.Path, where: object) -> np.ndarray:
    """Returns uint8 (H, W): the numbers of the classes; of a picture with a palette the places in it.

    Raises:
        BadExample: if it cannot be read or has several channels or more than 8 bits.
    """
    with _opened(data, where) as image:
        if image.mode not in ("L", "P", "1"):
            raise BadExample(where, _wrong_mode(image.mode, "class numbers, 8-bit greyscale (L) or with a palette (P)"))
        return np.asarray(image).astype(np.uint8, copy=False)


def stored_size(path: pathlib.Path) -> Size | None:
    """Returns what `decode_image` would give, from the header alone; None if that cannot be read."""
    try:
        with Image.open(path) as image:
            width, height = image.size
            turned = image.format in _PHOTOGRAPHS and image.getexif().get(_ORIENTATION) in _TURNED
            return (width, height) if turned else (height, width)
    except Exception:  # whoever reads it will say what is wrong
        return None


@contextlib.contextmanager
def _opened(data: bytes | pathlib.Path, where: object) -> Iterator[Image.Image]:
    # Broken data make Pillow's decoders raise almost anything.
    try:
        image = Image.open(io.BytesIO(data) if isinstance(data, bytes) else data)
    except Exception as error:
        raise BadExample(where, f"cannot be read as an image ({_cause(error)})") from error
    with image:
        try:
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


def _wrong_mode(mode: str, wanted: str) -> str:
    if mode.startswith(("I", "F")):
        return f"has {'16' if ';16' in mode else '32'} bits a pixel (mode {mode}); save it as {wanted}"
    return f"has the wrong number of channels (mode {mode}); save it as {wanted}"


def parse_size(text: str) -> Size:
    """Returns height and width that `--image-size` asks for.

    Raises:
        ConfigError: if it is neither N nor HxW.
    """
    match = re.fullmatch(r"(\d+)(?:x(\d+))?", text)
    size = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not all(0 < side <= _LARGEST_SIDE for side in size):
        raise ConfigError("image_size", text, "must be N or HxW in pixels, e.g. 64 or 48x64")
    return size


def resize(pixels: np.ndarray, size: Size, *, nearest: bool = False) -> np.ndarray:
    """Returns uint8 (H, W, C) or (H, W) at another size: antialiased bilinear, or the nearest pixel, as masks want it."""
    if pixels.shape[:2] == size:
        return pixels
    if pixels.ndim == 3 and pixels.shape[2] not in (1, 3):
        return np.stack([resize(pixels[..., channel], size, nearest=nearest) for channel in range(pixels.shape[2])], axis=-1)
    image = Image.fromarray(pixels[..., 0] if pixels.shape[2:] == (1,) else pixels)
    method = Image.Resampling.NEAREST if nearest else Image.Resampling.BILINEAR
    return np.asarray(image.resize((size[1], size[0]), method)).reshape(*size, *pixels.shape[2:])


@dataclasses.dataclass(frozen=True)
class Fitted:
    """A source whose pictures are resized and whose masks are renumbered.

    Attributes:
        size: height and width of images, masks and targets, or None to leave them.
        numbering: the class of each stored value of a mask, uint8 (256,), or None to leave them.
    """

    source: Source
    size: Size | None = None
    numbering: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.source)

    def name(self, index: int) -> str:
        return name(self.source, index)

    def __getitem__(self, index: int) -> Example:
        return self._fit(self.source[index], index)

    def __getitems__(self, numbers: Sequence[int]) -> list[Example]:
        several: Any = getattr(self.source, "__getitems__", None)
        examples = several(numbers) if several else [self.source[number] for number in numbers]
        return [self._fit(example, number) for example, number in zip(examples, numbers, strict=True)]

    def _fit(self, example: Example, index: int) -> Example:
        mask = example.get("masks")
        if mask is not None and mask.shape != example["images"].shape[:2]:
            sizes = f"{_times(mask.shape)} pixels, but its image {_times(example['images'].shape[:2])}"
            raise BadExample(self.name(index), f"its mask has {sizes}")
        if mask is not None and self.numbering is not None:
            example = example | {"masks": self.numbering[mask]}
        if self.size is not None:
            pictures = {key: example[key] for key in ("images", "masks", "targets") if key in example}
            example = example | {key: resize(value, self.size, nearest=key == "masks") for key, value in pictures.items()}
        return example


def name(source: Source, index: int) -> str:
    """Returns what an error calls an example: a source may know better than its number, e.g. a file."""
    named: Any = getattr(source, "name", None)
    return named(index) if named else f"example {index}"


def _times(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))
