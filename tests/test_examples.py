"""Each example trains as a script and as a plugin, and what it registers is found again after the
run.
"""

import json
import pathlib
import subprocess
import sys

import pytest
from process_group import environment

from jaxdp import evaluate, train
from jaxdp.rundir.layout import RunDirectory

EXAMPLES = pathlib.Path(__file__).resolve().parents[1] / "examples"
# What each registers, and flags that make it quick.
CASES = {
    "custom_model": (
        "--model convnext --optimizer adamw",
        "--model-kwargs width=8 depth=2 dropout=0.1 --dataset digits",
        "accuracy",
    ),
    "custom_dataset": (
        "--dataset photographs:16",
        "--model cnn --model-kwargs width=4 hidden=16",
        "accuracy",
    ),
    "custom_task": (
        "--dataset marks --task multilabel",
        "--model cnn --model-kwargs width=4 hidden=16",
        "f1",
    ),
}
QUICK = "--global-batch-size 64 --devices 2 --eval-every 100 --run-dir run"


@pytest.mark.usefixtures("no_pictures", "registries")
@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_an_example_trains_and_is_found_again(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = EXAMPLES / f"{name}.py"
    _, _, code = file.read_text().split('"""', 2)
    assert len(code.strip().splitlines()) < 60
    registered, flags, figure = CASES[name]
    script = [sys.executable, str(file), *f"{registered} {flags} {QUICK} --steps 2".split()]
    process = subprocess.run(script, capture_output=True, text=True, env=environment())
    assert process.returncode == 0, process.stderr
    (plugin,) = RunDirectory(pathlib.Path("run")).load_config().plugins
    assert pathlib.Path(plugin).resolve() == file
    assert evaluate.main(["run", "--json", "--devices", "2", "--plugins", plugin]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["step"] == 2
    assert 0 <= found[figure] <= 1
    command = f"--plugins {file} {registered} {flags} {QUICK} --steps 3 --resume must"
    assert train.main(command.split()) == 0  # the same run goes on
    summary = json.loads(pathlib.Path("run/summary.json").read_text())
    assert (summary["steps"], summary["best_metric"]["name"]) == (3, figure)
