"""Ends a run that makes no progress, and names the process that the others wait for.

A thread checks once a second. If there was no progress for too long, it writes the stack of each
thread of this process to `hang-PROCESS.txt` in the run directory. Then it names the processes that
are behind, and ends this one. It also sees when another process has left.

Time in which this process was paused does not count.
"""

import collections
import contextlib
import faulthandler
import json
import pathlib
import statistics
import sys
import threading
import time
from collections.abc import Generator
from typing import Any

from jaxdp.callbacks.events import Activity, Run, Started
from jaxdp.rundir.write import no_link
from jaxdp.runtime.processes import Group
from jaxdp.runtime.running_time import running_seconds

# By default, a step may take this multiple of the median of the last steps, and at least this
# number of seconds, because a slow disk is not a hang.
PATIENCE, MIN_TIMEOUT_SECONDS = 30, 300.0
_LOOK_SECONDS = 1.0


class Watchdog:
    """Ends the process (`os._exit`) when it hangs. Commands have a watchdog, and other programs
    have one on request.

    Args:
        group: the processes of the run.
        timeout_seconds: None for the default, a multiple of the median step.

    Attributes:
        folder: where to write if the process hangs.
    """

    every_process = True

    def __init__(self, group: Group, timeout_seconds: float | None) -> None:
        self.folder = pathlib.Path()
        self._group, self._given = group, timeout_seconds
        self._activity = "starting"
        self._step = 0
        self._limited = False
        self._since = self._step_began = running_seconds()
        self._durations: collections.deque[float] = collections.deque(maxlen=50)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, name="jaxdp-watchdog", daemon=True)

    @contextlib.contextmanager
    def watching(self) -> Generator[None]:
        """Watches until the block ends."""
        self._thread.start()
        try:
            yield
        finally:
            self._ended.set()
            self._thread.join()

    def on_start(self, run: Run, event: Started) -> None:
        """Sets the folder to which to write."""
        self.folder = run.folder or self.folder

    def on_activity(self, run: Run, event: Activity) -> None:
        """Records a sign of life."""
        self.note(event.name, event.step, limited=event.limited)

    def note(self, activity: str, step: int, *, limited: bool = True) -> None:
        """Records the new work of this process, which is a sign of life.

        Args:
            step: the last step that was dispatched.
            limited: whether the work may last only as long as a step, unlike compiling or saving.
        """
        now = running_seconds()
        if step > self._step:
            if self._limited:
                self._durations.append(now - self._step_began)
            self._step_began = now
        self._activity, self._limited = activity, limited
        self._step, self._since = step, now

    @property
    def timeout_seconds(self) -> float:
        """The longest time that is currently allowed without a sign of life."""
        if self._given is not None:
            return self._given
        durations = list(self._durations)
        return max(
            PATIENCE * statistics.median(durations) if durations else 0.0, MIN_TIMEOUT_SECONDS
        )

    def _look(self) -> None:
        while not self._ended.wait(_LOOK_SECONDS):
            # The coordinator is gone, and the runtime will report it.
            with contextlib.suppress(Exception):
                self._look_at_others()
            waited = running_seconds() - self._since
            if self._limited and waited > self.timeout_seconds:
                self._leave(
                    f"no step was finished for {waited:.0f} s after step {self._step}"
                    f" ({self._activity})",
                    hangs=True,
                )

    @property
    def _progress(self) -> dict[str, Any]:
        return {"step": self._step, "activity": self._activity}

    def _look_at_others(self) -> None:
        if self._group.count == 1:
            return
        self._group.put(f"progress/{self._group.index}", json.dumps(self._progress))
        for index, left in self._group.exit_reasons().items():
            if not self._ended.is_set():
                where = "" if left["hangs"] else f"{self._group.members[index]} has left: "
                self._leave(where + left["message"], hangs=left["hangs"], code=left["code"])

    def _leave(self, message: str, *, hangs: bool, code: int | None = None) -> None:
        try:
            if code is None and self._group.count > 1:
                if behind := self._behind():
                    message += f"; {behind}"
                self._group.post_exit_reason(message, 1, hangs=hangs)
            if hangs:
                message += f"; where each thread stands: {self._write(message)}"
            print(f"jaxdp.train: error: {message}", file=sys.stderr, flush=True)
            if hangs and self._group.count > 1:
                time.sleep(2 * _LOOK_SECONDS)  # the other processes also write their stacks
        finally:
            self._group.leave(code or 1)

    def _behind(self) -> str:
        """Names the processes that the others wait for, which dispatched the fewest steps."""
        try:
            found = {
                index: json.loads(text) for index, text in self._group.get_all("progress").items()
            }
        except Exception:  # the coordinator is gone; this process must still report where it hangs
            return ""
        found[self._group.index] = self._progress
        steps = [progress["step"] for progress in found.values()]
        if min(steps) == max(steps):
            return f"all processes stand at step {steps[0]}"
        names = [
            f"{self._group.members[index]} is behind, at step {progress['step']}"
            f" ({progress['activity']})"
            for index, progress in sorted(found.items())
            if progress["step"] == min(steps)
        ]
        return " and ".join(names)

    def _write(self, message: str) -> pathlib.Path:
        path = self.folder / f"hang-{self._group.index}.txt"
        with open(path, "w", opener=no_link) as file:
            print(
                f"{message}\n{self._group.members[self._group.index]},"
                f" {time.strftime('%Y-%m-%d %H:%M:%S %z')}\n",
                file=file,
            )
            file.flush()
            faulthandler.dump_traceback(file, all_threads=True)
        return path
