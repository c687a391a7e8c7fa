"""A value in a file of settings means what it means after its flag."""

import pytest
import yaml
from example_files import refused

from jaxdp.cli import command_line
from jaxdp.config import TrainConfig, files
from jaxdp.errors import ConfigError


def after_flag(name: str, *words: str) -> TrainConfig:
    flag = "--" + name.replace("_", "-")
    return command_line.parse(TrainConfig, [flag, *words], prog="train", description="")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("learning_rate", "1e-6"),
        ("learning_rate", "1.e-6"),
        ("weight_decay", "1e-2"),
        ("validation", "none"),
        ("validation", "no"),
        ("validation", "0.1"),
        ("dataset", "on"),
        ("dataset", "yes"),
        ("loss", "off"),
        ("run_dir", "2024"),
        ("run_dir", "2024-01-01"),
        ("train_split", "012"),
        ("seed", "010"),
        ("seed", "1_000"),
        ("mask_values", "000000,0000ff"),
        ("mask_values", "0,255"),
        ("image_size", "32"),
        ("global_batch_size", "auto"),
        ("augment", "none"),
        ("augment", "flip"),
        ("plugins", "a.py"),
        ("class_names", "no,yes"),
    ],
)
def test_a_scalar_means_what_its_flag_means(name: str, text: str) -> None:
    from_file = TrainConfig.of(**files.parse(f"{name}: {text}", "settings.yaml"))
    assert from_file == after_flag(name, text)


def test_names_in_a_list_stay_as_they_are_written() -> None:
    for names in (["no", "yes"], ["on", "off"], ["1", "2"], ["1e3", "null"]):
        text = f"class_names: [{', '.join(names)}]"
        assert files.parse(text, "settings.yaml") == {"class_names": tuple(names)}


def test_keywords_are_those_of_the_flag() -> None:
    words = ["a=1e-6", "b=none", "c=no", "d=010", "e=[1, 2]", "f=0.5"]
    lines = "".join(f"  {word.replace('=', ': ')}\n" for word in words)
    found = files.parse(f"model_kwargs:\n{lines}", "settings.yaml")["model_kwargs"]
    assert found == after_flag("model_kwargs", *words).model_kwargs
    assert found["a"] == 1e-6


@pytest.mark.parametrize("text", ["true", "yes", "on", "True"])
def test_switches_take_what_yaml_takes(text: str) -> None:
    assert files.parse(f"instances: {text}", "settings.yaml") == {"instances": True}


@pytest.mark.parametrize("line", ["epochs: yes", "learning_rate: on", "clip_norm: no"])
def test_a_number_is_no_switch(line: str) -> None:
    name, text = line.split(": ")
    with refused(f"{name}={text}: must be .*, not a string"):
        files.parse(line, "settings.yaml")


def test_what_is_no_text_stays() -> None:
    assert files.parse("epochs: null\nchannels: ~\nseed: 0x10", "settings.yaml") == {
        "epochs": None,
        "channels": None,
        "seed": 16,
    }
    for line in ("model_kwargs: width=4", "augment: pad_crop:4 flip", "augment: 3.5e1x y"):
        with pytest.raises(ConfigError):
            files.parse(line, "settings.yaml")


def test_saved_settings_are_read_as_they_were() -> None:
    config = TrainConfig.of(
        dataset="no",
        run_dir="010",
        class_names=["yes", "1e3", "null"],
        model_kwargs={"width": 4, "flag": False},
        learning_rate=1e-06,
        mask_values="000000,ff0000",
        validation="none",
    )
    assert TrainConfig.of(**files.parse(files.to_yaml(config), "config.yaml")) == config
    assert yaml.safe_load(files.to_yaml(config))["dataset"] == "no"
