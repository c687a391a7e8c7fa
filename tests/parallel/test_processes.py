"""Two processes of two devices, and four of one, train as one process of four does."""

import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from process_group import environment

from jaxdp import train
from jaxdp.reporting import writers
from jaxdp.training.checkpoint import Checkpoints

FLAGS = (
    "--model-kwargs depth=8 alpha=6 --global-batch-size 32 --batch-norm group:4 --learning-rate 0.01 --log-every 1 --steps 3 "
    "--checkpoint-every 2"
).split()


def launch(strategy: str, devices: int, processes: int, run_dir: str) -> None:
    command = [sys.executable, "-m", "jaxdp.launch", "-n", str(processes), "--devices-per-process", str(devices), "--", "train"]
    ended = subprocess.run(
        [*command, *FLAGS, "--strategy", strategy, "--run-dir", run_dir], capture_output=True, text=True, env=environment()
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("pyramidnet on digits: done") == 1
    assert all(line.startswith("[0] step ") for line in ended.stderr.splitlines()), ended.stderr


def outcome(run_dir: str) -> tuple[dict, dict[str, np.ndarray]]:
    """Returns summary and final arrays."""
    checkpoints = Checkpoints(pathlib.Path(run_dir, "checkpoints"), keep=None, best_metric=("accuracy", True))
    assert checkpoints.steps() == [2, 3]
    arrays = checkpoints.arrays(3)
    checkpoints.close()
    return json.loads(pathlib.Path(run_dir, "summary.json").read_text()), arrays


@pytest.mark.parametrize(
    ("strategy", "processes"),
    [
        ("pmap", 2),
        pytest.param("shard_map", 2, marks=pytest.mark.slow),
        pytest.param("sharded", 2, marks=pytest.mark.slow),
        pytest.param("pmap", 4, marks=pytest.mark.slow),
    ],
)
def test_processes_agree_with_one(strategy: str, processes: int) -> None:
    assert train.main([*FLAGS, "--strategy", strategy, "--devices", "4", "--run-dir", "one"]) == 0
    launch(strategy, 4 // processes, processes, "several")
    (expected, expected_arrays), (summary, arrays) = outcome("one"), outcome("several")
    assert (summary["processes"], summary["devices"], expected["devices"]) == (processes, 4, 4)
    for name, array in arrays.items():
        np.testing.assert_allclose(array, expected_arrays[name], atol=1e-5, err_msg=name)
    for split in ("train", "test"):
        assert summary["metrics"][split] == pytest.approx(expected["metrics"][split], rel=1e-4)
    assert summary["metrics"]["test"]["examples"] == 360
    steps = [(row["split"], row["step"]) for row in writers.read_rows(pathlib.Path("several", "metrics.jsonl"))]
    assert steps == [("train", 1), ("train", 2), ("train", 3), ("test", 3)]
