"""Makes the images of a source one size: resized, cropped, framed or padded, and its masks
alike.
"""

import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
from PIL import Image

from jaxdp.data.dataset import IGNORE_LABEL, OUTSIDE, BadExample, Example, Source
from jaxdp.data.sources.images import Size
from jaxdp.registry import ConfigError

_LARGEST_SIDE = 16384
_LONGEST_SIDE = 2**18
_FACTORS = (8, 4, 2)  # by which JPEG files can be decoded smaller
_SPARE = 2


@dataclasses.dataclass(frozen=True)
class ImageSize:
    """What `--image-size` asks for.

    Attributes:
        kind: `stretch` resizes to height and width; `resize_crop` resizes the shorter side and
            crops the middle of the longer one; `letterbox` resizes the longer side and puts black
            bars beside the shorter one.
    """

    size: Size
    kind: Literal["stretch", "resize_crop", "letterbox"] = "stretch"

    @classmethod
    def parse(cls, text: str) -> "ImageSize":
        """Reads `N`, `HxW`, `resize_crop:N` or `letterbox:N`.

        Raises ConfigError for anything else.
        """
        match = re.fullmatch(r"([0-9]{1,9})(?:x([0-9]{1,9}))?", text)
        squared = re.fullmatch(r"(resize_crop|letterbox):([0-9]{1,9})", text)
        size = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if squared:
            size = (int(squared[2]), int(squared[2]))
        if not all(0 < side <= _LARGEST_SIDE for side in size):
            remedy = (
                "must be N or HxW in pixels, e.g. 64 or 48x64, or resize_crop:N or letterbox:N, of"
                f" at most {_LARGEST_SIDE}"
            )
            raise ConfigError("image_size", text, remedy)
        kind: Any = squared[1] if squared else "stretch"
        return cls(size, kind)

    @classmethod
    def asked(cls, text: str | None) -> "ImageSize | None":
        """Returns what `parse` does of a setting that may be missing."""
        return cls.parse(text) if text else None

    def check(self, task: str) -> "ImageSize":
        """Returns itself.

        Raises ConfigError for a task whose answers are images, which are made the size of the
        original.
        """
        if self.kind != "stretch" and task != "classification":
            text = f"{self.kind}:{self.size[0]}"
            raise ConfigError(
                "image_size", text, f"is for classification, not for {task}; give N or HxW"
            )
        return self

    def reduction(self, size: Size) -> int:
        """Returns the largest of 1, 2, 4 and 8 by which an image of this size stays at least twice
        as large as it is resized to.

        A JPEG file decoded at that part of its size is resized to hardly other pixels, since two or
        more of it still become one.
        """
        for factor in _FACTORS:
            reduced = (-(-size[0] // factor), -(-size[1] // factor))
            wanted = self._resized(reduced)
            large = all(have >= _SPARE * want for have, want in zip(reduced, wanted, strict=True))
            # Rounded up, its sides may have another ratio.
            if large and wanted == self._resized(size):
                return factor
        return 1

    def _resized(self, size: Size) -> Size:
        """Returns the size to which an image is resized, before it is cropped or framed."""
        height, width = size
        if self.kind == "stretch" or size == self.size:
            return self.size
        side = self.size[0]
        shorter, longer = sorted(size)
        larger, smaller = (
            (side, int(side * longer / shorter)),
            (max(round(side * shorter / longer), 1), side),
        )
        new = larger if self.kind == "resize_crop" else smaller
        return new if height <= width else (new[1], new[0])

    def apply(self, pixels: np.ndarray, *, nearest: bool = False) -> np.ndarray:
        """Returns pixels (H, W, C) or (H, W) at the size.

        Source: for `resize_crop` torchvision's Resize(N) and CenterCrop(N), of which it has the
        arithmetic.
        """
        height, width = pixels.shape[:2]
        new, side = self._resized((height, width)), self.size[0]
        if self.kind == "stretch" or (height, width) == self.size:
            return resize(pixels, new, nearest=nearest)
        if max(new) > _LONGEST_SIDE:  # of a line of pixels, in a file of a few hundred bytes
            remedy = (
                f"an image of {height}x{width} pixels would become {min(new)}x{max(new)} before it"
                " is cropped; leave it out"
            )
            raise ConfigError("image_size", f"{self.kind}:{side}", remedy)
        resized = resize(pixels, new, nearest=nearest)
        if self.kind == "resize_crop":
            top, left = (round((have - side) / 2) for have in resized.shape[:2])
            return resized[top : top + side, left : left + side]
        framed = np.zeros((side, side, *pixels.shape[2:]), pixels.dtype)
        top, left = ((side - have) // 2 for have in resized.shape[:2])
        framed[top : top + resized.shape[0], left : left + resized.shape[1]] = resized
        return framed


def resize(pixels: np.ndarray, size: Size, *, nearest: bool = False) -> np.ndarray:
    """Returns (H, W, C) or (H, W) at another size: antialiased bilinear, or the nearest pixel, as
    masks want it.
    """
    if pixels.shape[:2] == size:
        return pixels
    if pixels.ndim == 3 and (pixels.shape[2] not in (1, 3) or pixels.dtype != np.uint8):
        return np.stack(
            [
                resize(pixels[..., channel], size, nearest=nearest)
                for channel in range(pixels.shape[2])
            ],
            axis=-1,
        )
    method = Image.Resampling.NEAREST if nearest else Image.Resampling.BILINEAR
    if pixels.dtype != np.uint8:
        resized = np.asarray(
            Image.fromarray(pixels.astype(np.float32)).resize((size[1], size[0]), method)
        )
        return resized if pixels.dtype.kind == "f" else resized.round().astype(pixels.dtype)
    image = Image.fromarray(pixels[..., 0] if pixels.shape[2:] == (1,) else pixels)
    return np.asarray(image.resize((size[1], size[0]), method)).reshape(*size, *pixels.shape[2:])


def pad(pixels: np.ndarray, size: Size, *, value: int | None = None) -> np.ndarray:
    """Returns (H, W, ...) filled up to `size` at the bottom and on the right, mirrored as often as
    it takes, or with a value.
    """
    missing = [(0, max(want - have, 0)) for want, have in zip(size, pixels.shape[:2], strict=True)]
    widths = missing + [(0, 0)] * (pixels.ndim - 2)
    if not any(after for _, after in missing):
        return pixels
    if value is not None:
        return np.pad(pixels, widths, constant_values=value)
    return np.pad(pixels, widths, mode="symmetric")


@dataclasses.dataclass(frozen=True)
class Fitted:
    """A source whose pictures are made one size and whose masks are renumbered.

    Attributes:
        size: of images, masks and targets, or None to leave them.
        numbering: the class of each stored value of a mask, uint8 (256,), or None to leave them.
        padded: height and width that smaller images are filled up to, by mirroring; their masks by
            IGNORE_LABEL, or OUTSIDE where they are numbers of objects.
    """

    source: Source
    size: ImageSize | None = None
    numbering: np.ndarray | None = None
    padded: Size | None = None

    def __len__(self) -> int:
        return len(self.source)

    def name(self, index: int) -> str:
        return name(self.source, index)

    def __getitem__(self, index: int) -> Example:
        return self._fit(self.source[index], index)

    def __getitems__(self, numbers: Sequence[int]) -> Iterator[Example]:
        several: Any = getattr(self.source, "__getitems__", None)
        examples = several(numbers) if several else map(self.source.__getitem__, numbers)
        return (
            self._fit(example, number) for example, number in zip(examples, numbers, strict=True)
        )

    def _fit(self, example: Example, index: int) -> Example:
        mask = example.get("masks")
        if mask is not None and mask.shape != example["images"].shape[:2]:
            sizes = (
                f"{_times(mask.shape)} pixels, but its image {_times(example['images'].shape[:2])}"
            )
            raise BadExample(self.name(index), f"its mask has {sizes}")
        if mask is not None and self.numbering is not None:
            example = example | {"masks": self.numbering[mask]}
        if self.size is not None:
            pictures = {
                key: example[key] for key in ("images", "masks", "targets") if key in example
            }
            example = example | {
                key: self.size.apply(value, nearest=key == "masks")
                for key, value in pictures.items()
            }
        if self.padded is not None:
            example = example | {"images": pad(example["images"], self.padded)}
            if "masks" in example:
                beyond = IGNORE_LABEL if example["masks"].dtype == np.uint8 else OUTSIDE
                example["masks"] = pad(example["masks"], self.padded, value=beyond)
        return example


def name(source: Source, index: int) -> str:
    """Returns what an error calls an example: a source may know better than its number, e.g. a
    file.
    """
    named: Any = getattr(source, "name", None)
    return named(index) if named else f"example {index}"


def _times(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))
