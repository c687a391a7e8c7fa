"""Starts the runs of a sweep, here or on a Ray cluster, and looks after them."""

import contextlib
import dataclasses
import functools
import pathlib
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from jaxdp import config as config_lib
from jaxdp.exit_codes import EXIT_LOCKED, EXIT_STOPPED
from jaxdp.registry import ConfigError
from jaxdp.rundir.write import replace_file
from jaxdp.runtime import launcher
from jaxdp.runtime.local_process import LocalProcess
from jaxdp.runtime.ray_cluster import ClusterCapacity, Node, place
from jaxdp.runtime.ray_process import LOCKED_SECONDS, NodeLost, RemoteProcess
from jaxdp.runtime.signals import forwarding
from jaxdp.runtime.supervisor import GRACE_SECONDS
from jaxdp.sweep_search import Search
from jaxdp.sweep_trials import Grid, Trial

_REASON_LENGTH = 300
_POLL_SECONDS = 0.5

# Starts Python with these arguments, and appends its standard error to the file `log`.
Start = Callable[..., LocalProcess | RemoteProcess]


def local_places(count: int) -> list[Start]:
    """Returns places for runs on this machine, each with an equal share of the GPUs.

    Raises:
        ConfigError: if the GPUs cannot be shared out evenly.
    """
    shares = launcher.device_shares(count) if count > 1 else [{}]
    return [functools.partial(LocalProcess, environment=share) for share in shares]


def ray_places(capacity: ClusterCapacity, at_a_time: int | None) -> list[Start]:
    """Returns places for runs on the nodes of the cluster to which this process is connected.

    Raises:
        ConfigError: if no node has what a run needs.
    """
    slots = capacity.slots()
    nodes = place(slots, at_a_time or sum(slots.values()))
    if not nodes:
        needs = f"{capacity.cpus} CPUs and {capacity.gpus} GPUs"
        raise ConfigError("", "", f"no node of the cluster has {needs}, which a run needs")
    return [functools.partial(_start_on, node, capacity) for node in nodes]


def _start_on(
    node: Node, capacity: ClusterCapacity, arguments: Sequence[str], log: pathlib.Path
) -> RemoteProcess:
    process = RemoteProcess(node, capacity)
    process.start(arguments, log)
    return process


@dataclasses.dataclass(eq=False)
class _Run:
    """A run under way, at its place."""

    trial: Trial
    start: Start

    def __post_init__(self) -> None:
        folder = self.trial.run.path
        folder.mkdir(exist_ok=True)
        replace_file(self.trial.file, config_lib.to_yaml(self.trial.config))
        self.log = folder / "train.log"
        self._log_start = self.log.stat().st_size if self.log.is_file() else 0
        words = ["--config", str(self.trial.file), "--run-dir", str(folder)]
        self.process = self.start([*launcher.TRAIN, *words], log=self.log)

    def reason(self, code: int) -> str:
        """Returns why it failed: the last line of its log, or the signal that ended it."""
        if code < 0:
            return f"ended by {signal.Signals(-code).name}"
        text = self.log.read_bytes()[self._log_start :].decode(errors="replace").strip()
        last = text.splitlines()[-1].strip() if text else f"ended with {code}"
        return last.removeprefix("jaxdp.train: error: ")[:_REASON_LENGTH]


class Sweep:
    """The runs of a sweep, and the signals that stop them.

    Args:
        plan: which runs are to come.
        places: where runs start.
        check: raises an error that ends the sweep; it is called again and again.
    """

    def __init__(
        self, plan: Grid | Search, places: Sequence[Start], check: Callable[[], Any] = int
    ) -> None:
        self._plan = plan
        self._free = [*places]
        self._check = check
        self._running: list[_Run] = []
        self._moving: list[Trial] = []  # their node was lost
        # Until then a process on a lost node, or of an earlier command, may write in a folder.
        self._locked_until = time.monotonic() + LOCKED_SECONDS
        self._signals: list[int] = []
        self._sent = 0
        self._begun: set[str] = set()
        self._failed = False

    def run(self) -> int:
        """Returns the exit code after all runs have ended, or signals have stopped them."""
        with forwarding(self._signals.append):
            try:
                while self._start_runs():
                    time.sleep(_POLL_SECONDS)
                    self._check()
                    self._pass_signals_on()
                    for run in [*self._running]:
                        self._look_after(run)
            except BaseException:
                self._save_all()
                raise
        if self._moving and not self._signals:
            say("no node is left; the same command continues on others")
            self._failed = True
        return EXIT_STOPPED if self._signals else int(self._failed)

    def _start_runs(self) -> bool:
        """Starts runs at the free places; returns whether any run is under way."""
        while self._free and not self._signals:
            trial = self._moving.pop() if self._moving else next(self._plan.waiting, None)
            if trial is None:
                break
            run = _Run(trial, self._free.pop(0))
            self._running.append(run)
            if trial.name not in self._begun:
                self._begun.add(trial.name)
                number = f"{len(self._begun)}/{self._plan.count}"
                say(f"[{number}] {trial.name} runs; its log is {run.log}")
        return bool(self._running)

    def _pass_signals_on(self) -> None:
        for number in self._signals[self._sent :]:
            for run in self._running:
                # First all save; a second Ctrl-C ends them at once.
                run.process.send_signal(number if self._sent else signal.SIGTERM)
            self._sent += 1

    def _look_after(self, run: _Run) -> None:
        trial, name = run.trial, run.trial.name
        try:
            code = run.process.poll()
        except NodeLost as loss:
            say(f"{name}: {run.process.where} {loss}")
            self._running.remove(run)
            self._moving.append(trial)
            self._locked_until = time.monotonic() + LOCKED_SECONDS
            return
        if code is None:
            if self._plan.should_stop(trial):
                run.process.send_signal(signal.SIGTERM)
            return
        self._running.remove(run)
        self._free.append(run.start)
        run.process.close()
        if code == EXIT_LOCKED and time.monotonic() < self._locked_until:
            self._moving.append(trial)
        elif code == EXIT_STOPPED and self._signals:
            say(f"{name}: stopped")
        else:
            trial.note = f"failed: {run.reason(code)}" if code else ""
            self._failed |= self._plan.end(trial, code)
            say(f"{name}: {trial.note or 'done'}")

    def _save_all(self) -> None:
        """Has all runs save, and waits: without its head, Ray ends them a minute later."""
        say("all runs save")
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
