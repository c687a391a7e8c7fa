"""Measures training in a separate process, so that an end for lack of memory is a result."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from typing import Any

Record = dict[str, Any]

COMMAND = (sys.executable, "-m", "jaxdp.bench", "cell")
_OUT_OF_MEMORY = re.compile(r"RESOURCE_EXHAUSTED|bad_alloc|MemoryError|[Oo]ut of memory")
_REASON_LENGTH = 300


def run(request: dict[str, Any], cache: str) -> Record:
    """Runs a measurement, and returns its result, with `status` ok, oom, failed or refused, and the
    `reason` in one line.

    Args:
        request: the measurement of the child process.
        cache: folder of compiled programs. It is empty at first, so that compilation is measured,
            but no program is compiled twice.
    """
    environment = os.environ | {
        "JAX_COMPILATION_CACHE_DIR": cache,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    process = subprocess.run(
        COMMAND,
        input=json.dumps(request),
        capture_output=True,
        text=True,
        errors="replace",
        env=environment,
    )
    record: Record = {}
    for line in process.stdout.splitlines():
        with contextlib.suppress(ValueError):  # libraries also print
            printed = json.loads(line)
            record |= printed if isinstance(printed, dict) else {}
    code = process.returncode
    if "status" in record:
        return record
    if code == -signal.SIGKILL:  # by the kernel, because the machine has no memory left
        return record | {"status": "oom", "reason": "out of memory: killed"}
    lines = process.stderr.strip().splitlines()
    reason = f"ended by signal {-code}" if code < 0 else f"ended with {code}"
    return record | failure(lines[-1] if lines else reason, process.stderr)


def failure(reason: str, text: str) -> Record:
    """Returns status and reason of a failed trial from its output."""
    # Source lines of a traceback, which are indented, may mention memory before the error does.
    text = "\n".join(line for line in text.splitlines() if not line.startswith(" "))
    match = _OUT_OF_MEMORY.search(text)
    line = (text[match.start() :] if match else reason).splitlines()[0][:_REASON_LENGTH]
    return {
        "status": "oom" if match else "failed",
        "reason": f"out of memory: {line}" if match else line,
    }
