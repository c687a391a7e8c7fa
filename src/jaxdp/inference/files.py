"""Finds the image files that the user names, reads them for a model, and reports differences from
the training images. These images do not belong to a dataset.
"""

import collections
import concurrent.futures
import dataclasses
import itertools
import math
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
from jaxdp.text.messages import some, valid_text
from jaxdp.text.parsing import resolved

_AT_A_TIME = 16  # files that a thread reads
_KEPT_BYTES = 2**28  # bytes of pixels that need not be decoded a second time
# Share of the contrast of training images by which the mean of any image may differ, and the factor
# by which its contrast may.
_SHIFT, _FACTOR = 0.25, 1.25


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
    folders: dict[pathlib.Path, pathlib.Path] = {}  # without links
    hidden = resolved(leave_out) if leave_out else None
    for path in map(pathlib.Path, paths):
        files = [(path, pathlib.PurePath(path.name))] if path.is_file() else []
        problem = "is no regular file; give images or folders"
        if path.is_dir():
            # Paths are compared by their parts, which a key computes once for each path.
            inside = sorted(find_images(path), key=lambda inner: inner.parts)
            if hidden and resolved(path) in hidden.parents:
                inside = [inner for inner in inside if hidden not in resolved(inner).parents]
            if not inside:
                known = f"known suffixes: {' '.join(SUFFIXES)}"
                problem = f"no images in that folder; {find_foreign(path) or known}"
            files = [(inner, inner.relative_to(path)) for inner in inside]
        elif not path.exists():
            problem = "no such file or folder"
        if not files:
            raise ConfigError("", path, f"{path}: {problem}")
        for file, name in files:
            # A file store may keep equal files once, so links to it count as separate files.
            parent = file.parent
            if parent not in folders:
                folders[parent] = resolved(parent)
            found.setdefault(folders[parent] / file.name, (file, name.with_suffix("")))
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
        mean, std: of all pixels.
        pixels: pixels of the first images, as long as they take little memory together.
        pixel_size: height and width of a pixel in micrometres; empty if its file has none, and
            None for an array.
    """

    file: Any
    size: tuple[int, ...]
    changes: tuple[str, ...]
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
        values = pixels.astype(np.float64).ravel()
        mean = float(values.mean())
        values -= mean
        return cls(
            file=file,
            size=pixels.shape[:2],
            changes=changes,
            mean=mean,
            std=float(np.sqrt(values @ values / values.size)),
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

    # Decoding releases the GIL. A task for each file would take as long as reading a small one.
    parts = [files[first : first + _AT_A_TIME] for first in range(0, len(files), _AT_A_TIME)]
    with concurrent.futures.ThreadPoolExecutor(min(8, platform.cores())) as pool:
        found = pool.map(lambda part: [*map(look, part)], parts)
        results = [*itertools.chain.from_iterable(found)]
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
    unlike = list[str]()
    for image in known:
        for change in image.changes:
            changed[change].append(image)
        if predictor.resized and image.size != (height, width):
            size = f"not {height}x{width} pixels: resized, as the model was trained at that size"
            changed[size].append(image)
        if note := _scale_note(image, predictor):
            changed[note].append(image)
        if text := difference(image, predictor):
            unlike.append(f"{image.file} ({text})")
    for change, images in changed.items():
        verb = "is" if len(images) == 1 else "are"
        held = f"{len(images)} of {len(known)} images {verb} {change}"
        say(f"note: {held} (e.g. {images[0].file})")
    if unlike:
        warn(
            f"other intensities than in training may change the results of {len(unlike)} of"
            f" {len(known)} images: {some(unlike)}; scale them alike, or train with"
            f" {flag('normalize', 'image')}"
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


def difference(image: SurveyedImage, predictor: Predictor) -> str:
    """Returns how the intensities of an image differ from training, if that matters."""
    description, normalize = predictor.description, predictor.config.normalize
    if normalize == "image" or (normalize == "imagenet" and not description.spread):
        return ""
    mean, std = (moment.mean() for moment in description.stored_moments())
    # If they were not recorded, ends that frames of a film have.
    guessed = (mean - std / 2, mean + std / 2, std / 1.5, std * 1.5)
    darkest, brightest, flattest, steepest = description.spread or guessed
    shift = max(brightest - darkest, _SHIFT * steepest)
    factor = max(steepest / flattest, _FACTOR) if flattest else math.inf
    if not darkest - shift <= image.mean <= brightest + shift:
        return f"mean {image.mean:.5g}, in training {darkest:.5g} to {brightest:.5g}"
    # Resizing has changed the contrast.
    is_resized = predictor.resized or (predictor.scale(image.pixel_size) != 1).any()
    if is_resized or flattest / factor <= image.std <= steepest * factor:
        return ""
    return f"standard deviation {image.std:.4g}, in training {flattest:.4g} to {steepest:.4g}"
