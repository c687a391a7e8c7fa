"""Runs the cells of a sweep, each as a process in a folder of its own, and passes on the signals
that stop them.
"""

import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
import time
from typing import Protocol, runtime_checkable

from jaxdp import config as config_lib
from jaxdp.exit_codes import EXIT_STOPPED
from jaxdp.registry import ConfigError
from jaxdp.rundir.layout import RunDirectory
from jaxdp.rundir.write import no_link, replace_file
from jaxdp.runtime import launcher
from jaxdp.tools.sweep_grid import Cell

_REASON_LENGTH = 300
_LOOK_SECONDS = 1.0


@runtime_checkable
class Process(Protocol):
    """A run's process, wherever it runs."""

    def poll(self) -> int | None:
        """Returns its exit code, negative for a signal, None while it runs."""
        ...

    def send_signal(self, sig: int, /) -> None: ...


@runtime_checkable
class Place(Protocol):
    """Where runs run."""

    def has_room(self) -> bool: ...

    def start(self, folder: pathlib.Path) -> Process:
        """Starts the run whose settings are in a folder, and which goes on there.

        What it says is added to its log.
        """
        ...


@runtime_checkable
class Plan(Protocol):
    """Which runs a sweep consists of: a grid or a search.

    Attributes:
        count: runs that are still to come when it begins.
    """

    count: int

    @property
    def failed(self) -> bool:
        """Whether a run has ended with an error."""
        ...

    def next(self) -> Cell | None:
        """Returns the next run, None if there are no more."""
        ...

    def should_stop(self, cell: Cell) -> bool:
        """Whether to stop a run that is under way; says so once."""
        ...

    def ended(self, cell: Cell, code: int, reason: str) -> str:
        """Takes the end of a run, and returns what became of it: done, pruned or failed."""
        ...

    def results(self) -> list[tuple[Cell, str | None, int | None]]:
        """Returns the runs of the tables, each with why it failed, and the step at which it was
        pruned.
        """
        ...


def show(plan: Plan, folder: pathlib.Path) -> None:
    """Prints the tables of a sweep and writes its report, report.html."""
    from jaxdp.reporting import report_page, sweeps

    results = [
        (cell, RunDirectory(folder / cell.name), reason, pruned)
        for cell, reason, pruned in plan.results()
    ]
    sweeps.show(
        [
            sweeps.row(cell.settings, run.read("summary.json"), reason, pruned)
            for cell, run, reason, pruned in results
        ]
    )
    written = [run.path for _, run, _, _ in results if run.file("config.yaml").is_file()]
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
        raise ConfigError(
            "at_a_time", count, "does not divide the GPUs; take another number, or hide some"
        ) from error


def settings_file(folder: pathlib.Path) -> pathlib.Path:
    """Returns where the settings of a run are."""
    return folder / "settings.yaml"  # as asked for; train fills in the rest, and writes config.yaml


class Here:
    """Runs on this machine, one for each environment at a time.

    Each is a session of its own: signals reach it through the sweep.

    Args:
        environments: gives each its devices.
    """

    def __init__(self, environments: list[dict[str, str]]) -> None:
        self._environments = environments
        self._running: list[subprocess.Popen[bytes] | None] = [None] * len(environments)

    def _free(self) -> int | None:
        free = (
            index
            for index, process in enumerate(self._running)
            if process is None or process.poll() is not None
        )
        return next(free, None)

    def has_room(self) -> bool:
        return self._free() is not None

    def start(self, folder: pathlib.Path) -> Process:
        index = self._free()
        assert index is not None
        with open(log_file(folder), "ab", opener=no_link) as file:
            process = subprocess.Popen(
                [sys.executable, *train_arguments(folder)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=file,
                env=os.environ | self._environments[index],
                start_new_session=True,
                preexec_fn=launcher.end_with_parent,
            )
        self._running[index] = process
        return process


def log_file(folder: pathlib.Path) -> pathlib.Path:
    """Returns where a run says how it goes."""
    return folder / "train.log"


def train_arguments(folder: pathlib.Path) -> list[str]:
    """Returns what Python is called with to train, or to go on, in the folder of a run."""
    return ["-m", "jaxdp.train", "--config", str(settings_file(folder)), "--run-dir", str(folder)]


@dataclasses.dataclass
class _Run:
    """A run under way.

    Attributes:
        log_start: where in the log its own lines begin.
        looked: when the plan was last asked about it, in seconds.
    """

    cell: Cell
    process: Process
    log: pathlib.Path
    log_start: int
    looked: float = 0.0


class _Runs:
    """The runs of a sweep that are under way."""

    def __init__(self, plan: Plan, place: Place, folder: pathlib.Path) -> None:
        self._plan, self._place, self._folder, self._started = plan, place, folder, 0
        self._running: list[_Run] = []
        self._signals: list[int] = []
        self._sent = 0

    def run(self) -> bool:
        """Returns whether all came to an end; False if a signal stopped them."""
        more = True
        with launcher.forwarding(self._signals.append):
            try:
                while self._running or (more and not self._signals):
                    while more and not self._signals and self._place.has_room():
                        more = self._start_next()
                    time.sleep(0.1)
                    self._pass_signals_on()
                    for run in [*self._running]:
                        self._look_after(run)
            except BaseException:
                for run in self._running:
                    run.process.send_signal(signal.SIGTERM)
                raise
        return not self._signals

    def _start_next(self) -> bool:
        """Starts a run; returns whether there may be more."""
        cell = self._plan.next()
        if cell is None:
            return False
        folder = self._folder / cell.name
        folder.mkdir(exist_ok=True)
        replace_file(settings_file(folder), config_lib.to_yaml(cell.config))
        log = log_file(folder)
        log_start = log.stat().st_size if log.is_file() else 0
        self._running.append(_Run(cell, self._place.start(folder), log, log_start))
        self._started += 1
        say(f"[{self._started}/{self._plan.count}] {cell.name} runs; {log} tells how it goes")
        return True

    def _pass_signals_on(self) -> None:
        for position in range(self._sent, len(self._signals)):
            # The first one has them save whatever they are doing; a second Ctrl-C has them leave at
            # once.
            number = self._signals[position] if position else signal.SIGTERM
            for run in self._running:
                run.process.send_signal(number)
        self._sent = len(self._signals)

    def _look_after(self, run: _Run) -> None:
        code, now = run.process.poll(), time.monotonic()
        if code is None:
            if now - run.looked > _LOOK_SECONDS:
                run.looked = now
                if self._plan.should_stop(run.cell):
                    run.process.send_signal(signal.SIGTERM)
            return
        self._running.remove(run)
        if code == EXIT_STOPPED and self._signals:
            say(f"{run.cell.name}: stopped")
        else:
            say(
                f"{run.cell.name}:"
                f" {self._plan.ended(run.cell, code, _reason(run, code) if code else '')}"
            )


def run(plan: Plan, place: Place, folder: pathlib.Path) -> bool:
    """Runs what a plan asks for; returns False if a signal stopped the sweep.

    Args:
        folder: of the sweep, with one for each run.
    """
    if not _Runs(plan, place, folder).run():
        say("stopped by a signal; the same command continues")
        return False
    return True


def _reason(run: _Run, code: int) -> str:
    """Returns why a run failed: what it said last, or the signal that ended it."""
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    with run.log.open("rb") as file:
        file.seek(run.log_start)
        lines = [
            line.strip()
            for line in file.read().decode(errors="replace").splitlines()
            if line.strip()
        ]
    return (lines[-1].removeprefix("jaxdp.train: error: ") if lines else f"ended with {code}")[
        :_REASON_LENGTH
    ]


def say(message: str) -> None:
    """Prints a message of the sweep on standard error."""
    print(f"jaxdp.sweep: {message}", file=sys.stderr, flush=True)
