"""Finds the image files that a person names, reads them as a model takes them, and says what is
unlike the images of training: images that belong to no dataset.
"""

import collections
import concurrent.futures
import dataclasses
import pathlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from PIL import Image

from jaxdp.data.dataset import BadExample
from jaxdp.data.find_images import SUFFIXES, find_images
from jaxdp.data.image_file import Picture, is_tiff, pages_of, read_header
from jaxdp.data.sources import Description
from jaxdp.inference.predictor import Predictor
from jaxdp.parsing import resolved, valid_text
from jaxdp.registry import ConfigError
from jaxdp.runtime import platform

_KEPT_BYTES = 2**28  # of pixels that need not be decoded a second time
_FAR = 20  # deviations from the mean of a dataset at which pixels are hardly on its scale


@dataclasses.dataclass(frozen=True)
class ImageFile:
    """An image in a file, and the name under which its results are written.

    Attributes:
        picture: where it is, as a person would write it.
        name: of what is written about it: without suffix, and relative to the folder that it was
            found in.
    """

    picture: Picture
    name: pathlib.PurePath

    def __str__(self) -> str:
        return valid_text(str(self.picture))


def find(
    paths: Sequence[str | pathlib.Path],
    leave_out: pathlib.Path | None = None,
    tiff: str | None = None,
) -> list[ImageFile]:
    """Returns each image once: those in the files named, and in the folders named and below them,
    sorted.

    Args:
        leave_out: folder that is passed over where it lies in one of those.
        tiff: `--tiff` of the run; a TIFF file may hold several images.

    Raises:
        ConfigError: for a path that does not exist, or a folder without images.
    """
    found: dict[pathlib.Path, tuple[pathlib.Path, pathlib.PurePath]] = {}
    hidden = resolved(leave_out) if leave_out else None
    for path in map(pathlib.Path, paths):
        files = [(path, pathlib.PurePath(path.name))] if path.is_file() else []
        problem = "is no regular file; give images or folders"
        if path.is_dir():
            inside = sorted(find_images(path))
            if hidden and resolved(path) in hidden.parents:
                inside = [inner for inner in inside if hidden not in resolved(inner).parents]
            problem = f"no images in that folder; known suffixes: {' '.join(SUFFIXES)}"
            files = [(inner, inner.relative_to(path)) for inner in inside]
        elif not path.exists():
            problem = "no such file or folder"
        if not files:
            raise ConfigError("", path, f"{path}: {problem}")
        for file, name in files:
            found.setdefault(resolved(file), (file, name.with_suffix("")))
    return [
        ImageFile(picture, name.with_name(name.name + str(picture)[len(str(file)) :]))
        for file, name in found.values()
        for picture in pictures(file, tiff)
    ]


def read_given(images: Iterable[Any], predictor: Predictor) -> Iterator[np.ndarray]:
    """Yields the pixels (height, width, channels) of images that a program gives.

    Args:
        images: files, folders, Pillow's images, arrays (height, width, channels) or (height,
            width).

    Raises:
        ConfigError: for a path that does not exist, or an image that cannot be used.
    """
    for image in images:
        if isinstance(image, str | pathlib.Path):
            for file in find([image], tiff=predictor.config.tiff):
                yield predictor.read(file.picture)[0]
        elif isinstance(image, Image.Image):
            yield predictor.read(image)[0]
        else:
            array = np.asarray(image)
            yield array[..., None] if array.ndim == 2 else array


def pictures(path: pathlib.Path, tiff: str | None) -> list[Picture]:
    """Returns the images in a file: the pages of a TIFF file."""
    return pages_of(path, read_header(path, tiff) if is_tiff(path) else None, tiff)


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


@dataclasses.dataclass(frozen=True)
class SurveyedImage:
    """Facts of a file that was read.

    Attributes:
        size: height and width.
        changes: what became of the image as it was read, e.g. `image_file.GREYED`.
        span: the least and the largest pixel, but for 0.1% on both sides where pixels have more
            than 8 bits.
        pixels: of the first images as far as they take little memory together.
    """

    file: ImageFile
    size: tuple[int, ...]
    changes: tuple[str, ...]
    span: tuple[float, float]
    pixels: np.ndarray | None = dataclasses.field(repr=False)


def survey(
    files: Sequence[ImageFile], read: Callable[[Picture], tuple[np.ndarray, tuple[str, ...]]]
) -> tuple[list[SurveyedImage], list[BadExample]]:
    """Reads every file once, so that a broken one is known before anything is computed or written.

    Args:
        read: returns the pixels of an image, and what reading changed.

    Returns:
        The images, and the errors of the files that cannot be used.
    """
    lock, free = threading.Lock(), _KEPT_BYTES

    def look(file: ImageFile) -> SurveyedImage | BadExample:
        nonlocal free
        try:
            pixels, changes = read(file.picture)
        except BadExample as error:
            return error
        low, high = np.percentile(pixels, (0, 100) if pixels.dtype == np.uint8 else (0.1, 99.9))
        with lock:
            free -= pixels.nbytes
            kept = pixels if free >= 0 else None
        return SurveyedImage(file, pixels.shape[:2], changes, (float(low), float(high)), kept)

    # Decoding leaves the interpreter's lock.
    with concurrent.futures.ThreadPoolExecutor(min(8, platform.cores())) as pool:
        results = list(pool.map(look, files))
    return (
        [result for result in results if isinstance(result, SurveyedImage)],
        [result for result in results if isinstance(result, BadExample)],
    )


def notes(known: Sequence[SurveyedImage], predictor: Predictor) -> Iterator[str]:
    """Yields, once of each kind, what happens to the images before the model sees them, or should
    have happened, and whether tiles stand for them.
    """
    height, width, _ = predictor.description.image_shape
    changed: dict[str, list[SurveyedImage]] = collections.defaultdict(list)
    for image in known:
        for change in image.changes:
            changed[change].append(image)
        if predictor.resized and image.size != (height, width):
            size = f"not {height}x{width} pixels: resized, as the model was trained at that size"
            changed[size].append(image)
    for change, images in changed.items():
        verb = "is" if len(images) == 1 else "are"
        example = images[0].file
        yield f"note: {len(images)} of {len(known)} images {verb} {change} (e.g. {example})"
    low, high = _expected(predictor.description)
    outside = [image for image in known if image.span[0] < low or image.span[1] > high]
    if outside:
        darkest, brightest = outside[0].span
        yield (
            f"warning: pixels of {len(outside)} of {len(known)} images lie far outside the range of"
            f" the run's dataset (e.g. {darkest:g} to {brightest:g} in {outside[0].file}); are"
            " these images on its scale?"
        )
    if any(predictor.needs_tiles(image.size) for image in known) and predictor.reach is None:
        yield (
            "note: what the model says of a pixel depends on the size of the image, or on pixels"
            " more than 1024 away: tiles do not quite give what the whole image would; larger ones"
            " (--tile) come nearer"
        )


def _expected(description: Description) -> tuple[float, float]:
    """Returns the range of pixels that are on the scale of a dataset."""
    if description.pixel_range is not None:
        low, high = description.pixel_range
        return low - (high - low) / 2, high + (high - low) / 2
    mean, far = np.array(description.mean), _FAR * np.array(description.std)
    return float(np.min(mean - far)), float(np.max(mean + far))
