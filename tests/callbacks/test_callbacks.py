"""What holds for all callbacks."""

import json

import pytest

from jaxdp.callbacks import CallbackList, EarlyStopping


def early_stopping(best: float | None = None) -> EarlyStopping:
    callback = EarlyStopping()
    callback.best = best
    return callback


def test_two_callbacks_of_a_class_keep_states_of_their_own() -> None:
    saved = CallbackList([early_stopping(0.1), early_stopping(0.2)], primary=True).state_dict()
    first, second = early_stopping(), early_stopping()
    CallbackList([first, second], primary=True).load_state_dict(json.loads(json.dumps(saved)))
    assert (first.best, second.best) == (0.1, 0.2)


def test_a_state_of_version_0_2_is_loaded(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jaxdp.rundir.read._warned", set())
    state = {"EarlyStopping": {"best": 0.3, "best_step": 4, "evaluations_since_best": 1}}
    (only, first, second) = (early_stopping() for _ in range(3))
    CallbackList([only], primary=True).load_state_dict(state)
    assert (only.best, only.best_step, only.evaluations_since_best) == (0.3, 4, 1)
    assert capsys.readouterr().err == ""
    CallbackList([first, second], primary=True).load_state_dict(state)
    assert (first.best, second.best) == (0.3, None)
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "warning: the checkpoint holds no state of EarlyStopping-2, which begins anew"
