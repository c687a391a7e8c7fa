"""Finds the image files that a person names, and reads them as a model takes them: images that
belong to no dataset.
"""

import concurrent.futures
import dataclasses
import pathlib
import threading
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from jaxdp.data.dataset import BadExample
from jaxdp.data.find_images import SUFFIXES, find_images
from jaxdp.data.image_file import COLOURED as COLOURED
from jaxdp.data.image_file import FIRST as FIRST
from jaxdp.data.image_file import FLATTENED as FLATTENED
from jaxdp.data.image_file import GREYED as GREYED
from jaxdp.data.image_file import Picture, is_tiff, pages_of, read_header, read_image
from jaxdp.data.resize import Resize
from jaxdp.parsing import resolved, valid_text
from jaxdp.registry import ConfigError
from jaxdp.runtime import platform

_KEPT_BYTES = 2**28  # of pixels that need not be decoded a second time


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

    def __str__(self) -> str:
        return valid_text(str(self.picture or self.path))


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
            if not inside:
                raise ConfigError(
                    "",
                    path,
                    f"{path}: no images in that folder; known suffixes: {' '.join(SUFFIXES)}",
                )
            files = [ImageFile(inner, inner.relative_to(path).with_suffix("")) for inner in inside]
        elif path.exists() and not path.is_file():
            raise ConfigError("", path, f"{path}: is no regular file; give images or folders")
        elif path.exists():
            files = [ImageFile(path, pathlib.PurePath(path.name).with_suffix(""))]
        else:
            raise ConfigError("", path, f"{path}: no such file or folder")
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
            name = (
                file.name
                if picture.page is None
                else file.name.with_name(f"{file.name.name}[{picture.page}]")
            )
            found.append(ImageFile(file.path, name, picture))
    return found


def read(
    path: pathlib.Path | Picture,
    channels: int,
    dtype: str = "uint8",
    resize: Resize | None = None,
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Returns an image as (H, W, channels), as training reads it, and what that changed, e.g.
    GREYED.

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
    size: tuple[int, int]
    highest: tuple[float | int, ...]
    changes: tuple[str, ...]
    spread: tuple[float, float] = (0.0, 0.0)
    pixels: np.ndarray | None = dataclasses.field(default=None, repr=False)


def survey(
    files: Sequence[ImageFile],
    channels: int,
    left_out: Callable[[BadExample], None] | None,
    dtype: str = "uint8",
    resize: Resize | None = None,
) -> list[SurveyedImage]:
    """Reads every file once, so that a broken one is known before anything is computed or written.

    Args:
        left_out: callback for each file that cannot be used; None to raise.

    Raises:
        BadExample: for the first such file.
    """
    lock, room = threading.Lock(), _KEPT_BYTES

    def keeps(count: int) -> bool:
        nonlocal room
        with lock:
            room -= count
            return room >= 0

    def look(file: ImageFile) -> SurveyedImage | BadExample:
        try:
            pixels, changes = read(file.picture or file.path, channels, dtype, resize)
        except BadExample as error:
            return error
        low, high = (
            (0.0, 0.0) if dtype == "uint8" else map(float, np.percentile(pixels, (0.1, 99.9)))
        )
        highest = tuple(pixels.max((0, 1)).tolist())
        kept = pixels if keeps(pixels.nbytes) else None
        return SurveyedImage(
            file, (pixels.shape[0], pixels.shape[1]), highest, changes, (low, high), kept
        )

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
