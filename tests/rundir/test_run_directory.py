"""A run's folder has one writer at a time, and the lock of a writer that died is free."""

import errno
import fcntl
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys

import pytest

from jaxdp import convert, train
from jaxdp.errors import ConfigError
from jaxdp.rundir.layout import RunDirectory

pytestmark = pytest.mark.usefixtures("no_pictures")
FLAGS = (
    "--model cnn --model-kwargs width=4 hidden=16 --devices 2 --global-batch-size 160 --steps 2"
    " --run-dir run".split()
)
HOLD = """
import pathlib, time
from jaxdp.rundir.layout import RunDirectory
with RunDirectory(pathlib.Path("run")).exclusive():
    print("held", flush=True)
    time.sleep(300)
"""


@pytest.fixture
def run() -> RunDirectory:
    pathlib.Path("run").mkdir()
    return RunDirectory(pathlib.Path("run"))


def dead_process() -> int:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return ended.pid


def leave_lock(run: RunDirectory, pid: int) -> None:
    run.file("writer.lock").write_text(
        json.dumps(
            {"host": socket.gethostname(), "pid": pid, "started": "2026-01-01T00:00:00+00:00"}
        )
    )


@pytest.mark.fault("second command on the same folder", "exit code 2, names the first", None)
def test_a_second_writer_is_refused_until_the_first_is_gone(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        try:
            assert holder.stdout.readline() == "held\n"
            assert train.main(FLAGS) == 2
            captured = capsys.readouterr()
            (line,) = captured.err.splitlines()
            assert (
                f"--run-dir run: is being written by process {holder.pid} on {socket.gethostname()}"
                " since 20" in line
            )
            assert captured.out == ""
            assert {path.name for path in run.path.iterdir()} == {run.file("writer.lock").name}
        finally:
            holder.send_signal(signal.SIGKILL)
    assert run.file("writer.lock").exists()  # a killed process removes nothing
    assert train.main(FLAGS) == 0
    assert not run.file("writer.lock").exists()
    assert json.loads(run.file("summary.json").read_text())["status"] == "done"


def test_import_is_a_writer_too(run: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    assert train.main([*FLAGS, "--run-dir", "trained"]) == 0
    assert convert.main(["export", "trained", "--output", "weights.safetensors"]) == 0
    capsys.readouterr()
    words = "import weights.safetensors --run-dir run --model cnn --model-kwargs width=4 hidden=16"
    flags = words.split()
    with run.exclusive():
        assert convert.main(flags) == 2
        assert "run is not empty; give another folder" in capsys.readouterr().err
        assert not run.file("config.yaml").exists()
    assert convert.main(flags) == 0
    assert not run.file("writer.lock").exists()


def test_a_command_that_fails_lets_go(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    assert train.main([*FLAGS, "--resume", "must"]) == 2
    assert not run.file("writer.lock").exists()

    def fail(*_: object) -> None:
        raise RuntimeError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr("jaxdp.training.loop.Loop.train", lambda *_, **__: fail())
        with pytest.raises(RuntimeError, match="disk full"):
            train.main(FLAGS)
    assert not run.file("writer.lock").exists()
    with run.exclusive():
        pass


@pytest.mark.fault("lock file of a dead process", "taken over", None)
def test_what_a_dead_process_left_is_taken_over(run: RunDirectory) -> None:
    strange = [f'{{"host": "{socket.gethostname()}", "pid": {pid}}}' for pid in ('"x"', "1e400")]
    for content in (None, "", "{", "[]", *strange):
        if content is None:
            leave_lock(run, dead_process())
        else:
            run.file("writer.lock").write_text(content)
        with run.exclusive():
            assert json.loads(run.file("writer.lock").read_text())["pid"] == os.getpid()


def test_a_file_system_without_locks_is_a_warning(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", flock)
    with run.exclusive():
        assert "run cannot be locked (Operation not supported)" in capsys.readouterr().err
    assert not run.file("writer.lock").exists()


def test_a_lock_removed_meanwhile_is_not_held(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its holder ends between our opening of the file and our locking of it: the lock that counts
    is that of a new file.
    """
    flock, removed = fcntl.flock, []

    def late(descriptor: int, operation: int) -> None:
        if not removed:
            removed.append(descriptor)
            run.file("writer.lock").unlink()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with run.exclusive():
        assert json.loads(run.file("writer.lock").read_text())["pid"] == os.getpid()
        with pytest.raises(ConfigError, match="is being written"), run.exclusive():
            pass


def test_a_lock_file_of_somebody_else_is_explained(run: RunDirectory) -> None:
    run.file("writer.lock").mkdir()
    with pytest.raises(ConfigError, match=r"writer\.lock in it cannot be written"), run.exclusive():
        pass


def test_what_was_left_out_before_a_resume_stays_listed(run: RunDirectory) -> None:
    run.write_skipped([])
    assert not run.file("skipped.csv").exists()
    run.write_skipped([("train", 'a, "b".png', "is cut"), ("test", "c.png", "is cut")])
    run.write_skipped(
        [
            ("test", "c.png", "has gone"),
            ("train", "d\udcff.png", "is cut"),
            ("train", "d\udcfe.png", "is cut"),
        ]
    )
    assert run.file("skipped.csv").read_bytes() == (
        b'split,example,reason\r\ntrain,"a, ""b"".png",is cut\r\ntest,c.png,has gone\r\n'
        rb"train,d\udcff.png,is cut" + b"\r\n" + rb"train,d\udcfe.png,is cut" + b"\r\n"
    )
