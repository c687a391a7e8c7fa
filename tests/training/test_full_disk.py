"""A checkpoint that cannot be written ends the run with one line and exit code 1; the one before it stays whole."""

import os
import pathlib
import subprocess
import sys

import pytest

from jaxdp import checkpoints, train

FLAGS = (
    "--model-kwargs depth=8 alpha=6 --global-batch-size 160 --schedule constant --log-every 1 --eval-every 2 --checkpoint-every 2 "
    "--devices 2 --run-dir run"
).split()
# What a full disk is to the file that does not fit: a write that fails. Nobody has to be root for it.
LIMITED = """
import resource, sys
from jaxdp import train
resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
sys.exit(train.main(sys.argv[1:]))
"""
VANISHING = """
import shutil, sys
from jaxdp import train
from jaxdp.reporting import writers
def advance(self, step):
    if step == 3:
        shutil.rmtree("run")
writers.JsonLines.advance = advance
sys.exit(train.main(sys.argv[1:]))
"""


def run(program: str, *flags: str) -> tuple[int, list[str]]:
    environment = os.environ | {"XLA_FLAGS": "--xla_backend_optimization_level=0"}
    environment["JAX_ENABLE_COMPILATION_CACHE"] = "false"  # the limit would cut its entries short, for everybody who reads them
    ended = subprocess.run([sys.executable, "-c", program, *FLAGS, *flags], capture_output=True, text=True, env=environment)
    return ended.returncode, [line for line in ended.stderr.splitlines() if not line.startswith(("step ", "continuing "))]


def only_error(lines: list[str]) -> str:
    """Threads of Orbax that the error meets half-way may print after it; ours is one line."""
    [line] = [line for line in lines if line.startswith("jaxdp.train: error: ")]
    return line


def test_a_save_that_does_not_fit_leaves_the_one_before_whole(capsys: pytest.CaptureFixture[str]) -> None:
    assert train.main([*FLAGS, "--steps", "2"]) == 0
    code, lines = run(LIMITED, "--steps", "6")
    assert code == 1, lines
    line = only_error(lines)
    assert line.startswith("jaxdp.train: error: the checkpoint of step 4 could not be saved in ")
    assert "File too large" in line
    assert [(row["step"], row["verdict"]) for row in checkpoints.list_checkpoints("run", verify=True)] == [(2, "whole")]
    capsys.readouterr()
    assert train.main([*FLAGS, "--steps", "6"]) == 0
    assert "continuing run after step 2" in capsys.readouterr().err
    assert [row["step"] for row in checkpoints.list_checkpoints("run", verify=True)] == [2, 4, 6]


def test_a_folder_that_vanishes_ends_the_run() -> None:
    code, lines = run(VANISHING, "--steps", "6")
    assert code == 1, lines
    assert only_error(lines).startswith("jaxdp.train: error: ")
    assert not pathlib.Path("run", "summary.json").exists()
