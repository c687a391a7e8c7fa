"""Finds the image files in a folder."""

import collections
import os
import pathlib
import tomllib

from jaxdp.errors import ConfigError
from jaxdp.text.console import warn
from jaxdp.text.parsing import resolved

USUAL = tomllib.loads(pathlib.Path(__file__).with_name("usual_names.toml").read_text())
SUFFIXES = ".bmp .gif .jfif .jpeg .jpg .pbm .pgm .png .ppm .tif .tiff .webp".split()

# Suffixes of pictures that are not read.
_OF_MICROSCOPES = ".czi .dv .ims .lif .lsm .nd2 .oib .oif .oir .vsi .zvi".split()
_UNREAD = ".avif .cr2 .dcm .dng .heic .heif .jp2 .nef .nii .npy .svs".split() + _OF_MICROSCOPES
# How to convert files, by the ends of their names.
_CONVERSIONS = dict.fromkeys(
    _OF_MICROSCOPES,
    "is a microscope's own format; convert it to OME-TIFF, e.g. with bfconvert or Fiji's"
    " Bio-Formats Exporter",
) | {
    "_seg.npy": "is a pickle, which can run programs; save the masks in Cellpose as PNG or TIFF,"
    " or write np.load(FILE, allow_pickle=True).item()['masks'] as NAME_cp_masks.tif"
}


def is_hidden(name: str) -> bool:
    """Returns whether a file or folder with this name does not belong to the user."""
    return name.startswith(".") or name.lower() in USUAL["of_systems"]


def find_images(folder: pathlib.Path) -> list[pathlib.Path]:
    """Returns the images at any depth, in the order of their names, a folder before its subfolders.

    Ignores hidden files and folders, other files, and pipes. Follows links, except links to folders
    that are searched in any case, so that no image counts twice.

    Raises:
        ConfigError: for a folder that cannot be read.
    """

    def refuse(error: OSError) -> None:
        problem = f"{error.filename}: the folder cannot be read ({error.strerror})"
        raise ConfigError("", error.filename, problem) from error

    root, images = resolved(folder), list[pathlib.Path]()
    searched = set[tuple[int, int]]()  # device and number of each folder
    for name, folders, files in os.walk(folder, followlinks=True, onerror=refuse):
        place, status = pathlib.Path(name), os.stat(name)
        if (status.st_dev, status.st_ino) in searched:
            folders.clear()
            continue
        searched.add((status.st_dev, status.st_ino))
        folders[:] = sorted(
            each for each in folders if not is_hidden(each) and not _leads_back(place / each, root)
        )
        paths = [place / each for each in sorted(files) if not is_hidden(each)]
        images += [
            path for path in paths if path.suffix.lower() in SUFFIXES and os.path.isfile(path)
        ]
    return images


def warn_of_unread(folder: pathlib.Path) -> None:
    """Warns of pictures in formats that are not read."""
    names = (name.lower() for _, _, files in os.walk(folder) for name in files)
    count = collections.Counter(
        os.path.splitext(name)[1] for name in names if not name.endswith("_seg.npy")
    )
    kinds = [f"{suffix} {count[suffix]}" for suffix in _UNREAD if count[suffix]]
    if kinds:
        remedy = find_foreign(folder) or f"save them as one of {' '.join(SUFFIXES)}"
        warn(f"{folder}: {', '.join(kinds)} are not read; {remedy}")


def conversion(path: object) -> str:
    """Returns how to convert a file of a microscope or of Cellpose, or nothing for other files."""
    name = str(path).lower()
    return next((way for end, way in _CONVERSIONS.items() if name.endswith(end)), "")


def find_foreign(folder: pathlib.Path) -> str:
    """Returns the first file in a folder that must be converted, and how; or nothing."""
    found = (f"{path} {way}" for path in sorted(folder.rglob("*")) if (way := conversion(path)))
    return next(found, "")


def _leads_back(path: pathlib.Path, root: pathlib.Path) -> bool:
    """Returns whether a path is a link to the folder in which the search began, to a folder above
    it, or to a folder in it, which is searched in any case.
    """
    if not path.is_symlink():
        return False
    target = resolved(path)
    if root in target.parents:
        return not any(map(is_hidden, target.relative_to(root).parts))
    return target == root or target in root.parents
