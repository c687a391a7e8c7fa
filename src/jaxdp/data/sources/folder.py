"""Pictures in folders: a folder for each class, or `images` beside `masks`: `--dataset folder:PATH`."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jaxdp.data import sources
from jaxdp.data.sources import images
from jaxdp.data.sources.statistics import Properties, check_sizes, create_dataset, in_threads
from jaxdp.data.splits import held_out
from jaxdp.registry import ConfigError

_TRAIN_FOLDER = "train"
_TEST_FOLDERS = ("test", "val", "validation")
_FORM = (
    "should hold a folder of pictures for each class, or the folders images and masks; either of them under train and test, or not"
)


@sources.register("folder")
def folder(request: sources.Request) -> sources.Dataset:
    """Returns what lies in train/ and test/ (or val/ or validation/), or holds a tenth out of a folder that has no such parts.

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
    is_segmentation = _holds_pairs(places[0])
    task = request.choose("segmentation" if is_segmentation else "classification")
    if is_segmentation:
        parts: list[_Pairs] | list[_Pictures] = [_pairs(request, place) for place in places]
        known = Properties(augment=("flip", "flip_vertical"))
    else:
        parts, names = _pictures(request, places)
        known = Properties(num_classes=len(names), class_names=names)
    train, test = parts if len(parts) == 2 else parts[0].divided()
    sizes = {} if request.config.image_size else _sizes([*train.files, *test.files])
    check_sizes(request, sizes)
    known = dataclasses.replace(known, size=next(iter(sizes), None))
    mask = train.mask if isinstance(train, _Pairs) else None
    return create_dataset(request, task, {"train": train, "test": test}, known, mask)


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


def _split_folders(request: sources.Request, path: Path) -> list[Path]:
    """Returns the folders of the training and the test split, or the one folder that holds both."""
    config, present = request.config, _folders(path)
    for flag, name in (("train_split", config.train_split), ("test_split", config.test_split)):
        if name and "[" in name:
            raise ConfigError(flag, name, "a folder takes the name of a subfolder; without train and test, a tenth is held out")
        if name and name not in present:
            raise ConfigError(flag, name, f"there is no such folder in {path}; it holds {_listed(path)}")
    train = config.train_split or (_TRAIN_FOLDER if _TRAIN_FOLDER in present else None)
    test = config.test_split or next((name for name in _TEST_FOLDERS if name in present), None)
    if train is None and test is None:
        return [path]
    if train is None or test is None:
        missing, flag = ("train", "train_split") if train is None else ("test", "test_split")
        remedy = f"{path} has {train or test}, but no {missing}; add it"
        alone = f", or give folder:{path / train} to have a tenth of it held out" if train else ""
        raise ConfigError(flag, getattr(config, flag) or missing, remedy + alone)
    return [path / train, path / test]


def _pictures(request: sources.Request, places: Sequence[Path]) -> tuple[list[_Pictures], tuple[str, ...]]:
    """Returns the pictures of each place, and the names of the classes, which are those of the first."""
    splits = []
    for place in places:
        classes = {name: images.find_pictures(place / name) for name in _folders(place)}
        splits.append({name: files for name, files in classes.items() if files})
    names = list(splits[0])
    if not names:
        raise request.error(f"{places[0]} {_FORM}; it holds {_listed(places[0])}")
    unknown = sorted(splits[-1].keys() - splits[0].keys())
    if unknown:
        remedy = f"{places[-1]} has classes of which {places[0]} has no picture: {', '.join(unknown)}"
        raise request.error(remedy)
    parts, label_of = [], {name: label for label, name in enumerate(names)}
    for classes in splits:
        rows = [(file, label_of[name]) for name, files in classes.items() for file in files]
        parts.append(_Pictures([file for file, _ in rows], [label for _, label in rows]))
    return parts, tuple(names)


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
