"""Finds the image files in a folder."""

import os
import pathlib
from collections.abc import Callable, Iterator

from jaxdp.parsing import resolved
from jaxdp.registry import ConfigError

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


def is_hidden(name: str) -> bool:
    """Returns whether a file or folder of this name is not the user's own."""
    return name.startswith(".") or name == "__MACOSX"


def find_images(folder: pathlib.Path) -> list[pathlib.Path]:
    """Returns the images at any depth, in the order of their names, a folder before its subfolders.

    Hidden files and folders, files of other kinds, pipes and the like do not count. Links are
    followed, except to what is looked through anyway: no image counts twice because of them.
    """
    return list(_images_in(folder, resolved(folder), set()))


def _images_in(
    place: pathlib.Path, root: pathlib.Path, known: set[tuple[int, int]]
) -> Iterator[pathlib.Path]:
    """Yields the images in a folder and below.

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
            yield from _images_in(pathlib.Path(entry.path), root, known)


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
