"""Compares optimizers and learning rates for small training sets.

Trains each of 21 small sets with each of several recipes and seeds, for the default 20 epochs of
the default batch, and judges every epoch by validation data. A run has diverged when a value is not
finite or a validation loss is above twice the loss of chance. A run that only overfits can also
reach that. It has blown up when a loss is above ten times the loss of chance. Every run is a line
of `OUTPUT/runs.jsonl`; what is there already is not trained again.
"""

import dataclasses
import functools
import itertools
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any

import lab
import numpy as np
from PIL import Image

import jaxdp
from jaxdp.rundir.read import read_lines
from jaxdp.rundir.write import append_row

SEEDS = (0, 1, 2)
VALIDATION = 36  # examples
DIVERGED, BLOWN_UP = 2, 10  # a validation loss above so many times the loss of chance
COUNTS = {"runs": "runs", "diverged": "diverged", "blown_up": "blown up"}

# Name: settings of the compiled step, and settings of a run of it. All have the default schedule,
# one-cycle, which warms up for 30% of the steps. Fewer runs of SGD at 0.01, clipped, or with the
# root of the batch diverged as often; `runs.jsonl` has them.
SGD: dict[str, Any] = {"optimizer": "nesterov"}
ADAMW: dict[str, Any] = {"optimizer": "adamw"}
RECIPES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "SGD 0.1": (SGD, {"learning_rate": 0.1}),
    "SGD 0.1 · B/128": (SGD, {"learning_rate": 0.1, "lr_scaling": "linear"}),
    "AdamW 1e-3": (ADAMW, {"learning_rate": 1e-3}),
    "AdamW 3e-4": (ADAMW, {"learning_rate": 3e-4}),
}
# Recipes of the second and the third seed: the former default, and the default now.
FINALISTS = ("SGD 0.1", "AdamW 3e-4")


@dataclasses.dataclass(frozen=True)
class SmallSet:
    """A set and the model that learns it.

    Attributes:
        model: its name; "unet 64" is the U-Net with its default of 64 base channels.
        examples: of each class; of masks all.
        classes: of labels; 0 for masks, which have two, or three with instances.
        size: pixels a side.
    """

    model: str
    source: str
    examples: int
    classes: int
    size: int

    @property
    def name(self) -> str:
        of = f" of {self.classes} classes" if self.classes else ""
        return f"{self.model}, {self.source}, {self.examples}{of}, {self.size} px"

    @property
    def chance(self) -> float:
        """The loss of a model that finds all classes alike."""
        return math.log(self.classes or (3 if self.source == "instances" else 2))


SIZES = {"unet": {"base_channels": 8, "levels": 3}, "vgg": {"depth": 11}, "resnet": {"depth": 18}}
SETS = (
    SmallSet("cnn", "cifar10", 12, 3, 32),
    SmallSet("unet", "isbi2012", 12, 0, 64),
    SmallSet("pyramidnet", "cifar10", 12, 3, 32),
    SmallSet("resnet", "cifar10", 12, 3, 32),
    SmallSet("vgg", "cifar10", 12, 2, 32),
    SmallSet("unet", "instances", 12, 0, 64),
    SmallSet("cnn", "mnist", 5, 10, 32),
    SmallSet("unet", "cells", 5, 0, 64),
    SmallSet("pyramidnet", "mnist", 10, 5, 32),
    SmallSet("resnet", "cifar10", 5, 2, 64),
    SmallSet("vgg", "mnist", 10, 3, 32),
    SmallSet("cnn", "cifar10", 5, 2, 224),
    SmallSet("pyramidnet", "digits", 12, 4, 32),
    SmallSet("resnet", "digits", 25, 4, 32),
    SmallSet("unet", "isbi2012", 30, 0, 64),
    SmallSet("cnn", "cifar10", 50, 10, 32),
    SmallSet("unet", "cells", 24, 0, 64),
    SmallSet("vgg", "cifar10", 5, 4, 48),
    SmallSet("cnn", "mnist", 200, 5, 32),
    SmallSet("cnn", "mnist", 500, 10, 32),
    SmallSet("unet 64", "isbi2012", 12, 0, 64),
)
TINY = (SmallSet("cnn", "digits", 5, 3, 32), SmallSet("unet", "cells", 4, 0, 32))


@functools.cache
def arrays(chosen: SmallSet, split: str, data_dir: str | None) -> tuple[np.ndarray, np.ndarray]:
    """Returns images and targets of a split of a small set: the first of each class."""
    instances, name = chosen.source == "instances", chosen.source
    name = {"instances": "cells", "isbi2012": "tfds:isbi2012"}.get(name, name)
    settings: dict[str, Any] = {"instances": True} if instances else {}
    if data_dir and name not in ("cells", "digits"):
        settings["data_dir"] = data_dir
    whole: Any = jaxdp.data.load(name, **settings)
    count = chosen.examples if split == "train" else VALIDATION // (chosen.classes or 3)
    found: dict[int, list[Any]] = {label: [] for label in range(chosen.classes or 1)}
    for number in range(len(whole.splits()[split])):
        example = whole.splits()[split][number]
        same = found.get(int(example.get("labels", 0)), [])
        if len(same) < count:
            same += tiles(example, chosen.size)[: count - len(same)]
        if all(len(each) == count for each in found.values()):
            break
    images, targets = zip(*(pair for each in found.values() for pair in each), strict=True)
    scale = 15 if name == "digits" else 1  # whose pixels are 0 to 16
    return np.stack(images) * np.uint8(scale), np.stack(targets)


def tiles(example: dict[str, Any], size: int) -> list[tuple[np.ndarray, Any]]:
    """Returns an image of a class in this size, or a few tiles of an image with a mask."""
    image = np.asarray(example["images"])
    if "labels" in example:
        resized = Image.fromarray(image.squeeze()).resize((size, size))
        return [(np.asarray(resized).reshape(size, size, -1), example["labels"])]
    places = [slice(start, start + size) for start in range(0, len(image) - size + 1, 3 * size)]
    return [(image[where, where], example["masks"][where, where]) for where in places]


def runs_of(
    chosen: SmallSet, seed: int, known: Sequence[dict[str, Any]], data_dir: str | None
) -> Iterator[dict[str, Any]]:
    """Trains what is not known of a set. The recipes of a compiled step share it."""
    done = {run["recipe"] for run in known if (run["set"], run["seed"]) == (chosen.name, seed)}
    trainers: dict[str, jaxdp.Trainer] = {}
    for recipe in FINALISTS if seed else RECIPES:
        if recipe in done:
            continue
        fixed, free = RECIPES[recipe]
        if str(fixed) not in trainers:
            data = jaxdp.data.from_arrays(
                *arrays(chosen, "train", data_dir),
                validation=arrays(chosen, "test", data_dir),
                instances=chosen.source == "instances",
            )
            kwargs = SIZES.get(chosen.model, {})
            trainers[str(fixed)] = jaxdp.Trainer(
                chosen.model.split()[0],
                data,
                model_kwargs=kwargs,
                devices=1,
                progress=False,
                **fixed,
            )
        started = time.perf_counter()
        result = trainers[str(fixed)].fit(seed=seed, **free)
        rows = [row for row in result.history if row["split"] == "validation"]
        metric = "accuracy" if chosen.classes else "iou"
        yield {"set": chosen.name, "recipe": recipe, "seed": seed} | {
            "batch": result.config.global_batch_size,
            "status": result.summary["status"],
            "losses": [row["loss"] for row in rows],
            "metrics": [row[metric] for row in rows],
            "seconds": time.perf_counter() - started,
        }


def judged(run: dict[str, Any], chance: float) -> tuple[bool, bool, float, float, float]:
    """Returns whether a run diverged, whether it blew up, its last and its best loss in units of
    chance, and its last metric.
    """
    losses = [loss if math.isfinite(loss) else math.inf for loss in run["losses"]] or [math.inf]
    worst = max(losses) / chance if run["status"] == "done" else math.inf
    ends = losses[-1] / chance, min(losses) / chance
    return worst > DIVERGED, worst > BLOWN_UP, *ends, (run["metrics"] or [0.0])[-1]


def measure(experiment: lab.Experiment) -> Any:
    file = experiment.output / "runs.jsonl"
    sets, seeds = (TINY, SEEDS[:1]) if experiment.tiny else (SETS, SEEDS)
    for seed, chosen in itertools.product(seeds, sets):
        for run in runs_of(chosen, seed, read_lines(file), experiment.arguments.data_dir):
            append_row(file, run)
    return summarize(read_lines(file), sets)


def summarize(runs: Sequence[dict[str, Any]], sets: Sequence[SmallSet]) -> list[dict[str, Any]]:
    """Returns for each set and recipe how many runs diverged, and medians over the seeds."""
    found: list[dict[str, Any]] = []
    for chosen, recipe in itertools.product(sets, RECIPES):
        each = [run for run in runs if (run["set"], run["recipe"]) == (chosen.name, recipe)]
        if not each:
            continue
        diverged, blown_up, *values = zip(
            *(judged(run, chosen.chance) for run in each), strict=True
        )
        names = {"set": chosen.name, "batch": each[0]["batch"], "recipe": recipe}
        medians = dict(zip(("last", "best", "metric"), map(statistics.median, values), strict=True))
        counts = {"runs": len(each), "diverged": sum(diverged), "blown_up": sum(blown_up)}
        found.append(names | counts | medians)
    return found


def show(results: Any) -> tuple[list[str], Any]:
    recipes = [recipe for recipe in RECIPES if any(row["recipe"] == recipe for row in results)]
    figure, (axes,) = lab.create_figure(
        1, title="Small sets: the last validation loss", subtitle="in units of chance; + diverged"
    )
    by_set = {(row["set"], row["recipe"]): row for row in results}
    head = ("recipe", "sets", *COUNTS.values(), "last loss", "best loss", "accuracy or IoU")
    table = [f"| {' | '.join(head)} | sets better than by {recipes[0]} |", "|---" * 9 + "|"]
    for number, recipe in enumerate(recipes):
        rows = [row for row in results if row["recipe"] == recipe]
        counts = [sum(row[name] for row in rows) for name in COUNTS]
        medians = [statistics.median(row[name] for row in rows) for name in ("last", "best")]
        metric = statistics.median(row["metric"] for row in rows)
        cells = (recipe, len(rows), *counts, *(f"{each:.2f}" for each in medians))
        better = sum(row["last"] < by_set[row["set"], recipes[0]]["last"] for row in rows)
        table.append(f"| {' | '.join(map(str, cells))} | {metric:.3f} | {better} |")
        for failed, marker in ((False, "o"), (True, "+")):
            lasts = [min(row["last"], 10) for row in rows if bool(row["diverged"]) == failed]
            axes.plot([number] * len(lasts), lasts, marker, color=lab.COLORS[failed], alpha=0.6)
        axes.plot([number - 0.3, number + 0.3], medians[:1] * 2, color=lab.COLORS[4])
    axes.set_xticks(range(len(recipes)), recipes, rotation=30, ha="right")
    axes.set(yscale="log", ylabel="loss / loss of chance")
    table += ["", "Medians over sets of medians over seeds; losses in units of chance.", ""]
    table += [f"| set | batch | {' | '.join(recipes)} |", "|---" * (2 + len(recipes)) + "|"]
    for name, batch in dict.fromkeys((row["set"], row["batch"]) for row in results):
        cells = [cell(by_set.get((name, recipe))) for recipe in recipes]
        table.append(f"| {name} | {batch} | {' | '.join(cells)} |")
    return table, figure


def cell(row: dict[str, Any] | None) -> str:
    """Returns the last loss and metric of a set, and how many runs of it diverged."""
    if row is None:
        return ""
    failed = f" ({row['diverged']} of {row['runs']} diverged)" * bool(row["diverged"])
    return f"{row['last']:.2f}, {row['metric']:.2f}{failed}"


if __name__ == "__main__":
    lab.run("small_sets", __doc__, measure, show)
