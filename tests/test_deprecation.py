"""Settings under their old names: one line of warning on the command line and in Python, none for
files.
"""

import pathlib
import types
from importlib.metadata import version
from typing import Any

import pytest
import yaml

import jaxdp
from jaxdp import command_line, config, deprecation, train
from jaxdp import sweep_grid as grid
from jaxdp.config.groups import ModelConfig
from jaxdp.registry import ConfigError
from jaxdp.run_directory import RunDirectory

ROOT = pathlib.Path(__file__).parent.parent


def parse(*argv: str) -> types.SimpleNamespace:
    return types.SimpleNamespace(
        **command_line.parse(config.TrainConfig, argv, prog="x", description="x").flat()
    )


@pytest.mark.parametrize(
    "words", [["--steps-per-call", "4"], ["--steps-per-call=4"], ["--steps_per_call", "4"]]
)
def test_an_old_flag_works_with_one_line_of_warning(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert parse(*words).steps_per_execution == 4
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == (
        "",
        "warning: --steps-per-call is now --steps-per-execution\n",
    )


def test_only_flags_are_renamed_and_only_where_the_command_has_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert parse("--plugins", "steps_per_call").plugins == ("steps_per_call",)
    with pytest.raises(ConfigError, match="--steps-per-call: unknown flag"):
        command_line.parse(ModelConfig, ["--steps-per-call", "4"], prog="x", description="x")
    assert capsys.readouterr().err == ""


def test_files_of_the_version_before_load_without_a_word(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pathlib.Path("old.yaml").write_text("steps_per_call: 8\n")
    assert config.load("old.yaml", config.TrainConfig) == {"steps_per_execution": 8}
    assert parse("--config", "old.yaml").steps_per_execution == 8
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_old_names_in_python_are_deprecated() -> None:
    with pytest.warns(
        DeprecationWarning,
        match="steps_per_call is now steps_per_execution; the old name works until version 0.3",
    ):
        assert deprecation.rename_settings({"epochs": 2, "steps_per_call": 4}) == {
            "epochs": 2,
            "steps_per_execution": 4,
        }
    with pytest.warns(DeprecationWarning, match="steps_per_call is now"):
        assert grid.parse(["steps-per-call=1,2"]) == {"steps_per_execution": [1, 2]}
    with pytest.raises(
        ConfigError,
        match=(
            "--steps-per-execution 4: is also set as steps_per_call, its old name; give one of them"
        ),
    ):
        deprecation.rename_settings({"steps_per_execution": 4, "steps_per_call": 2}, warn=False)


def test_old_names_go_when_it_was_said() -> None:
    def number(text: str) -> tuple[int, ...]:
        return tuple(int(part) for part in text.split(".")[:2])

    fields = set(config.TrainConfig.places())
    for each in deprecation.RENAMED:
        assert each.new in fields
        assert each.old not in fields
        assert number(version("jaxdp")) < number(each.until), f"{each.old} was to go"


# A setting of training, a value that is not its default, and what the message says.
REMOVED: list[tuple[str, Any, str]] = [
    ("measure_devices", True, "was removed in 0.3.0: use --devices"),
    (
        "grad_reduce_dtype",
        "bfloat16",
        "was removed in 0.3.0: leave it out; gradients are averaged in the parameters' format",
    ),
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
    assert not names & config.TrainConfig.places().keys()


def test_a_run_of_an_earlier_version_is_resumed_in_its_folder(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = "--model cnn --dataset digits --model-kwargs width=4 hidden=16 --devices 1".split()
    words += "--global-batch-size 64 --run-dir run --steps".split()
    assert train.main([*words, "2"]) == 0
    settings = {each.name: each.default for each in deprecation.REMOVED if not each.command}
    with pathlib.Path("run/config.yaml").open("a") as file:
        file.write(yaml.safe_dump(settings))
    capsys.readouterr()
    assert train.main([*words, "4"]) == 0
    line = capsys.readouterr().err.splitlines()[0]
    assert line == "continuing run after step 2 with other settings: steps 4 instead of 2"


def test_a_removed_flag_of_one_command_is_unknown_to_the_others() -> None:
    assert "was removed in 0.3.0" in str(deprecation.removal("output", "predict"))
    assert deprecation.removal("output", "train") is None


@pytest.mark.parametrize(("name", "value", "sentence"), REMOVED)
def test_a_run_with_a_removed_setting_is_read_with_a_warning(
    name: str, value: Any, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pathlib.Path("run").mkdir()
    pathlib.Path("run/config.yaml").write_text(yaml.safe_dump({"seed": 3, name: value}))
    assert RunDirectory(pathlib.Path("run")).load_config().data.seed == 3
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
