"""Reads datasets of the Hugging Face hub, folders in its layout and folders of `save_to_disk`:
`--dataset hf:NAME[:CONFIG]`.

The library `datasets` finds, downloads and stores the tables. jaxdp decodes the images, as it does
those of other sources.
"""

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxdp.data import sources
from jaxdp.data.array_source import warn_without_0
from jaxdp.data.dataset import DTYPES, VECTOR_FIELDS, Dataset
from jaxdp.data.find_images import USUAL
from jaxdp.data.hub_columns import check_alike, find_columns, names_of
from jaxdp.data.hub_tables import import_library, open_tables, without_secrets
from jaxdp.data.image_file import FIRST, FLATTENED, Data, read_image
from jaxdp.data.image_source import ImageSource
from jaxdp.data.measure import look_through
from jaxdp.data.request import SPLIT_FLAGS, Request
from jaxdp.data.source import BadExample, Example, Size
from jaxdp.data.split_selection import name_file_splits, usual_names
from jaxdp.errors import ConfigError, flag
from jaxdp.text.console import say, warn

_SAMPLE = 128  # images that determine channels and depth
_CHANNELS = {"1": 1, "L": 1, "RGB": 3, "RGBA": 4}  # of the modes of an image column


@sources.register("hf")
def hf(request: Request) -> Dataset:
    """Returns any dataset of images with labels or masks. The library `datasets` downloads it at
    its first use.

    Splits use the syntax of `datasets`. No code of a dataset is run.

    Raises:
        ConfigError: for an unknown name, configuration or split, ambiguous columns, a dataset of
            another type, or a dataset that can be neither found nor downloaded.
    """
    config = request.config
    request.refuse("tiff")
    if not request.argument:
        raise request.error("write hf:NAME or hf:NAME:CONFIG of a dataset of the hub, or hf:FOLDER")
    library = import_library(request)
    tables = open_tables(request, library)
    labelled = _without_unlabelled(request, tables)
    chosen = name_file_splits(request, labelled)
    records = {split: _part(request, library, tables, split, chosen[split]) for split in chosen}
    first = next(iter(records.values()))
    task, image, target = find_columns(request, first.features)
    for split, table in records.items():
        check_alike(request, chosen[split], table, first, (image, target))
    create = functools.partial(
        HfSource, image=image, target=target, task=task, channels=None, dtype="", config=config
    )
    found = {
        split: create(
            table=table.select_columns([image, target]).with_format("arrow"),
            where=f"hf {request.argument} {chosen[split]}",
            classes=len(names_of(table.features[target])),
        )
        for split, table in records.items()
    }
    request.check_not_empty(found)
    names = names_of(first.features[target])
    classes = len(names)
    if task == "classification":
        classes = _count_classes(found, names, request)
    channels, dtype, sizes = _look_at(found, first.features[image], request)
    splits: dict[str, Any] = {"train": None} | {
        split: dataclasses.replace(source, channels=channels, dtype=dtype, sizes=sizes)
        for split, source in found.items()
    }
    has_masks = task == "segmentation"
    return Dataset(
        **splits,
        task=task,
        num_classes=classes,
        class_names=names,
        image_shape=(0, 0, channels or 1),
        dtype=dtype,
        augment=("flip", "flip_vertical") if has_masks else (),
        instances=has_masks and config.instances,
    )


def _without_unlabelled(request: Request, tables: Mapping[str, Any]) -> list[str]:
    """Returns the names of the splits, except for usual names of splits in which no example has a
    label; a warning names these. On the hub, -1 stands for a label that is kept secret.
    """
    # A split without labels may lack their column.
    fullest = max(tables.values(), key=lambda table: len(table.features))
    task, _, target = find_columns(request, fullest.features)
    kept = list(tables)
    for split in ("validation", "test") if task == "classification" else ():
        by_settings = request.named_splits[split] or (
            split == "validation" and request.config.validation
        )
        for name in () if by_settings else usual_names(USUAL["splits"][split], tables):
            table, held = tables[name], "its labels are -1 or empty"
            if target not in table.features:
                held = f"it has no column {target}"
            elif not len(table) or (_labels_of(table, target) >= 0).any():
                continue
            warn(f"{request.config.dataset}: {name} has no labels ({held}); it is not read")
            kept.remove(name)
    return kept


def _labels_of(table: Any, column: str) -> np.ndarray:
    """Returns a column of labels, int64 (N,), with -1 for a label that is not there or does not fit
    into int64.
    """
    values = table.select_columns([column]).with_format("arrow")[:][column].to_pylist()
    fits = [-1 if value is None or not 0 <= value < 2**63 else int(value) for value in values]
    return np.array(fits, np.int64)


def _count_classes(found: Mapping[str, "HfSource"], names: Sequence[str], request: Request) -> int:
    """Returns the number of classes: as many as have names, or as the labels of all splits have.

    Raises:
        BadExample: for the first example without a class, unless bad examples are left out.
        ConfigError: for a split without any label.
    """
    labels = {split: source.labels() for split, source in found.items()}
    for split, source in found.items():
        is_bad = (labels[split] < 0) | (labels[split] >= (len(names) or np.inf))
        if is_bad.all():
            remedy = "no example of it has a label (all are -1, empty or no class numbers)"
            named = getattr(request.config, SPLIT_FLAGS[split]) or split
            raise ConfigError(SPLIT_FLAGS[split], named, f"{remedy}; choose another split")
        if is_bad.any() and not request.skip:
            source.stored(int(np.argmax(is_bad)))  # raises BadExample
    if names:
        return len(names)
    if request.known is None:
        train = next(iter(labels.values()))
        warn_without_0(train[train >= 0], request)
    return 1 + max(int(each.max()) for each in labels.values())


def _look_at(
    found: Mapping[str, "HfSource"], feature: Any, request: Request
) -> tuple[int | None, str, Sequence[Size]]:
    """Returns the channels to which all images are converted, or None if the images looked at are
    grey and no setting says so; their most frequent depth; and, for classes, their sizes.

    Raises:
        BadExample: for an image that cannot be read, unless bad examples are left out.
    """
    split, source = next(iter(found.items()))
    count = min(len(source), _SAMPLE)
    indices = [place * len(source) // count for place in range(count)]
    asked = request.config.channels or _CHANNELS.get(getattr(feature, "mode", None) or "")

    def look(index: int) -> tuple[tuple[int, ...], str, tuple[str, ...], str]:
        image, _ = source.stored(index)
        pixels, notes = read_image(image, source.where_of(index, image))
        return pixels.shape, pixels.dtype.name, notes, source.name(index)

    seen = [*look_through(look, indices, split, request)]
    channels, dtypes = max(shape[2] for shape, *_ in seen), [dtype for _, dtype, *_ in seen]
    for note, said in (
        (FLATTENED, f"have opacity, and are laid on black; {flag('channels', 4)} keeps it"),
        (FIRST, "hold several pictures, and the first is taken"),
    ):
        examples = [name for _, _, notes, name in seen if note in notes]
        if examples and not (note == FLATTENED and asked == 4):
            held = f"{len(examples)} of the {len(seen)} images looked at {said}"
            say(f"note: {request.config.dataset}: {held} (e.g. {examples[0]})")
    sizes = [(shape[0], shape[1]) for shape, *_ in seen if source.task != "segmentation"]
    most = max(dtypes, key=lambda name: (dtypes.count(name), DTYPES.index(name)))
    return asked or (channels if channels > 1 else None), most, sizes


def _part(
    request: Request, library: Any, tables: Mapping[str, Any], split: str, chosen: str
) -> Any:
    """Returns the rows that an expression such as `train[:90%]` selects.

    Raises:
        ConfigError: for a split that does not exist, and a slice that ends before it begins.
    """
    if chosen in tables:
        return tables[chosen]
    counts = {name: len(table) for name, table in tables.items()}
    try:
        slices = library.ReadInstruction.from_spec(chosen).to_absolute(counts)
    except (AssertionError, ValueError) as error:
        remedy = f"{request.config.dataset} has the splits {', '.join(tables)}"
        raise ConfigError(
            SPLIT_FLAGS[split], chosen, f"{remedy}; write e.g. train[:90%]"
        ) from error
    if any(each.from_ > each.to for each in slices):
        remedy = "a slice of it ends before it begins; write e.g. train[:90%]"
        raise ConfigError(SPLIT_FLAGS[split], chosen, remedy)
    parts = [tables[each.splitname].select(range(each.from_, each.to)) for each in slices]
    return parts[0] if len(parts) == 1 else library.concatenate_datasets(parts)


@dataclasses.dataclass(frozen=True, kw_only=True)
class HfSource(ImageSource):
    """The examples of a split.

    The library hands out rows as Arrow stores them, so that it decodes nothing and copies only the
    two columns that are needed. Threads may read at once, because the tables never change.

    Attributes:
        table: a dataset of the library with two columns, in the format `arrow`.
        where: name of the split in errors.
        image, target: names of the columns.
        classes: how many classes have names; 0 for labels without names.
        sizes: of the images that were looked at.
    """

    table: Any
    where: str
    image: str
    target: str
    classes: int = 0
    sizes: Sequence[Size] = ()

    def __len__(self) -> int:
        return len(self.table)

    def name(self, index: int) -> str:
        return f"{self.where}[{index}]"

    def labels(self) -> np.ndarray:
        return _labels_of(self.table, self.target)

    def __getitems__(self, indices: Sequence[int]) -> Iterable[Example]:
        rows = zip(indices, self._rows(indices), strict=True)
        return (self.decoded(index, *self._parsed(index, *row)) for index, row in rows)

    def stored(self, index: int) -> tuple[Data, int | np.ndarray | Data]:
        (row,) = self._rows([index])
        return self._parsed(index, *row)

    def decoded(self, index: int, image: Data, target: int | np.ndarray | Data) -> Example:
        example = super().decoded(index, image, target)
        if self.channels is None and example["images"].shape[2] != 1:
            ways = f"give {flag('channels', 3)}, or {flag('channels', 1)} to make all grey"
            problem = "is in colour, and the images that were looked at are grey"
            raise BadExample(self.name(index), problem, ways)
        return example

    def where_of(self, index: int, image: Data) -> object:
        """Returns what errors call an image: its file, or its split and index."""
        return self._where(index, image)

    def _rows(self, indices: Sequence[int]) -> Iterable[tuple[Any, Any]]:
        rows = self.table[list(indices)]
        columns = (rows[name].to_pylist() for name in (self.image, self.target))
        return zip(*columns, strict=True)

    def _parsed(self, index: int, image: Any, target: Any) -> tuple[Data, int | np.ndarray | Data]:
        """Returns an image and its target as stored.

        Raises:
            BadExample: if one of them is not there, or for a label that is no class number.
        """
        data = self._encoded(index, image, "image")
        if self.task == "segmentation":
            return data, self._encoded(index, target, "mask")
        if target is None:
            raise BadExample(self.name(index), "has no label")
        labels = target if self.task in VECTOR_FIELDS else [target]
        for label in labels:
            if label is None or label < 0 or label >= (self.classes or np.inf):
                most = f" of 0 to {self.classes - 1}" if self.classes else ""
                problem = f"its label {label} is no class number{most}"
                raise BadExample(self.name(index), problem)
        if self.task not in VECTOR_FIELDS:
            return data, int(target)
        present = np.zeros(self.classes, np.uint8)
        present[labels] = 1
        return data, present

    def _encoded(self, index: int, value: Any, what: str) -> Data:
        """Returns the bytes or the file of an image."""
        data, path = ((value or {}).get(key) for key in ("bytes", "path"))
        if data is not None:
            return data
        if path is None:
            raise BadExample(self.name(index), f"has no {what}")
        if "://" in path:
            place = without_secrets(path)
            raise BadExample(self.name(index), f"its {what} is not in a file, but at {place}")
        return Path(path)
