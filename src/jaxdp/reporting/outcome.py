"""Draws the pictures of a finished run: a classifier's confusion matrix, or else images, truth and
predictions.
"""

import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxdp.data.sources import IGNORE_LABEL, TARGET_FIELDS
from jaxdp.reporting import confusion, pictures
from jaxdp.tasks.segmentation import center_crop

ROWS = 3  # pictures shown, evenly spaced over the test set


def draw(
    directory: pathlib.Path,
    *,
    title: str,
    task: Any,
    source: Any,
    predict: Callable[[np.ndarray], Any],
    sums: Mapping[str, Any],
    separate: Callable[[np.ndarray], np.ndarray] | None = None,
) -> dict[str, np.ndarray]:
    """Writes the pictures to a folder and returns them by name, uint8 (H, W, 3).

    Args:
        source: the test split.
        predict: from stored pixels to the model's outputs.
        sums: of the evaluation.
        separate: from the outputs for an image to the numbers of its objects, where objects are
            told apart.
    """
    if getattr(task, "target", None):  # a task from outside that learns something else
        return {}
    kind = task.name if task.name in TARGET_FIELDS else getattr(task, "kind", "classification")
    if kind == "classification" and "confusion" not in sums:
        return {}
    if kind == "classification":
        counts = np.asarray(sums["confusion"])
        drawing = confusion.plot(counts, task.class_names, directory / "confusion.png", title=title)
        confusion.write(counts, task.class_names, directory / "confusion.csv")
        return {"confusion": drawing}
    numbers = np.linspace(0, len(source) - 1, min(ROWS, len(source))).round().astype(int)
    examples = source.read(numbers.tolist())
    outputs = np.asarray(predict(examples["images"]))
    images = np.asarray(center_crop(examples["images"], outputs.shape[1:3]))
    if separate is not None:
        actual = np.stack([source.unchecked(number)["masks"] for number in numbers.tolist()])
        truths = [
            pictures.color_objects(objects)
            for objects in np.asarray(center_crop(actual, outputs.shape[1:3]))
        ]
        found = [pictures.color_objects(separate(output)) for output in outputs]
    elif kind == "segmentation":
        masks = np.asarray(center_crop(examples["masks"], outputs.shape[1:3]))
        truths, found = (
            [
                pictures.color_mask(
                    mask, task.num_classes, getattr(task, "ignore_label", IGNORE_LABEL)
                )
                for mask in many
            ]
            for many in (masks, outputs.argmax(-1).astype(np.uint8))
        )
    else:
        truths = list(np.asarray(center_crop(examples["targets"], outputs.shape[1:3])))
        found = list((outputs.clip(0, 1) * 255).round().astype(np.uint8))
    shown = [
        pictures.stretch(pictures.as_picture(image, getattr(source, "pixel_range", None)))
        for image in images
    ]
    rows = [list(row) for row in zip(shown, truths, found, strict=True)]
    return {
        "predictions": pictures.plot_rows(
            rows, ("image", "truth", "prediction"), directory / "predictions.png"
        )
    }
