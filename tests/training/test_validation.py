"""Validation data choose the best state, test data choose nothing, and without validation data the
last state is the result.
"""

import json
import pathlib
from typing import Any

import numpy as np
import pytest
from runs import rows, run_train, summary

import jaxdp
from jaxdp import evaluate
from jaxdp.data.sources import open_dataset, read_settings
from jaxdp.errors import ConfigError

CNN = (
    "--model cnn --model-kwargs width=4 hidden=16 --global-batch-size 160 --devices 2 --run-dir run"
)


def kept(run: str = "run") -> set[int]:
    return {int(path.name) for path in pathlib.Path(run, "checkpoints").iterdir()}


def test_a_share_of_each_class_is_drawn_by_the_seed() -> None:
    def opened(seed: int) -> Any:
        return open_dataset(read_settings({"dataset": "digits", "validation": 0.2, "seed": seed}))

    whole, first, second, again = open_dataset("digits"), opened(0), opened(1), opened(0)

    def values(source: Any, field: str) -> list[Any]:
        return [source[index][field] for index in range(len(source))]

    def bytes_of(source: Any) -> list[bytes]:
        return [image.tobytes() for image in values(source, "images")]

    counts = np.bincount(values(whole.train, "labels"))
    held_out = np.bincount(values(first.validation, "labels"))
    np.testing.assert_array_equal(held_out, np.floor(0.2 * counts + 0.5))
    assert len(first.train) + len(first.validation) == len(whole.train)
    assert (len(first.test), first.evaluation_split) == (360, "validation")
    assert bytes_of(first.validation) == bytes_of(again.validation) != bytes_of(second.validation)
    assert sorted(bytes_of(first.train) + bytes_of(first.validation)) == sorted(
        bytes_of(whole.train)
    )


@pytest.mark.parametrize(
    ("validation", "message"),
    [
        ("1.5", "validation=1.5: must be a share between 0 and 1, a split, or none"),
        ("0.0001", "validation=0.0001: leaves no validation example of class 0, which has 1"),
        ("dev", "validation=dev: digits has no such split; give a share, e.g. 0.1, or none"),
        (True, "validation=True: must be a string or null, not true or false"),
    ],
)
def test_what_cannot_be_held_out_is_one_line(validation: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_dataset(read_settings({"dataset": "digits", "validation": validation}))
    assert str(caught.value).startswith(message)


@pytest.mark.usefixtures("no_pictures")
def test_the_best_state_by_validation_is_saved_and_is_the_result(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """At a rate that rises until it harms: the last state is not the best."""
    rate = "--schedule onecycle --warmup-fraction 0.9 --learning-rate 3 --clip-norm 1"
    flags = (
        f"{CNN} {rate} --eval-every 1 --checkpoint-every 100 --keep 1 --steps 12 --validation 0.2"
    )
    assert run_train(flags) == 0
    printed, done = capsys.readouterr().out, summary()
    accuracies = {row["step"]: row["accuracy"] for row in rows(split="validation")}
    best = max(accuracies, key=lambda step: (accuracies[step], -step))
    assert len(accuracies) == 12
    assert best != 12
    assert done["result"] == {"state": "best", "step": best}
    assert (done["best"]["step"], done["best"]["accuracy"]) == (best, accuracies[best])
    assert done["metrics"]["validation"]["accuracy"] == pytest.approx(accuracies[best])
    assert kept() == {best, 12}
    assert f"the best state by validation accuracy, step {best}" in printed
    assert "on 360" in printed
    assert evaluate.main(["run", "--json", "--devices", "2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["step"], found["split"]) == (best, "test")
    assert found["accuracy"] == pytest.approx(done["metrics"]["test"]["accuracy"])
    assert jaxdp.load("run").step == best


@pytest.mark.slow
@pytest.mark.usefixtures("no_pictures")
def test_a_run_that_was_stopped_finds_the_same_best(capsys: pytest.CaptureFixture[str]) -> None:
    """What was best before counts after: the first evaluation of a continued run is no improvement
    in itself.
    """
    flags = (
        f"{CNN} --learning-rate 0.05 --schedule constant --eval-every 2 --checkpoint-every 4 --keep"
        " 2 --validation 0.2 --steps"
    )
    assert run_train(f"{flags} 10 --run-dir whole") == 0
    for steps in ("4", "8", "10"):
        assert run_train(f"{flags} {steps} --run-dir parts") == 0
    for name in ("best", "metrics", "result"):
        assert summary("parts")[name] == summary("whole")[name]
    assert kept("parts") == kept("whole")
    capsys.readouterr()


@pytest.mark.usefixtures("no_pictures")
def test_without_validation_the_last_state_is_the_result(
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = (
        "--schedule onecycle --warmup-fraction 0.9 --learning-rate 3 --clip-norm 1 --eval-every 2"
        " --checkpoint-every 2 --keep 2"
    )
    assert run_train(f"{CNN} {flags} --steps 12") == 0
    done = summary()
    assert (done["result"], done["best"], kept()) == ({"state": "last", "step": 12}, None, {10, 12})
    capsys.readouterr()
    assert evaluate.main(["run", "--json", "--devices", "2"]) == 0
    assert json.loads(capsys.readouterr().out)["step"] == 12


@pytest.mark.usefixtures("no_pictures")
def test_a_set_without_test_data_reports_validation(capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (64, 8, 8, 1)).astype(np.uint8), np.arange(64) % 4
    np.savez(
        "set.npz",
        train_images=images,
        train_labels=labels,
        val_images=images[:8],
        val_labels=labels[:8],
    )
    flags = f"{CNN.replace('160', '16')} --dataset npz:set.npz --steps 2"
    assert run_train(flags) == 0
    assert set(summary()["metrics"]) == {"validation"} | ({"train"} & set(summary()["metrics"]))
    capsys.readouterr()
    assert evaluate.main(["run", "--devices", "2"]) == 0
    assert "validation loss" in capsys.readouterr().out
    assert run_train(f"{flags} --validation none --run-dir other") == 2
    assert "npz:set.npz has no test data (its splits: train, val)" in capsys.readouterr().err


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize("again", [False, True])
def test_each_fit_draws_validation_data_by_its_own_seed(again: bool) -> None:
    """A loaded run reads them again, and none of them was trained on."""
    trainer = jaxdp.Trainer(
        "cnn", "digits", validation="0.2", devices=1, steps=2, progress=False,
        model_kwargs={"width": 4, "hidden": 16},
    )  # fmt: skip
    if again:  # and another one in memory before
        trainer.fit(seed=3)
    result = trainer.fit(seed=1, run_dir="run")

    def drawn(setup: Any) -> list[list[int]]:
        return [getattr(setup.dataset, split).indices.tolist() for split in ("train", "validation")]

    trained, held_out = drawn(result._setup)
    loaded = jaxdp.load("run")
    assert not {*trained} & {*held_out}
    assert drawn(loaded._evaluator_for(None, None)) == [trained, held_out]
    config = read_settings({"dataset": "digits", "validation": "0.2", "seed": 1})
    assert open_dataset(config).validation.indices.tolist() == held_out  # pyright: ignore
    expected = result.evaluate(split="validation")
    assert loaded.evaluate(split="validation") == pytest.approx(expected)
    assert trainer.fit()._setup is trainer.setup
