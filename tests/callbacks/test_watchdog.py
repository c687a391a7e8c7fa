"""A run that stands still is ended, with a file that says where.

One that compiles, or only rests, is not.
"""

import pathlib
import signal
import subprocess
import sys
import time
from typing import Any, NoReturn

import pytest

from jaxdp.callbacks import watchdog
from jaxdp.runtime.processes import Group

PROGRAM = """
import time
from jaxdp.runtime.processes import Group
from jaxdp.callbacks.watchdog import Watchdog
watchdog = Watchdog(Group(), 1.5)
def stuck_here():
    time.sleep(60)
with watchdog.watching():
    watchdog.note("compiling", 1, limited=False)
    time.sleep(3)
    for step in range(2, 5):
        watchdog.note("training", step)
        time.sleep(0.1)
    stuck_here()
"""


@pytest.mark.fault(
    "no step is finished, one process",
    "exit code 1 after --step-timeout; says where each thread stands",
    None,
)
def test_a_process_that_hangs_says_where() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=50
    )
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert line.startswith(
        "jaxdp.train: error: no step was finished for 2 s after step 4 (training); where each"
        " thread stands: "
    )
    report = pathlib.Path("hang-0.txt").read_text()
    assert "in stuck_here" in report
    assert "no step was finished for 2 s" in report


PAUSED = """
import os, signal, sys, time
from jaxdp.runtime.processes import Group
from jaxdp.callbacks.watchdog import Watchdog
watchdog = Watchdog(Group(), 3.0)
with watchdog.watching():
    for step in range(2, 10):
        watchdog.note("training", step)
        time.sleep(0.3)
        if step == 4:
            print("ready", flush=True)
            for _ in range(40):  # one sleep would be over when the process goes on
                time.sleep(0.05)
    print("done", flush=True)
    time.sleep(float(sys.argv[1]))
"""


@pytest.mark.fault(
    "the process is paused (SIGSTOP, or the machine is suspended) longer than --step-timeout",
    "goes on; the time does not count",
    None,
)
@pytest.mark.parametrize(("then", "code"), [(0, 0), (60, 1)])
def test_a_paused_process_goes_on_and_is_watched(then: int, code: int) -> None:
    """After a pause that is longer than the timeout, a hang still ends in the stated time."""
    with subprocess.Popen(
        [sys.executable, "-c", PAUSED, str(then)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGSTOP)
        time.sleep(7)
        process.send_signal(signal.SIGCONT)
        assert process.stdout.readline() == "done\n"
        began = time.monotonic()
        _, errors = process.communicate(timeout=30)
    assert process.returncode == code, errors
    assert time.monotonic() - began < 10
    assert ("after step 9 (training)" in errors) == bool(code)


def test_by_default_patience_follows_the_median(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(watchdog, "running_seconds", lambda: now[0])
    watched = watchdog.Watchdog(Group(), None)
    watched.note("compiling", 1, limited=False)
    now[0] = 500.0  # compiling is not a step's duration
    for step in range(2, 12):
        watched.note("training", step)
        now[0] += 20.0 if step != 5 else 1000.0
    assert watched.timeout_seconds == pytest.approx(30 * 20)
    assert watchdog.Watchdog(Group(), None).timeout_seconds == 300
    assert watchdog.Watchdog(Group(), 7.0).timeout_seconds == 7


class LeftByAnother(Group):
    """Two processes, the other of which has left because its input was wrong."""

    def put(self, key: str, value: str, *, overwrite: bool = True) -> None:
        pass

    def exit_reasons(self) -> dict[int, dict[str, Any]]:
        return {1: {"message": "--steps 0: must be at least 1", "code": 2, "hangs": False}}

    def leave(self, code: int) -> NoReturn:
        raise SystemExit(code)


def test_a_process_leaves_with_the_code_of_the_one_that_left(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A supervisor starts a run again unless its settings are to blame, whoever notices first."""
    watched = watchdog.Watchdog(LeftByAnother(0, 2, members=("process 0", "process 1")), None)
    with pytest.raises(SystemExit) as left:
        watched._look_at_others()
    assert left.value.code == 2
    line = "jaxdp.train: error: process 1 has left: --steps 0: must be at least 1\n"
    assert capsys.readouterr().err == line
