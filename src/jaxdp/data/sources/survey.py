"""What the headers of all files of a folder say together: channels, depth and sizes, and what
follows where sizes differ.
"""

import collections
import dataclasses
import functools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxdp.config.values import MaskValues
from jaxdp.data.dataset import DTYPES, BadExample
from jaxdp.data.sources import Request, images
from jaxdp.data.sources.fitting import ImageSize
from jaxdp.data.sources.images import Header, Picture, Size
from jaxdp.data.sources.sampling import in_threads
from jaxdp.data.sources.statistics import Properties
from jaxdp.registry import ConfigError

_PHOTOGRAPH_SIDES = (16, 32, 48, 64, 96, 128, 160, 192, 224)
_WASTEFUL = 16  # times the median area
_ALIGNMENT = 16  # sides of filled-up images, which four poolings by two divide


@dataclasses.dataclass(frozen=True)
class Survey:
    """The headers of the images of a folder.

    Attributes:
        headers: of each file; None for one that cannot be read.
        channels: that all images are decoded to.
        dtype: that most files have, the wider one of two; the others are bad examples.
        tiff: `--tiff`.
        mask_values: `--mask-values`.
        instances: whether masks are numbers of objects.
        fit: the size to which images without masks are going to be resized; None for their own.
    """

    headers: Mapping[Path, Header | None]
    channels: int
    dtype: str
    tiff: str | None
    mask_values: MaskValues | None = None
    instances: bool = False
    fit: ImageSize | None = None

    @classmethod
    def of(cls, request: Request, files: Sequence[Path]) -> "Survey":
        """Reads the headers of all files.

        Raises:
            ConfigError: for channels that files of several channels cannot be made.
        """
        choice = request.config.tiff
        with in_threads(functools.partial(images.read_header, choice=choice), files) as found:
            headers = dict(zip(files, found, strict=True))
        known = {file: header for file, header in headers.items() if header is not None}
        dtypes = collections.Counter(header.dtype for header in known.values())
        dtype = max(dtypes, key=lambda name: (dtypes[name], DTYPES.index(name)), default="uint8")
        channels, config = _channels(request, known), request.config
        return cls(headers, channels, dtype, choice, config.mask_values, config.instances)

    def pictures(self, file: Path) -> list[Picture]:
        """Returns the images in a file, its pages."""
        return images.pages_of(file, self.headers.get(file), self.tiff)

    def masks(self, file: Path) -> list[Picture]:
        """Returns the masks in a file: of a stack all planes, whatever its metadata say."""
        header = images.read_header(file, "pages") if images.is_tiff(file) else None
        return images.pages_of(file, header, "pages")

    def decode(self, picture: Picture) -> np.ndarray:
        """Returns the pixels of an image, with the channels and the depth of all.

        Raises:
            BadExample: if it cannot be read, or has another depth or number of channels.
        """
        header = self.headers.get(picture.path)
        if header is not None and header.dtype != self.dtype:
            bits, wanted = (np.dtype(name).itemsize * 8 for name in (header.dtype, self.dtype))
            other = next(
                file
                for file, its in self.headers.items()
                if its is not None and its.dtype == self.dtype
            )
            most = (
                f"has {bits} bits a channel ({header.dtype}), most others {wanted} ({self.dtype}),"
                f" e.g. {other.name}"
            )
            raise BadExample(picture, f"{most}; convert them to one depth")
        return images.decode_image(
            picture, picture, self.channels, self.dtype, self.fit and self.fit.reduction
        )

    @functools.cached_property
    def sizes(self) -> list[Size]:
        """The sizes of all images."""
        return [
            size for header in self.headers.values() if header is not None for size in header.sizes
        ]


def _channels(request: Request, known: Mapping[Path, Header]) -> int:
    """Returns how many channels all images are made: those that are asked for.

    Else 3 if any is in colour, and 1 if none is.
    """
    stored: dict[int, Path] = {}
    for file, header in known.items():
        stored.setdefault(header.channels, file)
    several = [channels for channels in stored if channels not in (1, 3)]
    asked = request.config.channels
    if not several:
        return asked or max(stored, default=1)
    first = several[0]
    if asked not in (None, first):
        raise ConfigError(
            "channels",
            asked,
            f"{stored[first]} has {first} channels, which cannot be made {asked}; leave it out",
        )
    if len(stored) > 1:
        other = next(channels for channels in stored if channels != first)
        found = f"{stored[first]} has {first} channels and {stored[other]} {other}"
        raise request.error(
            f"{found}; give --tiff pages if the planes of a file are examples, or make them alike"
        )
    return first


def known_of_pairs(request: Request, survey: Survey) -> Properties:
    """Returns the properties of images with masks, which are filled up where they differ in size or
    a crop is larger.
    """
    known = Properties(augment=("flip", "flip_vertical"), dtype=survey.dtype)
    sizes = survey.sizes
    if request.config.image_size or not sizes:
        return known
    largest = (max(height for height, _ in sizes), max(width for _, width in sizes))
    sides = [
        word.removeprefix("crop:")
        for word in request.config.augment or ()
        if word.startswith("crop:")
    ]
    crops = [int(side) for side in sides if side.isdecimal()]
    wanted = (max(largest[0], *crops, 0), max(largest[1], *crops, 0))
    if len(set(sizes)) == 1 and wanted == largest:
        return dataclasses.replace(known, size=largest)
    padded = (-(-wanted[0] // _ALIGNMENT) * _ALIGNMENT, -(-wanted[1] // _ALIGNMENT) * _ALIGNMENT)
    median = float(np.median([height * width for height, width in sizes]))
    if padded[0] * padded[1] > _WASTEFUL * median:
        times = padded[0] * padded[1] / median
        _say(
            f"warning: {request.config.dataset}: images are filled up to {padded[0]}x{padded[1]}"
            f" pixels, {times:.0f} times the area of most of them; cut the large ones into tiles"
        )
    return dataclasses.replace(known, padded=padded)


def known_of_photographs(request: Request, survey: Survey) -> Properties:
    """Returns the properties of images in folders of classes.

    Those that differ in size are resized and cropped by default.
    """
    known, sizes = Properties(dtype=survey.dtype), survey.sizes
    if request.config.image_size or not sizes:
        return known
    if len(set(sizes)) == 1:
        return dataclasses.replace(known, size=sizes[0])
    shorter = float(np.median([min(size) for size in sizes]))
    side = max(
        (side for side in _PHOTOGRAPH_SIDES if side <= shorter), default=max(int(shorter), 1)
    )
    size, augment = f"resize_crop:{side}", ("flip", f"random_resized_crop:{side}")
    default = "" if request.config.augment is not None else f" and --augment {' '.join(augment)}"
    _say(
        f"note: {request.config.dataset}: images differ in size: --image-size {size}{default} by"
        " default"
    )
    defaults: dict[str, Any] = {"image_size": size}
    return dataclasses.replace(known, fit=ImageSize.parse(size), augment=augment, defaults=defaults)


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
