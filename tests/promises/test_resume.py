"""A run that is stopped anywhere and continued ends bitwise where it would have, and its files hold
every step once.
"""

import contextlib
import pathlib
import signal
import subprocess
import sys
from typing import Any
from unittest.mock import Mock

import pytest
from fault_table import RecordFault
from process_group import environment
from runs import assert_same_run, evaluated, rows, run_train, summary

from jaxdp import evaluate
from jaxdp.build import evaluator, setup
from jaxdp.callbacks.progress import Progress
from jaxdp.checkpoint import stored
from jaxdp.checkpoint.checkpoints import Checkpoints

# 8 steps an epoch; it stops in the middle of the second.
FLAGS = (
    "--global-batch-size 160 --epochs 3 --ema-decay 0.9 --log-every 3 --checkpoint-every 5"
    " --optimizer adam"
)
PYRAMIDNET = "--model-kwargs depth=8 alpha=6 shake_drop=0.5 dropout=0.2"
CNN = "--model cnn --model-kwargs width=4 hidden=16 dropout=0.2"
AT_START = "stopped by a signal before the first step; the same command begins again"
TIMES = ("examples_per_second", "step_seconds", "input_wait_fraction")


def stop_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sends this process the signal of a scheduler while a step is under way."""

    def advance(self: Progress, run: Any, event: Any) -> None:
        if event.step == step:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(Progress, "on_step_end", advance)


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize(
    ("strategy", "placement", "model"),
    [
        ("pmap", "device", CNN),
        pytest.param("sharded", "host", CNN, marks=pytest.mark.slow),
        *(
            pytest.param(strategy, placement, PYRAMIDNET, marks=pytest.mark.slow)
            for strategy in ("single", "pmap", "shard_map", "sharded")
            for placement in ("device", "host")
        ),
    ],
)
def test_a_stopped_run_continues_bitwise(
    strategy: str,
    placement: str,
    model: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    record_fault: RecordFault,
) -> None:
    devices = "1" if strategy == "single" else "2"
    where = f"--strategy {strategy} --devices {devices} --data-placement {placement}"
    flags = f"{model} {FLAGS} {where}"
    assert run_train(f"{flags} --run-dir whole") == 0
    with monkeypatch.context() as patch:
        stop_at(11, patch)
        assert run_train(f"{flags} --run-dir parts") == 75
    assert summary("parts")["status"] == "stopped"
    assert summary("parts")["steps"] == 11
    assert max(row["step"] for row in rows("parts")) == 9
    assert run_train(f"{flags} --run-dir parts") == 0
    assert "continuing parts after step 11" in capsys.readouterr().err

    assert_same_run("whole", "parts", 24)
    steps = [row["step"] for row in rows("whole", split="train")]
    assert steps == list(range(3, 25, 3))
    assert summary("whole")["parameters"] == summary("parts")["parameters"]
    record_fault(
        "SIGTERM while training", outcome="exit code 75; the next start ends bitwise the same"
    )


def counting(patch: pytest.MonkeyPatch, *, signal_in: int = 0) -> list[int]:
    """Counts the evaluations that are completed; a signal may come during one of them."""
    begun, completed = list[int](), list[int]()
    evaluate = evaluator.Evaluator.evaluate

    def counted(self: Any, state: Any, advance: Any = lambda: None, **options: Any) -> Any:
        begun.append(1)

        def batch_done() -> None:
            if len(begun) == signal_in:
                signal.raise_signal(signal.SIGTERM)
            advance()

        sums = evaluate(self, state, batch_done, **options)
        completed.append(1)
        return sums

    patch.setattr(evaluator.Evaluator, "evaluate", counted)
    return completed


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize(
    ("more", "step", "signal_in"),
    [
        ("", 7, 0),
        ("", 21, 0),
        pytest.param("", 14, 2, marks=pytest.mark.slow),
        pytest.param(
            "--callbacks early_stopping:patience=1,min_delta=9.5", 14, 0, marks=pytest.mark.slow
        ),
    ],
)
def test_a_stopping_run_evaluates_when_it_continues(
    more: str, step: int, signal_in: int, monkeypatch: pytest.MonkeyPatch, record_fault: RecordFault
) -> None:
    """An evaluation may take longer than the time that a scheduler leaves."""
    flags = f"{CNN} {FLAGS} --devices 1 --validation 0.2 --batch-norm group:32 {more}"
    flags = flags.replace("--checkpoint-every 5", "--checkpoint-every 100")
    assert run_train(f"{flags} --run-dir whole") == 0
    with monkeypatch.context() as patch:
        completed = counting(patch, signal_in=signal_in)
        if not signal_in:
            stop_at(step, patch)
        assert run_train(f"{flags} --run-dir parts") == 75
    evaluations = step // 7 - 1
    assert len(completed) == evaluations
    stopped = summary("parts")
    assert (stopped["status"], stopped["steps"]) == ("stopped", step)
    assert len(rows("parts", split="validation")) == evaluations
    with monkeypatch.context() as patch:  # it ends between the row of the late evaluation and save
        patch.setattr(Checkpoints, "on_save", Mock(side_effect=OSError(28, "No space left")))
        assert run_train(f"{flags} --run-dir parts") == 1
    assert len(rows("parts", split="validation")) == evaluations + 1
    assert run_train(f"{flags} --run-dir parts") == 0
    assert_same_run("whole", "parts", summary("whole")["steps"])
    assert not pathlib.Path("parts/replaced").exists()
    record_fault(
        "SIGTERM where an evaluation is due",
        outcome="exit code 75 without evaluating; the next start evaluates first",
    )


@pytest.mark.usefixtures("no_pictures")
def test_a_signal_ends_the_evaluation_of_the_test_data(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = f"{CNN} {FLAGS} --devices 1 --validation 0.2 --batch-norm group:32"
    with monkeypatch.context() as patch:
        completed = counting(patch, signal_in=4)
        assert run_train(f"{flags} --run-dir run") == 75
    assert len(completed) == 3
    stopped = summary("run")
    assert (stopped["status"], stopped["steps"]) == ("stopped", 21)
    assert stopped["result"]["step"] == 21
    assert stopped["metrics"].keys() == {"train"}
    assert "stopped by a signal after saving step 21" in capsys.readouterr().err
    assert run_train(f"{flags} --run-dir run") == 0
    done = summary("run")
    assert (done["status"], done["steps"]) == ("done", 21)
    assert done["metrics"].keys() >= {"validation", "test"}


def test_a_run_directory_keeps_its_contract(capsys: pytest.CaptureFixture[str]) -> None:
    more = "--devices 4 --batch-norm group:8 --keep 1 --validation 0.1 --run-dir run"
    flags = f"{CNN} {FLAGS} {more}"
    assert run_train(flags) == 0
    printed = capsys.readouterr()
    assert "cnn on digits: done" in printed.out
    # Progress goes to standard error, a line a row where there is no terminal.
    assert "step 24/24" in printed.err
    run = pathlib.Path("run")
    done = summary("run")
    expected = {
        "model": "cnn", "dataset": "digits", "task": "classification", "strategy": "pmap",
        "devices": 4, "processes": 1, "batch_norm": "group:8", "status": "done", "steps": 24,
        "epochs": 3,
    }  # fmt: skip
    assert {name: done[name] for name in expected} == expected
    assert done["metrics"]["test"]["examples"] == 360  # 160 does not divide it
    assert done["metrics"]["train"]["examples"] == 8 * 160
    assert 0 < done["seconds"]["train"] < done["seconds"]["total"]
    assert 0 < done["seconds"]["first_step"] < done["seconds"]["total"]
    assert "xla_force_host_platform_device_count" in done["xla_flags"]
    assert (run / "plots" / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert list((run / "tensorboard").iterdir())
    training = rows(split="train", without=())
    assert list(training[0])[:4] == ["step", "epoch", "split", "loss"]
    assert {"accuracy", "examples", "learning_rate", *TIMES} <= set(training[0])
    assert all(0 <= row["input_wait_fraction"] <= 1 for row in training)

    # The newest one, and the best where that is another.
    assert {int(path.name) for path in (run / "checkpoints").iterdir()} == {
        24,
        done["best"]["step"],
    }

    # The same figure, on other devices and under other strategies.
    for strategy, devices in (("pmap", 8), ("sharded", 3), ("single", 1)):
        step, figures = evaluated("run", strategy=strategy, devices=devices)
        assert step == done["result"]["step"] == done["best"]["step"]
        assert figures["examples"] == 360
        assert figures["accuracy"] == done["metrics"]["test"]["accuracy"]
        assert figures["loss"] == pytest.approx(done["metrics"]["test"]["loss"], abs=1e-5)
    assert evaluate.main(["run", "--devices", "2"]) == 0
    found = done["metrics"]["test"]
    assert (
        f"step {done['best']['step']}: test loss {found['loss']:.4f}, accuracy"
        f" {found['accuracy']:.2%}, top5_accuracy" in capsys.readouterr().out
    )

    # The same command again leaves a complete run alone; more epochs extend it.
    assert run_train(flags) == 0
    assert "is complete" in capsys.readouterr().err
    flags = flags.replace("--epochs 3", "--epochs 4")
    assert run_train(flags) == 0
    assert summary("run")["steps"] == 32

    # A run is not continued under settings that mean another one.
    for changed, named in (
        ("--model-kwargs width=8", "--model-kwargs width=8: the run in run has width=4"),
        (
            "--optimizer sgd",
            "--optimizer sgd: the run in run has adam; use that, or another --run-dir, which"
            " --init-from run starts from its weights",
        ),
        ("--seed 1", "--seed 1: the run in run has 0"),
        # Not --batch-norm, the default of which follows.
        ("--global-batch-size 16", "--global-batch-size 16: the run in run has 160"),
        ("--batch-norm global", "--batch-norm global: the run in run has "),
        ("--ema-decay 0", "--ema-decay 0.0: the run in run has 0.9"),
        ("--resume never", "--resume never: run already holds a run"),
    ):
        assert run_train(f"{flags} {changed}") == 2
        assert named in capsys.readouterr().err
    assert summary("run")["steps"] == 32
    assert evaluate.main(["run", "--step", "7"]) == 2
    assert "--step 7: there is no such checkpoint" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("no_pictures")
def test_default_folders_are_the_same_for_the_same_settings() -> None:
    flags = f"{CNN} --devices 2 --steps 2 --global-batch-size 160"
    assert run_train(flags) == 0
    assert run_train(f"{flags} --log-every 1") == 0
    assert len(list(pathlib.Path("runs").iterdir())) == 1
    assert run_train(f"{flags} --resume never") == 0
    assert run_train(f"{flags} --learning-rate 0.2") == 0
    names = sorted(path.name for path in pathlib.Path("runs").iterdir())
    assert len(names) == 3
    assert sum(name.endswith("-2") for name in names) == 1


@pytest.mark.parametrize(
    ("number", "code", "line"),
    [
        (signal.SIGTERM, 75, AT_START),
        (signal.SIGINT, 1, "jaxdp.train: interrupted"),
    ],
)
def test_a_signal_before_the_first_step_leaves_at_once(
    number: int,
    code: int,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(setup, "create_setup", lambda *args, **kwargs: signal.raise_signal(number))
    assert run_train(f"{FLAGS} --run-dir run") == code
    assert capsys.readouterr().err.splitlines() == [line]
    assert not pathlib.Path("run").exists()


def test_a_signal_where_exceptions_are_swallowed_is_not_lost(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """JAX swallows what is raised in its callback of the garbage collector."""
    create = setup.create_setup

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        with contextlib.suppress(BaseException):
            signal.raise_signal(signal.SIGTERM)
        return create(*args, **kwargs)

    monkeypatch.setattr(setup, "create_setup", interrupted)
    assert run_train(f"{CNN} {FLAGS} --strategy single --run-dir run") == 75
    assert capsys.readouterr().err.splitlines() == [AT_START]


@pytest.mark.usefixtures("no_pictures")
def test_a_signal_while_a_checkpoint_is_read_is_no_damage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = f"{CNN} --global-batch-size 160 --strategy single --run-dir run"
    assert run_train(f"{flags} --steps 2") == 0
    capsys.readouterr()
    with monkeypatch.context() as patch:
        orbax = stored.orbax()
        metadata = orbax.metadata

        def interrupted(path: pathlib.Path) -> Any:
            try:
                signal.raise_signal(signal.SIGTERM)
            except BaseException as error:  # as a library does in whose event loop it is raised
                raise ValueError("not read") from error
            return metadata(path)

        patch.setattr(orbax, "metadata", interrupted)
        assert run_train(f"{flags} --steps 4") == 75
    assert capsys.readouterr().err.splitlines() == [AT_START]
    assert run_train(f"{flags} --steps 4") == 0
    assert "continuing run after step 2" in capsys.readouterr().err


def test_a_start_that_is_stuck_is_left_after_a_signal() -> None:
    stuck = (
        "import signal, sys, time\nfrom jaxdp import train\nfrom jaxdp.runtime import signals\nfrom"
        " jaxdp.build import setup\ndef wait(*args, **kwargs):\n   "
        " signal.raise_signal(signal.SIGTERM)\n    time.sleep(60)\nsignals._START_UP_SECONDS,"
        " setup.create_setup = 0.5, wait\nsys.exit(train.main(sys.argv[1:]))\n"
    )
    command = [sys.executable, "-c", stuck, *CNN.split(), "--strategy", "single"]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=50)
    assert (ended.returncode, ended.stderr.splitlines()) == (75, [AT_START])
