"""Trains U-Net on the electron microscopy stack of ISBI 2012, and scores held-out slices as in the
challenge.

Trains on slices 0 to 23 and scores the whole of slices 24 to 29 with the last state. Pixel error is
the share of pixels on the wrong side of a threshold of the probability; adapted Rand error (1 minus
the F-score of pairs of pixels, scikit-image) compares the cells that the membranes separate. The
threshold of each is the best one on the training slices. Needs `pip install scikit-image`.
"""

from typing import Any

import lab
import numpy as np
from scipy import ndimage
from skimage.metrics import adapted_rand_error

import jaxdp

FLAGS = (
    "--model unet --model-kwargs base_channels=16 --dataset tfds:isbi2012 --augment crop:128 flip"
    " flip_vertical rotate90 elastic:10"
)
FLAGS += " --optimizer nesterov --global-batch-size 8 --steps 3000 --eval-every 600"
FLAGS += " --checkpoint-every 600"
TINY = (
    "--steps 4 --eval-every 4 --checkpoint-every 4 --model-kwargs base_channels=4 levels=2".split()
)
CELL = 1  # the class; 0 is membrane
THRESHOLDS = np.arange(0.05, 1, 0.05)
# Ronneberger et al. 2015, table 1, on the challenge's own 30 test slices. Their labels were never
# published.
PUBLISHED = {
    "U-Net, mean over 7 rotations (Ronneberger et al. 2015)": (0.0611, 0.0382),
    "a second human": (0.0010, 0.0021),
}


def cells_of(inside: np.ndarray) -> np.ndarray:
    """Returns a number for each region of pixels that touch along an edge, 0 for the membranes
    between them.
    """
    return ndimage.label(inside)[0]  # pyright: ignore


def errors(probabilities: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """Returns pixel error and adapted Rand error, which leaves out the membranes of the truth, at
    each threshold.
    """
    truth, rows = cells_of(inside), []
    for threshold in THRESHOLDS:
        found = probabilities > threshold
        rows.append(
            [
                np.mean(found != inside),
                adapted_rand_error(truth, cells_of(found), ignore_labels=(0,))[0],
            ]
        )
    return np.array(rows)


def measure(experiment: lab.Experiment) -> Any:
    run = experiment.train(
        "run", [*FLAGS.split(), *experiment.data, *(TINY if experiment.tiny else [])]
    )
    lab.keep(experiment.runs / "run", experiment.output)
    result = jaxdp.load(experiment.runs / "run")
    data: Any = jaxdp.data.load(
        "tfds:isbi2012", **({"data_dir": experiment.data[1]} if experiment.data else {})
    )
    curves = {}
    for split, source in (("train", data.train), ("test", data.test)):
        each = []
        for number in range(len(source)):
            example = source[number]
            probabilities = result.predict(example["images"][None], probabilities=True)[
                0, ..., CELL
            ]
            each.append(errors(probabilities, example["masks"] == CELL))
        curves[split] = np.mean(each, axis=0).tolist()
    return run.outcome() | {"steps": run.summary["steps"], "curves": curves}


def held_out(curves: dict[str, list[list[float]]]) -> list[tuple[float, float]]:
    """Returns pixel and Rand error on the held-out slices, each with the threshold that is best on
    the training slices.
    """
    best = np.argmin(curves["train"], axis=0)
    return [
        (curves["test"][row][column], float(THRESHOLDS[row])) for column, row in enumerate(best)
    ]


def show(results: Any) -> tuple[list[str], Any]:
    figure, axes = lab.create_figure(
        2, title="ISBI 2012, slices 24 to 29", subtitle=results["where"]
    )
    errors_at = held_out(results["curves"])
    for column, (axis, name) in enumerate(
        zip(axes, ("pixel error", "adapted Rand error"), strict=True)
    ):
        train, test = (
            [row[column] for row in results["curves"][split]] for split in ("train", "test")
        )
        axis.plot(THRESHOLDS, train, color=lab.COLORS[4], linestyle="--", label="training slices")
        axis.plot(THRESHOLDS, test, color=lab.COLORS[0], label="held-out slices")
        axis.plot(*reversed(errors_at[column]), "o", color=lab.COLORS[0])
        axis.set(xlabel="threshold of the probability", ylabel=name, ylim=(0, None))
    axes[0].legend(frameon=False)
    test = results["test"]
    names = ("", "steps", "time", "membrane IoU", "cell IoU", "pixel error", "adapted Rand error")
    here = ("here, slices 24 to 29", f"{results['steps']:,}", f"{results['seconds']:.0f} s")
    chosen = [f"{error:.4f} (at {threshold:.2f})" for error, threshold in errors_at]
    lines: list[tuple[str, ...]] = [
        (*here, f"{test['iou/0']:.3f}", f"{test['iou/1']:.3f}", *chosen)
    ]
    for who, published in PUBLISHED.items():
        lines.append(
            (
                f"{who}, the challenge's 30 test slices",
                "",
                "",
                "",
                "",
                *(f"{error:.4f}" for error in published),
            )
        )
    return [
        f"| {' | '.join(names)} |",
        "|---" * len(names) + "|",
        *(f"| {' | '.join(line)} |" for line in lines),
    ], figure


if __name__ == "__main__":
    lab.run("isbi2012", __doc__, measure, show)
