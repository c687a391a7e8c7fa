"""Lines for people are records of the logger `jaxdp`: a program silences, redirects and captures
them by `logging`; without any configuration they are on standard error.
"""

import logging
import subprocess
import sys

import numpy as np
import pytest

import jaxdp
from jaxdp import data
from jaxdp.cli.command_line import ending
from jaxdp.errors import ConfigError, flag
from jaxdp.text import console

SAY = """
import logging, sys
from jaxdp.text.console import say, say_again, warn, warn_again
from jaxdp.errors import flag
def lines():
    warn(f"give {flag('steps', 3)}")
    say("note: one")
"""
WARNING, NOTE = "warning: give steps=3", "note: one"


def program(code: str, command: str = "") -> subprocess.CompletedProcess[str]:
    """Runs a program of its own, since pytest has handlers on the root logger."""
    words = [sys.executable, "-c", SAY + code]
    if command:
        words = ["sh", "-c", f'exec "$@" {command}', "sh", *words]
    return subprocess.run(words, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("lines()", [WARNING, NOTE]),
        ("lines(); lines()", [WARNING, NOTE]),
        ("for _ in '12': warn_again('x'); say_again('100%')", ["warning: x", "100%"] * 2),
        ("say('x'); warn('x')", ["x", "warning: x"]),
        ("logging.getLogger('jaxdp').warning('%s is %d', 'x', 3)", ["warning: x is 3"]),
        # Silence.
        ("logging.getLogger('jaxdp').setLevel('WARNING'); lines()", [WARNING]),
        ("logging.getLogger('jaxdp').setLevel('ERROR'); lines()", []),
        ("logging.getLogger('jaxdp').addHandler(logging.NullHandler()); lines()", []),
        # Redirection: each line appears once. Libraries call a bare basicConfig() without knowing.
        ("logging.basicConfig(); lines()", [WARNING, NOTE]),
        (
            "logging.basicConfig(format='%(levelname)s %(message)s'); lines()",
            ["WARNING give steps=3", "INFO note: one"],
        ),
        (
            "lines(); logging.basicConfig(format='%(message)s'); say('two')",
            [WARNING, NOTE, "two"],
        ),
        (
            "logging.getLogger('jaxdp').addHandler(logging.StreamHandler(sys.stderr)); lines()",
            ["give steps=3", "note: one"],
        ),
        (
            "logging.getLogger('jaxdp').addHandler(logging.FileHandler('log')); lines();"
            "print(open('log').read(), end='', file=sys.stderr)",
            ["give steps=3", "note: one"],
        ),
        # Where standard error leads when the line comes.
        ("import io; sys.stderr = io.StringIO(); lines(); sys.stderr = sys.__stderr__", []),
    ],
)
def test_a_program_decides_where_lines_go(code: str, expected: list[str]) -> None:
    ran = program(code)
    assert (ran.returncode, ran.stdout, ran.stderr.splitlines()) == (0, "", expected)


@pytest.mark.parametrize("command", ["2> /dev/full", "2>&-"])
def test_a_stream_that_takes_nothing_ends_no_program(command: str) -> None:
    ran = program("lines(); print('end')", command)
    assert (ran.returncode, ran.stdout) == (0, "end\n")


def test_a_level_that_was_set_before_stays() -> None:
    code = "import logging; logging.getLogger('jaxdp').setLevel('ERROR')"
    words = [sys.executable, "-c", f"{code}{SAY}lines()"]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stderr == ""


def test_records_have_a_level_and_keywords(caplog: pytest.LogCaptureFixture) -> None:
    console.warn_again(f"give {flag('steps', 3)}")
    console.say_again("note: one")
    assert caplog.record_tuples == [
        ("jaxdp", logging.WARNING, "give steps=3"),
        ("jaxdp", logging.INFO, "note: one"),
    ]


def test_a_command_prints_flags_once_whatever_was_configured(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    root, own = logging.StreamHandler(sys.stderr), logging.StreamHandler(sys.stderr)
    logger, before = logging.getLogger("jaxdp"), list(logging.getLogger("jaxdp").handlers)
    logging.getLogger().addHandler(root)
    try:
        with ending("jaxdp.train") as end, ending("jaxdp.train"):
            console.warn_again(ConfigError("steps", 0, f"or {flag('epochs')}"))
            logger.addHandler(own)  # as a plugin may
            console.say_again("note: one")
    finally:
        logging.getLogger().removeHandler(root)
    assert end.code == 0
    lines = ["warning: --steps 0: or --epochs", "note: one", "note: one"]
    assert sorted(capsys.readouterr().err.splitlines()) == sorted(lines)
    assert (logger.handlers, logger.propagate, caplog.records) == (before, True, [])


def test_a_training_is_silent_or_captured(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    images = np.random.default_rng(0).integers(0, 256, (16, 8, 8, 1), np.uint8)
    dataset = data.from_arrays(images, np.arange(16) % 2)
    settings = {"model_kwargs": {"width": 2, "hidden": 2}, "devices": 1, "global_batch_size": 8}
    caplog.set_level(logging.ERROR, "jaxdp")
    jaxdp.Trainer("cnn", dataset, steps=2, log_every=1, **settings).fit()
    assert capsys.readouterr().err == ""
    assert not caplog.records
    caplog.set_level(logging.INFO, "jaxdp")
    jaxdp.Trainer("cnn", dataset, steps=2, log_every=1, **settings).fit()
    lines = [record.getMessage() for record in caplog.records if record.levelname == "INFO"]
    assert [line.split()[1] for line in lines if line.startswith("step")] == ["1/2", "2/2"]
    assert not set(lines) - {*capsys.readouterr().err.splitlines()}
