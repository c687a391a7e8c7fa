"""Settings that are gone: one line each, and earlier runs are still read."""

import json
import pathlib
import shutil
from typing import Any

import pytest
import yaml
from runs import error_line, run_train

import jaxdp
from jaxdp import config
from jaxdp.config import deprecation
from jaxdp.errors import ConfigError
from jaxdp.rundir.layout import RunDirectory
from jaxdp.text.flags import for_command, for_python

ROOT = pathlib.Path(__file__).parents[2]


# Removed settings of training and values that are not their defaults; `mistakes.txt` has the lines.
VALUES: dict[str, Any] = {
    "steps_per_call": 4,
    "measure_devices": True,
    "grad_reduce_dtype": "bfloat16",
    "exchange": "local",
    "local_steps": 5,
    "outer_learning_rate": 0.7,
    "outer_momentum": 0.9,
    "sampler": "balanced",
    "profile": "1:2",
    "staleness": 2,
    "servers": 2,
    "mesh": "data=2,space=4",
}
SENTENCES = {
    name: f"was removed {when} 0.3.0: {remedy}"
    for when, removed in (("in", deprecation.REMOVED), ("after", deprecation.REMOVED_LATER))
    for name, remedy in removed.items()
    if " " not in name
}
REMOVED = [*SENTENCES]


@pytest.fixture(params=REMOVED)
def removed(request: pytest.FixtureRequest) -> str:
    return request.param


def test_a_removed_setting_is_one_line(removed: str) -> None:
    with pytest.raises(ConfigError) as raised:
        jaxdp.Trainer("cnn", "digits", **{removed: VALUES[removed]})
    assert raised.value.remedy.template == SENTENCES[removed]


def test_files_may_hold_a_removed_setting_at_its_default(
    removed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pathlib.Path("old.yaml").write_text(
        yaml.safe_dump({"seed": 3, removed: deprecation.LAST_DEFAULTS.get(removed)})
    )
    assert config.load("old.yaml") == {"seed": 3}
    value = VALUES[removed]
    pathlib.Path("old.yaml").write_text(yaml.safe_dump({"seed": 3, removed: value}))
    assert run_train("--config old.yaml") == 2
    assert capsys.readouterr().err == (
        f"jaxdp.train: error: --config old.yaml: has {removed}: {value}, which"
        f" {for_command(SENTENCES[removed])}\n"
    )


@pytest.mark.parametrize("mesh", ["data=4", "data=4,space=1", "space=1, data=4", "space=1"])
def test_files_may_hold_a_mesh_over_which_only_the_batch_is_shared(
    mesh: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pathlib.Path("run").mkdir()
    pathlib.Path("run/config.yaml").write_text(yaml.safe_dump({"seed": 3, "mesh": mesh}))
    assert config.load("run/config.yaml") == {"seed": 3}
    assert RunDirectory(pathlib.Path("run")).load_config().seed == 3
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("mesh", ["space=2", "data=4,space=10", "data=4,model=2", "data=", 4])
def test_another_mesh_is_one_line(mesh: Any, capsys: pytest.CaptureFixture[str]) -> None:
    pathlib.Path("old.yaml").write_text(yaml.safe_dump({"strategy": "sharded", "mesh": mesh}))
    assert run_train("--config old.yaml") == 2
    assert f"has mesh: {mesh}, which was removed after 0.3.0: spatial" in error_line(capsys)


def test_no_setting_has_the_name_of_a_removed_one() -> None:
    assert not VALUES.keys() & config.fields(config.TrainConfig).keys()


def test_a_run_of_version_0_1_is_read_evaluated_and_resumed(
    capsys: pytest.CaptureFixture[str], no_pictures: None
) -> None:
    """The folder was written by version 0.1.0, without its figures."""
    shutil.copytree(pathlib.Path(__file__).parents[1] / "kept_runs" / "0.1", "run")
    settings = yaml.safe_load(pathlib.Path("run/config.yaml").read_text())
    assert {"steps_per_call", "grad_reduce_dtype"} <= settings.keys()
    later = {each: deprecation.LAST_DEFAULTS.get(each) for each in REMOVED}
    with pathlib.Path("run/config.yaml").open("a") as file:
        file.write(yaml.safe_dump({name: later[name] for name in later.keys() - settings.keys()}))
    result = jaxdp.load("run")
    assert result.history[-1]["loss"] == pytest.approx(2.34219, abs=1e-5)
    assert result.evaluate()["loss"] == pytest.approx(result.history[-1]["loss"], rel=1e-4)
    assert capsys.readouterr().err == ""
    words = (
        "--model cnn --dataset digits --model-kwargs width=2 hidden=4 --devices 1"
        " --global-batch-size 64 --batch-norm replica --checkpoint-every 1 --keep 1 --log-every 1"
        " --run-dir run --steps 4"
    )
    assert run_train(words) == 0
    line = capsys.readouterr().err.splitlines()[0]
    assert line == "continuing run after step 2 with other settings: steps 4 instead of 2"
    rows = RunDirectory(pathlib.Path("run")).read("metrics.jsonl")
    assert [row["step"] for row in rows if row["split"] == "train"] == [1, 2, 3, 4]


@pytest.mark.parametrize("version", ["0.2", "0.3"])
def test_a_run_of_an_earlier_version_goes_on_as_it_would_have(
    version: str, capsys: pytest.CaptureFixture[str], no_pictures: None
) -> None:
    """That version wrote the folder after two steps, and the rows that it had after four."""
    shutil.copytree(pathlib.Path(__file__).parents[1] / "kept_runs" / version, "run")
    expected = RunDirectory(pathlib.Path("run")).file("after_four_steps.jsonl")
    rows = [json.loads(line) for line in expected.read_text().splitlines()]
    expected.unlink()
    words = (
        "--model cnn --dataset digits --model-kwargs width=2 hidden=4 --devices 1"
        " --global-batch-size 64 --checkpoint-every 1 --keep 1 --log-every 1 --run-dir run"
    )
    assert run_train(f"{words} --steps 4") == 0
    line = capsys.readouterr().err.splitlines()[0]
    assert line == "continuing run after step 2 with other settings: steps 4 instead of 2"
    found = RunDirectory(pathlib.Path("run")).read("metrics.jsonl")
    assert [(row["step"], row["split"]) for row in found] == [
        (row["step"], row["split"]) for row in rows
    ]
    for name in ("loss", "accuracy"):
        assert [row[name] for row in found] == pytest.approx([row[name] for row in rows], abs=1e-5)


def test_a_removed_flag_of_one_command_is_unknown_to_the_others() -> None:
    assert "was removed in 0.3.0" in str(deprecation.removal("output", "predict"))
    assert deprecation.removal("output", "train") is None


def test_a_run_with_a_removed_setting_is_read_with_a_warning(
    removed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    value = VALUES[removed]
    pathlib.Path("run").mkdir()
    pathlib.Path("run/config.yaml").write_text(yaml.safe_dump({"seed": 3, removed: value}))
    assert RunDirectory(pathlib.Path("run")).load_config().seed == 3
    assert capsys.readouterr().err == (
        f"warning: run/config.yaml has {removed}: {value}, which {for_python(SENTENCES[removed])}\n"
    )


@pytest.mark.parametrize(
    ("file", "digits"),
    [
        ("experiments/results/digits/config.yaml", "95e6cddc"),
        ("experiments/results/cells/config.yaml", "c14ac15d"),
        ("tests/config/cifar10_one_epoch.yaml", "6f6398e3"),
        ("experiments/results/digits-8-devices/config.yaml", "6e0a6040"),
    ],
)
def test_a_run_of_version_0_2_keeps_its_hash(file: str, digits: str) -> None:
    """The same command finds its folder again; version 0.2 computed these digits."""
    settings = config.load(ROOT / file)
    assert config.run_hash(config.TrainConfig.of(**settings)) == digits


def test_a_run_that_could_go_back_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    sentence = "was removed in 0.3.0: use skip, or stop and resume with a smaller"
    pathlib.Path("run").mkdir()
    pathlib.Path("run/config.yaml").write_text("seed: 3\non_divergence: rollback\n")
    assert RunDirectory(pathlib.Path("run")).load_config().on_divergence == "stop"
    line = error_line(capsys)
    had = "warning: run/config.yaml has on_divergence: rollback, which"
    assert line == f"{had} {sentence} learning_rate"
    assert run_train("--config run/config.yaml") == 2
    assert capsys.readouterr().err.rstrip().endswith(f"{sentence} --learning-rate")
