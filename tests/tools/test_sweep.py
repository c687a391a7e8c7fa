"""A sweep trains every combination, goes on where it was stopped, and tells which is the best."""

import json
import pathlib
import signal
import subprocess
import sys
import time
from typing import Any

import pytest
from process_group import environment

from jaxdp import sweep
from jaxdp.config import TrainConfig, to_yaml
from jaxdp.registry import ConfigError
from jaxdp.reporting import sweeps
from jaxdp.sweep_grid import Grid, Trial
from jaxdp.sweep_runs import LocalRunner

FLAGS = (
    "--model cnn --model-kwargs width=4 hidden=16 --image-size 16 --global-batch-size 64"
    " --devices 1".split()
)
# A sweep in a process of its own, which must not need JAX. The report is somebody else's: here a
# line of what it was asked for.
PROGRAM = """
import sys, types, jaxdp.sweep
module = sys.modules["jaxdp.reporting.report_page"] = types.ModuleType("report_page")
module.write_report = lambda folders, output, title: output.write_text(",".join(folder.name for folder in folders))
try:
    sys.exit(jaxdp.sweep.main(sys.argv[1:]))
finally:
    assert "jax" not in sys.modules
"""


def start(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, *words]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    )


def run(*words: str) -> tuple[int, str, str]:
    process = start(*words)
    out, err = process.communicate(timeout=200)
    return process.returncode, out, err


def cells(*grid: str, **settings: Any) -> list[Trial]:
    return Grid(grid, TrainConfig.of(**settings), (), pathlib.Path()).trials


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
    # A setting of a file gives way.
    assert cells("steps=1,2", epochs=3)[0].config == TrainConfig.of(steps=1)
    assert cells('mesh="data=1,space=2"')[0].config.mesh == "data=1,space=2"


RATE = "learning_rate=log(1e-3,1)"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "--grid: say what to vary"),
        ("--grid learning_rate", "--grid learning_rate: write NAME=VALUE,VALUE"),
        (
            "--grid learning_rat=1",
            "--grid learning_rat=1: unknown setting 'learning_rat'; did you mean learning_rate?",
        ),
        ("--grid run_dir=a,b", "unknown setting 'run_dir'"),
        ("--grid seed=", "--grid seed=: names no values"),
        ("--grid train_split=train[:9]", "names no values; separate them by commas, and quote one"),
        ("--grid seed=0,1 seed=2", "--grid seed=2: seed is there twice"),
        ("--grid learning_rate=0.1,1e-1", "has 0.1 twice; give each value once"),
        ("--grid seed.x=1", "only model_kwargs, task_kwargs and optimizer_kwargs have keywords"),
        ("--grid epochs=1,many", "--epochs many: must be an integer or null, not a string"),
        ("--grid learning_rate=0.1,-1", "--learning-rate -1.0: must not be negative"),
        ("--grid schedule=cosine,cosin", "--schedule cosin: did you mean cosine?"),
        (
            "--grid steps=1 --epochs 2",
            "--steps 1: cannot be combined with --epochs; give one of them",
        ),
        ("--grid seed=1 --at-a-time 0", "--at-a-time 0: must be greater than 0"),
        ("--grid seed=1 --run-dir x", "--run-dir: unknown flag"),
        ("--grid seed=1 --output /dev/null/sweep", "--output /dev/null/sweep: cannot be written"),
        ("none.yaml --grid seed=1", "--config none.yaml: cannot be read"),
        ("--address auto --grid seed=1", "--address auto: is of a Ray cluster; add --on ray"),
        ("--on slurm --grid seed=1", "--on"),
        ("--on ray --cpus-per-run 0 --grid seed=1", "--cpus-per-run 0: must be greater than 0"),
        (f"--trials {RATE}", f"--trials {RATE}: begin with the number of trials"),
        (f"--trials 0 {RATE}", "--trials 0: begin with the number of trials"),
        ("--trials 3", "--trials 3: say what to vary"),
        ("--trials 3 learning_rat=log(1,2)", "unknown setting 'learning_rat'; did you mean"),
        (
            "--trials 3 learning_rate=log(1)",
            "write log(LOW,HIGH), uniform(LOW,HIGH) or int(LOW,HIGH) without spaces",
        ),
        (
            "--trials 3 learning_rate=log(0,1)",
            "on a logarithmic scale both must be greater than 0",
        ),
        ("--trials 3 learning_rate=log(1,0.1)", "must be two numbers, the smaller one first"),
        ("--trials 3 optimizer=log(1,2)", "must be a string, not an integer"),
        ("--trials 3 learning_rate=int(1,2.5)", "both must be whole numbers"),
        ("--trials 3 seed=uniform(0,9)", "seed takes whole numbers; use int(LOW,HIGH)"),
        (
            "--trials 3 learning_rate=uniform(-1,1)",
            "--learning-rate -1.0: must not be negative",
        ),
        (f"--trials 3 {RATE} {RATE}", "learning_rate is there twice"),
        (f"--trials 3 {RATE} --grid seed=1", "--trials 3: cannot be combined with --grid"),
        (
            f"--trials 3 {RATE} --validation none",
            "--validation none: a search chooses by validation data",
        ),
        (f"--trials 3 {RATE} --output /dev/null/x", "--output /dev/null/x: cannot be written"),
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


def test_runs_at_once_share_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5,6,7")
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    assert LocalRunner(1).shares == [{}]
    shares = [{"CUDA_VISIBLE_DEVICES": "3,5"}, {"CUDA_VISIBLE_DEVICES": "6,7"}]
    assert LocalRunner(2).shares == shares
    with pytest.raises(ConfigError, match="at_a_time=3: does not divide the GPUs"):
        LocalRunner(3)


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
    assert pathlib.Path("out/report.html").read_text() == ",".join(done)
    logs = [pathlib.Path("out", name, "train.log") for name in done]
    times = [log.stat().st_mtime_ns for log in logs]
    assert json.loads(pathlib.Path("out", done[1], "summary.json").read_text())["status"] == "done"
    command = [word.removesuffix(",adamm") for word in command]
    code, _, err = run(*command)
    assert code == 0, err
    assert "2 of 2 runs in out are finished" in err
    assert [log.stat().st_mtime_ns for log in logs] == times
    code, _, err = run(*command, "--learning-rate", "0.1")
    assert code == 2
    assert "--output out: holds optimizer=adam,seed=0 with learning_rate 0.01, not 0.1" in err


def test_runs_of_other_code_are_marked() -> None:
    """The plugin imports the file that changes; the sweep itself imports neither."""
    pathlib.Path("mine.py").write_text("import helper\n")
    pathlib.Path("helper.py").write_text("WIDTH = 1\n")
    command = [*FLAGS, *"--plugins mine.py --steps 1 --output out --grid seed=0".split()]
    code, out, err = run(*command)
    assert code == 0, err
    assert "code" not in out
    pathlib.Path("helper.py").write_text("WIDTH = 2\n")
    code, out, err = run(*command[:-1], "seed=0,1")
    assert code == 0, err
    changed = "helper.py has changed since the run began"
    assert f"runs begun with other code: 1 ({changed}); give another --output" in err
    assert out.count(changed) == 1


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_has_the_runs_save_and_the_same_command_continues(number: int) -> None:
    command = [
        *FLAGS,
        *"--steps 200 --log-every 1 --eval-every 1000 --learning-rate 0.01 --grid seed=0,1"
        " --output out".split(),
    ]
    process = start(*command)
    log, deadline = pathlib.Path("out/seed=0/train.log"), time.monotonic() + 100
    while not (log.is_file() and "step 3/" in log.read_text()):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(number)
    _, said = process.communicate(timeout=100)
    assert process.returncode == 75
    assert "jaxdp.sweep: stopped by a signal; the same command continues" in said
    summary = json.loads(pathlib.Path("out/seed=0/summary.json").read_text())
    assert summary["status"] == "stopped"
    assert not pathlib.Path("out/seed=1").exists()
    code, out, err = run(*[word.replace("seed=0,1", "seed=0") for word in command])
    assert code == 0, err
    assert f"continuing out/seed=0 after step {summary['steps']}" in log.read_text()
    assert "accuracy" in out


def shown_rows(capsys: pytest.CaptureFixture[str], *runs: sweeps.Run) -> list[list[str]]:
    """The cells of all lines of the tables."""
    sweeps.show(runs)
    lines = capsys.readouterr().out.splitlines()
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if "│" in line]


def run_of(
    value: float | None, seed: int, rate: float, metric: str = "accuracy", *, larger: bool = True
) -> sweeps.Run:
    summary = {
        "best_metric": {"name": metric, "larger_is_better": larger},
        "metrics": {"test": {metric: value, "loss": 1.0}},
        "best": {"step": 7, metric: value},
    }
    notes = {"pruned": "", "failed": "it [diverged]" if value is None else "", "code": ""}
    return sweeps.Run({"rate": rate, "seed": seed}, None if value is None else summary, notes)


def test_tables_rank_runs_and_summarize_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    runs = [run_of(0.5, 0, 0.1), run_of(0.9, 0, 0.2), run_of(None, 1, 0.2), run_of(0.7, 1, 0.1)]
    assert shown_rows(capsys, *runs) == [
        ["rate", "seed", "accuracy", "loss", "best", "failed"],
        ["0.2", "0", "90.00%", "1.0000", "90.00% at step 7", ""],
        ["0.1", "1", "70.00%", "1.0000", "70.00% at step 7", ""],
        ["0.1", "0", "50.00%", "1.0000", "50.00% at step 7", ""],
        ["0.2", "1", "", "", "", "it [diverged]"],
        ["rate", "accuracy", "loss", "runs"],
        ["0.2", "90.00%", "1.0000", "1 of 2"],
        ["0.1", "60.00% ± 14.14%", "1.0000 ± 0.0000", "2"],
    ]
    ranked = shown_rows(capsys, run_of(float("nan"), 0, 0.1), run_of(0.5, 0, 0.2))[1:]
    assert [cells[2] for cells in ranked] == ["50.00%", "nan%"]
    errors = [run_of(value, 0, 0.1, "mse", larger=False) for value in (2.0, 1.0)]
    assert [cells[2] for cells in shown_rows(capsys, *errors)[1:]] == ["1.0000", "2.0000"]
