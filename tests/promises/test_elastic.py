"""A run goes on with another number of devices and another strategy, and ends where it would
have.
"""

import json
import pathlib
from typing import Any

import numpy as np
import pytest
from fault_table import RecordFault

from jaxdp import train
from jaxdp.checkpoint.restore import SavedCheckpoints
from jaxdp.rundir.read import read_lines
from jaxdp.training.reader import MEASURED

pytestmark = pytest.mark.usefixtures("no_pictures")
FLAGS = (
    "--model cnn --model-kwargs width=4 hidden=16 dropout=0.2 --global-batch-size 160 --schedule"
    " constant --learning-rate 0.01 --log-every 1 --eval-every 2 --checkpoint-every 2"
)


def run(directory: str, batch_norm: str, steps: int, part: str) -> None:
    strategy, devices, *more = part.split()
    flags = f"{FLAGS} --run-dir {directory} --batch-norm {batch_norm} --steps {steps}"
    flags += f" --strategy {strategy} --devices {devices}"
    assert train.main([*flags.split(), *more]) == 0


def arrays(directory: str, step: int) -> dict[str, np.ndarray]:
    return SavedCheckpoints(
        pathlib.Path(directory, "checkpoints"), best_metric=("accuracy", True)
    ).arrays(step)


def read_rows(directory: str) -> list[dict[str, Any]]:
    rows = read_lines(pathlib.Path(directory, "metrics.jsonl"))
    return [{name: value for name, value in row.items() if name not in MEASURED} for row in rows]


DEVICES = ["pmap 8", "pmap 2", "pmap 4"]
STRATEGIES = ["pmap 2", "sharded 4 --shard-params", "single 1"]
BOTH = ["shard_map 4", "single 1", "pmap 2"]
PARTS = ["sharded 8 --shard-params", "pmap 2", "sharded 4 --shard-params"]


@pytest.mark.parametrize(
    ("parts", "batch_norm"),
    [
        pytest.param(DEVICES, "group:4", id="devices-group", marks=pytest.mark.slow),
        pytest.param(DEVICES, "global", id="devices-global", marks=pytest.mark.slow),
        pytest.param(STRATEGIES, "group:8", id="strategies-group"),
        pytest.param(STRATEGIES, "global", id="strategies-global", marks=pytest.mark.slow),
        pytest.param(BOTH, "group:8", id="both-group", marks=pytest.mark.slow),
        pytest.param(PARTS, "global", id="parts-global", marks=pytest.mark.slow),
    ],
)
def test_a_run_continues_on_other_devices(
    parts: list[str], batch_norm: str, record_fault: RecordFault
) -> None:
    """With batch norm over the whole batch, or in groups that fit whole on a device, the devices
    change the order of sums only.
    """
    run("whole", batch_norm, 6, parts[0])
    for number, part in enumerate(parts, start=1):
        run("parts", batch_norm, 2 * number, part)
    expected, ours = arrays("whole", 6), arrays("parts", 6)
    assert ours.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(ours[name], array, rtol=1e-4, atol=1e-4, err_msg=name)
    rows = read_rows("parts")
    steps = {
        split: [row["step"] for row in rows if row["split"] == split] for split in ("train", "test")
    }
    assert steps == {"train": [1, 2, 3, 4, 5, 6], "test": [2, 4, 6]}
    for row, other in zip(rows, read_rows("whole"), strict=True):
        assert row["learning_rate" if row["split"] == "train" else "examples"] > 0
        assert row["loss"] == pytest.approx(other["loss"], abs=1e-4)
        assert row["examples"] == other["examples"]
        # An example whose top two classes are as likely may fall either way.
        assert row["accuracy"] == pytest.approx(other["accuracy"], abs=1.5 / 160)
    record_fault(
        "other devices or another strategy after a stop", len(parts) - 1, "ends the same to 1e-4"
    )
    if "--shard-params" in parts[-1]:
        summary = json.loads(pathlib.Path("parts", "summary.json").read_text())
        assert summary["state_bytes_per_device"] < summary["state_bytes"]
