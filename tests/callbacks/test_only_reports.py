"""What only draws, logs or reports never ends a run: it warns, and the run is complete."""

import json
import pathlib
import subprocess
import sys
import types
from typing import Any

import pytest
from PIL import Image
from process_group import environment

import jaxdp
import jaxdp.reporting
from jaxdp.callbacks import CallbackError, CallbackList
from jaxdp.reporting import outcome

SMALL: dict[str, Any] = {
    "model_kwargs": {"width": 4, "hidden": 16},
    "devices": 1,
    "global_batch_size": 160,
    "steps": 2,
    "log_every": 1,
    "progress": False,
}
SOURCE = str(pathlib.Path(jaxdp.__file__).parents[1])  # the test runs in another folder
DRAWING = """
import pathlib
from jaxdp.reporting import confusion, pictures, plots
rows = [{"step": 1, "split": "train", "loss": 1.0, "accuracy": 0.5}]
plots.plot_curves(rows, pathlib.Path("curves.png"), title="t", metric_name="accuracy")
"""


@pytest.mark.parametrize(
    "backend", ["", "module://matplotlib_inline.backend_inline", "inline", "TkAgg", "nonsense"]
)
def test_figures_need_no_backend_of_the_environment(backend: str) -> None:
    code = DRAWING + "import os; print(os.environ['MPLBACKEND'])"
    # Without the packages of a notebook, whose backend is then unknown.
    hide = "import sys; sys.modules['matplotlib_inline'] = sys.modules['ipykernel'] = None\n"
    done = subprocess.run(
        [sys.executable, "-c", hide + code],
        env=environment() | {"MPLBACKEND": backend, "PYTHONPATH": SOURCE},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == backend  # for what the program itself draws later
    assert pathlib.Path("curves.png").stat().st_size > 1000


def test_train_and_predict_end_as_documented_whatever_the_backend() -> None:
    small = "--model cnn --model-kwargs width=2 hidden=8 --devices 1 --steps 2"
    run = "run"
    Image.new("L", (8, 8)).save("x.png")
    for command, made in (
        (f"train --run-dir {run} {small}", f"{run}/summary.json"),
        (f"predict {run} x.png --csv x.csv", "x.csv"),
        (f"predict {run} nothing.png --csv y.csv", ""),
    ):
        done = subprocess.run(
            [sys.executable, "-m", *f"jaxdp.{command}".split()],
            env=environment() | {"MPLBACKEND": "module://no_such_backend", "PYTHONPATH": SOURCE},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == (0 if made else 2), done.stderr
        assert "no_such_backend" not in done.stderr
        assert "could not be" not in done.stderr
        assert not made or pathlib.Path(made).stat().st_size > 0
    assert pathlib.Path(run, "plots", "curves.png").stat().st_size > 1000


MEMBERS = "setup group folder description title headline predict where paused stop".split()
RUN: Any = types.SimpleNamespace(**dict.fromkeys(MEMBERS, print))


def fails(*_: Any, **__: Any) -> None:
    raise KeyError("no such font")


class Complains:
    only_reports = True

    def __init__(self, hook: str, error: Exception) -> None:
        self.calls, self._error = 0, error
        setattr(self, hook, self._fail)

    def _fail(self, *_: Any) -> None:
        self.calls += 1
        raise self._error


def status_of(folder: str) -> str:
    return json.loads(pathlib.Path(folder, "summary.json").read_text())["status"]


def warnings_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    lines = capsys.readouterr().err.splitlines()
    return [line for line in lines if line.startswith("warning: ")]


def test_a_run_whose_plots_fail_is_complete(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(outcome, "draw", fails)
    result = jaxdp.Trainer("cnn", "digits", **SMALL, run_dir="run").fit()
    assert (result.status, status_of("run")) == ("done", "done")
    (line,) = warnings_of(capsys)
    assert line == "warning: the plots of run could not be drawn: 'no such font'"


def test_matplotlib_that_cannot_be_imported_ends_no_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "jaxdp.reporting.plots", None)
    monkeypatch.delattr(jaxdp.reporting, "plots", raising=False)
    result = jaxdp.Trainer("cnn", "digits", **SMALL, run_dir="run").fit()
    assert (result.status, status_of("run")) == ("done", "done")
    (line,) = warnings_of(capsys)
    assert line.startswith("warning: the plots of run could not be drawn: ")


@pytest.mark.parametrize(
    "error", [ValueError("two\nlines"), OSError(28, "No space left"), KeyError(3)]
)
@pytest.mark.parametrize("hook", ["on_start", "on_row", "on_log", "on_step_end", "on_end", "close"])
def test_a_callback_that_only_reports_is_left_out(
    hook: str, error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    first = Complains(hook, error)
    callbacks: Any = CallbackList([first, Complains("on_save", ValueError("x"))], RUN, primary=True)
    if hook == "close":
        callbacks.close()
    else:
        for _ in range(3):
            callbacks.call(hook, None)
    assert first.calls == 1
    (line,) = warnings_of(capsys)
    assert line.startswith(f"warning: callback Complains failed in {hook}: {type(error).__name__}")
    assert line.endswith("the run goes on") == (hook != "close")


def test_every_reporter_of_jaxdp_says_that_it_is_one() -> None:
    from jaxdp.callbacks.plots import Plots
    from jaxdp.callbacks.run_record import RunRecord
    from jaxdp.callbacks.wandb import WandB

    kinds = jaxdp.callbacks
    for kind in (WandB, Plots, kinds.TensorBoard, kinds.Progress, kinds.DeviceMonitor):
        assert kind.only_reports
    for kind in (kinds.JsonLines, kinds.EarlyStopping, RunRecord):
        assert not hasattr(kind, "only_reports")


def test_a_setting_that_does_not_fit_and_a_callback_of_ones_own_end_a_run() -> None:
    trainer = jaxdp.Trainer("cnn", "digits", **SMALL, callbacks=["tensorboard"])
    with pytest.raises(jaxdp.ConfigError, match="give run_dir"):
        trainer.fit()
    own = Complains("on_log", ValueError("mine"))
    own.only_reports = False
    with pytest.raises(CallbackError, match="callback Complains failed in on_log: ValueError"):
        CallbackList([own], RUN, primary=True).call("on_log", None)


def test_tensorboard_that_fails_ends_no_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(jaxdp.callbacks.TensorBoard, "on_log", fails)
    monkeypatch.setattr(outcome, "draw", lambda *_, **__: {})
    assert jaxdp.Trainer("cnn", "digits", **SMALL, run_dir="run").fit().status == "done"
    assert status_of("run") == "done"
    (line,) = warnings_of(capsys)
    assert line.startswith(
        "warning: callback TensorBoard failed in on_log: KeyError: 'no such font'"
    )
