"""Ray Train starts the processes of a run, as in examples/on_ray_train.py."""

import importlib.util
import os
import pathlib
import re
import signal
from collections.abc import Callable

import pytest
from process_group import Command
from runs import assert_same_run, summary

from jaxdp.rundir.layout import RunDirectory

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "on_ray_train.py"
ON_RAY = f"import runpy; runpy.run_path({str(EXAMPLE)!r}, run_name='__main__')"
STEPS = ["--steps", "300"]


@pytest.mark.slow
@pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("ray", "pandas"))), reason="needs ray[train]"
)
def test_a_killed_worker_changes_no_bit(record_fault: Callable[..., None]) -> None:
    """The run is as that of `launch -n 2`."""
    env = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    found = Command("-c", ON_RAY, "--workers", "2", "--run-dir", "run", *STEPS, env=env)
    found.wait_for('"step": 60,', file=pathlib.Path("run", "metrics.jsonl"))
    (worker,) = re.findall(r"pid=(\d+)\) world_rank=1,", found.out + found.err)
    os.kill(int(worker), signal.SIGKILL)
    assert found.code() == 0, found.err
    history = RunDirectory(pathlib.Path("run")).read("history.jsonl")
    assert [row["event"] for row in history] == ["started", "resumed", "done"]
    assert history[1]["step"] >= 50
    assert summary("run")["processes"] == 2
    assert str(summary("run")["metrics"]) in found.out
    train = "train --model cnn --dataset digits --devices 1 --checkpoint-every 10 --run-dir whole"
    whole = Command("jaxdp.launch", "-n", "2", "--", *train.split(), *STEPS)
    assert whole.code() == 0, whole.err
    assert_same_run("whole", "run", 300)
    record_fault("kill -9 of a worker on Ray Train", 1, "all started again; complete", 0)
