"""Runs the cells of a sweep, each as a process in a folder of its own, and passes on the signals that stop them."""

import collections
import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from jaxdp import config as config_lib
from jaxdp.config import TrainConfig
from jaxdp.exit_codes import EXIT_STOPPED
from jaxdp.registry import ConfigError, shown
from jaxdp.run_directory import RunDirectory, replace_file
from jaxdp.runtime import launcher
from jaxdp.tools.sweep_grid import Cell

_REASON_LENGTH = 300


def run(cells: Sequence[Cell], folder: pathlib.Path, at_a_time: int) -> dict[str, str] | None:
    """Runs what is not finished, and returns why runs failed, by their names; None if a signal stopped the sweep.

    Args:
        folder: of the sweep, with one for each cell.
        at_a_time: runs at once.

    Raises:
        ConfigError: if the folder cannot be written or holds runs with other settings, or the GPUs cannot be shared out.
    """
    environments = gpu_shares(at_a_time)
    _check_folder(folder, cells)
    waiting = [cell for cell in cells if not _is_done(folder / cell.name)]
    if len(waiting) < len(cells):
        say(f"{len(cells) - len(waiting)} of {len(cells)} runs in {folder} are finished")
    runs = _Runs(waiting, folder, environments)
    if not runs.run():
        say("stopped by a signal; the same command continues")
        return None
    return runs.reasons


def show(cells: Sequence[Cell], folder: pathlib.Path, reasons: Mapping[str, str]) -> None:
    """Prints the tables of a sweep and writes its report, report.html.

    Args:
        reasons: as `run` returns them.
    """
    from jaxdp.reporting import report_page, sweeps

    found = {cell.name: RunDirectory(folder / cell.name) for cell in cells}
    sweeps.show([sweeps.row(cell.settings, found[cell.name].read_summary(), reasons.get(cell.name)) for cell in cells])
    written = [each.path for each in found.values() if each.config_file.is_file()]
    if written:
        report_page.write_report(written, folder / "report.html", title=f"Sweep {folder.name}")
        say(f"{folder / 'report.html'} is written")


def gpu_shares(count: int) -> list[dict[str, str]]:
    """Returns for each of so many runs at once the environment that gives it its GPUs."""
    if count == 1:
        return [{}]
    try:
        return launcher.device_shares(count)
    except ConfigError as error:
        raise ConfigError("at_a_time", count, "does not divide the GPUs; take another number, or hide some") from error


def _check_folder(folder: pathlib.Path, cells: Sequence[Cell]) -> None:
    """Raises ConfigError if the sweep cannot be written there, or holds runs of the same names with other settings."""
    for cell in cells:
        file = _settings_file(folder / cell.name)
        if file.is_file():
            ours = config_lib.defining(cell.config)
            theirs = config_lib.defining(TrainConfig.of(**config_lib.load(file)))
            differing = [name for name in sorted(ours.keys() | theirs.keys()) if ours.get(name) != theirs.get(name)]
            if differing:
                name = differing[0]
                remedy = (
                    f"holds {cell.name} with {name} {shown(theirs.get(name))}, not {shown(ours.get(name))}; give another --output"
                )
                raise ConfigError("output", folder, remedy)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError("output", folder, f"cannot be written ({error.strerror}); give another folder") from error


def _settings_file(folder: pathlib.Path) -> pathlib.Path:
    return folder / "settings.yaml"  # as asked for; train fills in the rest, and writes config.yaml


def _is_done(folder: pathlib.Path) -> bool:
    summary = RunDirectory(folder).read_summary()
    return summary is not None and summary["status"] == "done"


@dataclasses.dataclass(frozen=True)
class _Run:
    """A process under way.

    Attributes:
        environment: gives it its devices.
        log_start: where in the log its own lines begin.
    """

    cell: Cell
    process: subprocess.Popen[bytes]
    environment: dict[str, str]
    log: pathlib.Path
    log_start: int


class _Runs:
    """Runs, one for each environment at a time. Each is a session of its own: Ctrl-C reaches them once, through the sweep.

    Attributes:
        reasons: why runs failed, by their names.
    """

    def __init__(self, cells: Sequence[Cell], folder: pathlib.Path, environments: list[dict[str, str]]) -> None:
        self._waiting, self._folder, self._free = collections.deque(cells), folder, environments
        self._count, self._started = len(cells), 0
        self._running: list[_Run] = []
        self._signals: list[int] = []
        self._sent = 0
        self.reasons: dict[str, str] = {}

    def run(self) -> bool:
        """Returns whether all came to an end; False if a signal stopped them."""
        with launcher.forwarding(self._signals.append):
            while self._running or (self._waiting and not self._signals):
                while self._waiting and self._free and not self._signals:
                    self._start(self._waiting.popleft(), self._free.pop(0))
                time.sleep(0.1)
                self._pass_signals_on()
                for run in [run for run in self._running if run.process.poll() is not None]:
                    self._end(run)
        return not self._signals

    def _start(self, cell: Cell, environment: dict[str, str]) -> None:
        folder = self._folder / cell.name
        folder.mkdir(exist_ok=True)
        replace_file(_settings_file(folder), config_lib.to_yaml(cell.config))
        command = [sys.executable, "-m", "jaxdp.train", "--config", str(_settings_file(folder)), "--run-dir", str(folder)]
        log = folder / "train.log"
        with log.open("ab") as file:
            log_start = file.tell()
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=file, env=os.environ | environment,
                start_new_session=True, preexec_fn=launcher.end_with_parent,
            )  # fmt: skip
        self._running.append(_Run(cell, process, environment, log, log_start))
        self._started += 1
        say(f"[{self._started}/{self._count}] {cell.name} runs; {log} tells how it goes")

    def _pass_signals_on(self) -> None:
        for position in range(self._sent, len(self._signals)):
            # The first one has them save whatever they are doing; a second Ctrl-C has them leave at once.
            number = self._signals[position] if position else signal.SIGTERM
            for run in self._running:
                run.process.send_signal(number)
        self._sent = len(self._signals)

    def _end(self, run: _Run) -> None:
        self._running.remove(run)
        self._free.append(run.environment)
        code, name = run.process.returncode, run.cell.name
        if code == EXIT_STOPPED and self._signals:
            say(f"{name}: stopped")
        elif code:
            self.reasons[name] = _reason(run, code)
            say(f"{name}: failed: {self.reasons[name]}")
        else:
            say(f"{name}: done")


def _reason(run: _Run, code: int) -> str:
    """Returns why a run failed: what it said last, or the signal that ended it."""
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    with run.log.open("rb") as file:
        file.seek(run.log_start)
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    return (lines[-1].removeprefix("jaxdp.train: error: ") if lines else f"ended with {code}")[:_REASON_LENGTH]


def say(message: str) -> None:
    """Prints a message of the sweep on standard error."""
    print(f"jaxdp.sweep: {message}", file=sys.stderr, flush=True)
