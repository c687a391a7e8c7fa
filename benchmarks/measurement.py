"""Measures the speed of training in a separate process, so that an end for lack of memory is a
result.

    python benchmarks/measurement.py < REQUEST.json

prints lines of JSON: what is known of the machine, then `status`, `reason` and the figures.
"""

import collections
import contextlib
import gc
import json
import math
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jaxdp.config import TrainConfig
from jaxdp.errors import ConfigError
from jaxdp.runtime import platform
from jaxdp.text.flags import for_command

if TYPE_CHECKING:
    from jaxdp.build.setup import Setup

Record = dict[str, Any]

COMMAND = (sys.executable, __file__)
_OUT_OF_MEMORY = re.compile(r"RESOURCE_EXHAUSTED|bad_alloc|MemoryError|[Oo]ut of memory")
_REASON_LENGTH = 300
_REPETITION_SECONDS = 1.0
_MIN_STEPS, _MAX_STEPS, _WARM_UP = 5, 2000, 4


def run(request: Record, cache: str) -> Record:
    """Runs a measurement, and returns its result, with `status` ok, oom, failed or refused, and the
    `reason` in one line.

    Args:
        request: `config`, the settings of a run by name; `steps` and `repeats` as in `figures`.
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
    """Returns status and reason of a measurement that failed, from its output."""
    # Source lines of a traceback, which are indented, may mention memory before the error does.
    text = "\n".join(line for line in text.splitlines() if not line.startswith(" "))
    match = _OUT_OF_MEMORY.search(text)
    line = (text[match.start() :] if match else reason).splitlines()[0][:_REASON_LENGTH]
    return {
        "status": "oom" if match else "failed",
        "reason": f"out of memory: {line}" if match else line,
    }


def measure(request: Mapping[str, Any]) -> None:
    """Prints a line about the machine and one with the result, in the process of `run`."""
    try:
        config = TrainConfig.of(**request["config"])
        platform.configure(
            config.devices,
            deterministic=config.deterministic,
            precision=config.precision,
            strategy=config.strategy,
        )
        from jaxdp.build.setup import create_setup
        from jaxdp.training import summary

        device = platform.select_devices(config.devices)[0]
        machine = {
            "platform": device.platform,
            "device_kind": device.device_kind,
            "versions": summary.versions(),
        }
        print(json.dumps(machine), flush=True)
        found = figures(create_setup(config), steps=request["steps"], repeats=request["repeats"])
        print(json.dumps({"status": "ok", "reason": None} | found), flush=True)
    except ConfigError as error:
        print(json.dumps({"status": "refused", "reason": for_command(error)}), flush=True)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        print(json.dumps(failure(reason, reason)), flush=True)


def figures(setup: "Setup", *, steps: int | None, repeats: int) -> Record:
    """Trains for a few seconds and returns figures as plain values.

    Args:
        setup: the parts of a run.
        steps: number of steps of a repetition; None for about a second, and at least 5 steps.
        repeats: number of repetitions, for median, minimum and maximum.
    """
    from jaxdp.sharding import memory
    from jaxdp.training import summary

    strategy, batch_size = setup.strategy, setup.batches.global_batch_size
    training = _Training(setup)
    first = training.run(1)
    # Tracing leaves millions of objects. A collection of these objects would disturb a measurement.
    gc.collect()
    gc.freeze()
    training.run(_WARM_UP)
    count = steps or steps_for(training.run(_WARM_UP) / _WARM_UP)
    seconds = [training.run(count) / count for _ in range(repeats)]
    planned_bytes = None
    with contextlib.suppress(ConfigError):  # of a strategy whose programs XLA does not plan
        planned_bytes = memory.compile_step(strategy, setup.abstract_step, batch_size)[1].total
    return {
        "model": setup.config.model,
        "dataset": setup.config.dataset,
        "image_shape": list(setup.dataset.image_shape),
        "parameters": summary.parameter_count(setup),
        "data_placement": setup.config.data_placement,
        "steps": count,
        "repeats": repeats,
        "compile_seconds": max(first - statistics.median(seconds), 0.0),
        "images_per_second": _spread([batch_size / each for each in seconds]),
        "ms_per_step": _spread([1e3 * each for each in seconds]),
        "memory_bytes": planned_bytes,
    }


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def steps_for(seconds: float) -> int:
    """Returns the number of steps of a repetition.

    Args:
        seconds: the duration of a step.
    """
    return min(max(_MIN_STEPS, math.ceil(_REPETITION_SECONDS / max(seconds, 1e-9))), _MAX_STEPS)


class _Training:
    """A run that continues from one measurement to the next."""

    def __init__(self, setup: "Setup") -> None:
        self._constants, self._batches = setup.constants, setup.batches.placed(0)
        self.state = setup.strategy.restore(setup.create_state())
        self._step = setup.strategy.train_step

    def run(self, steps: int) -> float:
        """Returns the seconds of `steps` steps, with input, and with as many steps under way as in
        training.
        """
        import jax

        from jaxdp.training.reader import RUN_AHEAD

        under_way: collections.deque[Any] = collections.deque()
        start = time.perf_counter()
        for _ in range(steps):
            self.state, sums = self._step(self.state, next(self._batches), self._constants)
            under_way.append(sums)
            if len(under_way) >= RUN_AHEAD:
                jax.block_until_ready(under_way.popleft())
        jax.block_until_ready((self.state, under_way))
        return time.perf_counter() - start


if __name__ == "__main__":
    measure(json.load(sys.stdin))
