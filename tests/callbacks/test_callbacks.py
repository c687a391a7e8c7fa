"""What holds for all callbacks."""

import json
import time
import types
from typing import Any

import pytest

from jaxdp.build.intervals import Intervals
from jaxdp.callbacks import CallbackList, EarlyStopping, Progress
from jaxdp.callbacks.events import Activity, Logged, Started
from jaxdp.tasks import Classification

MEMBERS = "setup group folder description title headline predict where paused stop".split()
RUN: Any = types.SimpleNamespace(**dict.fromkeys(MEMBERS, print))


def early_stopping(best: float | None = None) -> EarlyStopping:
    callback = EarlyStopping()
    callback.best = best
    return callback


def test_two_callbacks_of_a_class_keep_states_of_their_own() -> None:
    saved = CallbackList([early_stopping(0.1), early_stopping(0.2)], RUN, primary=True).state_dict()
    first, second = early_stopping(), early_stopping()
    CallbackList([first, second], RUN, primary=True).load_state_dict(json.loads(json.dumps(saved)))
    assert (first.best, second.best) == (0.1, 0.2)


def test_a_state_of_version_0_2_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    state = {"EarlyStopping": {"best": 0.3, "best_step": 4, "evaluations_since_best": 1}}
    (only, first, second) = (early_stopping() for _ in range(3))
    CallbackList([only], RUN, primary=True).load_state_dict(state)
    assert (only.best, only.best_step, only.evaluations_since_best) == (0.3, 4, 1)
    assert capsys.readouterr().err == ""
    CallbackList([first, second], RUN, primary=True).load_state_dict(state)
    assert (first.best, second.best) == (0.3, None)
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "warning: the checkpoint holds no state of EarlyStopping-2, which begins anew"


def test_lines_of_a_run_say_how_long_it_still_takes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    setup: Any = types.SimpleNamespace(
        intervals=Intervals(100, 50, 1, 50, 50),
        step_config=types.SimpleNamespace(task=Classification(10)),
        strategy=types.SimpleNamespace(state_bytes=lambda shapes: None),
        shapes=None,
    )
    run: Any = types.SimpleNamespace(**dict.fromkeys(MEMBERS, print))
    run.setup, run.headline = setup, "a net"
    progress = Progress()
    progress.on_start(run, Started(0, resumed=False))
    scores = {"loss": 1.0, "accuracy": 0.5}
    rates = {"examples_per_second": 32.0, "step_seconds": 90.0}
    monkeypatch.setattr(time, "monotonic", lambda: seconds)

    def log(step: int, at: float) -> None:
        nonlocal seconds
        seconds = at
        progress.on_log(run, Logged({"step": step, "split": "train"} | scores | rates))

    seconds = 0.0
    log(1, 1000)
    log(40, 1000 + 39 * 100)  # steps of 90 seconds, and saves
    log(50, 1000 + 49 * 100)
    seconds = 6000
    progress.on_activity(run, Activity("evaluating", 50))
    seconds = 6300
    progress.on_activity(run, Activity("evaluating", 50))
    seconds = 6600
    progress.on_log(run, Logged({"step": 50, "split": "validation"} | scores))
    log(60, 6600 + 1000)
    log(100, 6600 + 5000)
    said = "loss 1.0000, accuracy 50.00%"
    assert capsys.readouterr().err.splitlines() == [
        "a net",
        f"step 1/100  epoch 1/2  train  {said}  32 examples/s",  # its pace is that of compiling
        f"step 40/100  epoch 1/2  train  {said}  32 examples/s  1:40:00 left",
        f"step 50/100  epoch 1/2  train  {said}  32 examples/s  1:23:20 left",
        f"step 50/100  epoch 1/2  validation  {said}",
        # 40 steps and the last evaluation
        f"step 60/100  epoch 2/2  train  {said}  32 examples/s  1:17:48 left",
        f"step 100/100  epoch 2/2  train  {said}  32 examples/s",
    ]
