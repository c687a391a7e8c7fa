"""Compares `predict` with the bare forward pass, and prints the images per second of both.

    python benchmarks/predict.py --data-dir DIR [--rounds N] [--write FILE] [--place NAME]

The first 2,000 test images of CIFAR-10, which lies in `--data-dir` as TensorFlow Datasets write it,
are written as PNG. `predict` finds, reads and checks all files, and then computes the answers; the
bare forward pass takes batches of 64 that lie in memory, with four of them under way. They run in
turn in one process, on one device, and are compiled before.
"""

import argparse
import collections
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tables
from PIL import Image

import jaxdp
from jaxdp.config import DataConfig
from jaxdp.data.sources import open_dataset
from jaxdp.inference import files
from jaxdp.inference.predictor import Predictor

IMAGES, BATCH, UNDER_WAY = 2000, 64, 4
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "cnn": ("cnn", {}),
    "PyramidNet 20 α24": ("pyramidnet", {"depth": 20, "alpha": 24}),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data-dir", required=True, help="where CIFAR-10 lies as TensorFlow Datasets write it"
    )
    parser.add_argument("--rounds", type=int, default=5, help="how often each is measured")
    parser.add_argument(
        "--write", type=pathlib.Path, help="Markdown file with a place for the table"
    )
    parser.add_argument("--place", default="predict", help="name of that place")
    arguments = parser.parse_args()
    columns = [
        "2,000 images as PNG",
        "forward pass",
        "`predict`, the answers alone",
        "ratio",
        "files included",
        "ratio",
    ]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "images").mkdir()
        test: Any = open_dataset(DataConfig(dataset="cifar10", data_dir=arguments.data_dir)).test
        for number in range(IMAGES):
            Image.fromarray(test[number]["images"]).save(folder / "images" / f"{number:04}.png")
        for row, (model, kwargs) in ROWS.items():
            data = {
                "dataset": "cifar10",
                "data_dir": arguments.data_dir,
                "test_split": "test[:128]",
            }
            trainer = jaxdp.Trainer(
                model, model_kwargs=kwargs, strategy="single", progress=False, **data
            )
            trainer.fit(steps=1, run_dir=str(folder / row))
            found = measure(
                jaxdp.load(folder / row).predictor(devices=1), folder / "images", arguments.rounds
            )
            bare, answers, whole = (
                statistics.median(values) for values in zip(*found, strict=True)
            )
            ratios = [statistics.median(each[side] / each[0] for each in found) for side in (1, 2)]
            lines.append(
                f"| {row} | {bare:,.0f} | {answers:,.0f} | **{ratios[0]:.2f}** | {whole:,.0f} |"
                f" **{ratios[1]:.2f}** |"
            )
    heading = (
        "Images per second, written by `nox -s bench -- predict`, medians of"
        f" {arguments.rounds} rounds."
        f" {tables.machine('jax', 'flax')}"
    )
    text = "\n".join([heading, "", *lines])
    print(text)
    if arguments.write:
        tables.write(arguments.write, arguments.place, text)


def measure(
    predictor: Predictor, folder: pathlib.Path, rounds: int
) -> list[tuple[float, float, float]]:
    """Returns the images per second of the forward pass, of the answers, and of a whole prediction,
    for each round.
    """
    pixels = [predictor.read(each.picture)[0] for each in files.find([folder])]
    batches = [np.stack(pixels[start : start + BATCH]) for start in range(0, IMAGES, BATCH)]

    def forward() -> None:
        under_way: collections.deque[Any] = collections.deque()
        for batch in batches:
            under_way.append(predictor._compute(batch, 1))
            if len(under_way) >= UNDER_WAY:
                np.asarray(under_way.popleft())
        for each in under_way:
            np.asarray(each)

    def answer() -> None:
        assert len(list(predictor(pixels))) == IMAGES

    def predict() -> None:
        known, _ = files.survey(files.find([folder]), predictor.read)
        assert (
            len(list(predictor(each.pixels for each in known if each.pixels is not None))) == IMAGES
        )

    def rate(side: Callable[[], None]) -> float:
        start = time.perf_counter()
        side()
        return IMAGES / (time.perf_counter() - start)

    sides = (forward, answer, predict)
    for side in sides:
        side()  # compiles
    found = []
    for number in range(rounds):
        rates = {side: rate(side) for side in sides[:: 1 if number % 2 == 0 else -1]}
        found.append((rates[forward], rates[answer], rates[predict]))
    return found


if __name__ == "__main__":
    sys.exit(main())
