"""Scores single examples, and tells how far a metric would vary over other samples of as many examples."""

import collections
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
from jaxdp.run_directory import Row, replace_file
from jaxdp.step import metrics

RESAMPLES, CONFIDENCE = 1000, 0.95


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
        """Returns for each example its name, the true and the predicted class of a classification, and its metrics."""
        rows: list[Row] = []
        for index, (name, sums) in enumerate(zip(self.names, self.sums, strict=True)):
            values = metrics.compute(self.task, sums)
            del values["examples"]
            classes = dict(zip(("actual", "predicted"), self.classes[index], strict=True)) if self.classes else {}
            rows.append({"example": name} | classes | values)
        return rows

    def write_csv(self, path: pathlib.Path) -> None:
        """Writes a line for each example; a metric that an example does not have is empty."""
        rows = self.rows()
        names = list(dict.fromkeys(name for row in rows for name in row))
        text = csv_text.write([names, *([row.get(name, "") for name in names] for row in rows)])
        replace_file(resolved(path), text)  # a link that the user names stays one

    def intervals(self) -> dict[str, tuple[float, float]]:
        """Returns of each metric the interval that holds it in 95 % of 1,000 samples, drawn with replacement from the examples.

        Source: Efron and Tibshirani, An Introduction to the Bootstrap, 1993, section 13.3 (percentile intervals).
        """
        stacked = {name: np.stack([sums[name] for sums in self.sums]) for name in self.sums[0]}
        count, found = len(self.sums), collections.defaultdict[str, list[float]](list)
        random = np.random.default_rng(0)
        for _ in range(RESAMPLES):
            times = random.multinomial(count, np.full(count, 1 / count))
            drawn = {name: np.tensordot(times, values, 1) for name, values in stacked.items()}
            for name, value in metrics.compute(self.task, drawn).items():
                found[name].append(value)
        del found["examples"]
        tails = [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]
        return {name: (float(low), float(high)) for name, values in found.items() for low, high in [np.quantile(values, tails)]}


def score(setup: Any, state: Any, splits: Sequence[str], task: Any, predictor: Predictor | None = None) -> Scores:
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
        objects = instances.count(predictor, source) if predictor is not None else itertools.repeat({})
        for index, (sums, of_objects) in enumerate(zip(setup.evaluate_each(state, split=split), objects, strict=False)):
            if not sums["examples"]:  # a bad one, which is left out
                continue
            sums |= of_objects
            confusion = sums.pop("confusion", None)  # a square of classes for each example would fill the memory
            if confusion is not None:
                actual, predicted = np.unravel_index(int(np.argmax(confusion)), confusion.shape)
                classes.append((task.class_names[actual], task.class_names[predicted]))
            names.append(valid_text(source.name(index)))
            all_sums.append(sums)
    return Scores(task, names, all_sums, classes)
