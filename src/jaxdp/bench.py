"""`python -m jaxdp.bench`: measures how many images per second each strategy trains."""

import itertools
import json
import pathlib
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jaxdp.cli import command_line
from jaxdp.config import (
    LOCAL,
    POSITIVE,
    LayoutConfig,
    OptimizationConfig,
    PartsConfig,
    TrainConfig,
    setting,
    settings_group,
)
from jaxdp.config.values import BatchSizes, Counts
from jaxdp.errors import ConfigError, flag
from jaxdp.launching import measurement
from jaxdp.plugins.loading import load_plugins
from jaxdp.reporting.benchmarks import Record, cell_name
from jaxdp.rundir.write import check_folder, no_link
from jaxdp.runtime import platform
from jaxdp.text.console import say_again
from jaxdp.text.flags import for_command
from jaxdp.text.units import time_text

DESCRIPTION = "Measure throughput over strategies, batch sizes and devices."
_HIDDEN = ("global_batch_size", "per_device_batch_size", "epochs", "strategy")
# More steps than can be measured, so that the pipeline does not end.
_ENDLESS = 10**6


@settings_group
class BenchConfig(PartsConfig, LayoutConfig, OptimizationConfig):
    """The grid of measurements."""

    strategies: tuple[str, ...] = setting(
        ("single", "pmap"), "strategies to measure", metavar="NAME,NAME,...", separator=","
    )
    batch_sizes: BatchSizes = setting(
        BatchSizes((32, 64, 128)),
        "global batch sizes: examples per step on all devices",
        metavar="N,N,...",
    )
    devices: Counts = setting(
        Counts((1, 2, 4, 8)),
        "numbers of devices; on a CPU they are simulated and share its cores",
        metavar="N,N,...",
    )
    steps: int | None = setting(
        None, "steps of a repetition (default: about a second of them, at least 5)", POSITIVE
    )
    repeats: int = setting(
        5, "repetitions; the table has their median and spread (default: 5)", POSITIVE
    )
    output: str = setting("bench", "folder for bench.jsonl, which grows", LOCAL, metavar="DIR")


@command_line.program("jaxdp.bench")
def main(argv: Sequence[str]) -> int:
    """Measures the cells of the grid, or for `cell` the one that standard input describes."""
    if [*argv] == ["cell"]:
        _measure(json.load(sys.stdin))
        return 0
    asked = command_line.parse(
        BenchConfig,
        argv,
        prog="python -m jaxdp.bench",
        description=DESCRIPTION,
        defaults_file=False,
        hidden=_HIDDEN,
    )
    return run(asked, [*cells(asked)])


def cells(asked: BenchConfig) -> Iterator[TrainConfig]:
    """Yields the configuration of each cell of the grid, and prints the cells that make no sense on
    standard error.
    """
    from jaxdp.sharding.strategy import by_name

    load_plugins(asked.plugins)
    shared = asked.part(TrainConfig, devices=None, steps=None)
    parts, axes = shared.accumulate_steps, (asked.devices.values, asked.batch_sizes.values)
    for strategy, count, size in itertools.product(asked.strategies, *axes):
        reason = ""
        if by_name(strategy).one_device and count > 1:
            reason = "it uses one"
        elif size % (count * parts) and not shared.mesh:
            reason = "the devices and their microbatches do not divide it"
        config = shared.replace(
            strategy=strategy, devices=count, global_batch_size=size, steps=_ENDLESS
        )
        if reason:
            _leave_out(config, reason)
        else:
            yield config


def _leave_out(config: TrainConfig, reason: str) -> None:
    say_again(f"left out: {cell_name(config.plain())}: {reason}")


def run(asked: BenchConfig, configs: Sequence[TrainConfig]) -> int:
    """Measures the cells, writes their records, prints a table, and returns the command's exit
    code.

    Raises:
        ConfigError: if nothing could be run, or the folder cannot be written.
    """
    if not configs:
        axes = f"{flag('strategies')}, {flag('devices')} or {flag('batch_sizes')}"
        raise ConfigError("", "", f"no cell of the grid is left; change {axes}")
    records: list[Record] = []
    folder, interrupted = pathlib.Path(asked.output), False
    check_folder("output", folder)
    try:
        with open(folder / "bench.jsonl", "a", opener=no_link) as file:
            for record in measure_all(asked, configs):
                print(json.dumps(record), file=file, flush=True)
                records.append(record)
    except KeyboardInterrupt:
        interrupted = True
        say_again("jaxdp.bench: interrupted; the table has the cells before")
    from jaxdp.reporting import benchmarks

    if records:
        benchmarks.show(records)
        say_again(f"{folder / 'bench.jsonl'} is written")
    measured = any(record["status"] == "ok" for record in records)
    return int(interrupted or not measured)


def measure_all(asked: BenchConfig, configs: Sequence[TrainConfig]) -> Iterator[Record]:
    """Yields the record of each cell as it ends.

    Raises:
        ConfigError: if the first cell is refused, because the other cells would probably be refused
            as well.
    """
    measured = False
    with tempfile.TemporaryDirectory(prefix="jaxdp-bench-") as cache:
        for number, config in enumerate(configs, 1):
            request = {"config": config.plain(), "steps": asked.steps, "repeats": asked.repeats}
            record = describe(config) | measurement.run(request, cache)
            reason = record["reason"]
            if record["status"] == "refused":
                if not measured:
                    raise ConfigError("", "", reason)
                _leave_out(config, reason)
                continue
            measured = True
            if record["status"] == "ok":
                reason = f"{record['images_per_second']['median']:,.0f} images/s"
            name = cell_name(record)
            say_again(f"[{number}/{len(configs)}] {name}: {reason}")
            yield record


def describe(config: TrainConfig) -> Record:
    """Returns the facts of a cell that are known before it runs."""
    plain = config.plain()
    named = ("model", "strategy", "devices", "global_batch_size", "precision", "dataset")
    return {
        "time": time_text(),
        **{name: plain[name] for name in named},
        "settings": config.changed(),
        "cores": platform.cores(),
    }


def _measure(request: Mapping[str, Any]) -> None:
    """Measures a cell, in the process that `measurement.run` started, and prints a line about the
    machine and one with the result.
    """
    try:
        config = TrainConfig.of(**request["config"])
        platform.configure(
            config.devices, deterministic=config.deterministic, precision=config.precision
        )
        from jaxdp.build.setup import create_setup
        from jaxdp.training import summary, throughput

        device = platform.select_devices(config.devices)[0]
        machine = {
            "platform": device.platform,
            "device_kind": device.device_kind,
            "versions": summary.versions(),
        }
        print(json.dumps(machine), flush=True)
        figures = throughput.benchmark_training(
            create_setup(config), steps=request["steps"], repeats=request["repeats"]
        )
        print(json.dumps({"status": "ok", "reason": None} | figures), flush=True)
    except ConfigError as error:
        print(json.dumps({"status": "refused", "reason": for_command(error)}), flush=True)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        print(json.dumps(measurement.failure(reason, reason)), flush=True)


if __name__ == "__main__":
    sys.exit(main())
