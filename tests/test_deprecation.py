"""Settings under their old names: one line of warning on the command line and in Python, none for files."""

import pathlib
import types
from importlib.metadata import version

import pytest

from jaxdp import command_line, config, deprecation
from jaxdp.config.groups import ModelConfig
from jaxdp.registry import ConfigError
from jaxdp.tools import sweep_grid as grid


def parse(*argv: str) -> types.SimpleNamespace:
    return types.SimpleNamespace(**command_line.parse(config.TrainConfig, argv, prog="x", description="x").flat())


@pytest.mark.parametrize("words", [["--steps-per-call", "4"], ["--steps-per-call=4"], ["--steps_per_call", "4"]])
def test_an_old_flag_works_with_one_line_of_warning(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert parse(*words).steps_per_execution == 4
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "warning: --steps-per-call is now --steps-per-execution\n")


def test_only_flags_are_renamed_and_only_where_the_command_has_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse("--plugins", "steps_per_call").plugins == ("steps_per_call",)
    with pytest.raises(ConfigError, match="--steps-per-call: unknown flag"):
        command_line.parse(ModelConfig, ["--steps-per-call", "4"], prog="x", description="x")
    assert capsys.readouterr().err == ""


def test_files_of_the_version_before_load_without_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    pathlib.Path("old.yaml").write_text("steps_per_call: 8\n")
    assert config.load("old.yaml", config.TrainConfig) == {"steps_per_execution": 8}
    assert parse("--config", "old.yaml").steps_per_execution == 8
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_old_names_in_python_are_deprecated() -> None:
    with pytest.warns(DeprecationWarning, match="steps_per_call is now steps_per_execution; the old name works until version 0.3"):
        assert deprecation.rename_settings({"epochs": 2, "steps_per_call": 4}) == {"epochs": 2, "steps_per_execution": 4}
    with pytest.warns(DeprecationWarning, match="steps_per_call is now"):
        assert grid.parse(["steps-per-call=1,2"]) == {"steps_per_execution": [1, 2]}
    with pytest.raises(ConfigError, match="--steps-per-execution 4: is also set as steps_per_call, its old name; give one of them"):
        deprecation.rename_settings({"steps_per_execution": 4, "steps_per_call": 2}, warn=False)


def test_old_names_go_when_it_was_said() -> None:
    def number(text: str) -> tuple[int, ...]:
        return tuple(int(part) for part in text.split(".")[:2])

    fields = set(config.TrainConfig.places())
    for each in deprecation.RENAMED:
        assert each.new in fields
        assert each.old not in fields
        assert number(version("jaxdp")) < number(each.until), f"{each.old} was to go"
