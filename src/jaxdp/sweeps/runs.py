"""Starts the runs of a sweep, each in its own process, and supervises them."""

import signal
import sys
import time

from jaxdp.cli.exit_codes import EXIT_STOPPED
from jaxdp.launching import launcher
from jaxdp.runtime.signals import forwarding
from jaxdp.sweeps.search import Search
from jaxdp.sweeps.trials import Grid, Trial

_POLL_SECONDS = 0.5


class Sweep:
    """The runs of a sweep, and the signals that stop them.

    Args:
        plan: the remaining runs.
        at_a_time: number of simultaneous runs, each with an equal share of the GPUs.

    Raises:
        ConfigError: if the GPUs cannot be divided evenly.
    """

    def __init__(self, plan: Grid | Search, at_a_time: int) -> None:
        self._plan = plan
        self._waiting = enumerate(plan.waiting, 1)
        self._free = launcher.device_shares(at_a_time) if at_a_time > 1 else [{}]
        self._running: dict[Trial, dict[str, str]] = {}
        self._signals: list[int] = []
        self._sent = 0
        self._failed = False

    def run(self) -> int:
        """Returns the exit code after all runs have ended, or signals have stopped them."""
        with forwarding(self._signals.append):
            while self._start_runs():
                time.sleep(_POLL_SECONDS)
                for number in self._signals[self._sent :]:
                    for trial in self._running:
                        # All runs save first. A second Ctrl-C ends them at once.
                        trial.process.send_signal(number if self._sent else signal.SIGTERM)
                    self._sent += 1
                for trial in [*self._running]:
                    self._look_after(trial)
        return EXIT_STOPPED if self._signals else int(self._failed)

    def _start_runs(self) -> bool:
        """Starts runs in the free slots, and returns whether any run is in progress."""
        while self._free and not self._signals:
            number, trial = next(self._waiting, (0, None))
            if trial is None:
                break
            self._running[trial] = self._free.pop(0)
            trial.start(self._running[trial])
            say(f"[{number}/{self._plan.count}] {trial.name} runs; its log is {trial.log}")
        return bool(self._running)

    def _look_after(self, trial: Trial) -> None:
        code = trial.process.poll()
        if code is None:
            if self._plan.should_stop(trial):
                trial.process.send_signal(signal.SIGTERM)
            return
        self._free.append(self._running.pop(trial))
        if code == EXIT_STOPPED and self._signals:
            say(f"{trial.name}: stopped")
        else:
            trial.note = f"failed: {trial.reason(code)}" if code else ""
            self._failed |= self._plan.end(trial, code)
            say(f"{trial.name}: {trial.note or 'done'}")


def say(message: str) -> None:
    """Prints a message of the sweep on standard error."""
    print(f"jaxdp.sweep: {message}", file=sys.stderr, flush=True)
