"""Trains U-Net on the electron microscopy stack of ISBI 2012, and scores held-out slices as in the
challenge.

Each of three runs trains on 24 slices and scores the other six with its last state: slices 24 to
29, 12 to 17 and 0 to 5. Neighbouring slices look similar, so the held-out slices are consecutive.
membranes.py computes the scores. They choose nothing but, as in the challenge, the threshold, and
on slices 24 to 29 AdamW with 0.003 instead of Nesterov momentum with 0.1, with fewer steps.

The recipe starts plain, with random tiles, flips and quarter turns. Its parts are added one after
the other: `border_weights` of the U-Net paper, `elastic` deformation, and `mean_of_8`, the mean
prediction over all flips and quarter turns of a slice. Flags of this script only:

    --parts [PART ...]      only these parts (default: all); with none, only the plain recipe
    --held-out FIRST ...    only the runs with these first held-out slices (default: 24 12 0)
    --add                   keep what results.json holds, and measure only what it lacks
    --peer                  then train MONAI's U-Net for the seconds of the whole recipe, and score
                            slices 24 to 29 (monai_side.py); its environment needs a package index
"""

import argparse
import dataclasses
import json
import subprocess
import sys
import zlib
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import lab
import membranes
import numpy as np
import optax
import tables
from scipy import ndimage

import jaxdp

SETTINGS: dict[str, Any] = {
    "model_kwargs": {"base_channels": 16},
    "optimizer": "adamw",
    "learning_rate": 0.003,
    "global_batch_size": 8,
    "steps": 3000,
    "eval_every": 600,
    "checkpoint_every": 600,
    "devices": 1,
}
TINY: dict[str, Any] = {
    "model_kwargs": {"base_channels": 4, "levels": 2},
    "steps": 4,
    "eval_every": 4,
    "checkpoint_every": 4,
}
AUGMENT = ("crop:128", "flip", "flip_vertical", "rotate90")
PARTS = {
    "border_weights": "border weights",
    "elastic": "elastic deformation",
    "mean_of_8": "mean over 8 flips and rotations",
}
PEER = ("monai==1.5.1", "torch")
HELD_OUT, COUNT = (24, 12, 0), 6  # first slices, and how many
CLASSES = ("membrane", "cell")
CELL = CLASSES.index("cell")
# CRC-32 of the pixels of slices 0 to 29, which TensorFlow Datasets keeps in another order.
CHECKSUMS = (
    "74052b43 794fb2b7 8d697f00 39231f0e 19819911 ecfdd2a7 dd088b65 c9cac848 f11baf2a 913a883a"
    " 9ebd5f02 e7ff33b0 36d6ce05 b008b310 f39817b4 8e34cfb3 5b280104 ddb8f651 952e4036 1972987e"
    " 617042ce ce6cfe9c ff3219a2 dd1423ca 82cc5d06 60d5eb92 b40692b0 8c6f3c7f bd8b4fec c4ee782e"
).split()
# Equation 2 of the U-Net paper, and its values of w0 and sigma, in pixels.
W0, SIGMA = 10.0, 5.0
REACH = 30  # pixels, beyond which the weight of a cell is below 2e-7
STEP = 0.5  # between the weights that masks can hold
CODES = len(CLASSES) * (round(W0 / STEP) + 1)  # the values of such masks
NAMES = {
    "v_rand": "V_rand",
    "v_info": "V_info",
    "rand_error": "Rand error, not thinned",
    "pixel_error": "pixel error",
}
# On the challenge's own 30 test slices, whose labels were never published: the table of Ronneberger
# et al. 2015, and the challenge's table.
CHALLENGE = {
    "U-Net, mean over 7 rotations (Ronneberger et al. 2015)": {
        "v_rand": "0.973",
        "v_info": "0.987",
        "rand_error": "0.0382",
        "pixel_error": "0.0611",
    },
    "a second human": {
        "v_rand": "0.998",
        "v_info": "0.999",
        "rand_error": "0.0021",
        "pixel_error": "0.0010",
    },
}


@dataclasses.dataclass(frozen=True)
class WeightedSegmentation(jaxdp.tasks.Segmentation):
    """Weighs each pixel in the cross-entropy of the training loss.

    The weights are part of the masks, as `with_weights` makes them, so that augmentation moves them
    with the classes. Masks may only have as many values as the network has outputs, of which the
    task uses the first two.
    """

    name = "weighted-segmentation"

    def losses(self, outputs: Any, batch: Any) -> Any:
        masks = batch["masks"].astype(jnp.int32)
        losses = optax.softmax_cross_entropy_with_integer_labels(
            outputs[..., : len(CLASSES)], masks % len(CLASSES)
        )
        weights = 1 + STEP * (masks // len(CLASSES))
        return jnp.sum(weights * losses, (1, 2)) / jnp.sum(weights, (1, 2))

    def sums(self, outputs: Any, batch: Any, *, training: bool) -> Any:
        masks = batch["masks"] % len(CLASSES)
        outputs = outputs[..., : len(CLASSES)]
        return super().sums(outputs, {**batch, "masks": masks}, training=training)

    def probabilities(self, outputs: Any) -> Any:
        return super().probabilities(outputs[..., : len(CLASSES)])


def with_weights(mask: np.ndarray) -> np.ndarray:
    """Returns class + 2 * level for each pixel; its weight is 1 + STEP * level."""
    levels = np.rint(border_weights(mask == CELL) / STEP)
    return (mask + len(CLASSES) * levels).astype(np.uint8)


def border_weights(inside: np.ndarray) -> np.ndarray:
    """Returns the second term of a pixel's weight, w0 exp(-(d1 + d2)^2 / (2 sigma^2)), where d1 and
    d2 are its distances to the borders of the nearest and of the second nearest cell.

    The border of a cell consists of its pixels that touch another pixel along an edge. The first
    term, which balances the classes in the paper, is 1 here.
    """
    cells = membranes.label(inside)
    nearest, second = np.full((2, *cells.shape), np.inf)
    boxes: Any = ndimage.find_objects(cells)
    for number, box in enumerate(boxes, 1):
        near = tuple(slice(max(side.start - REACH, 0), side.stop + REACH) for side in box)
        cell = cells[near] == number
        border = cell & ~np.asarray(ndimage.binary_erosion(cell, border_value=1), bool)
        distance = np.asarray(ndimage.distance_transform_edt(~border))
        second[near] = np.minimum(second[near], np.maximum(nearest[near], distance))
        nearest[near] = np.minimum(nearest[near], distance)
    return W0 * np.exp(-((nearest + second) ** 2) / (2 * SIGMA**2))


def load(data_dir: str | None) -> tuple[np.ndarray, np.ndarray]:
    """Returns images (30, 512, 512, 1) and masks (30, 512, 512) in the order of the stack."""
    settings: Any = {"data_dir": data_dir} if data_dir else {}
    data = jaxdp.data.load("tfds:isbi2012", **settings)
    examples: dict[str, Any] = {}
    for source in data.splits().values():
        for index in range(len(source)):
            example = source[index]
            examples[f"{zlib.crc32(example['images'].tobytes()):08x}"] = example
    if set(examples) != set(CHECKSUMS):
        sys.exit(f"{data.name}: not the 30 slices of the training stack of ISBI 2012")
    ordered = [examples[each] for each in CHECKSUMS]
    return np.stack([each["images"] for each in ordered]), np.stack(
        [each["masks"] for each in ordered]
    )


def train(
    experiment: lab.Experiment,
    parts: Sequence[str],
    images: np.ndarray,
    masks: np.ndarray,
    first: int,
) -> tuple[lab.Run, Any]:
    """Trains with some of the parts on all slices but those from `first` on."""
    test = np.arange(first, first + COUNT)
    kept = np.setdiff1d(np.arange(len(images)), test)
    targets, task, classes = masks[kept], "segmentation", len(CLASSES)
    if "border_weights" in parts:
        targets, classes = np.stack(list(map(with_weights, targets))), CODES
        task = WeightedSegmentation(classes)
    name = "-".join(["plain", *parts, f"{first:02d}"])
    data = jaxdp.data.Dataset(
        task="segmentation",
        num_classes=classes,
        image_shape=images.shape[1:],
        mean=(float(images[kept].mean()),),
        std=(float(images[kept].std()),),
        train=jaxdp.data.ArraySource(images[kept], targets, "masks"),
        test=jaxdp.data.ArraySource(images[test], masks[test], "masks"),
        name="isbi2012",
    )
    settings = SETTINGS | (TINY if experiment.tiny else {})
    augment = [*AUGMENT, *["elastic:10"] * ("elastic" in parts)]
    print(f"\n{name}", flush=True)
    folder = str(experiment.runs / name)
    result = jaxdp.Trainer("unet", data, task, augment=augment, run_dir=folder, **settings).fit()
    return lab.Run(dict(result.summary), result.history), result


def predict(result: Any, images: np.ndarray, *, mean_of_8: bool) -> np.ndarray:
    """Returns the probability of cells (N, height, width)."""
    views = "dihedral" if mean_of_8 else "none"
    return result.predict(images, probabilities=True, test_time_augmentation=views)[..., CELL]


def measure(experiment: lab.Experiment) -> Any:
    file = experiment.output / "results.json"
    kept = json.loads(file.read_text())["results"] if FLAGS.add and file.exists() else {}
    runs: list[Any] = kept.get("runs", [])
    done = {(*run["parts"], run["first"]) for run in runs}
    images, masks = load(experiment.data[1] if experiment.data else None)
    chosen = [part for part in PARTS if part in FLAGS.parts]
    trained = [part for part in chosen if part != "mean_of_8"]
    results = kept | {"runs": runs}
    # The whole recipe comes first: a run takes long, and what is measured is kept at once, for
    # `--add`.
    for count in reversed(range(len(trained) + 1)):
        recipes = [trained[:count]]
        if trained[:count] == trained and chosen != trained:
            recipes.append(chosen)
        for first in FLAGS.held_out:
            missing = [parts for parts in recipes if (*parts, first) not in done]
            if not missing:
                continue
            run, result = train(experiment, trained[:count], images, masks, first)
            if first == HELD_OUT[0] and count == len(trained):
                lab.keep(result.run_dir, experiment.output)
            test = slice(first, first + COUNT)
            for parts in missing:
                cells = predict(result, images[test], mean_of_8="mean_of_8" in parts)
                curves = membranes.curves(cells, masks[test] == CELL)
                outcome = {"seconds": run.outcome()["seconds"], "test": run.outcome()["test"]}
                runs.append({"parts": parts, "first": first, "curves": curves, **outcome})
            results |= {"where": lab.where(run), "steps": run.summary["steps"]}
            machine = tables.machine("jax", "flax")
            file.write_text(json.dumps({"machine": machine, "results": results}, indent=1) + "\n")
    if FLAGS.peer:
        first = HELD_OUT[0]
        [seconds] = (
            run["seconds"] for run in runs if (run["parts"], run["first"]) == (chosen, first)
        )
        curves = peer(experiment, images, masks, first, seconds)
        results["peer"] = [{"first": first, "curves": curves}]
    return results


def peer(
    experiment: lab.Experiment, images: np.ndarray, masks: np.ndarray, first: int, seconds: float
) -> dict[str, list[float]]:
    """Returns the scores of MONAI's U-Net on the slices from `first` on."""
    folder = experiment.runs.resolve() / "monai"
    python, file = lab.environment(folder, *PEER), folder / f"{first:02d}.npz"
    test = np.arange(first, first + COUNT)
    kept = np.setdiff1d(np.arange(len(images)), test)
    np.savez(file, images=images[kept], masks=masks[kept], test=images[test])
    script = str(lab.SCRIPTS / "monai_side.py")
    subprocess.run([python, script, str(file), str(seconds)], check=True)
    return membranes.curves(np.load(f"{file}.cells.npy"), masks[test] == CELL)


def mean(runs: Sequence[Any]) -> dict[str, float]:
    """Returns the means of the scores of some runs."""
    scores = [membranes.best(run["curves"]) for run in runs]
    return {name: float(np.mean([each[name] for each in scores])) for name in NAMES}


def whole(results: Any) -> list[Any]:
    """Returns the runs of the recipe with the most parts."""
    most = max(len(run["parts"]) for run in results["runs"])
    return [run for run in results["runs"] if len(run["parts"]) == most]


def line(*cells: str, scores: dict[str, float] | dict[str, str]) -> str:
    values = [
        value if isinstance(value, str) else f"{value:.4f}"
        for value in (scores[name] for name in NAMES)
    ]
    return f"| {' | '.join([*cells, *values])} |"


def show(results: Any) -> tuple[list[str], Any]:
    recipes: dict[tuple[str, ...], list[Any]] = {}
    for run in results["runs"]:
        recipes.setdefault(tuple(run["parts"]), []).append(run)
    ordered = sorted(recipes, key=len)
    full = sorted(whole(results), key=lambda run: -run["first"])
    table = [
        f"| slices | {' | '.join(NAMES.values())} |",
        "|---" * (1 + len(NAMES)) + "|",
    ]
    for run in full:
        last = run["first"] + COUNT - 1
        scores = membranes.best(run["curves"])
        table.append(line(f"here, slices {run['first']} to {last}", scores=scores))
    table.append(line("here, mean over the runs", scores=mean(full)))
    if "peer" in results:
        for run in results["peer"]:
            who = f"MONAI's U-Net after as many seconds, slices {run['first']} to"
            scores = membranes.best(run["curves"])
            table.append(line(f"{who} {run['first'] + COUNT - 1}", scores=scores))
    for who, scores in CHALLENGE.items():
        table.append(line(f"{who}, the challenge's 30 test slices", scores=scores))
    table += [
        "",
        f"| recipe | runs | {' | '.join(NAMES.values())} |",
        "|---" * (2 + len(NAMES)) + "|",
    ]
    common = set.intersection(*({run["first"] for run in runs} for runs in recipes.values()))
    for parts in ordered:
        runs = [run for run in recipes[parts] if run["first"] in common]
        name = " + ".join(["plain", *(PARTS[part] for part in parts)])
        table.append(line(name, f"{len(runs)}", scores=mean(runs)))
    minutes = max(run["seconds"] for run in full) / 60
    where = " and ".join(f"{first} to {first + COUNT - 1}" for first in sorted(common))
    length = f"{results['steps']:,} steps a run, in at most {minutes:.0f} minutes"
    table += ["", f"{length}; the recipes are compared on slices {where}."]
    return table, draw(full, results["where"])


def draw(runs: Sequence[Any], where: str) -> Any:
    """Draws V_rand and V_info of the held-out slices of each run at each threshold."""
    figure, panels = lab.create_figure(2, title="ISBI 2012, held-out slices", subtitle=where)
    for axes, name in zip(panels, ("v_rand", "v_info"), strict=True):
        for run, color in zip(runs, lab.COLORS, strict=False):
            text = f"slices {run['first']} to {run['first'] + COUNT - 1}"
            axes.plot(membranes.THRESHOLDS, run["curves"][name], color=color, label=text)
        published = float(next(iter(CHALLENGE.values()))[name])
        axes.axhline(
            published, color=lab.COLORS[4], linestyle="--", label="the paper, other slices"
        )
        axes.set(xlabel="threshold of the probability", ylabel=NAMES[name], ylim=(None, 1))
    panels[0].legend(frameon=False)
    return figure


def own_flags() -> argparse.Namespace:
    """Returns the flags of this script, and takes them from the command line."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--held-out", nargs="+", type=int, choices=HELD_OUT, default=HELD_OUT)
    parser.add_argument("--add", action="store_true")
    parser.add_argument("--peer", action="store_true")
    flags, sys.argv[1:] = parser.parse_known_args()
    return flags


if __name__ == "__main__":
    FLAGS = own_flags()
    lab.run("isbi2012", __doc__, measure, show)
