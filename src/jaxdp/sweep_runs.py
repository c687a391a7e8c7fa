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
from jaxdp.exit_codes import EXIT_LOCKED, EXIT_STOPPED
from jaxdp.registry import ConfigError
from jaxdp.rundir.write import replace_file
from jaxdp.runtime import launcher
from jaxdp.runtime.local_process import LocalProcess
from jaxdp.runtime.ray_cluster import ClusterCapacity, HeadLost
from jaxdp.runtime.ray_process import LOCKED_SECONDS, NodeLost, RemoteProcess
from jaxdp.runtime.signals import forwarding
from jaxdp.runtime.supervisor import GRACE_SECONDS
from jaxdp.sweep_grid import Grid, Trial
from jaxdp.sweep_search import Search

_REASON_LENGTH = 300
_POLL_SECONDS = 0.5


class LocalRunner:
    """Runs on this machine, each with an equal share of the GPUs."""

    def __init__(self, at_a_time: int) -> None:
        try:
            self.shares = launcher.device_shares(at_a_time) if at_a_time > 1 else [{}]
        except ConfigError as error:
            remedy = "does not divide the GPUs; take another number, or hide some"
            raise ConfigError("at_a_time", at_a_time, remedy) from error

    def slots(self) -> dict[Any, int]:
        """Returns how many runs fit in each place; the key is what `start` takes."""
        return dict.fromkeys(range(len(self.shares)), 1)

    def start(self, slot: Any, arguments: Sequence[str], log: pathlib.Path) -> LocalProcess:
        return LocalProcess(arguments, self.shares[slot], log=log)

    def exclude(self, slot: Any) -> None:
        """Leaves out a place that was lost."""


class RayRunner:
    """Runs on the nodes of a Ray cluster, to which this process is connected."""

    def __init__(self, cpus: int, gpus: int | None) -> None:
        self._capacity = ClusterCapacity(cpus, gpus)
        self.exclude = self._capacity.exclude

    def slots(self) -> dict[Any, int]:
        return dict(self._capacity.slots())

    def start(self, slot: Any, arguments: Sequence[str], log: pathlib.Path) -> RemoteProcess:
        process = RemoteProcess(slot, self._capacity)
        process.start(arguments, log)
        return process


@dataclasses.dataclass(eq=False)
class _Run:
    """A run under way.

    Attributes:
        slot: of the runner, which it occupies.
        log_start: size of the log before it started.
        locked_until: time at which a process on a lost node no longer writes the folder.
    """

    trial: Trial
    slot: Any = None
    process: Any = None
    log_start: int = 0
    locked_until: float = 0.0

    @property
    def log(self) -> pathlib.Path:
        return self.trial.run.file("train.log")

    def reason(self, code: int) -> str:
        """Returns why it failed: the last line of its log, or the signal that ended it."""
        if code < 0:
            return f"ended by {signal.Signals(-code).name}"
        text = self.log.read_bytes()[self.log_start :].decode(errors="replace").strip()
        last = text.splitlines()[-1].strip() if text else f"ended with {code}"
        return last.removeprefix("jaxdp.train: error: ")[:_REASON_LENGTH]


class Sweep:
    """The runs of a sweep, and the signals that stop them.

    Args:
        plan: which run is next.
        runner: starts it.
        at_a_time: number of runs at once; None for as many as fit.
    """

    def __init__(
        self, plan: Grid | Search, runner: LocalRunner | RayRunner, at_a_time: int | None
    ) -> None:
        self._plan, self._runner = plan, runner
        self._at_a_time = at_a_time
        self._started = 0
        self._running: list[_Run] = []
        self._moving: list[_Run] = []  # whose node was lost
        self._signals: list[int] = []
        self._sent = 0
        self._failed = False

    def run(self) -> int:
        """Returns the exit code after all runs have ended, or signals have stopped them."""
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
        return EXIT_STOPPED if self._signals else int(self._failed)

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
            if self._moving:
                self._start(self._moving.pop(0), slot)
                continue
            trial = self._plan.next()
            if trial is None:
                return False
            self._start(_Run(trial), slot)

    def _start(self, run: _Run, slot: Any) -> None:
        trial, folder = run.trial, run.trial.run.path
        folder.mkdir(exist_ok=True)
        replace_file(trial.file, config_lib.to_yaml(trial.config))
        run.log_start = run.log.stat().st_size if run.log.is_file() else 0
        words = ["--config", str(trial.file), "--run-dir", str(folder)]
        run.slot = slot
        run.process = self._runner.start(slot, [*launcher.TRAIN, *words], run.log)
        self._running.append(run)
        if not run.locked_until:
            self._started += 1
            say(f"[{self._started}/{self._plan.count}] {trial.name} runs; its log is {run.log}")

    def _pass_signals_on(self) -> None:
        for number in self._signals[self._sent :]:
            for run in self._running:
                # First all save; a second Ctrl-C ends them at once.
                run.process.send_signal(number if self._sent else signal.SIGTERM)
            self._sent += 1

    def _look_after(self, run: _Run) -> None:
        trial, now = run.trial, time.monotonic()
        try:
            code = run.process.poll()
        except NodeLost as loss:
            say(f"{trial.name}: {run.process.where} {loss}; goes on elsewhere")
            self._runner.exclude(run.slot)
            run.locked_until = now + LOCKED_SECONDS
            code = EXIT_LOCKED
        if code is None:
            if self._plan.should_stop(trial):
                run.process.send_signal(signal.SIGTERM)
            return
        self._running.remove(run)
        run.process.close()
        if code == EXIT_LOCKED and now < run.locked_until:
            self._moving.append(run)
        elif code == EXIT_STOPPED and self._signals:
            say(f"{trial.name}: stopped")
        else:
            trial.reason = run.reason(code) if code else ""
            self._failed |= self._plan.end(trial, code)
            outcome = f"failed: {trial.reason}" if trial.reason else "done"
            say(f"{trial.name}: {'pruned' if trial.pruned else outcome}")

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
