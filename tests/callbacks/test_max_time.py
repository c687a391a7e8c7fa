"""A run ends after a time, which counts over all its parts."""

import pathlib
import time
from typing import Any, cast

import pytest

import jaxdp
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


class Stops:
    """A run that keeps the reasons to stop."""

    def __init__(self) -> None:
        self.reasons = list[str]()

    def stop(self, reason: str) -> None:
        self.reasons.append(reason)


def test_the_time_before_a_resume_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    now, run = [100.0], Stops()
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def after(callback: MaxTime, seconds: float) -> list[str]:
        now[0] += seconds
        callback.on_step_end(cast(Any, run), cast(Any, None))
        return run.reasons

    first = MaxTime(60.0, "1m")
    first.on_start(cast(Any, run), cast(Any, None))
    assert after(first, 40) == []
    second = MaxTime(60.0, "1m")
    second.load_state_dict(first.state_dict())
    now[0] += 1000  # between the two
    second.on_start(cast(Any, run), cast(Any, None))
    assert after(second, 19) == []
    assert after(second, 2) == ["the time of 1m is over"]


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
