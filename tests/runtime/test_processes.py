"""Two processes of two devices, and four of one, train as one process of four does, whatever else
is set.
"""

import json
import pathlib
import subprocess
import sys
from typing import Any, NamedTuple

import numpy as np
import pytest
from process_group import LISTENING, Processes, arrays, environment, listening, rows_of

from jaxdp import train
from jaxdp.rundir.read import read_lines

STEPS = 3
COMMON = f"--global-batch-size 32 --learning-rate 0.01 --schedule constant --log-every 1 --steps {STEPS}".split()
CNN = "--model cnn --model-kwargs width=4 hidden=16"
UNET = "--model unet --model-kwargs base_channels=4 levels=1"
# What is within a rounding error of the middle between two numbers of 8 bits may become either.
NARROW = 1e-2


class Case(NamedTuple):
    """Attributes:
    flags: of training.
    tolerance: of arrays, relative to the largest number in each.
    """

    flags: str
    tolerance: float = 1e-5


SHARDED = f"{CNN} --strategy sharded"
# The 360 images of the test leave 8 for a last batch of 32: all but the first device have nothing
# to evaluate in it.
CASES = {
    "pmap": Case(CNN),
    "shard_map": Case(f"{CNN} --strategy shard_map"),
    "sharded": Case(SHARDED),
    "batch norm over all": Case(f"{CNN} --batch-norm global"),
    "batch norm over two processes": Case(f"{CNN} --batch-norm group:16"),
    "batch norm over two processes, in two parts": Case(
        f"{CNN} --batch-norm group:8 --accumulate-steps 2"
    ),
    "parameters in parts": Case(f"{SHARDED} --shard-params --ema-decay 0.9 --optimizer adam"),
    "segmentation": Case(
        f"{UNET} --image-size 32 --strategy sharded --global-batch-size 12 --batch-norm global"
    ),
    "batch in two parts": Case(f"{CNN} --accumulate-steps 2"),
    "float16": Case(f"{CNN} --precision float16", NARROW),
    "evaluation of 24 on 28": Case(
        f"{CNN} --global-batch-size 28 --eval-every 1 --strategy shard_map"
    ),
    "mixed pairs, streamed": Case(f"{CNN} --augment shift:1 mixup:0.5 --data-placement host"),
}
TRAIN_ALL = (
    "import json, sys\nfrom jaxdp import train\n"
    "for name, flags in json.loads(sys.argv[1]).items():\n"
    "    if code := train.main([*sys.argv[2:], *flags, '--run-dir', name]):\n"
    "        sys.exit(code)\n"
)  # fmt: skip


def train_all(count: int, names: list[str], prelude: str = "") -> None:
    """Trains the cases one after the other in as many processes, in folders `COUNT/NAME`."""
    flags = {f"{count}/{name}": CASES[name].flags.split() for name in names}
    group = Processes(
        *COMMON, count=count, devices=4 // count, common=[json.dumps(flags)], program=TRAIN_ALL,
        preludes=dict.fromkeys(range(count), prelude),
    )  # fmt: skip
    group.end_with(*[0] * count, seconds=1500)


def figures(run_dir: str) -> dict[str, Any]:
    """Returns what rows and summary say of the training, by what it is and of which step."""
    done = json.loads(pathlib.Path(run_dir, "summary.json").read_text())
    splits = [(f"summary {split}", values) for split, values in done["metrics"].items()]
    splits += [(f"{row.pop('split')} {row.pop('step')}", row) for row in rows_of(run_dir)]
    return {f"{place} {name}": value for place, row in splits for name, value in row.items()}


def differences(found: str, expected: str, tolerance: float) -> list[str]:
    """Returns what of two runs is further apart than that, arrays relative to the largest number in
    each.
    """
    ours, theirs = arrays(found, STEPS), arrays(expected, STEPS)
    assert ours.keys() == theirs.keys()
    wrong = []
    for name, array in theirs.items():
        scale = max(float(np.abs(array).max()), 1e-9)
        apart = float(np.abs(np.float64(ours[name]) - array).max()) / scale
        if not apart <= tolerance:
            wrong.append(f"{name} differs by {apart:.1e} of its scale")
    told, expected_told = figures(found), figures(expected)
    assert told.keys() == expected_told.keys()
    wrong += [
        f"{name}: {told[name]} for {value}"
        for name, value in expected_told.items()
        if told[name] != pytest.approx(value, rel=10 * tolerance, abs=10 * tolerance)
    ]
    return wrong


def test_two_launched_processes_train_as_one() -> None:
    flags = [*COMMON, *CNN.split(), "--checkpoint-every", "2"]
    command = [sys.executable, "-m", *"jaxdp.launch -n 2 --devices-per-process 2 -- train".split()]
    command += flags
    pathlib.Path("look.py").write_text(LISTENING)
    look = ["--run-dir", "two", "--plugins", "look.py"]
    ended = subprocess.run([*command, *look], capture_output=True, text=True, env=environment())
    assert ended.returncode == 0, ended.stderr
    assert listening(ended.stdout) == {"127.0.0.1"}
    assert ended.stdout.count("cnn on digits: done") == 1
    assert "[Gloo]" not in ended.stdout
    assert "error" not in ended.stderr
    assert train.main([*flags, "--devices", "4", "--run-dir", "one"]) == 0
    assert differences("two", "one", 1e-5) == []
    assert {path.name for path in pathlib.Path("two", "checkpoints").iterdir()} == {"2", "3"}
    done = json.loads(pathlib.Path("two", "summary.json").read_text())
    assert (done["processes"], done["devices"], done["metrics"]["test"]["examples"]) == (2, 4, 360)
    rows = read_lines(pathlib.Path("two", "metrics.jsonl"))
    found = [(row["split"], row["step"]) for row in rows]
    assert found == [*(("train", step) for step in (1, 2, 3)), ("test", 3)]
    for row in rows[:3]:
        assert min(row["host_memory_bytes"]) > 50e6


# XLA's Gloo gives up on processes that come 30 seconds after the others.
LATE = """
import time
from jaxdp.step import step
train_step = step.train_step
def late(*args, **kwargs):
    print("compiles", flush=True)
    time.sleep(35)
    return train_step(*args, **kwargs)
step.train_step = late
"""


@pytest.mark.slow
def test_processes_that_compile_at_different_speed_wait_for_each_other() -> None:
    group = Processes(
        *COMMON, *CNN.split(), "--run-dir", "run", common=[], devices=2, preludes={1: LATE}
    )
    group.end_with(0, 0)
    assert group.output(1).count("compiles") == 1  # to compile before the first step costs nothing


@pytest.mark.slow
def test_every_option_trains_alike_in_1_2_and_4_processes() -> None:
    for count in (1, 2, 4):
        train_all(count, list(CASES))
    wrong = {
        f"{count}/{name}": found
        for count in (2, 4)
        for name, case in CASES.items()
        if (found := differences(f"{count}/{name}", f"1/{name}", case.tolerance))
    }
    assert wrong == {}
    for count in (1, 2, 4):  # that the options were in force
        for name in ("float16", "batch norm over two processes"):
            other, plain = (
                arrays(f"{count}/{case}", STEPS)["params/hidden/kernel"] for case in (name, "pmap")
            )
            assert np.abs(other - plain).max() > 1e-5 * np.abs(plain).max()
        cut = json.loads(pathlib.Path(f"{count}/parameters in parts", "summary.json").read_text())
        assert cut["state_bytes_per_device"] < cut["state_bytes"]
        assert (cut["processes"], cut["devices"]) == (count, 4)


@pytest.mark.slow
def test_without_the_mean_across_processes_they_drift_apart() -> None:
    """The mutant: gradients and statistics are averaged over the devices of each process alone."""
    alone = (
        "import jax\nfrom jaxdp.sharding.communication import Communication\nReplicas.mean = lambda self,"
        " tree: jax.lax.pmean(tree, self.axis, axis_index_groups=[[0, 1], [2, 3]])\n"
    )
    train_all(1, ["pmap"])
    train_all(2, ["pmap"], prelude=alone)
    wrong = differences("2/pmap", "1/pmap", 1e-5)
    assert any(line.startswith("params/") for line in wrong)
    assert any(line.startswith("test 3 loss") for line in wrong)
