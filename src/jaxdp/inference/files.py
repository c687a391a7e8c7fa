"""Finds the image files that the user names, reads them for a model, and reports differences from
the training images. These images do not belong to a dataset.
"""

import collections
import concurrent.futures
import dataclasses
import pathlib
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from jaxdp.data.find_images import SUFFIXES, find_foreign, find_images
from jaxdp.data.image_file import Picture, is_tiff, pages_of, pixel_size, read_headers
from jaxdp.data.source import BadExample
from jaxdp.errors import ConfigError, flag
from jaxdp.inference.predictor import SAME_SCALE, Predictor
from jaxdp.runtime import platform
from jaxdp.text.console import say, warn
from jaxdp.text.messages import valid_text
from jaxdp.text.parsing import resolved

_KEPT_BYTES = 2**28  # bytes of pixels that need not be decoded a second time
# Standard deviations from the mean of a dataset at which pixels are probably on another scale.
_FAR = 20
_DARK = 4  # factor by which an image is darker than a dataset, with correspondingly less contrast
# How pixels differ from a dataset, and the remedy.
_OUTSIDE = ("lie far outside the range of", "are these images on its scale?")
_DARKER = (
    "are less than a quarter as bright as in",
    f"scale them, or train with {flag('normalize', 'image')}",
)
_INVERTED = ("are bright where they are dark in", "are these images inverted?")


@dataclasses.dataclass(frozen=True)
class ImageFile:
    """An image in a file, and the name under which its results are written.

    Attributes:
        picture: its location, as a person would write it.
        name: name of its results, without suffix, and relative to the folder in which it was found.
        whole: name of the results of all images of its file, which is the name without a page.
    """

    picture: Picture
    name: pathlib.PurePath
    whole: pathlib.PurePath

    def __str__(self) -> str:
        return valid_text(str(self.picture))


def find(
    paths: Sequence[str | pathlib.Path],
    leave_out: pathlib.Path | None = None,
    tiff: str | None = None,
) -> list[ImageFile]:
    """Returns each image once, sorted: the images in the named files, and in and below the named
    folders.

    Args:
        leave_out: folder that is skipped if it is in one of these folders.
        tiff: `--tiff` of the run, because a TIFF file may hold several images.

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
            known = f"known suffixes: {' '.join(SUFFIXES)}"
            problem = f"no images in that folder; {find_foreign(path) or known}"
            files = [(inner, inner.relative_to(path)) for inner in inside]
        elif not path.exists():
            problem = "no such file or folder"
        if not files:
            raise ConfigError("", path, f"{path}: {problem}")
        for file, name in files:
            # A file store may keep equal files once, so links to it count as separate files.
            place = resolved(file.parent) / file.name
            found.setdefault(place, (file, name.with_suffix("")))
    headers = read_headers((file for file, _ in found.values() if is_tiff(file)), tiff)
    return [
        ImageFile(
            picture, name if page is None else name.with_name(f"{name.name}-page{page}"), name
        )
        for file, name in found.values()
        for picture in pages_of(file, headers.get(file), tiff)
        for page in [picture.page]
    ]


def check_names(files: Iterable[ImageFile], *, whole: bool = False) -> None:
    """Raises ConfigError if two files have the same name, so that the results of one would replace
    the results of the other.

    Args:
        whole: whether some results are for whole files.
    """
    taken: dict[pathlib.PurePath, ImageFile] = {}
    for file in files:
        for name in (file.name, file.whole) if whole else (file.name,):
            other = taken.setdefault(name, file)
            if other.picture.path != file.picture.path:
                remedy = (
                    f"{other} and {file} would both be written as {name}-*; predict them one after"
                    " the other, into two folders"
                )
                raise ConfigError("", file, remedy)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SurveyedImage:
    """Facts of an image that was read.

    Attributes:
        file: an `ImageFile`, or the name of an array.
        size: height and width.
        changes: the conversions of the image when it was read, e.g. `image_file.GREYED`.
        span: the smallest and the largest pixel. If pixels have more than 8 bits, 0.1% on both
            sides is excluded.
        mean, std: of all pixels.
        pixels: pixels of the first images, as long as they take little memory together.
        pixel_size: height and width of a pixel in micrometres; empty if its file has none, and
            None for an array.
    """

    file: Any
    size: tuple[int, ...]
    changes: tuple[str, ...]
    span: tuple[float, float]
    mean: float
    std: float
    pixels: np.ndarray | None = dataclasses.field(repr=False)
    pixel_size: Sequence[float] | None

    @classmethod
    def of(
        cls,
        file: Any,
        pixels: np.ndarray,
        changes: tuple[str, ...] = (),
        *,
        keep: bool = False,
        pixel_size: Sequence[float] | None = None,
    ) -> "SurveyedImage":
        """Returns the facts of pixels (height, width, channels)."""
        low, high = pixels.min(), pixels.max()
        if pixels.dtype != np.uint8:
            low, high = np.percentile(pixels, (0.1, 99.9))
        return cls(
            file=file,
            size=pixels.shape[:2],
            changes=changes,
            span=(float(low), float(high)),
            mean=float(pixels.mean(dtype=np.float64)),
            std=float(pixels.std(dtype=np.float64)),
            pixels=pixels if keep else None,
            pixel_size=pixel_size,
        )


def survey(
    files: Sequence[ImageFile], read: Callable[[Picture], tuple[np.ndarray, tuple[str, ...]]]
) -> tuple[list[SurveyedImage], list[BadExample]]:
    """Reads every file once, so that broken files are known before anything is computed or written.

    Args:
        read: returns the pixels of an image, and its conversions.

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
        with lock:
            free -= pixels.nbytes
            keep = free >= 0
        size = pixel_size(file.picture)
        return SurveyedImage.of(file, pixels, changes, keep=keep, pixel_size=size)

    # Decoding releases the GIL.
    with concurrent.futures.ThreadPoolExecutor(min(8, platform.cores())) as pool:
        results = list(pool.map(look, files))
    return (
        [result for result in results if isinstance(result, SurveyedImage)],
        [result for result in results if isinstance(result, BadExample)],
    )


def say_notes(known: Sequence[SurveyedImage], predictor: Predictor) -> None:
    """Prints, once of each kind, notes on the conversions of the images before prediction, on
    missing conversions, and on tiles.
    """
    height, width, _ = predictor.description.image_shape
    changed: dict[str, list[SurveyedImage]] = collections.defaultdict(list)
    unlike: dict[tuple[str, str], list[SurveyedImage]] = collections.defaultdict(list)
    for image in known:
        for change in image.changes:
            changed[change].append(image)
        if predictor.resized and image.size != (height, width):
            size = f"not {height}x{width} pixels: resized, as the model was trained at that size"
            changed[size].append(image)
        if note := _scale_note(image, predictor):
            changed[note].append(image)
        if difference := _difference(image, predictor):
            unlike[difference].append(image)
    for change, images in changed.items():
        verb = "is" if len(images) == 1 else "are"
        held = f"{len(images)} of {len(known)} images {verb} {change}"
        say(f"note: {held} (e.g. {images[0].file})")
    for (difference, remedy), images in unlike.items():
        darkest, brightest = images[0].span
        warn(
            f"pixels of {len(images)} of {len(known)} images {difference} the run's dataset"
            f" (e.g. {darkest:g} to {brightest:g} in {images[0].file}); {remedy}"
        )
    if any(predictor.needs_tiles(image.size) for image in known) and predictor.reach is None:
        say(
            "note: what the model says of a pixel depends on the size of the image, or on pixels"
            " more than 1024 away: tiles do not quite give what the whole image would; larger ones"
            f" ({flag('tile')}) come nearer"
        )


def _scale_note(image: SurveyedImage, predictor: Predictor) -> str:
    """Returns what is done about the pixel size of an image."""
    own, trained = image.pixel_size, predictor.description.pixel_size
    if predictor.resized or own is None or not trained:
        return ""
    # One number for square pixels.
    now, then = ("x".join(dict.fromkeys(f"{side:.4g}" for side in size)) for size in (own, trained))
    if not own:
        return f"without a pixel size: taken for {then} \N{MICRO SIGN}m, as in training"
    if (predictor.scale(own) != 1).any():
        return f"resampled from {now} to {then} \N{MICRO SIGN}m per pixel, as in training"
    if np.allclose(own, trained, rtol=SAME_SCALE):
        return ""
    return f"of {now} \N{MICRO SIGN}m per pixel, too far from {then} in training to be resampled"


def _difference(image: SurveyedImage, predictor: Predictor) -> tuple[str, str] | None:
    """Returns how an image differs from the statistics of the training set, and the remedy."""
    description = predictor.description
    means, stds = description.stored_moments()
    low, high = description.pixel_range or (0.0, 255.0)
    lowest, highest = np.min(means - _FAR * stds), np.max(means + _FAR * stds)
    if description.pixel_range is not None:
        lowest, highest = low - (high - low) / 2, high + (high - low) / 2
    if image.span[0] < lowest or image.span[1] > highest:
        return _OUTSIDE
    if predictor.config.normalize != "channel":
        return None  # brightness does not matter, or the statistics describe other images
    mean, std = means.mean(), stds.mean()
    if image.mean < mean / _DARK and image.std < std / _DARK:
        return _DARKER
    off = abs(image.mean - mean)
    return _INVERTED if off > max(std, 2 * abs(low + high - image.mean - mean)) else None
