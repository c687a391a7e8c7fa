"""Two processes of two devices train as one process of four does."""

import json
import os
import pathlib
import socket
import subprocess
import sys

import numpy as np
import pytest

from jaxdp.reporting import writers
from jaxdp.training.checkpoint import Checkpoints

PROGRAM = """
import sys
from jaxdp.parallel import platform
strategy, devices, processes, port, run_dir, index = sys.argv[1:]
platform.configure(int(devices))
import jax
if int(processes) > 1:
    jax.distributed.initialize(f"localhost:{port}", int(processes), int(index))
from jaxdp import train
from jaxdp.config import TrainConfig
kwargs = {"depth": 8, "alpha": 6}
settings = dict(model_kwargs=kwargs, strategy=strategy, global_batch_size=32, batch_norm="group:4", learning_rate=0.01, log_every=1)
sys.exit(train.train(TrainConfig(run_dir=run_dir, steps=3, checkpoint_every=2, **settings)))
"""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]


def run(strategy: str, devices: int, processes: int, run_dir: str) -> tuple[dict, dict[str, np.ndarray]]:
    """Returns summary and final arrays."""
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}  # this one's says 8 devices
    command = [sys.executable, "-c", PROGRAM, strategy, str(devices), str(processes), str(free_port()), run_dir]
    running = [
        subprocess.Popen([*command, str(index)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        for index in range(processes)
    ]
    outputs = [process.communicate(timeout=240) for process in running]
    for process, (_, errors) in zip(running, outputs, strict=True):
        assert process.returncode == 0, errors
    assert [output.count("pyramidnet on digits: done") for output, _ in outputs] == [1] + [0] * (processes - 1)
    checkpoints = Checkpoints(pathlib.Path(run_dir, "checkpoints"), keep=None, best_metric=("accuracy", True))
    assert checkpoints.steps() == [2, 3]
    arrays = checkpoints.arrays(3)
    checkpoints.close()
    return json.loads(pathlib.Path(run_dir, "summary.json").read_text()), arrays


@pytest.mark.parametrize("strategy", ["pmap", "shard_map"])
def test_two_processes_agree_with_one(strategy: str) -> None:
    expected, expected_arrays = run(strategy, 4, 1, "one")
    summary, arrays = run(strategy, 2, 2, "two")
    assert (summary["processes"], summary["devices"]) == (2, 4) == (2, expected["devices"])
    for name, array in arrays.items():
        np.testing.assert_allclose(array, expected_arrays[name], atol=1e-5, err_msg=name)
    for split in ("train", "test"):
        assert summary["metrics"][split] == pytest.approx(expected["metrics"][split], rel=1e-4)
    assert summary["metrics"]["test"]["examples"] == 360
    steps = [(row["split"], row["step"]) for row in writers.read_rows(pathlib.Path("two", "metrics.jsonl"))]
    assert steps == [("train", 1), ("train", 2), ("train", 3), ("test", 3)]
