"""Draws the pictures of a finished run: the confusion matrix of classes, or images with truth and
prediction.
"""

import collections
import functools
import itertools
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxdp.data.dataset import IGNORE_LABEL
from jaxdp.reporting import confusion, pictures
from jaxdp.tasks import instances
from jaxdp.text.messages import valid_text

# A function from images to pairs of an image and its prediction: probabilities, or pixels from 0 to
# 1.
Predict = Callable[[Iterable[np.ndarray]], Iterable[tuple[np.ndarray, np.ndarray]]]
Draw = Callable[[np.ndarray], np.ndarray]

_LONGEST_NAME = 36  # characters of a title
ROWS, COLUMNS = 3, 4  # examples shown, evenly spaced over the test set; images of classes in a row


def draw(
    directory: pathlib.Path,
    *,
    title: str,
    task: Any,
    source: Any,
    predict: Predict,
    sums: Mapping[str, Any],
) -> dict[str, np.ndarray]:
    """Writes the pictures to a folder and returns them by name, uint8 (H, W, 3).

    Args:
        source: the evaluated split, which the picture names.
        predict: yields each image with the model's prediction.
        sums: of the evaluation.
    """
    if not task.has_pictures:
        return {}
    if "confusion" in sums:
        counts = np.asarray(sums["confusion"])
        drawing = confusion.plot(counts, task.class_names, directory / "confusion.png", title=title)
        confusion.write(counts, task.class_names, directory / "confusion.csv")
        return {"confusion": drawing}
    if task.kind == "classification" and not task.target:
        return {}
    good = [index for index in range(len(source)) if index not in source.errors]
    count = ROWS * (COLUMNS if task.kind == "classification" else 1)
    places = np.linspace(0, len(good) - 1, min(count, len(good))).round().astype(int)
    indices = [good[place] for place in places]
    rows = [row for _, row in compare(task, source, indices, predict)]
    path = directory / "predictions.png"
    return {"predictions": pictures.plot_rows(in_rows(rows), path, valid_text(source.where))}


def in_rows(rows: Sequence[list[Any]]) -> list[list[Any]]:
    """Returns rows of one picture each as rows of several, and others as they are."""
    if any(len(row) > 1 for row in rows):
        return [*rows]
    return [
        [*itertools.chain(*rows[first : first + COLUMNS])] for first in range(0, len(rows), COLUMNS)
    ]


def compare(
    task: Any, source: Any, indices: Sequence[int], predict: Predict
) -> Iterator[tuple[float, list[tuple[str, np.ndarray]]]]:
    """Yields, for each example, the error of the prediction, and titles with pictures, uint8 (H, W,
    1 or 3), that show it.

    The error is what the task of a classifier says, 1 - the average precision of instances, the
    share of pixels with another class, or the mean difference of pixels.

    Args:
        predict: as for `draw`.
    """
    examples = collections.deque[Any]()

    def images() -> Iterator[np.ndarray]:
        for index in indices:
            example = source[index]
            if example["weights"]:
                examples.append((index, example))
                yield example["images"]

    for image, answer in predict(images()):
        index, example = examples.popleft()
        name = valid_text(pathlib.PurePath(source.name(index)).name)[-_LONGEST_NAME:]
        shown = pictures.as_picture(image, source.pixel_range)
        if task.kind == "classification":
            wrong, said = task.compare(answer, example)
            yield wrong, [(valid_text(f"{name}\n{said}"), shown)]
            continue
        color: Draw = np.asarray
        if task.finds_instances:
            truth, found = source.unchecked(index)["masks"], task.label(answer)
            wrong = 1 - instances.metrics(instances.sums(truth, found)).get("average_precision", 1)
            color = pictures.color_objects
        elif task.kind == "segmentation":
            truth, found = example["masks"], task.label(answer)
            ignored = getattr(task, "ignore_label", IGNORE_LABEL)
            wrong = np.mean((found != truth) & (truth != ignored))
            color = functools.partial(
                pictures.color_mask, num_classes=task.num_classes, ignore_label=ignored
            )
        else:
            truth, found = example["targets"], (answer.clip(0, 1) * 255).round().astype(np.uint8)
            wrong = np.mean(np.abs(np.subtract(found, truth, dtype=float)))
        height, width = source.size(index)  # padding is not part of the image
        row = [(name, shown), ("truth", color(truth)), ("prediction", color(found))]
        yield float(wrong), [(title, picture[:height, :width]) for title, picture in row]
