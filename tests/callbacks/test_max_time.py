"""A run ends after a time, which counts over all its parts."""

import pathlib
import time
from unittest import mock

import pytest

import jaxdp
from jaxdp.callbacks.events import Run, Started, StepEnd
from jaxdp.callbacks.max_time import MaxTime
from jaxdp.config.values import Duration
from jaxdp.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("1.5m", 90), ("8h", 28800), ("2d", 172800)]
)
def test_times_have_units(text: str, seconds: float) -> None:
    assert Duration.parse(text).seconds == seconds
    assert str(Duration.parse(text)) == text


@pytest.mark.parametrize("text", ["8", "h", "0h", "-1h", "8 h", "1:30", "8h30m"])
def test_other_times_are_one_line(text: str) -> None:
    with pytest.raises(ConfigError, match="must be a number with the unit s, m, h or d"):
        Duration.parse(text)


def test_the_time_before_a_resume_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    now, run = [100.0], mock.create_autospec(Run, instance=True)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def after(callback: MaxTime, seconds: float) -> int:
        now[0] += seconds
        callback.on_step_end(run, StepEnd(1, None))
        return run.stop.call_count

    first = MaxTime(60.0, "1m")
    first.on_start(run, Started(0, resumed=False))
    assert after(first, 40) == 0
    second = MaxTime(60.0, "1m")
    second.load_state_dict(first.state_dict())
    now[0] += 1000  # between the two
    second.on_start(run, Started(1, resumed=True))
    assert after(second, 19) == 0
    assert after(second, 2) == 1
    run.stop.assert_called_with("the time of 1m is over")


@pytest.mark.usefixtures("no_pictures")
def test_a_run_is_done_when_its_time_is_over(tmp_path: pathlib.Path) -> None:
    result = jaxdp.Trainer(
        "cnn",
        model_kwargs={"width": 4, "hidden": 16},
        devices=1,
        steps=50,
        max_time="0.01s",  # the first step takes longer
        run_dir=tmp_path / "run",
        progress=False,
    ).fit()
    assert (result.status, result.step) == ("done", 1)
    assert result.summary["ended_early"]["reason"] == "the time of 0.01s is over"
    assert 0 <= result.metrics["test"]["accuracy"] <= 1
