"""Supervises the processes of a run until all have ended: output, signals, exit codes."""

import signal
import sys
import time
from collections.abc import Sequence

from jaxdp.cli.exit_codes import EXIT_DIVERGED, EXIT_LOCKED, EXIT_STOPPED, EXIT_USAGE_ERROR
from jaxdp.cli.streams import BestEffortStream
from jaxdp.launching.local_process import LocalProcess
from jaxdp.runtime.running_time import running_seconds

# After one process has failed, the others notice within the heartbeat timeout. They then have this
# long to report it and to exit.
GRACE_SECONDS = 15.0
# The same command would end with these codes again, and each process has reported why.
FINAL = (0, EXIT_USAGE_ERROR, EXIT_DIVERGED, EXIT_STOPPED)
_POLL_SECONDS = 0.05


class Supervisor:
    """Supervises the processes of one attempt at a run.

    Args:
        processes: in the order of their numbers.
        grace_seconds: time for the other processes after one has failed, before they are killed.

    Attributes:
        failures: the processes that ended with an error, in order, with their codes.
    """

    def __init__(self, processes: Sequence[LocalProcess], grace_seconds: float) -> None:
        self._running = dict(enumerate(processes))
        self._grace_seconds, self._deadline = grace_seconds, float("inf")
        self._codes: list[int] = []
        self.failures: list[tuple[str, int]] = []

    def wait(self, signals: Sequence[int]) -> int:
        """Waits for all processes, and returns the exit code of the run.

        Args:
            signals: signals that this process has received, in a list that grows.

        Returns:
            0 if all processes succeeded, otherwise the code of the process that failed first, or
            128 + N if signal N ended it. If no process failed, 75 if the run stopped after saving.
            Always 2 if another process writes the folder of the run.
        """
        sent = 0
        while self._running:
            time.sleep(_POLL_SECONDS)
            for index in [*self._running]:
                self._poll(index)
            for number in signals[sent:]:
                self.send(number)
                sent += 1
            if self._running and running_seconds() > self._deadline:
                self._kill()
        if self.locked:  # the others end with 1, perhaps before the process that found the lock
            return EXIT_USAGE_ERROR
        if self.failures:
            code = self.failures[0][1]
            return code if code >= 0 else 128 - code
        return max(self._codes, default=0)

    @property
    def locked(self) -> bool:
        """Returns whether another process writes the folder of the run."""
        return EXIT_LOCKED in self._codes

    def _name(self, index: int, process: LocalProcess) -> str:
        return f"process {index} ({process.where})"

    def _poll(self, index: int) -> None:
        process = self._running[index]
        code = process.poll()
        for is_error, line in process.lines():
            prefix = (
                f"[{index}] " if is_error or index else ""
            )  # without a prefix, because it is the result of the run
            stream = BestEffortStream(sys.stderr) if is_error else sys.stdout
            print(f"{prefix}{line}", end="", file=stream, flush=True)
        if code is not None:
            self._codes.append(code)
            del self._running[index]
            process.close()
            if code not in (0, EXIT_STOPPED):
                self.failures.append((self._name(index, process), code))
                self._deadline = min(self._deadline, running_seconds() + self._grace_seconds)

    def _kill(self) -> None:
        names = " and ".join(self._name(*each) for each in self._running.items())
        say(f"killing {names}, which did not end")
        self.send(signal.SIGKILL)
        self._deadline = float("inf")

    def send(self, number: int) -> None:
        """Sends a signal to all processes that run."""
        for process in self._running.values():
            process.send_signal(number)

    def explain(self) -> None:
        """Prints which process failed first, unless each process has reported why it ended."""
        if self.locked or all(code in FINAL for _, code in self.failures):
            return
        name, code = self.failures[0]
        what = f"ended with exit code {code}"
        if code < 0:
            what = f"was killed by {signal.Signals(-code).name}"
        say(f"{name} was the first to fail: it {what}")

    def close(self) -> None:
        """Frees the resources of the processes. Processes that still run save if they can."""
        while self._running:
            self._running.popitem()[1].close()


class Restarts:
    """Counts how often all processes are restarted after one has failed.

    Args:
        most: maximum number of restarts.
    """

    def __init__(self, most: int) -> None:
        self._count, self._most = 0, most

    def again(self, code: int) -> bool:
        """Returns whether to restart all processes after an attempt that ended with this code."""
        if code in FINAL or self._count == self._most:
            return False
        self._count += 1
        again = f"starting all again ({self._count} of at most {self._most})"
        say(f"a process ended with {code}; {again}")
        return True


def say(message: str) -> None:
    """Prints a message of the launcher on standard error."""
    print(f"jaxdp.launch: {message}", file=sys.stderr, flush=True)
