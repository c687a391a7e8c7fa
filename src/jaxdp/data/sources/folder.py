"""Reads images from folders, with a folder for each class, with `images` and `masks`, or with
`labels.csv`: `--dataset folder:PATH`.
"""

import collections
import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxdp.config import DataConfig
from jaxdp.data import labels_table, sources
from jaxdp.data.dataset import DTYPES, Dataset
from jaxdp.data.find_images import USUAL, find_foreign, find_images, is_hidden, warn_of_unread
from jaxdp.data.image_file import Header, Picture, is_tiff, pages_of, pixel_size, read_headers
from jaxdp.data.image_pairs import (
    find_pairs,
    is_unlabelled,
    pair_folders,
    subfolders,
    two_spellings,
    with_masks,
)
from jaxdp.data.image_source import ImageSource
from jaxdp.data.request import NOT_GIVEN, SPLIT_FLAGS, Request
from jaxdp.data.source import BadExample, Size
from jaxdp.data.split_selection import name_splits, usual_names
from jaxdp.errors import ConfigError, flag
from jaxdp.text.console import say, warn
from jaxdp.text.messages import composed, some

_FORM = (
    "should hold a folder of pictures for each class, or the folders images and masks, or pictures"
    " and labels.csv; each under train, val and test, or not"
)

# Properties that one file may determine for all files.
_EXTREMES: tuple[Callable[[Header], int], ...] = (
    lambda header: header.channels,
    lambda header: max(height for height, _ in header.sizes),
    lambda header: max(width for _, width in header.sizes),
)

# An image, if it exists, and its label, its vector, its mask or its problem.
File = tuple[Path | None, int | np.ndarray | Path | str | None]
Row = tuple[Picture, int | np.ndarray | Picture | str]


@sources.register("folder")
def folder(request: Request) -> Dataset:
    """Returns the dataset in train/, val/ (or validation/) and test/. Without these folders, a
    tenth of each class is test data.

    A class is a folder of images, at any depth, or a name in `labels.csv`. A mask has the name of
    its image. Other usual names are also read, and one line reports them. Hidden files and other
    types of files do not count. The pages of a TIFF file are examples. The headers of all files
    determine channels and depth.

    Raises:
        ConfigError: for another folder structure, fewer than two classes, or names that do not
            match.
    """
    request.refuse("columns")
    path, config = Path(request.argument).expanduser(), request.config
    if not request.argument or not path.is_dir():
        raise request.error("there is no such folder" if request.argument else "write folder:PATH")
    warn_of_unread(path)
    folders = _split_folders(request, path)
    classifies = request.known is not None and request.known.answer == "classification"
    is_table = labels_table.is_there(request, path, folders)
    has_masks = not (classifies or is_table) and bool(
        pair_folders(path, next(iter(folders.values())))
    )
    class_names: tuple[str, ...] = ()
    files: Any
    if is_table:
        task, files, class_names = labels_table.read(request, path, folders)
    elif has_masks:
        task = request.choose("segmentation")
        files = {split: find_pairs(request, path, each) for split, each in folders.items()}
    else:
        files, class_names = _labelled(request, folders)
        task = request.choose("classification")
    images = [
        image
        for each in files.values()
        for image, target in each
        if image is not None and not isinstance(target, str)
    ]
    masks = [mask for each in files.values() for _, mask in each if isinstance(mask, Path)]
    headers = read_headers(images, config.tiff)
    # All planes of a stack of masks, regardless of its metadata.
    masks_headers = read_headers(filter(is_tiff, masks), "pages")
    rows = {
        split: [row for file in each for row in _rows(file, headers, masks_headers, config)]
        for split, each in files.items()
    }
    dtype, readable = _deciding(request, task, [*itertools.chain(*rows.values())], headers)
    channels = _channels(request, readable)
    _say_changes(readable, len(images), channels)
    create = functools.partial(
        FolderSource,
        task=task,
        channels=channels,
        dtype=dtype,
        config=config,
        sizes=[size for header in readable.values() for size in header.sizes],
    )
    splits: dict[str, Any] = {"train": None} | {
        split or "train": create(rows=each) for split, each in rows.items()
    }
    return Dataset(
        **splits,
        whole="" in files,
        task=task,
        num_classes=len(class_names),
        class_names=class_names,
        dtype=dtype,
        augment=("flip", "flip_vertical") if has_masks else (),
        instances=has_masks and config.instances,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class FolderSource(ImageSource):
    """Image files, each with a label, a vector or a mask file.

    Attributes:
        sizes: of all images of the folder.
    """

    rows: list[Row]
    sizes: Sequence[Size] = ()

    def __len__(self) -> int:
        return len(self.rows)

    def values(self) -> np.ndarray:
        rows = [target if isinstance(target, np.ndarray) else np.nan for _, target in self.rows]
        return np.stack(np.broadcast_arrays(*rows))

    def pixel_size(self, index: int) -> Sequence[float]:
        return pixel_size(self.rows[index][0])

    def stored(self, index: int) -> tuple[Picture, int | np.ndarray | Picture]:
        image, target = self.rows[index]
        if isinstance(target, str):
            raise BadExample(image, target)
        return image, target

    def name(self, index: int) -> str:
        return str(self.rows[index][0])

    def groups(self) -> list[Path]:
        return [image.path for image, _ in self.rows]


def _rows(
    file: File,
    headers: Mapping[Path, Header | None],
    masks_headers: Mapping[Path, Header | None],
    config: DataConfig,
) -> list[Row]:
    """Returns the examples in a file, which are its pages."""
    image, target = file
    if image is not None and isinstance(target, str):
        return [(Picture(image), target)]
    images = [] if image is None else pages_of(image, headers[image], config.tiff)
    if isinstance(target, int | np.ndarray):
        return [(page, target) for page in images]
    assert not isinstance(target, str)  # which only an image has
    masks = [] if target is None else pages_of(target, masks_headers.get(target), "pages")
    if image is None:
        return [(page, "is a mask without an image of the same name") for page in masks]
    if target is None:
        return [(page, "is an image without a mask of the same name") for page in images]
    if (header := headers[image]) is None or masks_headers.get(target, header) is None:
        return [(images[0], masks[0])]  # reading them reports the problem
    if len(images) != len(masks):
        counts = f"has {len(images)} pages, but its mask {len(masks)}"
        remedy = f"give each its own, or say by {flag('tiff')} what its planes are"
        if len(masks) == len(images) * header.channels:
            remedy = "the mask has a page for each channel: save only the channel with the objects"
        return [(Picture(image), f"{counts}; {remedy}")]
    return list(zip(images, masks, strict=True))


def _say_changes(readable: Mapping[Path, Header], count: int, channels: int) -> None:
    """Prints which information of the images is lost when they are read."""
    if reduced := [file for file, header in readable.items() if header.reduced]:
        held = f"{len(reduced)} of {count} images are PNG in colour with 16 bits a channel"
        warn(f"{held}, e.g. {reduced[0]}: read with 8; save them as TIFF to keep 16")
    flat = [file for file, header in readable.items() if header.transparent]
    if flat and channels != 4:
        say(
            f"note: {len(flat)} of {count} images have opacity (e.g. {flat[0]}), and are"
            f" laid on black; {flag('channels', 4)} keeps it"
        )


def _deciding(
    request: Request, task: str, rows: Sequence[Row], headers: Mapping[Path, Header | None]
) -> tuple[str, Mapping[Path, Header]]:
    """Returns the dtype of most images, and the headers of the images that determine the colour and
    the size of all images. Left-out images do not count.
    """
    first_rows: dict[Path, Row] = {}
    for image, target in rows:
        if not isinstance(target, str):
            first_rows.setdefault(image.path, (image, target))
    readable = {file: header for file in first_rows if (header := headers[file]) is not None}
    dtypes = collections.Counter(header.dtype for header in readable.values())
    dtype = max(dtypes, key=lambda name: (dtypes[name], DTYPES.index(name)), default="uint8")
    readable = {file: header for file, header in readable.items() if header.dtype == dtype}
    if not request.skip:
        return dtype, readable

    @functools.cache
    def is_sound(file: Path) -> bool:
        one = FolderSource(
            rows=[first_rows[file]],
            task=task,
            channels=readable[file].channels,
            dtype=dtype,
            config=request.config,
        )
        try:
            example = one[0]
        except BadExample:
            return False
        return "masks" not in example or example["masks"].shape == example["images"].shape[:2]

    found = readable
    for extreme in _EXTREMES:
        files = sorted(found, key=lambda file: extreme(found[file]), reverse=True)
        most = next((extreme(found[file]) for file in files if is_sound(file)), 0)
        found = {file: header for file, header in found.items() if extreme(header) <= most}
    return dtype, found


def _channels(request: Request, readable: Mapping[Path, Header]) -> int:
    """Returns the number of channels to which all images are converted: the requested number, or 3
    if any image is in colour, or else 1.
    """
    asked, stored = request.config.channels, dict[int, Path]()
    for file, header in readable.items():
        stored.setdefault(header.channels, file)
    unclear = next((file for file, header in readable.items() if header.unclear), None)
    if unclear and asked is None:
        remedy = (
            f"the last plane of {unclear} is tagged as opacity; give 4 to keep it as a channel, 3"
            f" to lay the image on black, or {flag('tiff', 'pages')} if its planes are examples"
        )
        raise ConfigError("channels", NOT_GIVEN, remedy)
    first = next((channels for channels in stored if channels not in (1, 3)), None)
    if first is None:
        return asked or max(stored, default=1)
    has_channels = f"{stored[first]} has {first} channels"
    if asked not in (None, first):
        remedy = f"{has_channels}, which cannot be made {asked}; leave it out"
        raise ConfigError("channels", asked, remedy)
    for other, file in stored.items():
        if other != first:
            pages = f"{flag('tiff', 'pages')} if the planes of a file are examples"
            remedy = f"give {pages}, or make them alike"
            raise request.error(f"{has_channels} and {file} {other}; {remedy}")
    return first


def _split_folders(request: Request, path: Path) -> dict[str, Path]:
    """Returns the folder of each split, or a single folder with all examples under an empty
    name.
    """
    present = subfolders(path)
    for split, name in request.named_splits.items():
        if name and name not in present:
            holds = f"there is no such folder in {path}; it holds {_listed(path)}"
            raise ConfigError(SPLIT_FLAGS[split], name, holds)
    if present and with_masks(present) == present:  # e.g. train and train_masks
        return {"": path}
    splits = USUAL["splits"]
    usual = usual_names(splits["validation"] + splits["test"], present)
    if usual_names(splits["train"], present):
        for name in usual:
            is_read = name in request.named_splits.values() or labels_table.is_there(
                request, path, {name: path / name}
            )
            if not is_read and is_unlabelled(path, path / name):
                held = f"{path / name} holds pictures without labels, and is not read"
                say(f"note: {request.config.dataset}: {held}")
                present.remove(name)
    names = name_splits(request, present)
    return {split: path / name for split, name in names.items()} or {"": path}


def _labelled(
    request: Request, folders: Mapping[str, Path]
) -> tuple[dict[str, list[File]], tuple[str, ...]]:
    """Returns the files of each folder with their labels, and the names of the classes. The first
    folder determines the classes, or all folders together if a model determines the possible
    classes.
    """
    files: dict[str, list[File]] = {}
    first, names = next(iter(folders.values())), dict[str, str]()  # by their composed Unicode forms
    found = {split: _class_folders(request, folder) for split, folder in folders.items()}
    for classes in found.values():
        present = {key: folder.name for key, (folder, images) in classes.items() if images}
        names = names or present if request.known is None else present | names
    if not names:
        form = f"{first} {_FORM}; it holds {_listed(first)}"
        raise request.error(find_foreign(first) or form)
    order = sorted(names, key=lambda key: names[key])
    for mask in usual_names(USUAL["folders"]["masks"], [*names.values()]):
        said = f"{mask}/ is read as a class; of images and masks, call the folders so"
        say(f"note: {request.config.dataset}: {said}")
    for split, classes in found.items():
        present = [key for key, (_, images) in classes.items() if images]
        unknown = ", ".join(classes[key][0].name for key in present if key not in names)
        if unknown:
            where = f"{folders[split]} has classes without a picture in {first}"
            raise request.error(f"{where}: {unknown}")
        missing = sorted({*classes, *names} - {*present})
        if missing and request.known is None:
            warn(f"{folders[split]} holds no picture of {some(missing)}")
        files[split] = [(image, order.index(key)) for key in present for image in classes[key][1]]
    return files, tuple(names[key] for key in order)


def _class_folders(request: Request, folder: Path) -> dict[str, tuple[Path, list[Path]]]:
    """Returns the folder of each class and the images in it, by the composed Unicode form of its
    name.
    """
    classes: dict[str, tuple[Path, list[Path]]] = {}
    for name in subfolders(folder):
        key = composed(name)
        if key in classes:
            raise request.error(two_spellings(folder / name, classes[key][0]))
        classes[key] = (folder / name, find_images(folder / name))
    return classes


def _listed(path: Path) -> str:
    """Returns a description of the content of a folder, for an error."""
    entries = [
        entry.name + "/" * entry.is_dir()
        for entry in sorted(path.iterdir())
        if not is_hidden(entry.name)
    ]
    return some(entries) or "nothing"
