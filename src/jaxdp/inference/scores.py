"""Scores single examples."""

import dataclasses
import itertools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxdp import csv_text
from jaxdp.inference import instances
from jaxdp.inference.predictor import Predictor
from jaxdp.parsing import resolved, valid_text
from jaxdp.rundir.read import Row
from jaxdp.rundir.write import replace_file
from jaxdp.step import metrics


@dataclasses.dataclass(frozen=True)
class Scores:
    """The metrics of a task on single examples and on all of them together.

    Attributes:
        task: whose metrics they are.
        examples: the name of each as `example`: its file if it comes from a file, otherwise split
            and number; for classification also its `actual` and its `predicted` class.
        sums: metric sums of each example, without the confusion matrix.
    """

    task: Any
    examples: Sequence[Row]
    sums: Sequence[Mapping[str, Any]]

    def metrics(self) -> dict[str, float]:
        """Returns the metrics over all examples."""
        return metrics.compute(self.task, metrics.add(*self.sums))

    def rows(self) -> list[Row]:
        """Returns for each example its name, the true and the predicted class of a classification,
        and its metrics.
        """
        rows = [metrics.compute(self.task, sums) for sums in self.sums]
        for row in rows:
            del row["examples"]
        return [example | row for example, row in zip(self.examples, rows, strict=True)]

    def write_csv(self, path: pathlib.Path) -> None:
        """Writes a line for each example; a metric that an example does not have is empty."""
        rows = self.rows()
        names = list(dict.fromkeys(name for row in rows for name in row))
        text = csv_text.write([names, *([row.get(name, "") for name in names] for row in rows)])
        replace_file(resolved(path), text)  # a link that the user names stays one


def score(
    setup: Any, state: Any, splits: Sequence[str], task: Any, predictor: Predictor | None = None
) -> Scores:
    """Evaluates every example of some splits by itself.

    Args:
        setup: `training.setup.Setup`.
        state: placed as the setup's strategy wants it.
        task: whose metrics are wanted.
        predictor: of the same state, for instance segmentation.
    """
    examples: list[Row] = []
    all_sums: list[metrics.Sums] = []
    for split in splits:
        source = setup.dataset.splits()[split]
        objects = itertools.repeat({}) if predictor is None else instances.count(predictor, source)
        found = zip(setup.evaluate_each(state, split=split), objects, strict=False)
        for index, (sums, of_objects) in enumerate(found):
            if not sums["examples"]:  # a bad one, which is left out
                continue
            example = {"example": valid_text(source.name(index))}
            # A square of classes for each example would fill the memory.
            confusion = sums.pop("confusion", None)
            if confusion is not None:
                classes = np.unravel_index(int(np.argmax(confusion)), confusion.shape)
                names = (task.class_names[label] for label in classes)
                example |= zip(("actual", "predicted"), names, strict=True)
            examples.append(example)
            all_sums.append(sums | of_objects)
    return Scores(task, examples, all_sums)
