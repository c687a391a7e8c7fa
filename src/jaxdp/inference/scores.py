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
        names: of the examples: files where they come from files, otherwise split and number.
        sums: metric sums of each example, without the confusion matrix.
        classes: of a classification the true and the predicted class of each example.
    """

    task: Any
    names: Sequence[str]
    sums: Sequence[Mapping[str, Any]]
    classes: Sequence[tuple[str, str]] = ()

    def metrics(self) -> dict[str, float]:
        """Returns the metrics over all examples."""
        return metrics.compute(self.task, metrics.add(*self.sums))

    def rows(self) -> list[Row]:
        """Returns for each example its name, the true and the predicted class of a classification,
        and its metrics.
        """
        rows: list[Row] = []
        for index, (name, sums) in enumerate(zip(self.names, self.sums, strict=True)):
            values = metrics.compute(self.task, sums)
            del values["examples"]
            pair = self.classes[index] if self.classes else ()
            classes = dict(zip(("actual", "predicted"), pair, strict=False))
            rows.append({"example": name} | classes | values)
        return rows

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
        predictor: of the same state, where objects are told apart.
    """
    names: list[str] = []
    all_sums: list[metrics.Sums] = []
    classes: list[tuple[str, str]] = []
    for split in splits:
        source = setup.dataset.splits()[split]
        objects = itertools.repeat({}) if predictor is None else instances.count(predictor, source)
        for index, (sums, of_objects) in enumerate(
            zip(setup.evaluate_each(state, split=split), objects, strict=False)
        ):
            if not sums["examples"]:  # a bad one, which is left out
                continue
            sums |= of_objects
            # A square of classes for each example would fill the memory.
            confusion = sums.pop("confusion", None)
            if confusion is not None:
                actual, predicted = np.unravel_index(int(np.argmax(confusion)), confusion.shape)
                classes.append((task.class_names[actual], task.class_names[predicted]))
            names.append(valid_text(source.name(index)))
            all_sums.append(sums)
    return Scores(task, names, all_sums, classes)
