"""After a run is built, no setting is None that stands for a default."""

import json
import pathlib
from typing import Any

import pytest
import yaml

import jaxdp
from jaxdp import models
from jaxdp.build.setup import create_setup
from jaxdp.cli import command_line
from jaxdp.config import TrainConfig, fields, run_hash
from jaxdp.data import sources

SMALL: dict[str, Any] = {
    "cnn": {"width": 4, "hidden": 16},
    "pyramidnet": {"depth": 8, "alpha": 6},
    "resnet": {"depth": 8, "width": 4},
    "unet": {"base_channels": 2, "levels": 1},
    "vgg": {"width": 4},
}
# The others need files.
BUILT_IN = ["digits", "digits-denoise", "cells", "cells:sparse"]
CASES = [("cnn", "digits"), ("unet", "digits-denoise"), ("unet", "cells"), ("unet", "cells:sparse")]
CASES += [(model, "digits") for model in ("pyramidnet", "resnet", "vgg")]


def unresolved(config: TrainConfig) -> set[str]:
    """Returns the settings that are None, although None is no value of theirs."""
    names = {
        name
        for name, facts in fields(TrainConfig).items()
        if getattr(config, name) is None and not facts.none
    }
    return names - ({"epochs"} if config.steps else set())


def test_each_model_and_dataset_that_is_built_in_has_a_case() -> None:
    registered = {name for name, each in models.names().items() if each.__module__[:6] == "jaxdp."}
    assert {model for model, _ in CASES} == registered == {*SMALL}
    without_files = {
        name for name in sources.names() if name in ("digits", "digits-denoise", "cells")
    }
    assert {dataset.partition(":")[0] for _, dataset in CASES} == without_files


@pytest.mark.parametrize(("model", "dataset"), CASES)
@pytest.mark.parametrize("length", [{}, {"steps": 3}])
def test_no_setting_of_a_run_stands_for_a_default(
    model: str, dataset: str, length: dict[str, int]
) -> None:
    given = TrainConfig.of(model=model, dataset=dataset, model_kwargs=SMALL[model], **length)
    config = create_setup(given).config
    assert not unresolved(config)
    assert config.learning_rate
    assert config.eval_every
    assert config.loss == {"digits": None, "digits-denoise": "l2"}.get(dataset, "cross_entropy")
    assert config.checkpoint_every
    assert config.filled >= {"eval_every", "checkpoint_every", "warmup_fraction"}
    # A default that was filled in names no run: folders of earlier versions go on.
    assert run_hash(config) == run_hash(config.as_given())


def test_settings_that_only_some_strategies_have_are_filled_in() -> None:
    for strategy, workers in {"exact": None, "pmap": None}.items():
        given = TrainConfig.of(
            model="cnn", dataset="digits", model_kwargs=SMALL["cnn"], strategy=strategy, devices=1
        )
        config = create_setup(given, training=strategy == "pmap").config
        assert config.workers == workers
        assert run_hash(config) == run_hash(config.as_given())


def test_the_folder_of_a_run_says_what_it_used(no_pictures: None) -> None:
    """A program that starts from its file gets new defaults for what nobody gave."""
    trainer = jaxdp.Trainer(
        "cnn", "digits", model_kwargs=SMALL["cnn"], steps=2, eval_every=1, run_dir="run",
        progress=False,
    )  # fmt: skip
    trainer.fit()
    assert not unresolved(trainer.config)
    written = yaml.safe_load(pathlib.Path("run/config.yaml").read_text())
    filled = written.pop("filled_in")
    assert {"learning_rate", "checkpoint_every"} <= {*filled}
    assert "eval_every" not in filled
    assert all(written[name] is not None for name in filled)
    summary = json.loads(pathlib.Path("run/summary.json").read_text())
    assert (summary["optimizer"], summary["learning_rate"]) == ("nesterov", 0.1)
    assert jaxdp.load("run").config.filled == {*filled}
    again = command_line.parse(
        TrainConfig,
        ["--config", "run/config.yaml", "--optimizer", "adamw"],
        prog="jaxdp.train",
        description="",
    )
    assert (again.learning_rate, again.eval_every, again.optimizer) == (None, 1, "adamw")
    assert create_setup(again).config.learning_rate == 0.001
