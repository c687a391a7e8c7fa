"""Finds the image files that a person names, reads them as a model takes them, and says what is
unlike the images of training: images that belong to no dataset.
"""

import collections
import concurrent.futures
import dataclasses
import pathlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from jaxdp.data.dataset import BadExample
from jaxdp.data.find_images import SUFFIXES, find_images
from jaxdp.data.image_file import Picture, is_tiff, pages_of, read_header, read_image
from jaxdp.data.resize import Resize
from jaxdp.data.sources import Description
from jaxdp.parsing import resolved, valid_text
from jaxdp.registry import ConfigError
from jaxdp.runtime import platform

Source = pathlib.Path | Picture
_KEPT_BYTES = 2**28  # of pixels that need not be decoded a second time
_FAR = 20  # deviations from the mean of a dataset at which pixels are hardly on its scale


@dataclasses.dataclass(frozen=True)
class ImageFile:
    """An image file, and the name under which its results are written.

    Attributes:
        path: as a person would write it.
        name: of what is written about it: without suffix, and relative to the folder that it was
            found in.
        picture: which image in the file, where it holds several.
    """

    path: pathlib.Path
    name: pathlib.PurePath
    picture: Picture | None = None

    @property
    def source(self) -> Source:
        return self.picture or self.path

    def __str__(self) -> str:
        return valid_text(str(self.source))


def find(
    paths: Sequence[str | pathlib.Path], leave_out: pathlib.Path | None = None
) -> list[ImageFile]:
    """Returns each file once: those named, and the images in the folders named and below them,
    sorted.

    Args:
        leave_out: folder that is passed over where it lies in one of those.

    Raises:
        ConfigError: for a path that does not exist, or a folder without images.
    """
    found: dict[pathlib.Path, ImageFile] = {}
    hidden = resolved(leave_out) if leave_out else None
    for path in map(pathlib.Path, paths):
        if path.is_dir():
            inside = sorted(find_images(path))
            if hidden and resolved(path) in hidden.parents:
                inside = [inner for inner in inside if hidden not in resolved(inner).parents]
            problem = f"no images in that folder; known suffixes: {' '.join(SUFFIXES)}"
            files = [ImageFile(inner, inner.relative_to(path).with_suffix("")) for inner in inside]
        else:
            problem = "no such file or folder"
            if path.exists():
                problem = "is no regular file; give images or folders"
            name = pathlib.PurePath(path.name).with_suffix("")
            files = [ImageFile(path, name)] if path.is_file() else []
        if not files:
            raise ConfigError("", path, f"{path}: {problem}")
        for file in files:
            found.setdefault(resolved(file.path), file)
    return list(found.values())


def check_names(files: Iterable[ImageFile]) -> None:
    """Raises ConfigError if two files have the same name, so that one's results would replace the
    other's.
    """
    taken: dict[pathlib.PurePath, ImageFile] = {}
    for file in files:
        other = taken.setdefault(file.name, file)
        if other is not file:
            remedy = (
                f"{other} and {file} would both be written as {file.name}-*.png; predict them one"
                " after the other, into two folders"
            )
            raise ConfigError("", file, remedy)


def pages(path: pathlib.Path, tiff: str | None) -> list[Picture]:
    """Returns the images in a file: the pages of a TIFF file.

    Args:
        tiff: `--tiff` of the run.
    """
    return pages_of(path, read_header(path, tiff) if is_tiff(path) else None, tiff)


def paged(files: Iterable[ImageFile], tiff: str | None) -> list[ImageFile]:
    """Returns the images in these files: a TIFF file may hold several."""
    found: list[ImageFile] = []
    for file in files:
        for picture in pages(file.path, tiff):
            page = "" if picture.page is None else f"[{picture.page}]"
            name = file.name.with_name(file.name.name + page)
            found.append(ImageFile(file.path, name, picture))
    return found


def read(
    path: Source,
    channels: int,
    dtype: str = "uint8",
    resize: Resize | None = None,
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Returns an image as (H, W, channels), as training reads it, and what that changed, e.g.
    `image_file.GREYED`.

    Args:
        resize: how training resized its images, if it did.

    Raises:
        BadExample: if it cannot be read, or has another depth or a number of channels that is not
            converted.
    """
    return read_image(path, path, channels, dtype, resize)


@dataclasses.dataclass(frozen=True)
class SurveyedImage:
    """Facts of a file that was read.

    Attributes:
        size: height and width.
        highest: pixel of each channel.
        changes: as `read` gives them.
        spread: the 0.1 % and 99.9 % percentiles of the pixels.
        pixels: as `read` gives them, of the first images as far as they take little memory
            together.
    """

    file: ImageFile
    size: tuple[int, ...]
    highest: tuple[float | int, ...]
    changes: tuple[str, ...]
    spread: tuple[float, ...] = ()
    pixels: np.ndarray | None = dataclasses.field(default=None, repr=False)


def survey(
    files: Sequence[ImageFile],
    read: Callable[[Source], tuple[np.ndarray, tuple[str, ...]]],
    left_out: Callable[[BadExample], None] | None,
) -> list[SurveyedImage]:
    """Reads every file once, so that a broken one is known before anything is computed or written.

    Args:
        read: as the function of this name, for the channels and the dtype of a run.
        left_out: callback for each file that cannot be used; None to raise.

    Raises:
        BadExample: for the first such file.
    """
    lock, free = threading.Lock(), _KEPT_BYTES

    def look(file: ImageFile) -> SurveyedImage | BadExample:
        nonlocal free
        try:
            pixels, changes = read(file.source)
        except BadExample as error:
            return error
        highest = tuple(pixels.max((0, 1)).tolist())
        spread = () if pixels.dtype == np.uint8 else np.percentile(pixels, (0.1, 99.9)).tolist()
        with lock:
            free -= pixels.nbytes
            kept = pixels if free >= 0 else None
        return SurveyedImage(file, pixels.shape[:2], highest, changes, tuple(spread), kept)

    known: list[SurveyedImage] = []
    # Decoding leaves the interpreter's lock.
    with concurrent.futures.ThreadPoolExecutor(min(8, platform.cores())) as pool:
        for result in pool.map(look, files):
            if isinstance(result, SurveyedImage):
                known.append(result)
            elif left_out is None:
                pool.shutdown(cancel_futures=True)
                raise result
            else:
                left_out(result)
    return known


def notes(
    known: Sequence[SurveyedImage], description: Description, *, resized: bool
) -> Iterator[str]:
    """Yields, once of each kind, what happens to the images before the model sees them, or should
    have happened.

    Args:
        resized: whether images are resized to the size that the model was trained at.
    """
    height, width, _ = description.image_shape
    changed: dict[str, list[SurveyedImage]] = collections.defaultdict(list)
    for image in known:
        for change in image.changes:
            changed[change].append(image)
        if resized and image.size != (height, width):
            size = f"not {height}x{width} pixels: resized, as the model was trained at that size"
            changed[size].append(image)
    for change, images in changed.items():
        verb = "is" if len(images) == 1 else "are"
        example = images[0].file
        yield f"note: {len(images)} of {len(known)} images {verb} {change} (e.g. {example})"
    if description.pixel_range is not None:
        yield from _outside(known, description.pixel_range)
        return
    for channel, (mean, std) in enumerate(zip(description.mean, description.std, strict=True)):
        image = max(known, key=lambda image: image.highest[channel])
        if image.highest[channel] > mean + _FAR * std:
            yield (
                f"warning: pixels go up to {image.highest[channel]} (in {image.file}), but those of"
                f" the run's dataset are {mean:g} on average and deviate by {std:g}; are these"
                " images on its scale?"
            )
            return


def _outside(known: Sequence[SurveyedImage], pixel_range: tuple[float, float]) -> Iterator[str]:
    """Yields a warning of images most of whose pixels lie beyond half a range outside that of the
    training set.
    """
    low, high = pixel_range
    margin = (high - low) / 2
    outside = [
        image
        for image in known
        if image.spread and (image.spread[0] < low - margin or image.spread[1] > high + margin)
    ]
    if outside:
        first, (darkest, brightest) = outside[0].file, outside[0].spread
        yield (
            f"warning: pixels of {len(outside)} of {len(known)} images lie far outside {low:g} to"
            f" {high:g}, the range of the run's dataset (e.g. {darkest:g} to {brightest:g} in"
            f" {first}); are these images on its scale?"
        )
