"""The number of simulated devices, where it is measured: the fastest one, and what it does not go together with."""

import pathlib
from collections.abc import Mapping
from typing import Any

import pytest

import jaxdp
from jaxdp import train
from jaxdp.config import TrainConfig, load, run_hash
from jaxdp.registry import ConfigError
from jaxdp.runtime import platform, trial
from jaxdp.training import device_choice

SMALL = "--model cnn --dataset digits --model-kwargs width=4 hidden=16 --global-batch-size 64 --steps 3".split()
Record = dict[str, Any]


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> tuple[dict[int, Record], list[int]]:
    """Four cores, and what each number of devices answers; each that was tried is noted."""
    answers: dict[int, Record] = {}
    asked: list[int] = []

    def run(request: Mapping[str, Any], cache: str | None) -> Record:
        assert cache is None
        asked.append(request["config"]["devices"])
        return {"platform": "cpu"} | answers[asked[-1]]

    monkeypatch.setattr(trial, "run", run)
    monkeypatch.setattr(platform, "cores", lambda: 4)
    return answers, asked


def rate(images: float) -> Record:
    return {"status": "ok", "reason": None, "images_per_second": {"median": images}}


@pytest.mark.parametrize(
    ("answers", "chosen"),
    [
        ({1: rate(100), 2: rate(130), 4: rate(120)}, 2),
        ({1: rate(100), 2: rate(90), 4: rate(130)}, 4),
        ({1: rate(100), 2: rate(102), 4: rate(80)}, 1),
        ({1: rate(100), 2: rate(110), 4: {"status": "refused", "reason": "4 do not divide the batch"}}, 2),
        ({1: {"status": "oom", "reason": "out of memory"}, 2: rate(50), 4: rate(40)}, 2),
    ],
    ids=["the second", "the last", "within noise the smallest", "one that does not divide the batch", "one out of memory"],
)
def test_the_fastest_number_is_chosen(
    answers: dict[int, Record], chosen: int, tried: tuple[dict[int, Record], list[int]], tmp_path: pathlib.Path
) -> None:
    tried[0].update(answers)
    said: list[str] = []
    config = TrainConfig.of(measure_devices=True, run_dir=str(tmp_path / "run"))
    found = device_choice.choose(config, say=said.append)
    assert found.sharding.devices == chosen
    assert tried[1] == [1, 2, 4]
    assert f"--devices {chosen}" in said[-1]
    assert len(said) == 1 + sum(answer["status"] == "ok" for answer in answers.values())
    # Another measurement may choose another number, and the folder must be the same.
    assert run_hash(found) == run_hash(found.replace(devices=4)) == run_hash(config)


def test_a_number_that_is_known_is_not_measured(tried: tuple[dict[int, Record], list[int]], tmp_path: pathlib.Path) -> None:
    said: list[str] = []
    given = TrainConfig.of(measure_devices=True, devices=3)
    assert device_choice.choose(given, say=said.append) == given
    assert said == ["--devices 3 is given: nothing is measured"]
    (tmp_path / "config.yaml").write_text("model: cnn\ndevices: 2\n")
    assert device_choice.choose(TrainConfig.of(measure_devices=True, run_dir=str(tmp_path))).sharding.devices == 2
    assert device_choice.choose(TrainConfig()).sharding.devices is None
    assert tried[1] == []


def test_on_accelerators_all_devices_are_used(tried: tuple[dict[int, Record], list[int]]) -> None:
    tried[0][1] = rate(100) | {"platform": "gpu"}
    assert device_choice.choose(TrainConfig.of(measure_devices=True)).sharding.devices is None
    assert tried[1] == [1]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"strategy": "single"}, "one process that shares a batch"),
        ({"exchange": "exact"}, "one process that shares a batch"),
        ({"coordinator": "localhost:1", "num_processes": 2, "process_id": 0}, "is for one process"),
        ({"distributed": "on"}, "is for one process"),
        ({"global_batch_size": "auto"}, "--global-batch-size a number"),
        ({"per_device_batch_size": 8}, "--global-batch-size a number"),
        ({"batch_norm": "replica"}, "group:32"),
    ],
)  # fmt: skip
def test_what_it_does_not_go_together_with(settings: Record, words: str, tried: tuple[dict[int, Record], list[int]]) -> None:
    with pytest.raises(ConfigError, match=words):
        device_choice.choose(TrainConfig.of(measure_devices=True, **settings))
    assert tried[1] == []


def test_what_no_number_can_train_is_refused(
    tried: tuple[dict[int, Record], list[int]], capsys: pytest.CaptureFixture[str]
) -> None:
    tried[0].update({count: {"status": "refused", "reason": "--steps 3: no"} for count in (1, 2, 4)})
    assert train.main([*SMALL, "--measure-devices"]) == 2
    assert capsys.readouterr().err.splitlines() == ["jaxdp.train: error: --steps 3: no"]


def test_a_model_that_is_an_object_is_refused(tried: tuple[dict[int, Record], list[int]]) -> None:
    from flax import nnx

    model = nnx.Linear(1, 1, rngs=nnx.Rngs(0))
    with pytest.raises(ConfigError, match="by name"):
        jaxdp.Trainer(model, "digits", measure_devices=True)
    assert tried[1] == []


@pytest.mark.slow
def test_a_run_measures_and_keeps_the_number(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "cores", lambda: 2)
    assert train.main([*SMALL, "--measure-devices", "--run-dir", str(tmp_path / "run")]) == 0
    assert load(tmp_path / "run" / "config.yaml")["devices"] in (1, 2)
