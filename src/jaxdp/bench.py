"""`python -m jaxdp.bench`: how many images a second does each strategy train on, and where does the time of a step go?

Each cell of the grid, strategy x devices x batch, runs in a process of its own: what happened to one, out of memory for instance,
is a result and no end.
"""

import contextlib
import dataclasses
import datetime
import itertools
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import tyro

from jaxdp import command_line
from jaxdp.config import (
    DataConfig,
    LayoutConfig,
    ModelConfig,
    OptimizationConfig,
    OptionalInt,
    OptionalPath,
    PluginsConfig,
    TaskConfig,
    TrainConfig,
    validate,
)
from jaxdp.registry import ConfigError, nearest
from jaxdp.runtime import platform

DESCRIPTION = "Measure throughput over strategies, batch sizes and devices."
CELL_COMMAND = (sys.executable, "-m", "jaxdp.bench", "cell")
STRATEGIES = ("single", "central", "pmap", "shard_map", "sharded")
# More than could be measured: the pipeline must not come to its end.
_ENDLESS = 10**6
_OUT_OF_MEMORY = re.compile(r"RESOURCE_EXHAUSTED|bad_alloc|MemoryError|[Oo]ut of memory")
# What a cell can be refused for while others run; other mistakes are those of all.
_OF_A_CELL = "strategy devices global-batch-size accumulate-steps batch-norm mesh shard-params grad-reduce-dtype".split()
_REASON_LENGTH = 300
_HIDDEN = ("global_batch_size", "per_device_batch_size", "epochs")

Record = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class GridConfig:
    strategies: Annotated[str, tyro.conf.arg(metavar="NAME,NAME,...")] = "single,pmap"
    """strategies to measure"""
    batch_sizes: Annotated[str, tyro.conf.arg(metavar="N,N,...")] = "32,64,128"
    """global batch sizes, of examples per step over all devices"""
    devices: Annotated[str, tyro.conf.arg(metavar="N,N,...")] = "1,2,4,8"
    """numbers of devices; on a CPU they are simulated and share its cores"""
    steps: OptionalInt = None
    """steps of a repetition (default: about a second of them, at least 5)"""
    repeats: int = 5
    """repetitions, of which median, minimum and maximum are told"""
    output: Annotated[str, tyro.conf.arg(metavar="DIR")] = "bench"
    """folder for bench.jsonl, which grows, and for the figure of this grid, throughput.png and throughput.svg"""
    compare: OptionalPath = None
    """bench.jsonl of an earlier time, to show the ratio of images/s to"""


@dataclasses.dataclass(frozen=True)
class BenchConfig(GridConfig, OptimizationConfig, LayoutConfig, TaskConfig, DataConfig, ModelConfig, PluginsConfig):
    """What `python -m jaxdp.bench` takes: the grid, and of a training run all else that defines its steps."""

    def __post_init__(self) -> None:
        validate(self)


def main(argv: Sequence[str] | None = None) -> int:
    return command_line.main(_main, argv, "jaxdp.bench")


def _main(argv: Sequence[str]) -> int:
    if list(argv) == ["cell"]:
        return _cell(json.load(sys.stdin))
    config = command_line.parse(
        BenchConfig, argv, prog="python -m jaxdp.bench", description=DESCRIPTION, defaults_file=False, hidden=_HIDDEN
    )
    from jaxdp.reporting import benchmarks

    earlier = benchmarks.read(config.compare) if config.compare else None
    configs = list(cells(config))
    if not configs:
        raise ConfigError("", "", "no cell of the grid is left; change --strategies, --devices or --batch-sizes")
    folder = pathlib.Path(config.output)
    records: list[Record] = []
    interrupted = False
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "bench.jsonl").open("a") as file:
            for record in measure_all(configs, config.steps, config.repeats):
                print(json.dumps(record), file=file, flush=True)
                records.append(record)
    except KeyboardInterrupt:
        interrupted = True
        print("jaxdp.bench: interrupted; what follows is of the cells before", file=sys.stderr)
    except OSError as error:
        raise ConfigError("output", config.output, f"cannot be written: {error.strerror or error}") from error
    if records:
        benchmarks.show(records, earlier)
    if any(record["status"] == "ok" for record in records):
        paths = benchmarks.plot(records, folder)
        print(f"{folder / 'bench.jsonl'} and {' and '.join(map(str, paths))} are written", file=sys.stderr)
    elif not interrupted and not records:
        raise ConfigError("", "", "no cell of the grid could be run; change --strategies, --devices or --batch-sizes")
    return int(interrupted or not any(record["status"] == "ok" for record in records))


def _numbers(field: str, text: str) -> list[int]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    for word in words:
        if not word.isdecimal() or not int(word):
            raise ConfigError(field, text, f"{word} is no number; write numbers with commas between them, e.g. 1,2,4")
    return _given(field, text, sorted({int(word) for word in words}))


def _given(field: str, text: str, found: list[Any]) -> list[Any]:
    if not found:
        raise ConfigError(field, text, "names nothing; write at least one")
    return found


def cells(config: BenchConfig) -> Iterator[TrainConfig]:
    """Yields what to train in each cell, and says on standard error which cells make no sense.

    Raises:
        ConfigError: for a list that cannot be read.
    """
    words = dict.fromkeys(word.strip() for word in config.strategies.split(",") if word.strip())
    for word in words:
        if word not in STRATEGIES:
            raise ConfigError("strategies", word, "unknown strategy; " + nearest(word, list(STRATEGIES)))
    strategies = _given("strategies", config.strategies, list(words))
    devices, batch_sizes = _numbers("devices", config.devices), _numbers("batch_sizes", config.batch_sizes)
    grid = {field.name for field in dataclasses.fields(GridConfig)}
    shared = {field.name for field in dataclasses.fields(TrainConfig)} - grid
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config) if field.name in shared}
    for strategy, count in itertools.product(strategies, devices):
        reason = _why_not(config, strategy, count)
        if reason:
            _leave_out(f"{strategy} on {_devices(count)}", reason)
            continue
        for size in batch_sizes:
            if size % (count * config.accumulate_steps) and not config.mesh:
                parts = f" in {config.accumulate_steps} parts" if config.accumulate_steps > 1 else ""
                _leave_out(f"{strategy} on {_devices(count)}, batch {size}", f"{_devices(count)}{parts} do not divide it")
                continue
            cell = {"strategy": strategy, "devices": count, "global_batch_size": size, "steps": _ENDLESS}
            yield TrainConfig(**values | cell)


def _why_not(config: BenchConfig, strategy: str, devices: int) -> str | None:
    if strategy == "single" and devices > 1:
        return "it uses one"
    if strategy == "central" and config.batch_norm == "global":
        return "it has no --batch-norm global"
    if config.grad_reduce_dtype and strategy in ("single", "sharded"):
        return "it has no --grad-reduce-dtype"
    if (config.mesh or config.shard_params) and strategy != "sharded":
        return "it has no --mesh or --shard-params"
    return None


def _leave_out(cell: str, reason: str) -> None:
    print(f"left out: {cell}: {reason}", file=sys.stderr)


def _devices(count: int) -> str:
    return f"{count} device{'s' if count > 1 else ''}"


def measure_all(configs: Sequence[TrainConfig], steps: int | None, repeats: int) -> Iterator[Record]:
    """Yields the record of each cell as it ends.

    Raises:
        ConfigError: for a mistake that is one of all cells.
    """
    measured = False
    with tempfile.TemporaryDirectory(prefix="jaxdp-bench-") as cache:
        for number, config in enumerate(configs, 1):
            assert config.devices is not None
            name = f"{config.strategy} on {_devices(config.devices)}, batch {config.global_batch_size}"
            record = describe(config) | run_cell({"config": dataclasses.asdict(config), "steps": steps, "repeats": repeats}, cache)
            reason = record["reason"]
            if record["status"] == "mistake":
                if not measured and not reason.startswith(tuple(f"--{flag} " for flag in _OF_A_CELL)):
                    raise ConfigError("", "", reason)
                _leave_out(name, reason)
                continue
            measured = True
            said = f"{record['images_per_second']['median']:,.0f} images/s" if record["status"] == "ok" else reason
            print(f"[{number}/{len(configs)}] {name}: {said}", file=sys.stderr)
            yield record


def describe(config: TrainConfig) -> Record:
    """Returns what is known of a cell before it runs."""
    named = ("model", "strategy", "devices", "global_batch_size", "precision", "dataset", "steps")
    settings = {
        field.name: getattr(config, field.name)
        for field in dataclasses.fields(config)
        if field.name not in named and getattr(config, field.name) != getattr(TrainConfig(), field.name)
    }
    return {
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "model": config.model,
        "dataset": config.dataset,
        "strategy": config.strategy,
        "devices": config.devices,
        "global_batch_size": config.global_batch_size,
        "precision": config.precision,
        "settings": settings,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
    }


def run_cell(request: dict[str, Any], cache: str) -> Record:
    """Runs a cell and returns what it says, with `status` ok, oom, failed or mistake, and the `reason` in one line.

    Args:
        cache: folder of compiled programs: empty at first, so that compiling is measured, and yet no program is compiled twice.
    """
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": cache, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    process = subprocess.Popen(
        CELL_COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
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
    match = _OUT_OF_MEMORY.search(text)
    line = (text[match.start() :] if match else reason).splitlines()[0][:_REASON_LENGTH]
    return {"status": "oom" if match else "failed", "reason": f"out of memory: {line}" if match else line}


def _cell(request: dict[str, Any]) -> int:
    """The other end of `run_cell`: a line about the machine, and when it is done one with the result."""
    try:
        config = TrainConfig(**{name: _listed(value) for name, value in request["config"].items()})
        platform.configure(config.devices, deterministic=config.deterministic)
        from jaxdp.tools import throughput
        from jaxdp.training import summary
        from jaxdp.training.setup import create_setup

        device = platform.select_devices(config.devices)[0]
        machine = {"platform": device.platform, "device_kind": device.device_kind, "versions": summary.versions()}
        print(json.dumps(machine), flush=True)
        found = throughput.measure(create_setup(config), steps=request["steps"], repeats=request["repeats"])
        print(json.dumps({"status": "ok", "reason": None} | found), flush=True)
    except ConfigError as error:
        print(json.dumps({"status": "mistake", "reason": str(error)}), flush=True)
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        print(json.dumps(failure(said, said)), flush=True)
    return 0


def _listed(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


if __name__ == "__main__":
    sys.exit(main())
