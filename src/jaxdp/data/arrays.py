"""Makes datasets of arrays, and defines which images and targets are accepted."""

import dataclasses
import numbers
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from jaxdp.config import DataConfig
from jaxdp.config.values import MaskValues
from jaxdp.data.array_source import FIELDS, TASKS, array_source, warn_without_0
from jaxdp.data.dataset import VECTOR_FIELDS, Dataset, Description
from jaxdp.data.opening import complete
from jaxdp.data.pixel_statistics import moments_of
from jaxdp.data.request import Request
from jaxdp.data.source import BadExample, FieldsSource
from jaxdp.data.sources import read_settings
from jaxdp.errors import ConfigError
from jaxdp.text.flags import names


def from_arrays(  # noqa: PLR0913 - each keyword says one more thing about the arrays
    images: Any,
    targets: Any,
    *,
    validation: float | Sequence[Any] | None = None,
    test: Sequence[Any] | None = None,
    task: str | None = None,
    class_names: Sequence[str] = (),
    num_classes: int | None = None,
    mask_values: str | None = None,
    instances: bool = False,
    augment: Sequence[str] = (),
    name: str = "arrays",
    seed: int = 0,
    on_bad_example: str = "error",
) -> Dataset:
    """Makes a dataset of arrays, of NumPy or of any type that `numpy.asarray` accepts.

    Mean and standard deviation are computed over the images that remain for training.

    Args:
        images: uint8, uint16 or float32 (N, H, W, C), or (N, H, W) for grey images.
        targets: determine the task. Integers (N,) are labels, 0 and 1 (N, C) mark the classes of
            multi-label images, and numbers with fractions (N,) or (N, C) are to be predicted.
            Integers (N, H, W) are masks, with 255 for ignored pixels, and uint8 (N, H, W, C) are
            images to be learned. With one channel, few low values are masks. A dict of arrays
            (N, ...) gives the fields of a task of your own, or of `tasks.heads`.
        validation: a share between 0 and 1 of each class, which is drawn from the examples and
            excluded from training; or a pair of images and targets.
        test: a pair of images and targets.
        task: `classification`, `multilabel`, `scalar_regression`, `segmentation` or `regression`,
            if the targets do not determine it. With a dict of arrays, the name of your own task;
            `heads` by default.
        class_names: one per class.
        num_classes: number of classes of labels or masks, if it is larger than the number that
            occurs.
        mask_values: mask values of the classes 0, 1, ..., e.g. `"0,128,255"`, or `"binary"` for 0
            and everything else.
        instances: whether masks hold a number for each object, for instance segmentation, and 0 for
            background.
        augment: words as for `--augment`, e.g. `("pad_crop:4", "flip")`.
        name: for titles and errors.
        seed: seed of the draw of validation examples, which depends only on the seed and the
            labels.
        on_bad_example: `skip` leaves out examples that cannot be used; `error` raises for the first
            of them.

    Raises:
        ConfigError: for arrays of another type or shape, or arrays that do not match each other.
    """
    request, validation = request_for(
        task,
        validation,
        any_task=isinstance(targets, Mapping),
        dataset=name,
        num_classes=num_classes,
        mask_values=mask_values,
        instances=instances,
        class_names=class_names or None,
        augment=augment,
        seed=seed,
        on_bad_example=on_bad_example,
    )
    return _opened(_array_splits((images, targets), validation, test, request), request)


def request_for(
    task: str | None, validation: Any, *, any_task: bool = False, **settings: Any
) -> tuple[Request, Any]:
    """Returns the request for a dataset that a program makes, and its validation data, if they are
    no share.

    Args:
        task: for which the targets are; None if they determine it.
        validation: a share, or data.
        any_task: whether the task may be one of the program's own.
        settings: the other settings of the data.

    Raises:
        ConfigError: for an unknown task, and settings that do not fit.
    """
    if not any_task and task not in (None, *FIELDS):
        raise ConfigError("task", task, f"must be one of {', '.join(FIELDS)}")
    if isinstance(validation, numbers.Real):
        settings["validation"] = str(float(validation))
        validation = None
    return Request(read_settings(settings), tasks=(task,) if task else (), flag=""), validation


def arrays_for(
    known: Description, mask_values: MaskValues | None, pair: tuple[Any, Any]
) -> Dataset:
    """Returns images and targets as a dataset to evaluate a model on.

    Args:
        known: what the model knows about its own dataset.
        mask_values: value of `--mask-values` of its run.

    Raises:
        ConfigError: as `from_arrays` does, which takes the settings that `evaluate` lacks.
    """
    settings = DataConfig(dataset="arrays", instances=known.instances, mask_values=mask_values)
    request = Request(settings, flag="", known=known)
    try:
        return _opened(_array_splits(pair, None, None, request), request)
    except ConfigError as error:
        way = "; from_arrays takes mask_values, and evaluate takes its dataset"
        way *= "mask_values" in names(error.remedy)
        if isinstance(error, BadExample):
            raise BadExample(error.where, error.problem, f"fix or remove it{way}") from error
        raise ConfigError(error.field, error.value, f"{error.remedy.template}{way}") from error


def _opened(splits: dict[str, Any], request: Request) -> Dataset:
    found = array_dataset(splits, request, name=request.config.dataset or "")
    dataset = complete(found, request)
    images, train = splits["train"].images, cast(Any, dataset.train)
    if images.dtype == np.uint8:  # all examples, since this requires no reading
        mean, std = moments_of(images, train.indices)
        dataset = dataclasses.replace(dataset, mean=mean, std=std)
    # A mask may have classes that the training masks lack.
    for source in dataset.splits().values() if dataset.task == "segmentation" else ():
        for index in range(len(source)):
            _ = source[index]
    return dataset


def _array_splits(
    train: tuple[Any, Any], validation: Any, test: Any, request: Request
) -> dict[str, Any]:
    name = request.config.dataset
    splits = {"train": array_source(train, ("images", "targets"), f"{name} train", request)}
    for split, pair in {"validation": validation, "test": test}.items():
        if pair is None:
            continue
        if not isinstance(pair, list | tuple) or len(both := cast(Sequence[Any], pair)) != 2:
            share = "a share between 0 and 1, or " * (split == "validation")
            raise request.error(f"{split} must be {share}a pair of images and targets")
        names = (f"{split}[0]", f"{split}[1]")
        splits[split] = array_source(
            (both[0], both[1]), names, f"{name} {split}", request, like=splits["train"]
        )
    for split, source in splits.items():
        if source.images.dtype.kind == "f":
            # One by one, because the images may be a file of any size.
            finite = np.array([np.isfinite(image).all() for image in source.images])
            if not finite.all():
                raise request.error(
                    f"the images of {split} hold NaN or infinity, first in example"
                    f" {int(np.argmin(finite))}"
                )
    return splits


def array_dataset(splits: Mapping[str, Any], request: Request, **facts: Any) -> Dataset:
    """Returns a dataset of arrays. Its statistics, and its mask classes, are still unknown.

    Args:
        facts: other fields of the dataset.
    """
    train = next(iter(splits.values()))
    all_splits: dict[str, Any] = {"train": None} | dict(splits)
    facts |= {"image_shape": train.images.shape[1:], "dtype": train.images.dtype.name}
    if isinstance(train, FieldsSource):  # their task knows the number of classes
        task = (*request.tasks, "heads")[0] if request.known is None else request.known.task
        kind = "classification" if request.known is None else request.known.answer
        return Dataset(**all_splits, task=task, kind=kind, targets=train.shapes(), **facts)
    classes = 0
    if train.field == "targets":
        classes = train.targets.shape[3]
    elif TASKS[train.field] in VECTOR_FIELDS:
        classes = train.targets.shape[1]
    elif train.field == "labels":
        classes = 1 + max(int(source.targets.max(initial=-1)) for source in splits.values())
        if request.known is None:
            warn_without_0(train.targets, request)
    return Dataset(
        **all_splits,
        task=TASKS[train.field],
        num_classes=classes,
        instances=request.config.instances and train.field == "masks",
        **facts,
    )
