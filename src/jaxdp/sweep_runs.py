"""Starts the runs of a sweep, here or on a Ray cluster, and looks after them."""

import contextlib
import functools
import pathlib
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from jaxdp.exit_codes import EXIT_LOCKED, EXIT_STOPPED
from jaxdp.registry import ConfigError
from jaxdp.runtime import launcher
from jaxdp.runtime.local_process import LocalProcess
from jaxdp.runtime.ray_cluster import ClusterCapacity, Node, place
from jaxdp.runtime.ray_process import LOCKED_SECONDS, NodeLost, RemoteProcess
from jaxdp.runtime.signals import forwarding
from jaxdp.runtime.supervisor import GRACE_SECONDS
from jaxdp.sweep_search import Search
from jaxdp.sweep_trials import Grid, Trial

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
        self._plan, self._check = plan, check
        self._waiting = enumerate(plan.waiting, 1)
        self._free = [*places]
        self._running: dict[Trial, Start] = {}
        self._again: list[Trial] = []  # their node was lost, or their folder is locked
        # Until then a process on a lost node, or of an earlier command, may write in a folder.
        self._locked_until = time.monotonic() + LOCKED_SECONDS
        self._signals: list[int] = []
        self._sent = 0
        self._failed = False

    def run(self) -> int:
        """Returns the exit code after all runs have ended, or signals have stopped them."""
        with forwarding(self._signals.append):
            try:
                while self._start_runs():
                    time.sleep(_POLL_SECONDS)
                    self._check()
                    self._pass_signals_on()
                    for trial in [*self._running]:
                        self._look_after(trial)
            except BaseException:
                self._save_all()
                raise
        if self._signals:
            return EXIT_STOPPED
        if self._again:
            say("no node is left; the same command continues on others")
        return int(self._failed or bool(self._again))

    def _start_runs(self) -> bool:
        """Starts runs at the free places; returns whether any run is under way."""
        while self._free and not self._signals:
            waiting = (0, self._again.pop()) if self._again else next(self._waiting, None)
            if waiting is None:
                break
            (number, trial), start = waiting, self._free.pop(0)
            trial.start(start)
            self._running[trial] = start
            if number:  # not again
                say(f"[{number}/{self._plan.count}] {trial.name} runs; its log is {trial.log}")
        return bool(self._running)

    def _pass_signals_on(self) -> None:
        for number in self._signals[self._sent :]:
            for trial in self._running:
                # First all save; a second Ctrl-C ends them at once.
                trial.process.send_signal(number if self._sent else signal.SIGTERM)
            self._sent += 1

    def _look_after(self, trial: Trial) -> None:
        process = trial.process
        try:
            code = process.poll()
        except NodeLost as loss:
            say(f"{trial.name}: {process.where} {loss}")
            del self._running[trial]
            self._again.append(trial)
            self._locked_until = time.monotonic() + LOCKED_SECONDS
            return
        if code is None:
            if self._plan.should_stop(trial):
                process.send_signal(signal.SIGTERM)
            return
        self._free.append(self._running.pop(trial))
        process.close()
        if code == EXIT_LOCKED and time.monotonic() < self._locked_until:
            self._again.append(trial)
        elif code == EXIT_STOPPED and self._signals:
            say(f"{trial.name}: stopped")
        else:
            trial.note = f"failed: {trial.reason(code)}" if code else ""
            self._failed |= self._plan.end(trial, code)
            say(f"{trial.name}: {trial.note or 'done'}")

    def _save_all(self) -> None:
        """Has all runs save, and waits: without its head, Ray ends them a minute later."""
        say("all runs save")
        for trial in self._running:
            trial.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + GRACE_SECONDS
        for trial in self._running:
            with contextlib.suppress(NodeLost):
                while trial.process.poll() is None and time.monotonic() < deadline:
                    time.sleep(_POLL_SECONDS)


def say(message: str) -> None:
    """Prints a message of the sweep on standard error."""
    print(f"jaxdp.sweep: {message}", file=sys.stderr, flush=True)
