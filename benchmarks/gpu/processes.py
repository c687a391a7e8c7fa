"""Runs the measurements of gpu_check.py, each in its own process, so that a failure, such as a lack
of memory, is a result.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import measurement

Record = dict[str, Any]
BENCHMARKS = pathlib.Path(__file__).parents[1]
# JAX takes 75% of a GPU's memory at first, PyTorch what it needs: where they are compared, up to
# the last byte, both can have it.
ENVIRONMENT = {"XLA_CLIENT_MEM_FRACTION": "0.94", "PYTHONUNBUFFERED": "1"}


@dataclasses.dataclass
class Clock:
    """The minutes that are left, of the whole and of the part that is measured.

    Attributes:
        end: when no process may run any more, in seconds of `time.monotonic`.
        part_end: when none of this part may start any more.
        longest: seconds that the longest process took so far, by what it measured.
    """

    end: float
    part_end: float = 0.0
    longest: dict[str, float] = dataclasses.field(default_factory=dict[str, float])

    @property
    def seconds(self) -> float:
        return max(self.end - time.monotonic(), 0.0)

    def start_part(self, share: float) -> None:
        """Gives a part this share of what is left; what it leaves goes to the parts after it."""
        self.part_end = time.monotonic() + share * self.seconds

    def may_start(self, what: str, times: int = 1) -> bool:
        """Whether so many processes would end within this part, if each takes as long as the
        longest that measured this so far.
        """
        return time.monotonic() + times * self.longest.get(what, 0.0) < self.part_end

    def run(
        self,
        command: Sequence[str],
        *,
        what: str = "",
        stop: "StopAt | None" = None,
        environment: Record | None = None,
    ) -> Record:
        """Runs a command until it ends or the minutes are up.

        Returns `status` ok, oom, failed or late, with `reason` and `code`.

        Args:
            what: is measured.
            stop: when to send the process a TERM, as a machine that is taken away does.
            environment: variables to add.
        """
        started = time.monotonic()
        # Pipes would wait for what it leaves behind.
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(
                command,
                stdout=output,
                stderr=errors,
                start_new_session=True,
                env=ENVIRONMENT | os.environ | (environment or {}),
            )
            try:
                if stop is not None:
                    stop.wait(process, self.end)
                process.wait(self.seconds)
            except subprocess.TimeoutExpired:
                return {"status": "late", "reason": "the minutes were up"}
            finally:
                # PyTorch compiles in processes of their own.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                self.longest[what] = max(self.longest.get(what, 0.0), time.monotonic() - started)
            output.seek(0)
            errors.seek(0)
            written, complaints = (
                file.read().decode(errors="replace") for file in (output, errors)
            )
        found = {
            "code": process.returncode,
            "output": written,
            "seconds": time.monotonic() - started,
        }
        if process.returncode == 0:
            return found | {"status": "ok", "reason": None}
        # By the kernel, when the machine has no memory left.
        if process.returncode == -signal.SIGKILL:
            return found | {"status": "oom", "reason": "out of memory: killed"}
        said = [line.strip() for line in complaints.splitlines() if line.strip()]
        return (
            found
            | {"errors": complaints[-3000:]}
            | measurement.failure(
                said[-1] if said else f"ended with {process.returncode}", complaints
            )
        )

    def cell(
        self,
        function: str,
        /,
        *,
        what: str = "",
        environment: Record | None = None,
        **arguments: Any,
    ) -> Record:
        """Measures a function of gpu/cells.py and returns what it says, with `status` and `reason`.

        Some of it if it fails.
        """
        command = [sys.executable, "-m", "gpu.cells", function, json.dumps(arguments)]
        path = os.pathsep.join(filter(None, (str(BENCHMARKS), os.environ.get("PYTHONPATH"))))
        own = {"PYTHONPATH": path} | (environment or {})
        ended = self.run(command, what=what or function, environment=own)
        found: Record = {
            name: ended[name] for name in ("status", "reason", "seconds", "errors") if name in ended
        }
        for line in ended.get("output", "").splitlines():
            with contextlib.suppress(ValueError):  # libraries print, too
                said = json.loads(line)
                found |= said if isinstance(said, dict) else {}
        return found


@dataclasses.dataclass(frozen=True)
class StopAt:
    """Sends a training run a TERM as soon as its metrics have so many rows."""

    metrics: pathlib.Path
    rows: int

    def wait(self, process: subprocess.Popen[bytes], end: float) -> None:
        while process.poll() is None and time.monotonic() < end:
            if self.metrics.exists() and self.metrics.read_text().count("\n") >= self.rows:
                process.terminate()
                return
            time.sleep(0.02)
