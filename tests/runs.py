"""Reads the folders of runs, and compares two of them bit by bit."""

import json
import pathlib
from collections.abc import Collection, Iterable
from typing import Any

import numpy as np
import pytest

import jaxdp
from jaxdp import train
from jaxdp.checkpoint.restore import SavedCheckpoints
from jaxdp.config import ShardingConfig
from jaxdp.inference.predictions import read_given
from jaxdp.training.reader import MEASURED

SAME = ("metrics", "best", "steps", "epochs", "status")


def arrays(run_dir: str | pathlib.Path, step: int) -> dict[str, np.ndarray]:
    """Returns the arrays of a checkpoint by name."""
    folder = pathlib.Path(run_dir, "checkpoints")
    return SavedCheckpoints(folder, best_metric=("accuracy", True)).arrays(step)


def rows(
    run_dir: str | pathlib.Path = "run", *, split: str = "", without: Collection[str] = MEASURED
) -> list[dict[str, Any]]:
    """Returns the rows of a run, or those of a split; a line that is no JSON is an error."""
    lines = pathlib.Path(run_dir, "metrics.jsonl").read_text().splitlines()
    found = [row for row in map(json.loads, lines) if split in ("", row["split"])]
    return [{name: row[name] for name in row if name not in without} for row in found]


def summary(run_dir: str | pathlib.Path = "run") -> dict[str, Any]:
    """Returns the summary of a run; NaN and Infinity, which are no JSON, are an error."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    text = pathlib.Path(run_dir, "summary.json").read_text()
    return json.loads(text, parse_constant=refuse)


def assert_same_run(
    whole: str | pathlib.Path,
    parts: str | pathlib.Path,
    step: int,
    *,
    without: Collection[str] = MEASURED,
) -> None:
    """Checks that two runs have the same bits after a step, the same rows and the same result."""
    expected, ours = arrays(whole, step), arrays(parts, step)
    assert expected.keys() == ours.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(ours[name], array, err_msg=name)
    assert rows(parts, without=without) == rows(whole, without=without)
    for name in SAME:
        assert summary(parts)[name] == summary(whole)[name]


def answers(
    run_dir: str | pathlib.Path, images: Iterable[Any], *, tile: int = 512, **options: Any
) -> list[np.ndarray]:
    """Returns a model's answer to each image: for a segmentation the probabilities of each pixel.

    Args:
        tile: in pixels, as the flag.
        **options: those of `jaxdp.load`.
    """
    predictor = jaxdp.load(run_dir, **options).predictor(tile=tile, devices=options.get("devices"))
    return [answer for _, answer in predictor(read_given(images, predictor))]


def evaluated(run_dir: str | pathlib.Path, **sharding: Any) -> tuple[int, dict[str, float]]:
    """Returns the step of the best checkpoint and its metrics on test data, or on validation data
    without.

    Args:
        **sharding: settings of `ShardingConfig`.
    """
    result = jaxdp.load(run_dir, devices=sharding.get("devices"))
    result.config = result.config.replace(**ShardingConfig.of(**sharding).flat())
    return result.step, result.evaluate(split=result.description.final_split)


def run_train(flags: str) -> int:
    """Runs `python -m jaxdp.train` with these flags here, and returns its exit code."""
    return train.main(flags.split())


def error_line(capsys: pytest.CaptureFixture[str]) -> str:
    """Returns the only line on standard error."""
    (line,) = capsys.readouterr().err.splitlines()
    return line
