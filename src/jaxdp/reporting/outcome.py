"""Draws the pictures of a finished run: a classifier's confusion matrix, or images with truth and
prediction.
"""

import functools
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxdp.data.dataset import IGNORE_LABEL
from jaxdp.parsing import valid_text
from jaxdp.reporting import confusion, pictures
from jaxdp.tasks.segmentation import center_crop

_LONGEST_NAME = 36  # characters of a title
ROWS = 3  # examples shown, evenly spaced over the test set


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
        source: the split that was evaluated, which the picture names.
        predict: from stored pixels to the model's outputs.
        sums: of the evaluation.
        separate: from the outputs for an image to instance labels, for instance segmentation.
    """
    if task.target:  # a task of another package that learns something else
        return {}
    if task.kind == "classification":
        if "confusion" not in sums:
            return {}
        counts = np.asarray(sums["confusion"])
        drawing = confusion.plot(counts, task.class_names, directory / "confusion.png", title=title)
        confusion.write(counts, task.class_names, directory / "confusion.csv")
        return {"confusion": drawing}
    indices = np.linspace(0, len(source) - 1, min(ROWS, len(source))).round().astype(int).tolist()
    examples = source.read(indices)
    outputs = np.asarray(predict(examples["images"]))
    color: Callable[[np.ndarray], np.ndarray] = np.asarray
    if separate is not None:
        truths = np.stack([source.unchecked(index)["masks"] for index in indices])
        predicted = [separate(output) for output in outputs]
        color = pictures.color_objects
    elif task.kind == "segmentation":
        truths, predicted = examples["masks"], outputs.argmax(-1).astype(np.uint8)
        ignore_label = getattr(task, "ignore_label", IGNORE_LABEL)
        color = functools.partial(
            pictures.color_mask, num_classes=task.num_classes, ignore_label=ignore_label
        )
    else:
        truths = examples["targets"]
        predicted = (outputs.clip(0, 1) * 255).round().astype(np.uint8)
    grid, answered = examples["images"].shape[1:3], outputs.shape[1:3]
    images, truths = (center_crop(each, answered) for each in (examples["images"], truths))
    rows = list[list[tuple[str, np.ndarray]]]()
    for index, image, truth, found in zip(indices, images, truths, predicted, strict=True):
        sides = zip(source.size(index), grid, answered, strict=True)
        # Padding, which is at the bottom and right, is no part of the image.
        height, width = (max(side - (have - want) // 2, 1) for side, have, want in sides)
        name = valid_text(pathlib.PurePath(source.name(index)).name)[-_LONGEST_NAME:]
        shown = pictures.stretch(pictures.as_picture(image, source.pixel_range))
        row = [(name, shown), ("truth", color(truth)), ("prediction", color(found))]
        rows.append([(title, picture[:height, :width]) for title, picture in row])
    path = directory / "predictions.png"
    return {"predictions": pictures.plot_rows(rows, path, valid_text(source.where))}
