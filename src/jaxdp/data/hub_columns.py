"""Finds the columns of a table that hold images and their targets, by type and name."""

import importlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from jaxdp.config.values import Columns
from jaxdp.data.find_images import USUAL
from jaxdp.data.request import NOT_GIVEN, Request
from jaxdp.errors import ConfigError, flag
from jaxdp.text.messages import some

_MASKS = re.compile("mask|segment|annotation|^(labels?|gt|ground_?truth)$")
_LABELS = (*USUAL["columns"]["classes"], "label_id", "class_id", "category", "target", "targets")
_WHOLE = re.compile(r"u?int\d+|bool")


def find_columns(request: Request, features: Mapping[str, Any]) -> tuple[str, str, str]:
    """Returns the task, the column of images and the column of targets.

    Raises:
        ConfigError: unless the settings or the types and names of the columns determine them.
    """
    given = request.config.columns or Columns()
    _check_given(request, given, features)
    images = [name for name, feature in features.items() if _is_image(feature)]
    # A single column holds the images, whatever its name is.
    masks = [name for name in images if len(images) > 1 and _MASKS.search(name.lower())]
    others = [given.image] if given.image else [name for name in images if name not in masks]
    found = {
        "classification": [name for name in features if _is_label(name, features[name])],
        "multilabel": [name for name in features if _label_task(features[name]) == "multilabel"],
        "segmentation": masks,
    }
    if given.label or given.mask:
        found = {task: list[str]() for task in found}
        if given.label:
            found[_label_task(features[given.label])] = [given.label]
        if given.mask:
            found["segmentation"] = [given.mask]
            others = [name for name in others if name != given.mask]
    listed = some((_described(name, feature) for name, feature in features.items()), 16)
    available = [task for task, names in found.items() if names]
    if not images or not available:
        raise _no_target(request, features, images, listed)
    task = request.choose(*available)
    targets = found[task]
    if len(others) != 1 or len(targets) != 1 or others == targets:
        image = (others or images)[0]
        target = next((name for name in targets if name != image), targets[0])
        kind = "mask" if task == "segmentation" else "label"
        example = flag("columns", f"image={image},{kind}={target}")
        remedy = f"{request.config.dataset} has the columns {listed}; give e.g. {example}"
        raise ConfigError("columns", request.config.columns or NOT_GIVEN, remedy)
    return task, others[0], targets[0]


def _is_label(name: str, feature: Any) -> bool:
    """Returns whether a column holds classes, as its type says, or its type and its name."""
    declared = type(feature).__name__ == "ClassLabel"
    return _label_task(feature) == "classification" and (declared or name.lower() in _LABELS)


def _check_given(request: Request, given: Columns, features: Mapping[str, Any]) -> None:
    """Raises ConfigError for a column of `--columns` that is not there or of another type."""
    listed = some((_described(name, feature) for name, feature in features.items()), 16)
    for role, name in given.named().items():
        problem = ""
        if name not in features:
            problem = f"there is no column {name}"
        elif role == "label" and not _label_task(features[name]):
            problem = f"labels are ClassLabel, integers or a list of ClassLabel, not {name}"
            problem += _numbered(name, features[name])
        elif role != "label" and not _is_image(features[name]):
            problem = f"{name} holds no images"
        if problem:
            remedy = f"{problem}; {request.config.dataset} has the columns {listed}"
            raise ConfigError("columns", given, remedy)


def _numbered(name: str, feature: Any) -> str:
    """Returns how to make classes of a column of text; "" for another column."""
    if getattr(feature, "dtype", "") not in ("string", "large_string", "string_view"):
        return ""
    return f": number them by .class_encode_column({name!r}).save_to_disk(FOLDER), give hf:FOLDER"


def _no_target(
    request: Request, features: Mapping[str, Any], images: Sequence[str], listed: str
) -> ConfigError:
    """Returns the error for a dataset without images, or without labels and masks."""
    whole = [name for name, feature in features.items() if _label_task(feature)]
    if images and whole:
        example = flag("columns", f"image={images[0]},label={whole[0]}")
        remedy = f"no column is known to be the label; its columns: {listed}; give e.g. {example}"
        return ConfigError("columns", NOT_GIVEN, f"{request.config.dataset}: {remedy}")
    if images and len(images) > 1:
        example = flag("columns", f"image={images[0]},mask={images[1]}")
        remedy = f"no column is known to be the mask; its columns: {listed}; give e.g. {example}"
        return ConfigError("columns", NOT_GIVEN, f"{request.config.dataset}: {remedy}")
    text = [_numbered(name, features[name]) for name in features if name.lower() in _LABELS]
    remedy = f"has no images with labels or masks; its columns: {listed}"
    return request.error(remedy + next(filter(None, text), ""))


def check_alike(
    request: Request, split: str, table: Any, first: Any, columns: tuple[str, str]
) -> None:
    """Raises ConfigError if a column of a split has another type than in the first split."""
    for name in columns:
        theirs, ours = (each.features.get(name) for each in (table, first))
        if theirs is None or (_described(name, theirs), names_of(theirs)) != (
            _described(name, ours),
            names_of(ours),
        ):
            held = "no such column" if theirs is None else _described(name, theirs)
            remedy = f"the column {_described(name, ours)} differs in {split}: {held}"
            raise request.error(f"{remedy}; make them alike")


def _is_image(feature: Any) -> bool:
    """Returns whether a column holds images as files or as their bytes."""
    features: Any = importlib.import_module("datasets").features
    # Parquet files of other programs have the same form without saying that it is an image.
    return isinstance(feature, features.Image) or (
        isinstance(feature, dict) and feature.keys() == {"bytes", "path"}
    )


def _label_task(feature: Any) -> str:
    """Returns the task for which a column is the target; "" if it holds neither a label nor a list
    of labels.
    """
    features: Any = importlib.import_module("datasets").features
    if isinstance(feature, features.List | features.LargeList):
        return "multilabel" if isinstance(feature.feature, features.ClassLabel) else ""
    if isinstance(feature, features.ClassLabel):
        return "classification"
    is_value = isinstance(feature, features.Value)
    return "classification" if is_value and _WHOLE.fullmatch(feature.dtype) else ""


def names_of(feature: Any) -> tuple[str, ...]:
    """Returns the names of the classes of a column."""
    feature = getattr(feature, "feature", feature)
    return tuple(getattr(feature, "names", None) or ())


def _described(name: str, feature: Any) -> str:
    """Returns the name and the type of a column."""
    kind = type(feature).__name__
    if kind == "ClassLabel":
        kind = f"ClassLabel of {feature.num_classes}"
    elif kind in ("List", "LargeList"):
        kind = f"List of {getattr(feature.feature, 'dtype', type(feature.feature).__name__)}"
    elif _is_image(feature):
        kind = "Image"
    return f"{name} ({getattr(feature, 'dtype', kind) if kind == 'Value' else kind})"
