"""Pictures in folders: a folder for each class, or `images` beside `masks`: `--dataset folder:PATH`."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxdp.data import sources
from jaxdp.data.sources import images
from jaxdp.data.sources.statistics import Properties, check_sizes, create_dataset, in_threads
from jaxdp.data.splits import held_out
from jaxdp.registry import ConfigError

_FOLDERS = {"train": ("train",), "validation": ("val", "validation"), "test": ("test",)}
_FORM = (
    "should hold a folder of pictures for each class, or the folders images and masks; either of them under train, val and "
    "test, or not"
)


@sources.register("folder")
def folder(request: sources.Request) -> sources.Dataset:
    """Returns what lies in train/, val/ (or validation/) and test/; without such parts a tenth of each class is test data.

    A class is a folder of pictures, however deep they lie in it; a mask has the name of its image. Hidden files and other kinds of
    files do not count.

    Raises:
        ConfigError: for a folder of another form, less than two classes, images of several sizes without `--image-size`, or names
            that fit nothing.
    """
    path = Path(request.argument).expanduser()
    if not request.argument or not path.is_dir():
        raise request.error("there is no such folder" if request.argument else "write folder:PATH")
    places = _split_folders(request, path)
    is_segmentation = _holds_pairs(next(iter(places.values())))
    task = request.choose("segmentation" if is_segmentation else "classification")
    if is_segmentation:
        parts: dict[str, _Pairs] | dict[str, _Pictures] = {split: _pairs(request, place) for split, place in places.items()}
        known = Properties(augment=("flip", "flip_vertical"))
    else:
        parts, names = _pictures(request, places)
        known = Properties(num_classes=len(names), class_names=names)
    if list(parts) == [""]:
        whole: Any = parts[""]
        parts = dict(zip(("train", "test"), whole.divided(), strict=True))
    sizes = {} if request.config.image_size else _sizes([file for part in parts.values() for file in part.files])
    check_sizes(request, sizes)
    known = dataclasses.replace(known, size=next(iter(sizes), None))
    train = parts["train"]
    return create_dataset(request, task, parts, known, train.mask if isinstance(train, _Pairs) else None)


@dataclasses.dataclass(frozen=True)
class _Pictures:
    """Pictures in the folders of their classes.

    Attributes:
        labels: of the files, in the same order.
    """

    files: list[Path]
    labels: list[int]

    def __len__(self) -> int:
        return len(self.files)

    def name(self, index: int) -> str:
        return str(self.files[index])

    def __getitem__(self, index: int) -> sources.Example:
        return {"images": images.decode_image(self.files[index], self.name(index)), "labels": self.labels[index]}

    def divided(self) -> "tuple[_Pictures, _Pictures]":
        """Returns training and test pictures."""
        rows = list(zip(self.files, self.labels, held_out(self.labels) if self.labels else [], strict=True))
        train, test = (
            _Pictures([file for file, _, held in rows if held == kind], [label for _, label, held in rows if held == kind])
            for kind in (False, True)
        )
        return train, test


@dataclasses.dataclass(frozen=True)
class _Pairs:
    """Images with a mask each.

    Attributes:
        pairs: image and mask; one of them is missing where the other has no partner.
    """

    pairs: list[tuple[Path | None, Path | None]]

    @property
    def files(self) -> list[Path]:
        return [image for image, _ in self.pairs if image is not None]

    def __len__(self) -> int:
        return len(self.pairs)

    def name(self, index: int) -> str:
        return str(next(filter(None, self.pairs[index])))

    def __getitem__(self, index: int) -> sources.Example:
        image, _ = self.pairs[index]
        if image is None:
            raise sources.BadExample(self.name(index), "is a mask without an image of the same name")
        mask = self.mask(index)
        return {"images": images.decode_image(image, image), "masks": mask}

    def mask(self, index: int) -> np.ndarray:
        _, mask = self.pairs[index]
        if mask is None:
            raise sources.BadExample(self.name(index), "is an image without a mask of the same name")
        return images.decode_mask(mask, mask)

    def divided(self) -> "tuple[_Pairs, _Pairs]":
        held = held_out(np.zeros(len(self), np.int32)) if self.pairs else np.zeros(0, bool)
        train, test = (_Pairs([pair for pair, out in zip(self.pairs, held, strict=True) if out == kind]) for kind in (False, True))
        return train, test


def _split_folders(request: sources.Request, path: Path) -> dict[str, Path]:
    """Returns the folder of each split, or under an empty name the one folder that holds all."""
    config, present = request.config, _folders(path)
    wanted = {
        "train": ("train_split", config.train_split),
        "validation": ("validation", request.validation_split),
        "test": ("test_split", config.test_split),
    }
    for flag, name in wanted.values():
        if name and "[" in name:
            raise ConfigError(flag, name, "a folder takes the name of a subfolder; without train and test, a tenth is held out")
        if name and name not in present:
            raise ConfigError(flag, name, f"there is no such folder in {path}; it holds {_listed(path)}")
    named = {name for _, name in wanted.values() if name}
    found = {
        split: name or next((folder for folder in _FOLDERS[split] if folder in present and folder not in named), None)
        for split, (_, name) in wanted.items()
    }
    if not any(found.values()):
        return {"": path}
    if config.validation == "none":
        found["validation"] = None
    others = [name for split, name in found.items() if name and split != "train"]
    if found["train"] is None:
        raise ConfigError("train_split", "train", f"{path} has {others[0]}, but no train; add it")
    if not others and request.validation_share is None:
        whole = path / found["train"]
        remedy = f"{path} has {found['train']}, but no test; add it, or give folder:{whole} to have a tenth of it held out"
        raise ConfigError("test_split", config.test_split or "test", remedy)
    return {split: path / name for split, name in found.items() if name}


def _pictures(request: sources.Request, places: dict[str, Path]) -> tuple[dict[str, _Pictures], tuple[str, ...]]:
    """Returns the pictures of each place, and the names of the classes, which are those of the first."""
    found = {}
    for split, place in places.items():
        classes = {name: images.find_pictures(place / name) for name in _folders(place)}
        found[split] = {name: files for name, files in classes.items() if files}
    first, place = next(iter(found.values())), next(iter(places.values()))
    if not first:
        raise request.error(f"{place} {_FORM}; it holds {_listed(place)}")
    for split, classes in found.items():
        unknown = sorted(classes.keys() - first.keys())
        if unknown:
            raise request.error(f"{places[split]} has classes of which {place} has no picture: {', '.join(unknown)}")
    parts, label_of = {}, {name: label for label, name in enumerate(first)}
    for split, classes in found.items():
        rows = [(file, label_of[name]) for name, files in classes.items() for file in files]
        parts[split] = _Pictures([file for file, _ in rows], [label for _, label in rows])
    return parts, tuple(first)


def _holds_pairs(place: Path) -> bool:
    return (place / "images").is_dir() and (place / "masks").is_dir()


def _pairs(request: sources.Request, place: Path) -> _Pairs:
    if not _holds_pairs(place):
        raise request.error(f"{place} has no folders images and masks; it holds {_listed(place)}")
    by_name: list[dict[str, Path]] = []
    for kind in ("images", "masks"):
        by_name.append({})
        for file in images.find_pictures(place / kind):
            stem = str(file.relative_to(place / kind).with_suffix(""))
            other = by_name[-1].setdefault(stem, file)
            if other != file:
                raise request.error(f"{other} and {file} have the same name; keep one of them")
    pictures, masks = by_name
    if pictures and masks and not pictures.keys() & masks.keys():
        names = f"{next(iter(pictures.values()))} and {next(iter(masks.values()))}"
        raise request.error(f"no mask has the name of an image: {names}; rename the masks")
    return _Pairs([(pictures.get(stem), masks.get(stem)) for stem in sorted(pictures.keys() | masks.keys())])


def _folders(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir() if entry.is_dir() and not images.is_hidden(entry.name))


def _listed(path: Path) -> str:
    """Returns what is in a folder, for whoever expected something else."""
    entries = [entry.name + "/" * entry.is_dir() for entry in sorted(path.iterdir()) if not images.is_hidden(entry.name)]
    return (", ".join(entries[:5]) + f" and {len(entries) - 5} more" * (len(entries) > 5)) or "nothing"


def _sizes(files: Sequence[Path]) -> dict[images.Size, str]:
    """Returns each size that occurs, with a file that has it; unreadable ones do not count here."""
    sizes: dict[images.Size, str] = {}
    with in_threads(images.stored_size, files) as found:
        for file, size in zip(files, found, strict=True):
            if size is not None:
                sizes.setdefault(size, str(file))
    return sizes
