"""Images in folders: a folder for each class, or `images` and `masks`: `--dataset folder:PATH`."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxdp.data import image_file, sources
from jaxdp.data.dataset import BadExample, BaseSource, Dataset, Example, Size
from jaxdp.data.find_images import SUFFIXES, find_images, is_hidden
from jaxdp.data.header_scan import HeaderScan, Row
from jaxdp.data.image_file import Picture
from jaxdp.data.instances import instance_labels
from jaxdp.data.request import Request
from jaxdp.data.resize import Resize
from jaxdp.data.splits import name_splits
from jaxdp.parsing import resolved
from jaxdp.registry import ConfigError

_FORM = (
    "should hold a folder of pictures for each class, or the folders images and masks; either of"
    " them under train, val and test, or not"
)


@sources.register("folder")
def folder(request: Request) -> Dataset:
    """Returns what lies in train/, val/ (or validation/) and test/; without such parts a tenth of
    each class is test data.

    A class is a folder of images, at any depth; a mask has the name of its image. Hidden files and
    other kinds of files do not count. The pages of a TIFF file are examples. The headers of all
    files decide channels and depth.

    Raises:
        ConfigError: for a folder of another form, less than two classes, or names that fit nothing.
    """
    path = Path(request.argument).expanduser()
    if not request.argument or not path.is_dir():
        raise request.error("there is no such folder" if request.argument else "write folder:PATH")
    folders = _split_folders(request, path)
    has_masks = _holds_pairs(request, next(iter(folders.values())))
    task = request.choose("segmentation" if has_masks else "classification")
    class_names: tuple[str, ...] = ()
    if has_masks:
        rows: dict[str, Any] = {split: _pairs(request, each) for split, each in folders.items()}
    else:
        rows, class_names = _labelled(request, folders)
    images = [image for each in rows.values() for image, _ in each if image is not None]
    scan = HeaderScan.of(request, images)
    whole = list(rows) == [""]
    splits: dict[str, Any] = {
        split or "train": FolderSource([page for row in each for page in scan.pages(row)], scan)
        for split, each in rows.items()
    }
    return Dataset(
        **splits,
        whole=whole,
        task=task,
        num_classes=len(class_names),
        class_names=class_names,
        dtype=scan.dtype,
        augment=("flip", "flip_vertical") if has_masks else (),
        instances=has_masks and request.config.instances,
    )


@dataclasses.dataclass(frozen=True)
class FolderSource(BaseSource):
    """Images with a label or a mask each.

    Attributes:
        rows: image and label, or image and mask: the path of a file whose pages do not fit.
        resize: how images with labels are going to be resized.
    """

    rows: list[Row]
    scan: HeaderScan
    resize: Resize | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Example:
        (image, target), scan = self.rows[index], self.scan
        if image is None:
            raise BadExample(target, "is a mask without an image of the same name")
        if isinstance(target, int):
            example: Example = {"labels": target}
        else:
            example = {"masks": self._read_mask(self._mask_of(index))}
        scan.check_dtype(image)
        pixels, _ = image_file.read_image(image, image, scan.channels, scan.dtype, self.resize)
        return example | {"images": pixels}

    def name(self, index: int) -> str:
        image, target = self.rows[index]
        return str(image or target)

    def labels(self) -> list[int] | None:
        labels = [label for _, label in self.rows if isinstance(label, int)]
        return labels if len(labels) == len(self.rows) else None

    def groups(self) -> list[Path]:
        pictures = [image or target for image, target in self.rows]
        return [getattr(picture, "path", picture) for picture in pictures]

    @property
    def sizes(self) -> list[Size]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.scan.sizes

    def resized_to(self, resize: Resize | None) -> "FolderSource":
        has_masks = self.labels() is None  # their images are resized from their full size
        return dataclasses.replace(self, resize=None if has_masks else resize)

    def stored_mask(self, index: int) -> tuple[np.ndarray, str]:
        mask, config = self._mask_of(index), self.scan.request.config
        if config.instances or config.mask_values is not None:
            return self._read_mask(mask), str(mask)
        return image_file.read_mask(mask, mask), str(mask)

    def _read_mask(self, mask: Picture) -> np.ndarray:
        config = self.scan.request.config
        if config.instances:
            return instance_labels(image_file.read_mask(mask, mask), mask)
        return image_file.decode_mask(mask, mask, config.mask_values)

    def _mask_of(self, index: int) -> Picture:
        image, mask = self.rows[index]
        if mask is None:
            raise BadExample(self.name(index), "is an image without a mask of the same name")
        if isinstance(mask, Path):
            pages, mask_pages = self.scan.image_pages(image), self.scan.mask_pages(mask)
            counts = f"{len(pages)} pages, but its mask {len(mask_pages)}"
            remedy = "give each its own, or say by --tiff what its planes are"
            raise BadExample(image, f"has {counts}; {remedy}")
        return mask


def _split_folders(request: Request, path: Path) -> dict[str, Path]:
    """Returns the folder of each split, or under an empty name the one folder that holds all."""
    config, present = request.config, _subfolders(path)
    wanted = {
        "train_split": config.train_split,
        "validation": request.validation_split,
        "test_split": config.test_split,
    }
    for flag, name in wanted.items():
        if name and "[" in name:
            remedy = "a folder takes the name of a subfolder; without train and test, a tenth is"
            raise ConfigError(flag, name, f"{remedy} held out")
        if name and name not in present:
            holds = f"there is no such folder in {path}; it holds {_listed(path)}"
            raise ConfigError(flag, name, holds)
    found = name_splits(request, present)
    if not found:
        return {"": path}
    others = [name for split, name in found.items() if split != "train"]
    if "train" not in found:
        raise ConfigError("train_split", "train", f"{path} has {others[0]}, but no train; add it")
    if not others and request.validation_share is None:
        whole = path / found["train"]
        remedy = (
            f"{path} has {found['train']}, but no test; add it, or give folder:{whole} to have a"
            " tenth of it held out"
        )
        raise ConfigError("test_split", config.test_split or "test", remedy)
    return {split: path / name for split, name in found.items()}


def _labelled(
    request: Request, folders: Mapping[str, Path]
) -> tuple[dict[str, list[Row]], tuple[str, ...]]:
    """Returns the files of each folder with their labels, and the names of the classes, which the
    first folder decides.
    """
    found: dict[str, dict[str, list[Path]]] = {}
    for split, folder in folders.items():
        classes = {name: find_images(folder / name) for name in _subfolders(folder)}
        found[split] = {name: files for name, files in classes.items() if files}
    names, first = tuple(next(iter(found.values()))), next(iter(folders.values()))
    if not names:
        raise request.error(f"{first} {_FORM}; it holds {_listed(first)}")
    for split, classes in found.items():
        unknown = sorted(classes.keys() - set(names))
        if unknown:
            where = f"{folders[split]} has classes of which {first} has no picture"
            raise request.error(f"{where}: {', '.join(unknown)}")
    rows: dict[str, list[Row]] = {
        split: [(file, names.index(name)) for name, files in classes.items() for file in files]
        for split, classes in found.items()
    }
    return rows, names


def _holds_pairs(request: Request, folder: Path) -> bool:
    """Returns whether images and masks are there.

    Raises ConfigError for one folder without the other.
    """
    present = [kind for kind in ("images", "masks") if (folder / kind).is_dir()]
    if len(present) == 1 and _subfolders(folder) == present:
        other = "masks" if present == ["images"] else "images"
        lacks = f"{folder} has the folder {present[0]}, but no {other}"
        raise request.error(f"{lacks}; add it: a mask has the name of its image")
    return len(present) == 2


def _pairs(request: Request, folder: Path) -> list[Row]:
    if not _holds_pairs(request, folder):
        lacks = f"{folder} has no folders images and masks"
        raise request.error(f"{lacks}; it holds {_listed(folder)}")
    images, masks = (_by_stem(request, folder / kind) for kind in ("images", "masks"))
    if not images or not masks:
        counts = (
            f"{folder / 'images'} holds {len(images) or 'no'} images and {folder / 'masks'}"
            f" {len(masks) or 'no'} masks"
        )
        remedy = f"a mask has the name of its image, and is a picture: {', '.join(SUFFIXES)}"
        raise request.error(f"{counts}; {remedy}")
    if not images.keys() & masks.keys():
        names = f"{next(iter(images.values()))} and {next(iter(masks.values()))}"
        raise request.error(f"no mask has the name of an image: {names}; rename the masks")
    return [(images.get(stem), masks.get(stem)) for stem in sorted(images.keys() | masks.keys())]


def _by_stem(request: Request, folder: Path) -> dict[str, Path]:
    """Returns the images in a folder by their names without suffix."""
    files: dict[str, Path] = {}
    for file in find_images(folder):
        other = files.setdefault(str(file.relative_to(folder).with_suffix("")), file)
        if other != file:
            raise request.error(f"{other} and {file} have the same name; keep one of them")
    return files


def _subfolders(path: Path) -> list[str]:
    root = resolved(path)
    entries = [entry for entry in path.iterdir() if not is_hidden(entry.name) and entry.is_dir()]
    # A link to the folder itself, or to one above it, is no class.
    return sorted(entry.name for entry in entries if resolved(entry) not in (root, *root.parents))


def _listed(path: Path) -> str:
    """Returns what is in a folder, for an error."""
    entries = [
        entry.name + "/" * entry.is_dir()
        for entry in sorted(path.iterdir())
        if not is_hidden(entry.name)
    ]
    more = f" and {len(entries) - 5} more" * (len(entries) > 5)
    return ", ".join(entries[:5]) + more or "nothing"
