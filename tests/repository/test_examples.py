"""Each example trains as a script and as a plugin, and what it registers is found again after the
run.
"""

import contextlib
import json
import pathlib
import re
import runpy
import shutil
import sqlite3
import subprocess
import sys
from typing import Any

import jax
import numpy as np
import optax
import pytest
from PIL import Image
from process_group import environment
from runs import rows, run_train, summary

import jaxdp
from jaxdp import evaluate, train
from jaxdp.rundir.layout import RunDirectory

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
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
        "--dataset bars --task ordinal",
        "--model cnn --model-kwargs width=4 hidden=16",
        "exact",
    ),
}
QUICK = "--global-batch-size 64 --devices 2 --eval-every 100 --run-dir run"


@pytest.mark.usefixtures("no_pictures", "registries")
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
    ended = summary("run")
    assert (ended["steps"], ended["best_metric"]["name"]) == (3, figure)


def test_the_loop_trains_to_the_bits_of_the_trainer_and_goes_on(
    tmp_path: pathlib.Path,
) -> None:
    train_by_loop = runpy.run_path(str(EXAMPLES / "loop.py"))["train"]
    assert len((EXAMPLES / "loop.py").read_text().splitlines()) <= 150
    for name in ("parts", "whole", "other"):
        (tmp_path / name).mkdir()
    train_by_loop(tmp_path / "parts", 2, 1, 0.05)
    parts = train_by_loop(tmp_path / "parts", 2, 2, 0.05)
    own = train_by_loop(tmp_path / "whole", 2, 2, 0.05)
    trainer = jaxdp.Trainer(
        "cnn",
        "digits",
        model_kwargs={"width": 8, "hidden": 32},
        optimizer=optax.sgd(0.05, momentum=0.9, nesterov=True),
        global_batch_size=64,
        batch_norm="group:32",
        augment=(),
        epochs=2,
        devices=2,
        progress=False,
    )
    result = trainer.fit()
    for field in ("params", "batch_stats", "opt_state"):
        for other in (parts, result.state):
            pair = (getattr(own, field), getattr(other, field))
            assert len({len(jax.tree.leaves(tree)) for tree in pair}) == 1
            same = map(np.array_equal, *map(jax.tree.leaves, pair))
            assert all(same), field
    other = train_by_loop(tmp_path / "other", 4, 1, 0.04)  # the comparison can tell
    assert not np.array_equal(other.params["head"]["kernel"], own.params["head"]["kernel"])


def test_the_port_of_a_lightning_module_trains_alike_on_one_device_and_on_eight() -> None:
    """tests/reference compares it with PyTorch."""
    train_port = runpy.run_path(str(EXAMPLES / "from_lightning.py"))["train"]
    one, eight = (
        train_port(epochs=3, batch=120, examples=240, devices=devices, log_every=1, progress=False)
        for devices in (1, 8)
    )
    losses = [[row["loss"] for row in each.history] for each in (one, eight)]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)
    assert losses[0][-1] < losses[0][0]


def test_a_range_of_learning_rates_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    example = runpy.run_path(str(EXAMPLES / "learning_rate_range.py"))
    curve = example["measure"](1e-4, 100, 60, model="cnn", dataset="digits", devices=1)
    rates = [rate for rate, _ in curve]
    assert len(curve) < 60  # it ends where the loss has risen
    np.testing.assert_allclose(rates, np.geomspace(1e-4, 100, 60)[: len(rates)], rtol=1e-4)
    example["show"](curve)
    *lines, last = capsys.readouterr().out.splitlines()
    assert len(lines) == 20
    low, high = (float(each) for each in last.removesuffix(".").split()[-3::2])
    assert 1e-3 < low < high < 1
    example["show"]([(0.1, 2.0), (0.2, 1.0)])
    assert capsys.readouterr().out.endswith("try again with a larger --highest.\n")
    example["show"]([(0.1, 2.0), (0.2, 3.0)])
    assert capsys.readouterr().out.endswith("try again with a smaller --lowest.\n")


def test_the_same_search_goes_on_and_more_trials_add_runs() -> None:
    pytest.importorskip("optuna", reason="needs Optuna: pip install '.[optuna]'")
    file = EXAMPLES / "search.py"
    _, _, code = file.read_text().split('"""', 2)
    assert len(code.strip().splitlines()) < 60
    for count in (2, 3, 3):
        script = [sys.executable, str(file), "--trials", str(count), "--epochs", "1"]
        process = subprocess.run(script, capture_output=True, text=True, env=environment())
        assert process.returncode == 0, process.stderr
        with contextlib.closing(sqlite3.connect("study.db")) as database:
            query = "SELECT value FROM trial_values JOIN trials USING (trial_id) ORDER BY number"
            values = [value for (value,) in database.execute(query)]
        assert len(values) == count
        assert f"best accuracy {max(values):.2%} with " in process.stdout


def test_a_search_prunes_a_run_that_is_worse_and_ends_with_an_interrupt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    optuna: Any = pytest.importorskip("optuna", reason="needs Optuna: pip install '.[optuna]'")
    objective = runpy.run_path(str(EXAMPLES / "search.py"))["objective"]
    study = optuna.create_study(pruner=optuna.pruners.ThresholdPruner(lower=2))
    study.optimize(lambda trial: objective(trial, 3), n_trials=1)
    (trial,) = study.trials
    assert trial.state.name == "PRUNED"
    assert len(trial.intermediate_values) == 1  # of three epochs
    fit = jaxdp.Trainer.fit

    def interrupted(trainer: jaxdp.Trainer) -> jaxdp.Result:
        result = fit(trainer, steps=1)
        result.status = "stopped"
        return result

    monkeypatch.setattr(jaxdp.Trainer, "fit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        study.optimize(lambda trial: objective(trial, 3), n_trials=1)
    assert study.trials[1].state.name == "FAIL"


def compare(*folders: str) -> subprocess.CompletedProcess[str]:
    script = [sys.executable, str(EXAMPLES / "compare_runs.py"), *folders]
    return subprocess.run(script, capture_output=True, text=True, env=environment())


def unfinished(run: str, folder: str) -> None:
    """Copies a run as it is while it continues: with its earlier summary, and half a row."""
    shutil.copytree(run, folder)
    RunDirectory(pathlib.Path(folder)).record("resumed", 4, devices=2)
    with pathlib.Path(folder, "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "spl')


def test_runs_are_compared_in_a_table_and_a_picture(no_pictures: None) -> None:
    small = f"--model cnn --model-kwargs width=4 hidden=16 {QUICK} --steps 4 --log-every 1"
    assert run_train(f"{small} --run-dir worse --learning-rate 1e-6") == 0
    assert run_train(f"{small} --run-dir better --validation 0.2 --eval-every 2") == 0
    worse, better = summary("worse"), summary("better")
    unfinished("worse", "cost$_$")
    done = compare("cost$_$", "worse", "better")
    assert (done.returncode, done.stderr) == (0, "")
    head, *lines = [re.split(" {2,}", line) for line in done.stdout.splitlines()]
    expected = []
    for name, split, run, values in (
        ("better", "validation", better, better["best"]),
        ("worse", "test", worse, worse["metrics"]["test"]),
    ):
        numbers = [f"{split} accuracy {values['accuracy']:.4f}", f"{values['loss']:.4f}"]
        numbers += ["4", f"{run['seconds']['total']:.1f}", "2"]
        expected.append([name, "done", "cnn", "digits", *numbers])
    expected.append(["cost$_$", "unfinished", "cnn", "digits", "-", "-", "4", "-", "-"])
    assert lines == expected
    names = "folder status model dataset metric loss steps seconds devices"
    assert head == names.split()
    assert better["best"]["accuracy"] > worse["metrics"]["test"]["accuracy"]  # the best is first
    with Image.open("compare.png") as picture:
        assert min(picture.size) > 500
        colors = {color for _, color in picture.convert("RGB").getcolors(2**24) or []}
    assert {(0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00), (0x00, 0x9E, 0x73)} <= colors
    parts = runpy.run_path(str(EXAMPLES / "compare_runs.py"))
    figure = parts["draw"]([parts["Run"](pathlib.Path("better"))])
    for axes, name in zip(figure.axes, ("loss", "accuracy"), strict=True):
        curves = [line.get_xydata().tolist() for line in axes.lines]
        splits = [rows("better", split=split) for split in ("train", "validation")]
        assert curves == [[[row["step"], row[name]] for row in split] for split in splits]


def test_a_folder_without_a_run_is_not_compared() -> None:
    pathlib.Path("empty").mkdir()
    done = compare("empty")
    assert done.returncode == 2
    assert done.stderr == "empty holds no run; give folders of runs, e.g. runs/*\n"
    assert not pathlib.Path("compare.png").exists()


@pytest.mark.usefixtures("no_pictures", "registries")
def test_mlflow_file_store(monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="needs MLflow: pip install mlflow-skinny")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = pathlib.Path("mlruns").absolute().as_uri()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    trainer = jaxdp.Trainer(
        "cnn",
        "digits",
        model_kwargs={"width": 4, "hidden": 16},
        devices=1,
        global_batch_size=160,
        log_every=4,
        progress=False,
        plugins=[str(EXAMPLES / "log_to_mlflow.py")],
        callbacks=["mlflow:experiment=mine"],
        run_dir="run",
    )
    result = trainer.fit(steps=8)
    client = mlflow.MlflowClient(tracking_uri=uri)
    (experiment,) = [client.get_experiment_by_name("mine").experiment_id]
    (run,) = client.search_runs([experiment])
    assert run.info.status == "FINISHED"
    assert run.data.params["model"] == "cnn"
    assert run.data.metrics["test/accuracy"] == pytest.approx(result.metrics["test"]["accuracy"])
    history = client.get_metric_history(run.info.run_id, "train/loss")
    assert [(each.step, each.value) for each in history] == [
        (row["step"], pytest.approx(row["loss"]))
        for row in result.history
        if row["split"] == "train"
    ]
    monkeypatch.setenv("MLFLOW_RUN_ID", run.info.run_id)
    trainer.fit(steps=16)
    (run,) = client.search_runs([experiment])  # the same goes on
    steps = [each.step for each in client.get_metric_history(run.info.run_id, "train/loss")]
    assert steps == [4, 8, 12, 16]


@pytest.mark.parametrize(
    ("name", "example"), [("mlflow", "log_to_mlflow"), ("profiler", "profile_steps")]
)
def test_a_removed_callback_names_its_example(name: str, example: str) -> None:
    assert (EXAMPLES / f"{example}.py").is_file()
    with pytest.raises(jaxdp.ConfigError, match=rf"removed after 0\.3\.0: .*{example}\.py"):
        jaxdp.Trainer("cnn", "digits", callbacks=[name])
