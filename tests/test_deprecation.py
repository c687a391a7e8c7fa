"""Settings that are gone: one line each, and earlier runs are still read."""

import pathlib
import shutil
import types
from typing import Any

import pytest
import yaml

import jaxdp
from jaxdp import checkpoints, command_line, config, deprecation, report, train
from jaxdp import sweep_grid as grid
from jaxdp.registry import ConfigError
from jaxdp.rundir.layout import RunDirectory

ROOT = pathlib.Path(__file__).parent.parent


def parse(*argv: str) -> types.SimpleNamespace:
    return types.SimpleNamespace(
        **command_line.parse(config.TrainConfig, argv, prog="x", description="x").flat()
    )


# A setting of training, a value that is not its default, and what the message says.
REMOVED: list[tuple[str, Any, str]] = [
    ("steps_per_call", 4, "was removed in 0.3.0: use --steps-per-execution"),
    ("measure_devices", True, "was removed in 0.3.0: use --devices"),
    (
        "grad_reduce_dtype",
        "bfloat16",
        "was removed in 0.3.0: leave it out; gradients are averaged in the parameters' format",
    ),
    ("exchange", "local", "was removed in 0.3.0: use --strategy exact or --strategy async"),
    (
        "local_steps",
        5,
        ("was removed in 0.3.0: leave it out; --strategy exact and async update after every batch"),
    ),
    (
        "outer_learning_rate",
        0.7,
        "was removed in 0.3.0: leave it out; no strategy averages replicas",
    ),
    ("outer_momentum", 0.9, "was removed in 0.3.0: leave it out; no strategy averages replicas"),
]


@pytest.mark.parametrize(("name", "value", "sentence"), REMOVED)
def test_a_removed_setting_is_one_line(
    name: str, value: Any, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flag = "--" + name.replace("_", "-")
    assert train.main([flag, "--run-dir", "run"]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", f"jaxdp.train: error: {flag}: {sentence}\n")
    assert not pathlib.Path("run").exists()
    with pytest.raises(ConfigError, match=sentence):
        jaxdp.Trainer("cnn", "digits", **{name: value})
    with pytest.raises(ConfigError, match=sentence):
        grid.parse([f"{name}={value}"])


@pytest.mark.parametrize(("name", "value", "sentence"), REMOVED)
def test_files_may_hold_a_removed_setting_at_its_default(
    name: str, value: Any, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (row,) = (each for each in deprecation.REMOVED if each.name == name)
    pathlib.Path("old.yaml").write_text(yaml.safe_dump({"seed": 3, name: row.default}))
    assert config.load("old.yaml") == {"seed": 3}
    pathlib.Path("old.yaml").write_text(yaml.safe_dump({"seed": 3, name: value}))
    assert train.main(["--config", "old.yaml"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"jaxdp.train: error: --config old.yaml: has {name}: {value}, which was")
    assert line.endswith(sentence)


def test_every_removed_setting_of_training_is_tried() -> None:
    names = {each.name for each in deprecation.REMOVED if not each.command}
    assert names == {name for name, _, _ in REMOVED}
    assert not names & config.fields(config.TrainConfig).keys()


def test_a_run_of_version_0_1_is_read_reported_evaluated_and_resumed(
    capsys: pytest.CaptureFixture[str], no_pictures: None
) -> None:
    """The folder was written by version 0.1.0, without its figures."""
    shutil.copytree(pathlib.Path(__file__).parent / "kept_runs" / "0.1", "run")
    settings = yaml.safe_load(pathlib.Path("run/config.yaml").read_text())
    assert {"steps_per_call", "grad_reduce_dtype"} <= settings.keys()
    later = {each.name: each.default for each in deprecation.REMOVED if not each.command}
    with pathlib.Path("run/config.yaml").open("a") as file:
        file.write(yaml.safe_dump({name: later[name] for name in later.keys() - settings.keys()}))
    result = jaxdp.load("run")
    assert result.history[-1]["loss"] == pytest.approx(2.34219, abs=1e-5)
    assert result.evaluate()["loss"] == pytest.approx(result.history[-1]["loss"], rel=1e-4)
    assert checkpoints.main(["run", "--verify"]) == 0
    assert report.main(["run"]) == 0
    assert "cannot be read" not in pathlib.Path("report.html").read_text()
    assert capsys.readouterr().err == ""
    words = "--model cnn --dataset digits --model-kwargs width=2 hidden=4 --devices 1".split()
    words += "--global-batch-size 64 --batch-norm replica --checkpoint-every 1 --keep 1".split()
    words += "--log-every 1 --run-dir run --steps 4".split()
    assert train.main(words) == 0
    line = capsys.readouterr().err.splitlines()[0]
    assert line == "continuing run after step 2 with other settings: steps 4 instead of 2"
    rows = RunDirectory(pathlib.Path("run")).read("metrics.jsonl")
    assert [row["step"] for row in rows if row["split"] == "train"] == [1, 2, 3, 4]


def test_a_removed_flag_of_one_command_is_unknown_to_the_others() -> None:
    assert "was removed in 0.3.0" in str(deprecation.removal("output", "predict"))
    assert deprecation.removal("output", "train") is None


@pytest.mark.parametrize(("name", "value", "sentence"), REMOVED)
def test_a_run_with_a_removed_setting_is_read_with_a_warning(
    name: str, value: Any, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pathlib.Path("run").mkdir()
    pathlib.Path("run/config.yaml").write_text(yaml.safe_dump({"seed": 3, name: value}))
    assert RunDirectory(pathlib.Path("run")).load_config().seed == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"warning: run/config.yaml has {name}: {value}, which was removed")
    assert line.endswith(sentence)


@pytest.mark.parametrize(
    ("name", "digits"),
    [
        ("digits", "95e6cddc"),
        ("cells", "c14ac15d"),
        ("cifar10-one-epoch", "6f6398e3"),
        ("digits-8-devices", "6e0a6040"),
    ],
)
def test_a_run_of_version_0_2_keeps_its_hash(name: str, digits: str) -> None:
    """The same command finds its folder again; version 0.2 computed these digits."""
    settings = config.load(ROOT / "experiments" / name / "config.yaml")
    assert config.run_hash(config.TrainConfig.of(**settings)) == digits


def test_a_removed_callback_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    words = "--model cnn --dataset digits --steps 1 --callbacks learning_rate_monitor".split()
    assert train.main([*words, "--run-dir", "run"]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "--callbacks learning_rate_monitor: was removed in 0.3.0: rows have the learning" in line
    assert not pathlib.Path("run").exists()


def test_rollback_is_refused_in_one_line_and_a_run_that_had_it_is_read(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sentence = "was removed in 0.3.0: use skip, or stop and resume with a smaller --learning-rate"
    assert train.main(["--on-divergence", "rollback", "--run-dir", "run"]) == 2
    assert capsys.readouterr().err == (
        f"jaxdp.train: error: --on-divergence rollback: {sentence}\n"
    )
    assert not pathlib.Path("run").exists()
    pathlib.Path("run").mkdir()
    pathlib.Path("run/config.yaml").write_text("seed: 3\non_divergence: rollback\n")
    assert RunDirectory(pathlib.Path("run")).load_config().on_divergence == "stop"
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"warning: run/config.yaml has on_divergence: rollback, which {sentence}"
    assert train.main(["--config", "run/config.yaml"]) == 2
    assert capsys.readouterr().err.rstrip().endswith(sentence)
