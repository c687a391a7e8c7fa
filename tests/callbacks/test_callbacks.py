"""What holds for all callbacks."""

import json
import types
from typing import Any

import pytest

from jaxdp.build.intervals import Intervals
from jaxdp.callbacks import CallbackList, EarlyStopping, Progress
from jaxdp.callbacks.events import Logged, Started
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


def test_lines_of_a_run_say_how_long_it_still_takes(capsys: pytest.CaptureFixture[str]) -> None:
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
    numbers = {"loss": 1.0, "accuracy": 0.5, "examples_per_second": 32.0, "step_seconds": 90.0}
    for step in (1, 40, 100):
        progress.on_log(run, Logged({"step": step, "split": "train"} | numbers))
    said = "train  loss 1.0000, accuracy 50.00%  32 examples/s"
    assert capsys.readouterr().err.splitlines() == [
        "a net",
        f"step 1/100  epoch 1/2  {said}",  # its pace is that of compiling
        f"step 40/100  epoch 1/2  {said}  1:30:00 left",
        f"step 100/100  epoch 2/2  {said}",
    ]
