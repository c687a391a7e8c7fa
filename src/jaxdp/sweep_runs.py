"""Starts the runs of a sweep, here or on a Ray cluster, and looks after them."""

import collections
import contextlib
import dataclasses
import pathlib
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any

from jaxdp import config as config_lib
from jaxdp import sweep_grid, sweep_search
from jaxdp.exit_codes import EXIT_LOCKED, EXIT_STOPPED
from jaxdp.registry import ConfigError
from jaxdp.rundir.write import replace_file
from jaxdp.runtime import launcher
from jaxdp.runtime.local_process import LocalProcess
from jaxdp.runtime.ray_cluster import ClusterCapacity, HeadLost
from jaxdp.runtime.ray_process import LOCKED_SECONDS, NodeLost, RemoteProcess
from jaxdp.runtime.signals import forwarding
from jaxdp.runtime.supervisor import GRACE_SECONDS, Process
from jaxdp.sweep_grid import Trial

_REASON_LENGTH = 300
_POLL_SECONDS = 0.5


class LocalRunner:
    """Runs on this machine, each with its share of the GPUs."""

    def __init__(self, at_a_time: int) -> None:
        self._shares = gpu_shares(at_a_time)

    def slots(self) -> dict[Any, int]:
        """Returns how many runs fit in each place; the key is what `start` takes."""
        return dict.fromkeys(range(len(self._shares)), 1)

    def start(self, slot: Any, arguments: Sequence[str], log: pathlib.Path) -> Process:
        return LocalProcess(arguments, self._shares[slot], log=log)


def gpu_shares(count: int) -> list[dict[str, str]]:
    """Returns for each of so many runs at once the environment that gives it its GPUs."""
    if count == 1:
        return [{}]
    try:
        return launcher.device_shares(count)
    except ConfigError as error:
        remedy = "does not divide the GPUs; take another number, or hide some"
        raise ConfigError("at_a_time", count, remedy) from error


class RayRunner:
    """Runs on the nodes of a Ray cluster, to which this process is connected."""

    def __init__(self, capacity: ClusterCapacity) -> None:
        self.capacity = capacity

    def slots(self) -> dict[Any, int]:
        slots = self.capacity.slots()
        return dict(slots) if self.capacity.head.answers else {}

    def start(self, slot: Any, arguments: Sequence[str], log: pathlib.Path) -> Process:
        process = RemoteProcess(slot, self.capacity)
        process.start(arguments, log)
        return process


Plan = sweep_grid.Grid | sweep_search.Search
Runner = LocalRunner | RayRunner


@dataclasses.dataclass
class _Run:
    """A run under way.

    Attributes:
        slot: of the runner, which it occupies.
        log_start: where in the log its own lines begin.
    """

    trial: Trial
    process: Process
    slot: Any
    log: pathlib.Path
    log_start: int

    def reason(self, code: int) -> str:
        """Returns why it failed: the last line of its log, or the signal that ended it."""
        if code < 0:
            return f"ended by {signal.Signals(-code).name}"
        text = self.log.read_bytes()[self.log_start :].decode(errors="replace").strip()
        last = text.splitlines()[-1].strip() if text else f"ended with {code}"
        return last.removeprefix("jaxdp.train: error: ")[:_REASON_LENGTH]


class Sweep:
    """The runs of a sweep, and the signals that stop them."""

    def __init__(
        self,
        plan: Plan,
        runner: Runner,
        at_a_time: int | None,
        folder: pathlib.Path,
    ) -> None:
        self._plan, self._folder = plan, folder
        self._runner, self._at_a_time = runner, at_a_time
        self._started = 0
        self._running: list[_Run] = []
        self._moving: list[Trial] = []  # whose node was lost
        self._locked_until: dict[str, float] = {}  # by a process on a lost node
        self._signals: list[int] = []
        self._sent = 0

    def run(self) -> bool:
        """Returns whether all runs came to an end; False if a signal stopped them."""
        with forwarding(self._signals.append):
            try:
                while self._start_runs() or self._running:
                    time.sleep(_POLL_SECONDS)
                    self._pass_signals_on()
                    for run in [*self._running]:
                        self._look_after(run)
            except BaseException as error:
                if isinstance(error, HeadLost):
                    say(f"{error}; all runs save")
                self._save_all()
                raise
        return not self._signals

    def _start_runs(self) -> bool:
        """Starts as many runs as fit; returns whether there may be more."""
        while True:
            free = collections.Counter(self._runner.slots())  # raises HeadLost
            free.subtract(run.slot for run in self._running)
            slot, count = max(free.items(), key=lambda each: each[1], default=(None, 0))
            if self._signals:
                return False
            if count < 1 or len(self._running) == self._at_a_time:
                return True
            trial = self._moving.pop(0) if self._moving else self._plan.next()
            if trial is None:
                return False
            self._start(trial, slot)

    def _start(self, trial: Trial, slot: Any) -> None:
        folder = self._folder / trial.name
        folder.mkdir(exist_ok=True)
        settings, log = sweep_grid.settings_file(folder), folder / "train.log"
        replace_file(settings, config_lib.to_yaml(trial.config))
        start = log.stat().st_size if log.is_file() else 0
        words = ["--config", str(settings), "--run-dir", str(folder)]
        process = self._runner.start(slot, [*launcher.TRAIN, *words], log)
        self._running.append(_Run(trial, process, slot, log, start))
        if trial.name not in self._locked_until:
            self._started += 1
            say(f"[{self._started}/{self._plan.count}] {trial.name} runs; its log is {log}")

    def _pass_signals_on(self) -> None:
        for number in self._signals[self._sent :]:
            for run in self._running:
                # First all save; a second Ctrl-C ends them at once.
                run.process.send_signal(number if self._sent else signal.SIGTERM)
            self._sent += 1

    def _look_after(self, run: _Run) -> None:
        name, now = run.trial.name, time.monotonic()
        try:
            code = run.process.poll()
        except NodeLost as loss:
            assert isinstance(self._runner, RayRunner)
            say(f"{name}: {run.process.where} {loss}; goes on elsewhere")
            self._runner.capacity.exclude(run.slot)
            self._locked_until[name] = now + LOCKED_SECONDS
            self._move(run)
            return
        if code is None:
            if self._plan.should_stop(run.trial):
                run.process.send_signal(signal.SIGTERM)
        elif code == EXIT_LOCKED and now < self._locked_until.get(name, 0.0):
            self._move(run)
        else:
            self._end(run)
            if code == EXIT_STOPPED and self._signals:
                say(f"{name}: stopped")
            else:
                reason = run.reason(code) if code else ""
                say(f"{name}: {self._plan.ended(run.trial, code, reason)}")

    def _move(self, run: _Run) -> None:
        self._end(run)
        self._moving.append(run.trial)

    def _end(self, run: _Run) -> None:
        self._running.remove(run)
        run.process.close()

    def _save_all(self) -> None:
        """Has all runs save, and waits: without its head, Ray ends them a minute later."""
        for run in self._running:
            run.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + GRACE_SECONDS
        for run in self._running:
            with contextlib.suppress(NodeLost):
                while run.process.poll() is None and time.monotonic() < deadline:
                    time.sleep(_POLL_SECONDS)


def say(message: str) -> None:
    """Prints a message of the sweep on standard error."""
    print(f"jaxdp.sweep: {message}", file=sys.stderr, flush=True)
