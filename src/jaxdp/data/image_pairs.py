"""Finds the folders of images and of masks, and the mask of each image."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from jaxdp.data.find_images import SUFFIXES, USUAL, find_foreign, find_images, is_hidden
from jaxdp.data.request import Request
from jaxdp.data.split_selection import usual_names
from jaxdp.text.console import say, warn
from jaxdp.text.messages import composed
from jaxdp.text.parsing import resolved

_OF_MASK = re.compile(
    r"([-_ ]cp)?[-_ ](masks?|labels?|annotations?|segmentations?|gt)(\.ome)?$", re.I
)
# Pictures that Cellpose saves beside its masks.
_NO_MASK = re.compile(r"_(outlines|flows|dP|cp_output)_cp_masks$")
# Suffixes of names that an image and its mask need not share.
_END = re.compile(rf"{_OF_MASK.pattern}|([-_ ](image|img))?(\.ome)?$", re.I)
_FIRST_CHANNEL = "_0000"  # the suffix of nnU-Net's image names


def pair_folders(root: Path, folder: Path) -> tuple[Path, Path] | None:
    """Returns the folder of images and the folder of masks, or the same folder twice if the names
    of its files identify the masks; None otherwise.

    Args:
        root: of the dataset.
        folder: the folder of a split, or the root.
    """
    present = subfolders(folder)
    images, masks = (usual_names(names, present) for names in USUAL["folders"].values())
    # If only one of them exists, a pair in the other form is incomplete.
    if (images and masks) or (len(present) == 1 and (images or masks)):
        return folder / [*images, "images"][0], folder / [*masks, "masks"][0]
    if with_masks(present) == present and present:
        return folder / present[0], folder / present[1]
    if not present and folder != root:
        for name in subfolders(root):
            if name != folder.name and _OF_MASK.sub("", name) == folder.name:
                return folder, root / name
    if not present and any(_OF_MASK.search(file.stem) for file in find_images(folder)):
        return folder, folder
    return None


def find_pairs(request: Request, root: Path, folder: Path) -> list[tuple[Path | None, Path | None]]:
    """Returns the images and masks of a split, with None for a missing image or mask.

    Raises:
        ConfigError: for a folder without pairs, and for two files with the same name.
    """
    places = pair_folders(root, folder) or (folder / "images", folder / "masks")
    images, masks = (_by_stem(request, place) for place in places)
    said = f"{places[0].name}/ holds the images, {places[1].name}/ the masks"
    if places[0] == places[1]:
        said = "files called NAME_mask or the like are masks, and all others images"
        masks = {stem: images.pop(stem) for stem in masks if _OF_MASK.search(stem)}
    if not images or not masks:
        raise request.error(
            find_foreign(folder)
            or f"{places[0]} holds {len(images) or 'no'} images and {places[1]}"
            f" {len(masks) or 'no'} masks; a mask has the name of its image, and is a picture:"
            f" {', '.join(SUFFIXES)}"
        )
    # Only JPEG suffixes begin in this way.
    if jpeg := [file for file in masks.values() if file.suffix.lower().startswith(".j")]:
        warn(f"JPEG changes the numbers in masks, e.g. in {jpeg[0]}; save masks as PNG or TIFF")
    if gif := [file for file in masks.values() if file.suffix.lower() == ".gif"]:
        warn(f"programs renumber the colours of GIF, e.g. in {gif[0]}; save masks as PNG or TIFF")
    if said != "images/ holds the images, masks/ the masks":
        say(f"note: {request.config.dataset}: {said}")
    _rename_masks(images, masks)
    if not images.keys() & masks.keys():
        names = f"{next(iter(images.values()))} and {next(iter(masks.values()))}"
        raise request.error(f"no mask has the name of an image: {names}; rename the masks")
    return [(images.get(stem), masks.get(stem)) for stem in sorted(images.keys() | masks.keys())]


def _rename_masks(images: Mapping[str, Path], masks: dict[str, Path]) -> None:
    """Renames masks to the names of their images, if the names differ only in usual suffixes.

    Masks and images with equal names remain pairs.
    """
    unpaired = {_END.sub("", stem): stem for stem in masks if stem not in images}
    for stem in [stem for stem in images if stem not in masks]:
        core = _END.sub("", stem)
        for name in (core, core.removesuffix(_FIRST_CHANNEL)):
            if name in unpaired and stem not in masks:
                masks[stem] = masks.pop(unpaired.pop(name))


def _by_stem(request: Request, folder: Path) -> dict[str, Path]:
    """Returns the images in a folder by their names without suffix."""
    files: dict[str, Path] = {}
    for file in find_images(folder) if folder.is_dir() else ():
        stem = str(file.relative_to(folder).with_suffix(""))
        if _NO_MASK.search(stem):
            continue
        other = files.setdefault(composed(stem), file)
        if other != file and stem != str(other.relative_to(folder).with_suffix("")):
            raise request.error(two_spellings(file, other))
        if other != file:
            raise request.error(f"{other} and {file} have the same name; keep one of them")
    return files


def with_masks(names: Sequence[str]) -> list[str]:
    """Returns the names of a folder of images and a folder of masks; nothing if there are no such
    folders.
    """
    for name in names:
        image = _OF_MASK.sub("", name)
        if image != name and image in names:
            return [image, name]
    return []


def is_unlabelled(root: Path, folder: Path) -> bool:
    """Returns whether a folder holds pictures, but neither classes nor masks."""
    places, present = pair_folders(root, folder), subfolders(folder)
    if places is not None:
        return bool(find_images(places[0])) and not places[1].is_dir()
    return bool(find_images(folder)) and not any(find_images(folder / name) for name in present)


def two_spellings(one: Path, other: Path) -> str:
    """Returns the problem of names that look the same."""
    spelt = f"{one.name!a} and {other.name!a}"
    return f"{one} is there in two spellings of Unicode, {spelt}; keep one of them"


def subfolders(path: Path) -> list[str]:
    """Returns the names of the user's folders in a folder, sorted."""
    root = resolved(path)
    entries = [entry for entry in path.iterdir() if not is_hidden(entry.name) and entry.is_dir()]
    # A link to the folder itself, or to a folder above it, is not a class.
    return sorted(entry.name for entry in entries if resolved(entry) not in (root, *root.parents))
