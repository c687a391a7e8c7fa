"""A sweep trains every combination, goes on where it was stopped, and tells which is the best."""

import json
import pathlib
import signal
from typing import Any

import pytest
from process_group import Command

from jaxdp import sweep
from jaxdp.config import TrainConfig, to_yaml
from jaxdp.launching.launcher import device_shares
from jaxdp.reporting import sweeps
from jaxdp.sweeps.trials import Grid, Space, Trial

FLAGS = (
    "--model cnn --model-kwargs width=4 hidden=16 --image-size 16 --global-batch-size 64"
    " --devices 1".split()
)


def run(*words: str) -> tuple[int, str, str]:
    command = Command("jaxdp.sweep", *words)
    return command.code(200), command.out, command.err


def cells(*grid: str, **settings: Any) -> list[Trial]:
    return Grid(Space(grid, "grid", TrainConfig.of(**settings), (), pathlib.Path())).trials()


def test_a_grid_is_every_combination() -> None:
    found = cells(
        "learning-rate=0.05,1e-1",
        "model_kwargs.depth=20,110",
        model_kwargs={"alpha": 24, "depth": 8},
    )
    assert [cell.name for cell in found] == [
        f"learning_rate={rate},model_kwargs.depth={depth}"
        for rate in (0.05, 0.1)
        for depth in (20, 110)
    ]
    assert found[2].config == TrainConfig.of(
        learning_rate=0.1, model_kwargs={"alpha": 24, "depth": 20}
    )
    assert found[3].settings == {"learning_rate": 0.1, "model_kwargs.depth": 110}
    first, second = cells("augment=[pad_crop:4,flip],none", "image_size=16", "clip_norm=null")
    assert (first.config.augment, second.config.augment) == (
        ("pad_crop:4", "flip"),
        ("none",),
    )
    assert (first.config.image_size, first.config.clip_norm) == ("16", None)
    assert first.name == "augment=pad_crop:4%20flip,image_size=16,clip_norm=None"
    assert len(cells(f"dataset=folder:{'x/' * 200}a,folder:{'x/' * 200}b")[1].name) <= 200
    assert len(cells("learning_rate=0.1,1e-1")) == 1
    # A setting of a file gives way.
    assert cells("steps=1,2", epochs=3)[0].config == TrainConfig.of(steps=1)
    assert cells('mesh="data=1,space=2"')[0].config.mesh == "data=1,space=2"


RATE = "learning_rate=log(1e-3,1)"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "--grid: say what to vary"),
        ("--grid learning_rate", "--grid learning_rate=: write NAME=VALUE,VALUE"),
        (
            "--grid learning_rat=1",
            "--grid learning_rat=1: unknown setting 'learning_rat'; did you mean learning_rate?",
        ),
        ("--grid run_dir=a,b", "unknown setting 'run_dir'"),
        ("--grid train_split=train[:9]", "quote a value that YAML would split"),
        ("--grid seed=0,1 seed=2", "--grid seed=2: seed is there twice"),
        ("--grid seed.x=1", "only model_kwargs, task_kwargs and optimizer_kwargs have keywords"),
        ("--grid epochs=1,many", "--epochs many: must be an integer or null, not a string"),
        (
            "--grid steps=1 --epochs 2",
            "--steps 1: cannot be combined with --epochs; give one of them",
        ),
        ("--grid seed=1 --output /dev/null/sweep", "--output /dev/null/sweep: cannot be written"),
        ("none.yaml --grid seed=1", "--config none.yaml: cannot be read"),
        (
            "--on ray --grid seed=1",
            "--on: was removed in 0.3.0: use Ray Tune, or an array job of Slurm",
        ),
        (f"--trials {RATE}", f"--trials {RATE}: give the number of trials and what to vary"),
        ("--trials 3", "--trials 3: give the number of trials and what to vary"),
        ("--trials 3 learning_rate=log(1)", "--learning-rate log(1): must be a number"),
        ("--trials 3 learning_rate=log(0,1)", "`low > 0` must hold for `log=True`"),
        ("--trials 3 learning_rate=log(1,0.1)", "`low <= high` must hold"),
        ("--trials 3 learning_rate=int(1,2.5)", "or int(LOW,HIGH) for integers"),
        ("--trials 3 seed=uniform(0,9)", "--seed 0.0: must be an integer, not a number"),
        (
            "--trials 3 learning_rate=uniform(-1,1)",
            "--learning-rate -1.0: must not be negative",
        ),
        (f"--trials 3 {RATE} --grid seed=1", "--trials 3: cannot be combined with --grid"),
    ],
)
def test_mistakes_are_one_line_before_anything_starts(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sweep.main(words.split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("jaxdp.sweep: error: ")
    assert message in line
    assert not list(pathlib.Path().iterdir())


def test_runs_at_once_share_the_gpus(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5,6,7")
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    shares = [{"CUDA_VISIBLE_DEVICES": gpus} for gpus in ("3,5", "6,7")]
    assert device_shares(2) == shares
    assert sweep.main("--grid seed=1 --at-a-time 3".split()) == 2
    assert "3 processes do not divide 4 GPUs" in capsys.readouterr().err


def test_a_failed_run_is_a_row_and_finished_ones_are_not_run_again() -> None:
    pathlib.Path("settings.yaml").write_text(to_yaml(TrainConfig.of(steps=2, learning_rate=0.01)))
    command = [
        "settings.yaml",
        *FLAGS,
        *"--output out --at-a-time 2 --grid optimizer=adam,adamm seed=0,1".split(),
    ]
    code, out, err = run(*command)
    assert code == 1, err
    table, means = out.split("mean ± standard deviation over seeds")
    rows = [line for line in table.splitlines() if line.startswith("│ adam")]
    assert [("adamm" in row, "--optimizer" in row) for row in rows] == [(False, False)] * 2 + [
        (True, True)
    ] * 2
    assert "0 of 2" in means
    assert "±" in means
    assert (
        "optimizer=adamm,seed=0: failed: --optimizer adamm: unknown optimizer; did you mean adam?"
        in err
    )
    done = ["optimizer=adam,seed=0", "optimizer=adam,seed=1"]
    assert "Sweep out" in pathlib.Path("out/report.html").read_text()
    logs = [pathlib.Path("out", name, "train.log") for name in done]
    times = [log.stat().st_mtime_ns for log in logs]
    assert json.loads(pathlib.Path("out", done[1], "summary.json").read_text())["status"] == "done"
    command = [word.removesuffix(",adamm") for word in command]
    code, _, err = run(*command)
    assert code == 0, err
    assert [log.stat().st_mtime_ns for log in logs] == times
    code, _, err = run(*command, "--learning-rate", "0.1")
    assert code == 2
    problem = "--output out/optimizer=adam,seed=0: holds a run with another learning_rate"
    assert problem in err


def test_runs_of_other_code_are_marked() -> None:
    """The plugin imports the file that changes; the sweep itself imports neither."""
    pathlib.Path("mine.py").write_text("import helper\n")
    pathlib.Path("helper.py").write_text("WIDTH = 1\n")
    command = [*FLAGS, *"--plugins mine.py --steps 1 --output out --grid seed=0".split()]
    code, out, err = run(*command)
    assert code == 0, err
    assert "changed" not in out
    pathlib.Path("helper.py").write_text("WIDTH = 2\n")
    code, out, err = run(*command[:-1], "seed=0,1")
    assert code == 0, err
    assert out.count("helper.py has changed since the run began") == 1


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_has_the_runs_save_and_the_same_command_continues(number: int) -> None:
    words = [
        *FLAGS,
        *"--steps 200 --log-every 1 --eval-every 1000 --learning-rate 0.01 --grid seed=0,1"
        " --output out".split(),
    ]
    command = Command("jaxdp.sweep", *words)
    log = pathlib.Path("out/seed=0/train.log")
    command.wait_for("step 3/", 100, log)
    command.process.send_signal(number)
    assert command.code(100) == 75
    assert "jaxdp.sweep: stopped by a signal; the same command continues" in command.err
    summary = json.loads(pathlib.Path("out/seed=0/summary.json").read_text())
    assert summary["status"] == "stopped"
    assert not pathlib.Path("out/seed=1").exists()
    code, out, err = run(*[word.replace("seed=0,1", "seed=0") for word in words])
    assert code == 0, err
    assert f"continuing out/seed=0 after step {summary['steps']}" in log.read_text()
    assert "accuracy" in out


def shown_rows(capsys: pytest.CaptureFixture[str], *runs: sweeps.SweptRun) -> list[list[str]]:
    """The cells of all lines of the tables."""
    sweeps.show(runs)
    lines = capsys.readouterr().out.splitlines()
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if "│" in line]


def run_of(
    value: float | None, seed: int, rate: float, metric: str = "accuracy", *, larger: bool = True
) -> sweeps.SweptRun:
    summary = {
        "best_metric": {"name": metric, "larger_is_better": larger},
        "metrics": {"test": {metric: value, "loss": 1.0}},
    }
    settings = {"rate": rate, "seed": seed}
    return sweeps.SweptRun(settings, *((None, "it [diverged]") if value is None else (summary, "")))


def test_tables_rank_runs_and_summarize_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    runs = [run_of(0.5, 0, 0.1), run_of(0.9, 0, 0.2), run_of(None, 1, 0.2), run_of(0.7, 1, 0.1)]
    assert shown_rows(capsys, *runs) == [
        ["0.2", "0", "90.00%", "1.0000", ""],
        ["0.1", "1", "70.00%", "1.0000", ""],
        ["0.1", "0", "50.00%", "1.0000", ""],
        ["0.2", "1", "", "", "it [diverged]"],
        ["0.2", "90.00%", "1.0000", "1 of 2 runs"],
        ["0.1", "60.00% ± 14.14%", "1.0000 ± 0.0000", "2 of 2 runs"],
    ]
    ranked = shown_rows(capsys, run_of(float("nan"), 0, 0.1), run_of(0.5, 0, 0.2))
    assert [cells[2] for cells in ranked] == ["50.00%", "nan%"]
    errors = [run_of(value, 0, 0.1, "mse", larger=False) for value in (2.0, 1.0)]
    assert [cells[2] for cells in shown_rows(capsys, *errors)] == ["1.0000", "2.0000"]


def test_two_sweeps_at_once_in_one_folder_are_one(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*FLAGS, "--steps", "2", "--grid", "seed=0,1", "--output", "sweep"]
    first = Command("jaxdp.sweep", *words)
    first.wait_for("[1/2] seed=0 runs")
    for grid in (["--grid", "seed=0,1"], ["--trials", "2", "seed=0,1", "--validation", "0.1"]):
        assert sweep.main([*FLAGS, "--steps", "2", *grid, "--output", "sweep"]) == 2
        held = capsys.readouterr().err
        assert held.startswith("jaxdp.sweep: error: --output sweep: is being written by process ")
        assert held.endswith("; wait for it or stop it, or give another folder\n")
    assert first.code(200) == 0
    assert "failed" not in first.out + first.err
    assert not pathlib.Path("sweep", "writer.lock").exists()
    assert run(*words)[0] == 0  # one after the other
