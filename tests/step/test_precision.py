"""Formats of numbers: the loss scale of float16, and training in 16 bits as in 32, nearly."""

import json
import pathlib
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from jaxdp import train
from jaxdp.checkpoint.restore import SavedCheckpoints
from jaxdp.rundir.read import read_lines
from jaxdp.step import state
from jaxdp.step.state import LossScale

pytestmark = [pytest.mark.usefixtures("no_pictures"), pytest.mark.half_precision]
FLAGS = (
    "--model cnn --model-kwargs width=4 hidden=16 --devices 2 --global-batch-size 160 --log-every 1"
    " --run-dir run --checkpoint-every 2 --learning-rate 0.02"
).split()


def rows() -> list[dict[str, Any]]:
    return [
        row for row in read_lines(pathlib.Path("run", "metrics.jsonl")) if row["split"] == "train"
    ]


def test_the_loss_scale_halves_at_an_overflow_and_doubles_in_time() -> None:
    scale = LossScale(jnp.float32(8), jnp.int32(1998))
    scale = scale.adjusted(jnp.bool_(True))
    assert (float(scale.factor), int(scale.steps)) == (8, 1999)
    scale = scale.adjusted(jnp.bool_(True))
    assert (float(scale.factor), int(scale.steps)) == (16, 0)
    scale = scale.adjusted(jnp.bool_(True)).adjusted(jnp.bool_(False))
    assert (float(scale.factor), int(scale.steps)) == (8, 0)
    assert float(LossScale(jnp.float32(1), jnp.int32(0)).adjusted(jnp.bool_(False)).factor) == 1


@pytest.mark.slow
def test_float16_finds_its_scale_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A first scale far too large: some updates are skipped, which is no divergence, and a run
    continued knows the scale.
    """
    monkeypatch.setattr(state, "_FIRST_LOSS_SCALE", 2.0**26)
    flags = [*FLAGS, "--precision", "float16", "--max-divergences", "1"]
    assert train.main([*flags, "--steps", "16"]) == 0
    summary = json.loads(pathlib.Path("run", "summary.json").read_text())
    overflows = summary["skipped_updates"]
    assert 1 <= overflows < 16
    waiting = 16 - rows()[-1]["step"]  # overflows of the last steps, whose row did not come
    assert sum(row.get("overflows", 0) for row in rows()) + waiting == overflows
    assert rows()[-1]["loss"] < rows()[0]["loss"]
    checkpoints = SavedCheckpoints(
        pathlib.Path("run", "checkpoints"), best_metric=("accuracy", True)
    )
    saved = checkpoints.arrays(16)
    assert saved["loss_scale/factor"] == 2.0 ** (26 - overflows)
    assert all(array.dtype != np.float16 for array in saved.values())
    assert train.main([*flags, "--steps", "18"]) == 0
    assert "continuing run after step 16" in capsys.readouterr().err


def test_a_loss_that_is_not_finite_is_a_divergence_in_float16_too(
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = [
        *FLAGS,
        "--precision",
        "float16",
        "--optimizer",
        "sgd",
        "--schedule",
        "constant",
        "--learning-rate",
        "1e30",
    ]
    assert train.main([*flags, "--steps", "16"]) == 3
    assert "diverged: " in capsys.readouterr().err
