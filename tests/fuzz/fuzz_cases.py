"""One case: a folder of files, and a command in it.

What may come of it, and a process that finds out.
"""

import contextlib
import csv
import dataclasses
import json
import os
import pathlib
import re
import select
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

# Of one command: of the processor, or in which it does nothing; the machine may do something else
# as well.
MOST_SECONDS = 60.0
MOST_BYTES = 2 * 2**30  # that one command takes beside what the process holds anyway
_PER_PROCESS = 150  # compiled programs stay in memory
_WRITES = {"jaxdp.train: error: ", "warning: ", "continuing "}
# What a person cannot make sense of.
_INTERNAL = re.compile(
    r"Traceback \(most|object at 0x|<class '|\b\w+Error\(|NoneType|^\s*$", re.MULTILINE
)
_CONTROLS = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_DIVERGED, _USAGE = 3, 2


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a command printed and how it ended; `problem` where it did not end by itself."""

    code: object
    out: str
    err: str
    problem: str = ""


class Runner:
    """The process in which commands run; another one after each that has died, and now and then."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._count = 0

    def run(
        self, case: str, argv: list[str], folder: pathlib.Path, *, pictures: bool = False
    ) -> Outcome:
        """Runs a command in a folder, which has one of its own above it."""
        if self._process is None or self._count >= _PER_PROCESS:
            self._start()
        assert self._process is not None
        assert self._process.stdin is not None
        self._count += 1
        request = {"command": case, "argv": argv, "folder": str(folder), "pictures": pictures}
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        line = self._line(MOST_SECONDS)
        out, err = (
            (folder.parent / name).read_text(errors="replace") for name in ("out.txt", "err.txt")
        )
        if not line:
            return Outcome(None, out, err, self._end())
        found = json.loads(line)
        problem = f"{found['left']} are still handled" if found["left"] else ""
        problem = (
            f"it took {found['bytes'] / 2**20:.0f} MiB of memory"
            if found["bytes"] > MOST_BYTES
            else problem
        )
        return Outcome(found["code"], out, err, problem)

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._forget()

    def _forget(self) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.wait()
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        os.close(self._answers)
        self._said.close()
        self._process = None

    def _start(self) -> None:
        self.close()
        self._answers, write = os.pipe()
        self._said = tempfile.TemporaryFile(dir=self.folder)  # noqa: SIM115
        command = [
            sys.executable,
            str(pathlib.Path(__file__).with_name("fuzz_worker.py")),
            str(write),
        ]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=self._said,
            stderr=self._said,
            pass_fds=[write],
            start_new_session=True,
        )
        os.close(write)
        self._count = 0
        assert self._line(MOST_SECONDS) == b"ready\n", self._end()

    def _line(self, seconds: float) -> bytes:
        used = moved = self._processor_seconds()
        idle_since = time.monotonic()
        while not select.select([self._answers], [], [], 1.0)[0]:
            now = self._processor_seconds()
            if now - moved > 0.5:
                moved, idle_since = now, time.monotonic()
            if now - used > seconds or time.monotonic() - idle_since > seconds:
                return b""
        found = b""
        while not found.endswith(b"\n") and (part := os.read(self._answers, 2**16)):
            found += part
        return found

    def _processor_seconds(self) -> float:
        assert self._process is not None
        words = (
            pathlib.Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        )
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    def _end(self) -> str:
        """Ends a process that gives no answer, and says how it came to that."""
        assert self._process is not None
        self._process.send_signal(signal.SIGABRT)
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
        code = self._process.wait()
        self._said.seek(0)
        said = self._said.read().decode(errors="replace")[-4000:]
        self._forget()
        return f"it did not end within {MOST_SECONDS:.0f} s, or died ({code}): {said}"


def check(
    outcome: Outcome, command: str, *, may_fail: Callable[[str], object] = lambda line: False
) -> None:
    """Raises AssertionError unless a command ended as documented: with one clear line where it did
    not do what it was told.

    Args:
        may_fail: whether this line may go with exit code 1.
    """
    assert not outcome.problem, outcome
    said = outcome.out + outcome.err
    assert "Traceback" not in said, outcome
    assert not _CONTROLS.search(said), outcome
    prefix = f"{'jaxdp' if command == 'jaxdp' else 'jaxdp.' + command}: error: "
    errors = [
        line for line in outcome.err.splitlines() if re.match(r"jaxdp(\.\w+)?: error: ", line)
    ]
    if outcome.code == 0:
        assert not errors, outcome
        return
    assert outcome.code in (1, _USAGE, _DIVERGED), outcome
    if outcome.code == _DIVERGED:
        assert command == "train", outcome
        assert not errors, outcome
        return
    if outcome.code == 1 and command == "check" and "FAILED" in outcome.out:
        assert not errors, outcome
        return
    assert len(errors) == 1, outcome
    (line,) = errors
    assert outcome.err.splitlines()[-1] == line, outcome
    assert line.startswith((prefix, "jaxdp." if command == "jaxdp" else prefix)), outcome
    assert not _INTERNAL.search(line.removeprefix(prefix)), outcome
    assert 10 < len(line) - len(prefix) < 3000, outcome
    if outcome.code == 1:
        assert may_fail(line), outcome


def everything_in(folder: pathlib.Path) -> dict[str, object]:
    """Returns what shows that anything in a folder was written, made anew or removed."""
    found: dict[str, object] = {}
    for path in [folder, *sorted(folder.rglob("*"))]:
        status = path.lstat()
        regular = stat.S_ISREG(status.st_mode) and status.st_size < 2**24
        content = os.readlink(path) if path.is_symlink() else path.read_bytes() if regular else b""
        found[str(path)] = (
            status.st_ino,
            status.st_mode,
            status.st_size,
            status.st_mtime_ns,
            content,
        )
    return found


def check_table(path: pathlib.Path) -> None:
    """Raises AssertionError if a terminal or a spreadsheet would obey a cell of a CSV file."""
    for row in csv.reader(path.read_text().splitlines()):
        for cell in row:
            assert not _CONTROLS.search(cell), row
            assert _is_number(cell) or not cell.startswith(("=", "@", "+", "-")), row


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def fresh(folder: pathlib.Path, source: pathlib.Path | None = None) -> pathlib.Path:
    """Empties a folder, copies another one's content into it, and returns it."""
    shutil.rmtree(folder, ignore_errors=True)
    if source is not None:
        shutil.copytree(source, folder, symlinks=True)
    else:
        folder.mkdir(parents=True)
    return folder
