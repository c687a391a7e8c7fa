"""Pictures in folders: a folder for each class, or `images` beside `masks`: `--dataset
folder:PATH`.
"""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from jaxdp.data import sources
from jaxdp.data.instances import object_numbers
from jaxdp.data.sources import images
from jaxdp.data.sources.fitting import ImageSize
from jaxdp.data.sources.images import Picture
from jaxdp.data.sources.masks import Distinct
from jaxdp.data.sources.statistics import create_dataset
from jaxdp.data.sources.survey import Survey, known_of_pairs, known_of_photographs
from jaxdp.data.splits import held_out
from jaxdp.parsing import resolved
from jaxdp.registry import ConfigError

_FOLDERS = {"train": ("train",), "validation": ("val", "validation"), "test": ("test",)}
_FORM = (
    "should hold a folder of pictures for each class, or the folders images and masks; either of"
    " them under train, val and test, or not"
)


@sources.register("folder")
def folder(request: sources.Request) -> sources.Dataset:
    """Returns what lies in train/, val/ (or validation/) and test/.

    Without such parts a tenth of each class is test data.

    A class is a folder of pictures, however deep they lie in it; a mask has the name of its image.
    Hidden files and other kinds of files do not count. The pages of a TIFF file are examples.
    Headers of all files decide channels and depth.

    Raises:
        ConfigError: for a folder of another form, less than two classes, or names that fit nothing.
    """
    path = Path(request.argument).expanduser()
    if not request.argument or not path.is_dir():
        raise request.error("there is no such folder" if request.argument else "write folder:PATH")
    places = _split_folders(request, path)
    is_segmentation = _holds_pairs(request, next(iter(places.values())))
    task = request.choose("segmentation" if is_segmentation else "classification")
    names: tuple[str, ...] = ()
    if is_segmentation:
        files: dict[str, Any] = {split: _pairs(request, place) for split, place in places.items()}
        survey = Survey.of(
            request, [image for rows in files.values() for image, _ in rows if image is not None]
        )
    else:
        files, names = _pictures(request, places)
        survey = Survey.of(request, [file for rows in files.values() for file, _ in rows])
    if list(files) == [""]:
        files = _divided(request, files[""], survey)
    if is_segmentation:
        parts: dict[str, Any] = {split: _Pairs.of(rows, survey) for split, rows in files.items()}
        known = known_of_pairs(request, survey)
    else:
        known = known_of_photographs(request, survey)
        survey = dataclasses.replace(
            survey, fit=ImageSize.asked(request.config.image_size) or known.fit
        )
        parts = {split: _Pictures.of(rows, survey) for split, rows in files.items()}
        known = dataclasses.replace(known, num_classes=len(names), class_names=names)
    train = parts["train"]
    return create_dataset(
        request, task, parts, known, train.distinct if isinstance(train, _Pairs) else None
    )


_RUNS = 10  # of consecutive pages, where one file holds them all


def _divided(request: sources.Request, rows: list[Any], survey: Survey) -> dict[str, list[Any]]:
    """Returns training and test files: whole ones, so that the pages of a stack, whose neighbours
    are alike, stay together.

    Of a single stack the last tenth of its pages is the test data.

    Raises:
        ConfigError: if there is one image only, or one file of a class.
    """
    if len(rows) == 1:
        pages = _paged(rows[0], survey)
        if len(pages) == 1:
            raise request.error("holds one image only, and needs another as test data; add others")
        first = len(pages) - max(len(pages) // _RUNS, 1)
        return {"train": pages[:first], "test": pages[first:]}
    labels = [row[1] if isinstance(row[1], int) else 0 for row in rows]
    is_test = held_out(labels) if rows else np.zeros(0, bool)
    parts = {"train": ~is_test, "test": is_test}
    lost = set(labels) - {
        label for label, wanted in zip(labels, is_test, strict=True) if not wanted
    }
    if lost:
        first = next(row[0] for row in rows if row[1] in lost)
        remedy = (
            "the only file of its class; add others, or divide them by folders train/ and test/"
        )
        raise request.error(f"{first} would be held out as test data, {remedy}")
    return {
        split: [row for row, wanted in zip(rows, mask, strict=True) if wanted]
        for split, mask in parts.items()
    }


def _paged(row: tuple[Any, Any], survey: Survey) -> list[tuple[Any, Any]]:
    """Returns the pages of an image and its mask, or of an image with its label.

    Those that are single already, as they are.
    """
    first, second = row
    if isinstance(first, Picture) or isinstance(second, Picture):
        return [row]
    images_of = survey.pictures(first) if first is not None else []
    if isinstance(second, int):
        return [(picture, second) for picture in images_of]
    masks_of = survey.masks(second) if second is not None else []
    if images_of and masks_of and len(images_of) != len(masks_of):
        return [row]  # reading it says so
    count = max(len(images_of), len(masks_of))
    return list(zip(images_of or [None] * count, masks_of or [None] * count, strict=True))


@dataclasses.dataclass(frozen=True)
class _Pictures:
    """Pictures in the folders of their classes.

    Attributes:
        labels: of the files, in the same order.
    """

    files: list[Picture]
    labels: list[int]
    survey: Survey

    @classmethod
    def of(cls, rows: list[Any], survey: Survey) -> "_Pictures":
        pages = [page for row in rows for page in _paged(row, survey)]
        return cls([picture for picture, _ in pages], [label for _, label in pages], survey)

    @property
    def groups(self) -> tuple[np.ndarray, str]:
        """The number of the file of each example, or of its section of a single file, and which of
        the two it is.
        """
        return _groups(picture.path for picture in self.files)

    def __len__(self) -> int:
        return len(self.files)

    def name(self, index: int) -> str:
        return str(self.files[index])

    def __getitem__(self, index: int) -> sources.Example:
        return {"images": self.survey.decode(self.files[index]), "labels": self.labels[index]}


@dataclasses.dataclass(frozen=True)
class _Pairs:
    """Images with a mask each.

    Attributes:
        pairs: image and mask; one of them is missing where the other has no partner.
    """

    pairs: list[tuple[Any, Any]]
    survey: Survey

    @classmethod
    def of(cls, rows: list[Any], survey: Survey) -> "_Pairs":
        return cls([page for row in rows for page in _paged(row, survey)], survey)

    @property
    def groups(self) -> tuple[np.ndarray, str]:
        """The number of the file of each example, or of its section of a single file, and which of
        the two it is.
        """
        return _groups(
            getattr(first, "path", first) for first in (image or mask for image, mask in self.pairs)
        )

    def __len__(self) -> int:
        return len(self.pairs)

    def name(self, index: int) -> str:
        return str(next(filter(None, self.pairs[index])))

    def __getitem__(self, index: int) -> sources.Example:
        image, _ = self.pairs[index]
        if image is None:
            raise sources.BadExample(
                self.name(index), "is a mask without an image of the same name"
            )
        mask = self.mask(index)
        return {"images": self.survey.decode(image), "masks": mask}

    def mask(self, index: int) -> np.ndarray:
        """Returns class numbers, or with `--instances` those of objects."""
        mask = self._mask_of(index)
        if self.survey.instances:
            return object_numbers(images.read_mask(mask, mask), mask)
        return images.decode_mask(mask, mask, self.survey.mask_values)

    def distinct(self, index: int) -> Distinct:
        """Returns what the mask of an example holds: stored values, or class numbers where
        `--mask-values` tells them.
        """
        mask = self._mask_of(index)
        if self.survey.mask_values is not None:
            return Distinct.of(self.mask(index), mask)
        return Distinct.of(images.read_mask(mask, mask), mask)

    def _mask_of(self, index: int) -> Picture:
        image, mask = self.pairs[index]
        if mask is None:
            raise sources.BadExample(
                self.name(index), "is an image without a mask of the same name"
            )
        if isinstance(mask, Path):
            counts = (
                f"{len(self.survey.pictures(image))} pages, but its mask"
                f" {len(self.survey.masks(mask))}"
            )
            raise sources.BadExample(
                image, f"has {counts}; give each its own, or say by --tiff what its planes are"
            )
        return mask


def _groups(files: Iterable[Path]) -> tuple[np.ndarray, str]:
    """Returns the number of the file of each example, and "file".

    Of pages of one file that of their section, and "section".
    """
    known: dict[Path, int] = {}
    numbers = np.array([known.setdefault(file, len(known)) for file in files], np.int64)
    if len(known) > 1:
        return numbers, "file"
    return np.arange(len(numbers)) * _RUNS // max(len(numbers), 1), "section"


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
            raise ConfigError(
                flag,
                name,
                "a folder takes the name of a subfolder; without train and test, a tenth is"
                " held out",
            )
        if name and name not in present:
            raise ConfigError(
                flag, name, f"there is no such folder in {path}; it holds {_listed(path)}"
            )
    named = {name for _, name in wanted.values() if name}
    found = {
        split: (
            name
            or next(
                (folder for folder in _FOLDERS[split] if folder in present and folder not in named),
                None,
            )
        )
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
        remedy = (
            f"{path} has {found['train']}, but no test; add it, or give folder:{whole} to have a"
            " tenth of it held out"
        )
        raise ConfigError("test_split", config.test_split or "test", remedy)
    return {split: path / name for split, name in found.items() if name}


def _pictures(
    request: sources.Request, places: dict[str, Path]
) -> tuple[dict[str, list[tuple[Path, int]]], tuple[str, ...]]:
    """Returns the files of each place with their labels, and the names of the classes, which are
    those of the first.
    """
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
            raise request.error(
                f"{places[split]} has classes of which {place} has no picture: {', '.join(unknown)}"
            )
    parts, label_of = {}, {name: label for label, name in enumerate(first)}
    for split, classes in found.items():
        parts[split] = [(file, label_of[name]) for name, files in classes.items() for file in files]
    return parts, tuple(first)


def _holds_pairs(request: sources.Request, place: Path) -> bool:
    """Returns whether images and masks are there.

    Raises ConfigError for one folder without the other.
    """
    present = [kind for kind in ("images", "masks") if (place / kind).is_dir()]
    if len(present) == 1 and _folders(place) == present:
        other = "masks" if present == ["images"] else "images"
        raise request.error(
            f"{place} has the folder {present[0]}, but no {other}; add it: a mask has the name of"
            " its image"
        )
    return len(present) == 2


def _pairs(request: sources.Request, place: Path) -> list[tuple[Path | None, Path | None]]:
    if not _holds_pairs(request, place):
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
    if not pictures or not masks:
        counts = (
            f"{place / 'images'} holds {len(pictures) or 'no'} images and {place / 'masks'}"
            f" {len(masks) or 'no'} masks"
        )
        raise request.error(
            f"{counts}; a mask has the name of its image, and is a picture:"
            f" {', '.join(images.SUFFIXES)}"
        )
    if not pictures.keys() & masks.keys():
        names = f"{next(iter(pictures.values()))} and {next(iter(masks.values()))}"
        raise request.error(f"no mask has the name of an image: {names}; rename the masks")
    return [
        (pictures.get(stem), masks.get(stem)) for stem in sorted(pictures.keys() | masks.keys())
    ]


def _folders(path: Path) -> list[str]:
    root = resolved(path)
    entries = [
        entry for entry in path.iterdir() if not images.is_hidden(entry.name) and entry.is_dir()
    ]
    # A link to the folder itself, or to one above it, is no class.
    return sorted(entry.name for entry in entries if resolved(entry) not in (root, *root.parents))


def _listed(path: Path) -> str:
    """Returns what is in a folder, for whoever expected something else."""
    entries = [
        entry.name + "/" * entry.is_dir()
        for entry in sorted(path.iterdir())
        if not images.is_hidden(entry.name)
    ]
    return (
        ", ".join(entries[:5]) + f" and {len(entries) - 5} more" * (len(entries) > 5)
    ) or "nothing"
