"""Determines how the images of a dataset are brought to one size. Resizes, crops, frames or pads
images and their masks, in the same way in training, evaluation and prediction.
"""

import dataclasses
import re
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from PIL import Image

from jaxdp.config import DataConfig
from jaxdp.data.dataset import IGNORE_LABEL, PAD_LABEL, Dataset
from jaxdp.data.source import Example, Size
from jaxdp.errors import ConfigError, flag
from jaxdp.text.console import say_again, warn_again

_LARGEST_SIDE = 16384
_FORM = re.compile(
    r"(?:(?P<height>\d{1,9})x(?P<width>\d{1,9})"
    r"|(?:(?P<fit>resize_crop|letterbox):)?(?P<side>\d{1,9})(?:/(?P<shorter>\d{1,9}))?)"
    r"(?P<bicubic>:bicubic)?",
    re.ASCII,
)
_FORMS = (
    "must be N or HxW in pixels, e.g. 64 or 48x64, or resize_crop:N or letterbox:N, of at most"
    f" {_LARGEST_SIDE}; or resize_crop:N/M, and :bicubic after any of these"
)
_LONGEST_SIDE = 2**18
_FACTORS = (8, 4, 2)  # scales at which JPEG files can be decoded
_SPARE = 2
_PHOTOGRAPH_SIDES = (16, 32, 48, 64, 96, 128, 160, 192, 224)
_WASTEFUL = 16  # times the median area
_ALIGNMENT = 16  # sides of padded images, which four poolings by two divide


@dataclasses.dataclass(frozen=True)
class Resize:
    """How images are brought to one size.

    Attributes:
        size: height and width.
        kind: `stretch` resizes to height and width; `resize_crop` resizes the shorter side and
            crops the middle; `letterbox` resizes the longer side and adds black
            bars at both ends of the shorter side; `pad` mirrors smaller images at the bottom and
            right, and ignores the masks of the padding.
        shorter: to what `resize_crop` resizes the shorter side; None for the side of the crop.
        bicubic: whether the interpolation is bicubic instead of bilinear.
    """

    size: Size
    kind: Literal["stretch", "resize_crop", "letterbox", "pad"] = "stretch"
    shorter: int | None = None
    bicubic: bool = False

    @classmethod
    def parse(cls, text: str) -> "Resize":
        """Reads `N`, `HxW`, `resize_crop:N`, `resize_crop:N/M` or `letterbox:N`, and `:bicubic`
        after any of these.

        Raises ConfigError for anything else.
        """
        match = _FORM.fullmatch(text)
        if match is None:
            raise ConfigError("image_size", text, _FORMS)
        height, width = (int(match[name] or match["side"]) for name in ("height", "width"))
        shorter = int(match["shorter"]) if match["shorter"] else None
        is_crop = match["fit"] == "resize_crop"
        sides = (height, width, shorter if shorter is not None else height)
        if not all(0 < side <= _LARGEST_SIDE for side in sides) or (shorter and not is_crop):
            raise ConfigError("image_size", text, _FORMS)
        if shorter is not None and shorter < height:
            remedy = f"crops {height} pixels of a shorter side of {shorter}; swap them"
            raise ConfigError("image_size", text, remedy)
        kind: Any = match["fit"] or "stretch"
        return cls((height, width), kind, shorter, match["bicubic"] is not None)

    def __str__(self) -> str:
        """What `parse` reads."""
        height, width = self.size
        text = f"{height}x{width}" if self.kind == "stretch" else f"{self.kind}:{height}"
        if self.shorter is not None:
            text += f"/{self.shorter}"
        return text + ":bicubic" * self.bicubic

    @classmethod
    def of(cls, config: DataConfig, task: str) -> "Resize | None":
        """Returns the resize of `--image-size`, if it is set.

        Raises ConfigError for a task with predictions of the size of the original image.
        """
        if config.image_size is None:
            return None
        resize = cls.parse(config.image_size)
        if resize.kind != "stretch" and task != "classification":
            remedy = f"is for classification, not for {task}; give N or HxW"
            raise ConfigError("image_size", config.image_size, remedy)
        return resize

    def reduction(self, size: Size) -> int:
        """Returns the largest divisor of 1, 2, 4 and 8 with which an image of this size stays at
        least twice as large as its resized size; 1 for bicubic interpolation, which is for the
        pixels that published weights were measured with.

        A JPEG file that is decoded at this fraction of its size gives nearly the same resized
        pixels, because two or more decoded pixels still become one.
        """
        if self.bicubic:
            return 1
        for factor in _FACTORS:
            reduced = (-(-size[0] // factor), -(-size[1] // factor))
            wanted = self._resized(reduced)
            large = all(have >= _SPARE * want for have, want in zip(reduced, wanted, strict=True))
            # Rounded up, its sides may have another ratio.
            if large and wanted == self._resized(size):
                return factor
        return 1

    def keeps(self, size: Size) -> bool:
        """Returns whether images of this size stay as they are."""
        return size == self.size and self.shorter in (None, self.size[0])

    def _resized(self, size: Size) -> Size:
        """Returns the size to which an image is resized, before it is cropped or framed."""
        height, width = size
        if self.kind == "pad":
            return size
        if self.kind == "stretch" or (size == self.size and self.shorter is None):
            return self.size
        side = self.shorter or self.size[0]
        shorter, longer = sorted(size)
        if self.kind == "resize_crop":
            new = (side, int(side * longer / shorter))
        else:
            new = (max(round(side * shorter / longer), 1), side)
        return new if height <= width else (new[1], new[0])

    def apply_to(self, example: Example) -> Example:
        """Returns an example with image, mask and target at the size."""
        return example | {
            name: self.apply(example[name], mask=name == "masks")
            for name in example.keys() & {"images", "masks", "targets"}
        }

    def apply(self, pixels: np.ndarray, *, mask: bool = False) -> np.ndarray:
        """Returns pixels (H, W, C) or (H, W) at the size. Masks are not interpolated.

        Source: for `resize_crop` the arithmetic of torchvision's Resize(M) and CenterCrop(N).
        """
        if self.kind == "pad":
            label = (IGNORE_LABEL if pixels.dtype == np.uint8 else PAD_LABEL) if mask else None
            return pad(pixels, self.size, value=label)
        height, width = pixels.shape[:2]
        new, side = self._resized((height, width)), self.size[0]
        if max(new) > _LONGEST_SIDE:  # for a line of pixels, in a file of a few hundred bytes
            remedy = (
                f"an image of {height}x{width} pixels would become {min(new)}x{max(new)} before it"
                " is cropped; leave it out"
            )
            raise ConfigError("image_size", f"{self.kind}:{side}", remedy)
        resized = resize_to(pixels, new, nearest=mask, bicubic=self.bicubic)
        if new == self.size:
            return resized
        if self.kind == "resize_crop":
            top, left = (round((have - side) / 2) for have in resized.shape[:2])
            return resized[top : top + side, left : left + side]
        missing = [side - have for have in resized.shape[:2]]
        bars = [(count // 2, count - count // 2) for count in missing]
        return np.pad(resized, bars + [(0, 0)] * (pixels.ndim - 2))


def resize_to(
    pixels: np.ndarray, size: tuple[int, ...], *, nearest: bool = False, bicubic: bool = False
) -> np.ndarray:
    """Returns (H, W, C) or (H, W) at another size, with antialiased bilinear or bicubic
    interpolation, or with the nearest pixel for masks.
    """
    if pixels.shape[:2] == size:
        return pixels
    if pixels.ndim == 3 and (pixels.shape[2] not in (1, 3) or pixels.dtype != np.uint8):
        channels = np.moveaxis(pixels, -1, 0)
        planes = [resize_to(each, size, nearest=nearest, bicubic=bicubic) for each in channels]
        return np.stack(planes, axis=-1)
    smooth = Image.Resampling.BICUBIC if bicubic else Image.Resampling.BILINEAR
    method = Image.Resampling.NEAREST if nearest else smooth
    width_height = (size[1], size[0])
    if pixels.dtype != np.uint8:
        image = Image.fromarray(pixels.astype(np.float32)).resize(width_height, method)
        resized = np.asarray(image)
        if pixels.dtype.kind == "f":
            return resized
        ends = np.iinfo(pixels.dtype)  # which bicubic interpolation exceeds
        return resized.round().clip(ends.min, ends.max).astype(pixels.dtype)
    image = Image.fromarray(pixels[..., 0] if pixels.shape[2:] == (1,) else pixels)
    return np.asarray(image.resize(width_height, method)).reshape(*size, *pixels.shape[2:])


def pad(pixels: np.ndarray, size: tuple[int, ...], *, value: int | None = None) -> np.ndarray:
    """Returns (H, W, ...) padded to `size` at the bottom and right, by mirroring as often as
    required, or with a value.
    """
    missing = [(0, max(want - have, 0)) for want, have in zip(size, pixels.shape[:2], strict=True)]
    widths = missing + [(0, 0)] * (pixels.ndim - 2)
    if not any(after for _, after in missing):
        return pixels
    if value is not None:
        return np.pad(pixels, widths, constant_values=value)
    return np.pad(pixels, widths, mode="symmetric")


def plan_resize(
    dataset: Dataset, sizes: Sequence[Size], config: DataConfig
) -> tuple[Resize | None, Dataset]:
    """Returns how images are brought to one size, and the dataset with the resulting defaults.

    Args:
        sizes: sizes of all images; empty if headers do not contain them.
    """
    asked = Resize.of(config, dataset.answer)
    differ = len(set(sizes)) > 1
    if asked is not None and differ and "image_size" in config.filled:  # by weights
        return asked, dataclasses.replace(dataset, augment=default_of_photos(asked, config))
    if asked is not None or not sizes:
        return asked, dataset
    if dataset.task == "segmentation":
        return _plan_padding(sizes, config), dataset
    if not differ:
        return None, dataset
    shorter = float(np.median([min(size) for size in sizes]))
    fitting = [side for side in _PHOTOGRAPH_SIDES if side <= shorter]
    side = max(fitting, default=max(int(shorter), 1))
    text, augment = f"resize_crop:{side}", ("flip", f"random_resized_crop:{side}")
    used = flag("image_size", text)
    used += "" if config.augment is not None else f" and {flag('augment', augment)}"
    say_again(f"note: {config.dataset}: images differ in size: {used} by default")
    defaults = {**dataset.defaults, "image_size": text}
    return Resize.parse(text), dataclasses.replace(dataset, augment=augment, defaults=defaults)


def default_of_photos(resize: Resize, config: DataConfig) -> tuple[str, ...]:
    """Returns the default augmentation of photos, and prints it unless another is given."""
    augment = ("flip", f"random_resized_crop:{resize.size[0]}")
    if config.augment is None:
        say_again(f"note: {config.dataset}: {flag('augment', augment)} by default")
    return augment


def _plan_padding(sizes: Sequence[Size], config: DataConfig) -> Resize | None:
    """Returns how images with masks are padded if they differ in size or if a crop is larger."""
    words = [word.partition(":") for word in config.augment or ()]
    crops = [int(side) for name, _, side in words if name == "crop" and side.isdecimal()]
    largest = [max(sides) for sides in zip(*sizes, strict=True)]
    wanted = [max(side, *crops, 0) for side in largest]
    if len(set(sizes)) == 1 and wanted == largest:
        return None
    height, width = (-(-side // _ALIGNMENT) * _ALIGNMENT for side in wanted)
    times = height * width / float(np.median([height * width for height, width in sizes]))
    if times > _WASTEFUL:
        warn_again(
            f"{config.dataset}: images are padded to {height}x{width} pixels, {times:.0f} times the"
            " area of most of them; cut the large ones into tiles"
        )
    return Resize((height, width), "pad")
