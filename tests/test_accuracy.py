"""The first command of the README learns the digits, on one device and on eight, whatever the seed."""

import json
import os
import pathlib
import subprocess
import sys

import pytest


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags", ["", "--seed 1", "--seed 2", "--devices 8", "--devices 8 --batch-norm global --strategy shard_map"]
)
def test_the_first_command_reaches_99_percent(flags: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    command = [sys.executable, "-m", "jaxdp.train", "--model", "pyramidnet", "--run-dir", "run", *flags.split()]
    subprocess.run(command, check=True, env=environment)
    summary = json.loads(pathlib.Path("run", "summary.json").read_text())
    test, seconds = summary["metrics"]["test"], summary["seconds"]["total"]
    print(f"{flags or '(no flags)'}: {test['accuracy']:.2%} of {test['examples']} in {seconds:.1f} s")
    assert test["examples"] == 360
    assert test["accuracy"] >= 0.99
