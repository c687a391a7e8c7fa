"""Trains PyramidNet 20 α48 on CIFAR-10 in jaxdp and in compiled PyTorch with the same recipe, and
prints accuracy and seconds after each epoch.

    python benchmarks/cifar10.py --data-dir DIR [--epochs N] [--recipe sgd|muon]
        [--seeds [SEED ...]] [--sides ...] [--write FILE]

Both train on all 50,000 images and evaluate the 10,000 test images after every epoch. Seconds count
from the start of the process, with compilation and without a cache of earlier runs. A run of 12
epochs takes from half an hour to two hours on two cores, so each run is kept, as a line of
results/cifar10.jsonl. The table is of all kept runs with as many epochs and this recipe. `--seeds`
without a seed trains nothing. PyTorch reads the images from a file that is written before, which
does not count.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import tables
import time_to_accuracy

HERE = pathlib.Path(__file__).parent
KEPT = HERE / "results" / "cifar10.jsonl"
# torch_sides/cifar10.py has the same recipes.
SETTINGS = {
    "model_kwargs": {"depth": 20, "alpha": 48},
    "epochs": 12,
    "global_batch_size": 64,
    "augment": ["pad_crop:2", "flip"],
    "warmup_fraction": 0.2,
    "weight_decay": 5e-4,
    "label_smoothing": 0.1,
    "validation": "none",
}
# By recipe: what differs from these settings.
RECIPES: dict[str, dict[str, Any]] = {
    "sgd": {},
    "muon": {
        "optimizer": "muon",
        "augment": ["pad_crop:2", "flip:alternating"],
        "test_time_augmentation": "flip",
    },
}
SIDES = ("jaxdp", "torch.compile")
FIELDS = ("accuracy", "seconds")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", type=pathlib.Path, help="of TensorFlow Datasets")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0], help="to train with")
    parser.add_argument("--epochs", type=int, default=SETTINGS["epochs"])
    parser.add_argument("--recipe", choices=RECIPES, default="sgd")
    parser.add_argument("--sides", choices=SIDES, nargs="*", default=SIDES, help="to train")
    parser.add_argument("--kept", type=pathlib.Path, default=KEPT, help="file of finished runs")
    parser.add_argument(
        "--write", type=pathlib.Path, help="Markdown file with a place for the table"
    )
    arguments = parser.parse_args()
    settings = SETTINGS | RECIPES[arguments.recipe] | {"epochs": arguments.epochs}
    if arguments.data_dir:
        settings["data_dir"] = str(arguments.data_dir)
    if arguments.seeds:
        train(settings, arguments)
    runs = [json.loads(line) for line in arguments.kept.read_text().splitlines()]
    chosen = [
        run
        for run in runs
        if len(run["accuracy"]) == arguments.epochs and run["recipe"] == arguments.recipe
    ]
    if not any(run["side"] == SIDES[0] for run in chosen):
        parser.error(f"{arguments.kept} has no run of jaxdp of {arguments.epochs} epochs")
    text = table(chosen)
    print(text)
    if arguments.write:
        name = "cifar10" if arguments.recipe == "sgd" else f"cifar10_{arguments.recipe}"
        tables.write(arguments.write, name, text)


def train(settings: dict[str, Any], arguments: argparse.Namespace) -> None:
    """Adds a run of each side and each seed to the file."""
    with tempfile.TemporaryDirectory() as name:
        images = pathlib.Path(name, "cifar10.npz")
        given = {"data_dir": settings["data_dir"]} if "data_dir" in settings else {}
        time_to_accuracy.export("cifar10", images, **given)
        words = ("pyramidnet", "cifar10", "accuracy", "--settings", json.dumps(settings))
        commands = {
            "jaxdp": [str(HERE / "time_to_accuracy_jaxdp.py"), *words],
            "torch.compile": [
                str(HERE / "torch_sides" / "cifar10.py"),
                str(images),
                "--epochs",
                str(settings["epochs"]),
                *["--muon"] * (arguments.recipe == "muon"),
            ],
        }
        for seed in arguments.seeds:
            for side in arguments.sides:
                cache = pathlib.Path(name, f"{side}-{seed}")
                command = [sys.executable, *commands[side], "--seed", str(seed)]
                run = {"side": side, "seed": seed, "recipe": arguments.recipe}
                run |= followed(command, cache)
                run["machine"] = tables.machine("jax", "flax", "torch")
                with arguments.kept.open("a") as file:
                    file.write(json.dumps(run) + "\n")


def followed(command: list[str], cache: pathlib.Path) -> dict[str, list[float]]:
    """Runs a process that prints a line after each epoch.

    Returns the accuracies, and the seconds since its start.
    """
    run: dict[str, list[float]] = {"accuracy": [], "seconds": []}
    start = time.perf_counter()
    environment = time_to_accuracy.with_cache(cache)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=environment, cwd=cache.parent
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            run["seconds"].append(round(time.perf_counter() - start, 1))
            run["accuracy"].append(float(line.split()[-1]))
            print(command[1], line.strip(), f"after {run['seconds'][-1]} s", file=sys.stderr)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return run


def table(runs: list[dict[str, Any]]) -> str:
    """Returns the medians over the seeds after each epoch, and the last accuracy of each run."""
    sides = [side for side in SIDES if any(run["side"] == side for run in runs)]
    columns = [f"{side}, {name}" for side in sides for name in FIELDS]
    columns += ["seconds, torch.compile / jaxdp"] * (len(sides) == len(SIDES))
    lines = [f"| epoch | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for epoch in range(len(runs[0]["accuracy"])):
        cells, seconds = [str(epoch + 1)], list[float]()
        for side in sides:
            accuracy, passed = (
                statistics.median(run[name][epoch] for run in runs if run["side"] == side)
                for name in FIELDS
            )
            seconds.append(passed)
            cells += [f"{accuracy:.1%}", f"{passed:,.0f}"]
        if len(sides) == len(SIDES):
            cells.append(f"{seconds[1] / seconds[0]:.2f}")
        lines.append(f"| {' | '.join(cells)} |")
    ends = ", ".join(
        f"{run['side']} with seed {run['seed']} {run['accuracy'][-1]:.2%}" for run in runs
    )
    command = f"nox -s bench -- cifar10 --epochs {len(runs[0]['accuracy'])}"
    command += f" --recipe {runs[0]['recipe']}" * (runs[0]["recipe"] != "sgd")
    heading = f"Medians over the seeds, written by `{command}`. Each run: {ends}."
    heading = " ".join([heading, *sorted({run["machine"] for run in runs})])
    return "\n".join([heading, "", *lines, ""])


if __name__ == "__main__":
    main()
