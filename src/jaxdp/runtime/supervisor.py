"""Looks after the processes of a run until all have ended: output, signals, exit codes.

A process runs on this machine or on a node of a Ray cluster; both have the same methods.
"""

import contextlib
import dataclasses
import itertools
import pathlib
import signal
import sys
import time
from collections.abc import Callable, Sequence

from jaxdp.exit_codes import EXIT_DIVERGED, EXIT_LOCKED, EXIT_STOPPED, EXIT_USAGE_ERROR
from jaxdp.rundir.write import no_link
from jaxdp.runtime.local_process import LocalProcess
from jaxdp.runtime.ray_process import NodeLost, RemoteProcess
from jaxdp.runtime.streams import BestEffortStream

# After one process has failed, the others notice within the heartbeat timeout. They then have this
# long to report it and to exit.
GRACE_SECONDS = 15.0
# The same command would end with these codes again, and each process has said why.
FINAL = (0, EXIT_USAGE_ERROR, EXIT_DIVERGED, EXIT_STOPPED)
_POLL_SECONDS = 0.05
_ERROR = "jaxdp.train: error: "

Process = LocalProcess | RemoteProcess


@dataclasses.dataclass
class _Member:
    """One of the processes, and how it has ended.

    Attributes:
        log: the file to which its lines are appended.
        code: its exit code, None while it runs.
        ended: when, by the monotonic clock.
        reason: its error in one line, or else the last line on its standard error; empty if that is
            a terminal.
        killed: whether the supervisor has killed it.
    """

    process: Process
    name: str
    log: pathlib.Path | None
    code: int | None = None
    ended: float = 0.0
    reason: str = ""
    killed: bool = False

    def __str__(self) -> str:
        return f"{self.name} ({self.process.where})"

    @property
    def failed(self) -> bool:
        return self.code not in (None, 0, EXIT_STOPPED)

    def outcome(self) -> str:
        """Returns how it has ended, in words."""
        if self.killed:
            return "did not end by itself and was killed by jaxdp.launch"
        if self.code is not None and self.code < 0:
            return f"was killed by {signal.Signals(-self.code).name}"
        outcomes = {0: "was done", EXIT_STOPPED: "was stopped by a signal after saving"}
        return outcomes.get(self.code or 0, f"ended with exit code {self.code}")

    def exit_reason(self) -> str:
        """Returns its reason and its log, as far as there are any."""
        reason = f": {self.reason.removeprefix(_ERROR)}" if self.reason else ""
        return reason + (f" ({self.log})" if self.log else "")

    def show(self, index: int) -> None:
        """Prints the lines of the process, and appends them to its log."""
        for is_error, line in self.process.lines():
            prefix = f"[{index}] " if is_error or index else ""  # bare: the result of the run
            stream = BestEffortStream(sys.stderr) if is_error else sys.stdout
            print(f"{prefix}{line}", end="", file=stream, flush=True)
            if self.log is not None:
                # A full disk, for example, must not end the run.
                with contextlib.suppress(OSError), open(self.log, "ab", opener=no_link) as file:
                    file.write(line.encode(errors="backslashreplace"))
            if is_error and line.strip() and (_ERROR in line or _ERROR not in self.reason):
                self.reason = line.strip()


class Supervisor:
    """Looks after the processes of one attempt at a run.

    Args:
        processes: in the order of their numbers.
        kind: what messages call each.
        grace_seconds: for the others after one has failed; then they are killed.
        logs: a file for each process, to which its lines are appended.

    Attributes:
        lost: the processes that could not be reached any more.
        locked: whether another process writes the folder of the run.
    """

    def __init__(
        self,
        processes: Sequence[Process],
        kind: str,
        grace_seconds: float,
        logs: Sequence[pathlib.Path] = (),
    ) -> None:
        self._members = [
            _Member(process, f"{kind} {index}", log)
            for index, (process, log) in enumerate(itertools.zip_longest(processes, logs))
        ]
        self._running = dict(enumerate(self._members))
        self._grace_seconds, self._deadline = grace_seconds, float("inf")
        self._sent = 0  # signals
        self.lost: list[Process] = []
        self.locked = False

    def wait(
        self, signals: Sequence[int], watch: "Callable[[Supervisor], None] | None" = None
    ) -> int:
        """Waits for all processes, and returns the exit code of the run.

        Args:
            signals: those that this process has received, in a list that grows.
            watch: is called again and again meanwhile, with the supervisor.

        Returns:
            0 if all ended well, otherwise the code of the first one that did not; 128 + N if signal
            N ended it.
        """
        while self._running:
            time.sleep(_POLL_SECONDS)
            for index in [*self._running]:
                self._poll(index)
            for number in signals[self._sent :]:
                self.send(number)
                self._sent += 1
            if watch is not None:
                watch(self)
            if time.monotonic() > self._deadline:
                for member in self._running.values():
                    member.killed = True
                self.send(signal.SIGKILL)
        codes = [each.code for each in self._members if each.code is not None]
        self.locked = EXIT_LOCKED in codes
        if self.locked:  # the others end with 1, maybe before the one that found the lock
            return EXIT_USAGE_ERROR
        failed = [each.code for each in self.failures() if each.code is not None]
        code = failed[0] if failed else max(codes, default=0) or int(bool(self.lost))
        return code if code >= 0 else 128 - code

    def _poll(self, index: int) -> None:
        member = self._running[index]
        try:
            member.code = member.process.poll()
        except NodeLost as loss:
            self.lose(index, loss)
            return
        member.show(index)
        if member.code is not None:
            member.ended = time.monotonic()
            del self._running[index]
            member.process.close()
            if member.failed:
                self.limit(self._grace_seconds)

    def lose(self, index: int, loss: NodeLost) -> None:
        """Gives up a process that cannot be reached."""
        member = self._running.pop(index)
        self.lost.append(member.process)
        say(f"{member.process.where} of {member.name} {loss}")
        member.process.close()

    def limit(self, seconds: float) -> None:
        """Kills all processes that have not ended after this many seconds."""
        self._deadline = min(self._deadline, time.monotonic() + seconds)

    def send(self, number: int) -> None:
        """Sends a signal to all processes that run."""
        for member in self._running.values():
            member.process.send_signal(number)

    def failures(self) -> list[_Member]:
        """Returns the processes that ended with an error, the first one first."""
        return sorted((each for each in self._members if each.failed), key=lambda each: each.ended)

    def explain(self) -> None:
        """Prints which process ended and why, the first failure first.

        Prints nothing if each process has said so itself.
        """
        failures = self.failures()
        if self.locked or all(each.code in FINAL for each in failures):
            return
        first, *others = failures
        say(f"{first} was the first to fail: it {first.outcome()}{first.exit_reason()}")
        for each in others:
            later = f"{each.ended - first.ended:.1f} s later"
            say(f"{each} {each.outcome()} {later}{each.exit_reason()}")
        for each in self._members:
            if each not in failures:
                say(f"{each} {each.outcome()}")

    def close(self) -> None:
        """Frees what the processes hold; those that still run save if they can."""
        while self._running:
            self._running.popitem()[1].process.close()


def say(message: str) -> None:
    """Prints a message of the launcher on standard error."""
    print(f"jaxdp.launch: {message}", file=sys.stderr, flush=True)
