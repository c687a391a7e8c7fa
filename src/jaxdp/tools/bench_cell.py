"""Measures one cell of a bench in a process of its own: what happens to it, out of memory for instance, is a result and no end."""

import contextlib
import datetime
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from jaxdp.config import TrainConfig
from jaxdp.registry import ConfigError
from jaxdp.runtime import platform

Record = dict[str, Any]

COMMAND = (sys.executable, "-m", "jaxdp.bench", "cell")
_OUT_OF_MEMORY = re.compile(r"RESOURCE_EXHAUSTED|bad_alloc|MemoryError|[Oo]ut of memory")
_REASON_LENGTH = 300


def describe(config: TrainConfig) -> Record:
    """Returns what is known of a cell before it runs."""
    named = ("model", "strategy", "devices", "global_batch_size", "precision", "dataset", "steps")
    defaults = TrainConfig().plain()
    settings = {name: value for name, value in config.plain().items() if name not in named and value != defaults[name]}
    return {
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "model": config.model.name,
        "dataset": config.data.dataset,
        "strategy": config.sharding.strategy,
        "devices": config.sharding.devices,
        "global_batch_size": config.optimization.global_batch_size,
        "precision": config.model.precision,
        "settings": settings,
        "cores": platform.cores(),
    }


def run_cell(request: dict[str, Any], cache: str) -> Record:
    """Runs a cell and returns what it says, with `status` ok, oom, failed or refused, and the `reason` in one line.

    Args:
        cache: folder of compiled programs: empty at first, so that compiling is measured, and yet no program is compiled twice.
    """
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": cache, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    process = subprocess.Popen(
        COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
        env=environment,
    )  # fmt: skip
    try:
        written, errors = process.communicate(json.dumps(request))
    finally:  # interrupted, it must not go on
        process.kill()
        process.wait()
    found: Record = {"status": "", "reason": None}
    for line in written.splitlines():
        with contextlib.suppress(ValueError):  # libraries print, too
            said = json.loads(line)
            found |= said if isinstance(said, dict) else {}
    if found["status"]:
        return found
    if process.returncode == -signal.SIGKILL:  # by the kernel, when the machine has no memory left
        return found | {"status": "oom", "reason": "out of memory: killed"}
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    ended = f"ended by signal {-process.returncode}" if process.returncode < 0 else f"ended with {process.returncode}"
    return found | failure(lines[-1] if lines else ended, errors)


def failure(reason: str, text: str) -> Record:
    """Returns status and reason of a cell that failed, given all that it said."""
    # A traceback's lines of source, which are indented, may speak of memory before the error itself does.
    text = "\n".join(line for line in text.splitlines() if not line.startswith(" "))
    match = _OUT_OF_MEMORY.search(text)
    line = (text[match.start() :] if match else reason).splitlines()[0][:_REASON_LENGTH]
    return {"status": "oom" if match else "failed", "reason": f"out of memory: {line}" if match else line}


def answer(request: Mapping[str, Any]) -> None:
    """The other end of `run_cell`: prints a line about the machine, and when it is done one with the result."""
    try:
        config = TrainConfig.of(**request["config"])
        platform.configure(config.sharding.devices, deterministic=config.sharding.deterministic)
        from jaxdp.tools import throughput
        from jaxdp.training import summary
        from jaxdp.training.setup import create_setup

        device = platform.select_devices(config.sharding.devices)[0]
        machine = {"platform": device.platform, "device_kind": device.device_kind, "versions": summary.versions()}
        print(json.dumps(machine), flush=True)
        found = throughput.benchmark_training(create_setup(config), steps=request["steps"], repeats=request["repeats"])
        print(json.dumps({"status": "ok", "reason": None} | found), flush=True)
    except ConfigError as error:
        print(json.dumps({"status": "refused", "reason": str(error)}), flush=True)
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        print(json.dumps(failure(said, said)), flush=True)
