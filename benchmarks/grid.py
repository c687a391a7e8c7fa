"""Measures the throughput of training over strategies, batch sizes and devices, each cell of the
grid in its own process, and prints a table.
"""

import argparse
import itertools
import json
import pathlib
import sys
import tempfile
from collections.abc import Iterator, Sequence

import measurement
import rich.table
from measurement import Record

from jaxdp.cli import command_line
from jaxdp.config import POSITIVE, TrainConfig
from jaxdp.errors import ConfigError, flag
from jaxdp.plugins.loading import load_plugins
from jaxdp.reporting.console import wide_console
from jaxdp.rundir.write import check_folder
from jaxdp.runtime import platform
from jaxdp.text.parsing import is_count
from jaxdp.text.units import bytes_text, time_text

PROGRAM = "benchmarks/throughput.py"
# Settings of training that the grid sets, and its own flags for them.
_OF_THE_GRID = {
    "strategy": "strategies",
    "global_batch_size": "batch_sizes",
    "per_device_batch_size": "batch_sizes",
    "epochs": "steps",
}
_TRAINING = "All other flags are settings of training, and apply to all cells."
# More steps than can be measured, so that the pipeline does not end.
_ENDLESS = 10**6


@command_line.program(PROGRAM)
def main(words: Sequence[str]) -> int:
    """Measures the grid of these flags, and returns the exit code.

    Raises:
        ConfigError: if nothing could be run, or the folder cannot be written.
    """
    asked, training = parse(words)
    found = [*cells(asked, training)]
    if not found:
        axes = f"{flag('strategies')}, {flag('devices')} or {flag('batch_sizes')}"
        raise ConfigError("", "", f"no cell of the grid is left; change {axes}")
    check_folder("output", asked.output)
    records: list[Record] = []
    path, interrupted = asked.output / "bench.jsonl", False
    try:
        with path.open("a") as file:
            for record in measure(found, asked.steps, asked.repeats):
                print(json.dumps(record), file=file, flush=True)
                records.append(record)
    except KeyboardInterrupt:
        interrupted = True
        _say("interrupted; the table has the cells before")
    if records:
        show(records)
        _say(f"{path} is written")
    measured = any(record["status"] == "ok" for record in records)
    return int(interrupted or not measured)


def parse(words: Sequence[str]) -> tuple[argparse.Namespace, TrainConfig]:
    """Returns the flags of the grid, and the settings of training that all cells share.

    Raises:
        ConfigError: for a flag or a value that cannot be used.
    """
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description=__doc__,
        epilog=f"{_TRAINING} They are the flags of python -m jaxdp.train.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--strategies",
        default="single,pmap",
        metavar="NAME,NAME,...",
        help="how devices share the work (default: %(default)s)",
    )
    parser.add_argument(
        "--batch-sizes",
        default="32,64,128",
        metavar="N,N,...",
        help="global batch sizes: examples per step on all devices (default: %(default)s)",
    )
    parser.add_argument(
        "--devices",
        default="1,2,4,8",
        metavar="N,N,...",
        help="on a CPU they are simulated and share its cores (default: %(default)s)",
    )
    parser.add_argument(
        "--steps", type=int, help="of a repetition (default: about a second of them, at least 5)"
    )
    parser.add_argument(
        "--repeats",
        type=int,
        default=5,
        help="repetitions; the table has their median and spread (default: %(default)s)",
    )
    parser.add_argument(
        "--output",
        type=pathlib.Path,
        default=pathlib.Path("bench"),
        metavar="DIR",
        help="folder for bench.jsonl, which grows (default: %(default)s)",
    )
    asked, others = parser.parse_known_args(words)
    for name in ("steps", "repeats"):
        if getattr(asked, name) is not None:
            POSITIVE.check(name, getattr(asked, name))
    asked.strategies = [name.strip() for name in asked.strategies.split(",")]
    asked.batch_sizes = _numbers("batch_sizes", asked.batch_sizes)
    asked.devices = _numbers("devices", asked.devices)
    for name in sorted(command_line.given_flags(others) & _OF_THE_GRID.keys()):
        raise ConfigError(name, "", f"is set by the grid; use {flag(_OF_THE_GRID[name])}")
    training = command_line.parse(TrainConfig, others, prog=PROGRAM, description=_TRAINING)
    return asked, training


def _numbers(name: str, text: str) -> list[int]:
    """Reads e.g. `4,1,2`, in ascending order."""
    words = [word.strip() for word in text.split(",")]
    for word in words:
        if not is_count(word) or not int(word):
            remedy = f"{word} is no number from 1; write numbers with commas, e.g. 1,2,4"
            raise ConfigError(name, text, remedy)
    return sorted(set(map(int, words)))


def cells(asked: argparse.Namespace, training: TrainConfig) -> Iterator[TrainConfig]:
    """Yields the configuration of each cell of the grid, and prints the cells that make no sense on
    standard error.
    """
    from jaxdp.sharding.strategy import by_name

    load_plugins(training.plugins)
    axes = asked.strategies, asked.devices, asked.batch_sizes
    for strategy, count, size in itertools.product(*axes):
        config = training.replace(
            strategy=strategy, devices=count, global_batch_size=size, steps=_ENDLESS
        )
        if by_name(strategy).one_device and count > 1:
            _leave_out(config, "it uses one")
        elif size % (count * training.accumulate_steps):
            _leave_out(config, "the devices and their microbatches do not divide it")
        else:
            yield config


def measure(configs: Sequence[TrainConfig], steps: int | None, repeats: int) -> Iterator[Record]:
    """Yields the record of each cell as it ends.

    Args:
        steps: steps of a repetition; None for about a second of them.

    Raises:
        ConfigError: if the first cell is refused, because the other cells would probably be refused
            as well.
    """
    measured = False
    with tempfile.TemporaryDirectory(prefix="jaxdp-bench-") as cache:
        for number, config in enumerate(configs, 1):
            request = {"config": config.plain(), "steps": steps, "repeats": repeats}
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
            _say(f"[{number}/{len(configs)}] {cell_name(record)}: {reason}")
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


def _leave_out(config: TrainConfig, reason: str) -> None:
    _say(f"left out: {cell_name(config.plain())}: {reason}")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def cell_name(record: Record) -> str:
    """Returns e.g. `pmap on 2 devices, batch 64`."""
    count = record["devices"]
    place = f"{record['strategy']} on {count} device{'s' if count > 1 else ''}"
    return f"{place}, batch {record['global_batch_size']}"


def efficiency(record: Record, records: Sequence[Record]) -> float | None:
    """Returns the throughput divided by devices times the throughput of one device.

    The single device has the same global batch, and the same strategy or the first one that was
    measured on one device. Returns None if there is no measurement to compare with.
    """
    alone = {
        each["strategy"]: each["images_per_second"]["median"]
        for each in records
        if each["status"] == "ok"
        and (each["devices"], each["global_batch_size"]) == (1, record["global_batch_size"])
    }
    base = alone.get(record["strategy"]) or next(iter(alone.values()), None)
    if base is None or record["devices"] == 1:
        return None
    return record["images_per_second"]["median"] / record["devices"] / base


def show(records: Sequence[Record]) -> None:
    """Prints the table of a grid, followed by the problems."""
    table = rich.table.Table("strategy", title=heading(records))
    for title in ("devices", "batch", "images/s", "±%", "compile s", "memory", "efficiency"):
        table.add_column(title, justify="right", no_wrap=True)
    for record in records:
        row = [record["strategy"], str(record["devices"]), str(record["global_batch_size"])]
        if record["status"] == "ok":
            rates = record["images_per_second"]
            spread = 50 * (rates["max"] - rates["min"]) / rates["median"]
            row += [f"{rates['median']:,.0f}", f"{spread:.0f}"]
            row += [f"{record['compile_seconds']:.1f}", bytes_text(record["memory_bytes"])]
            scaling = efficiency(record, records)
            row.append("" if scaling is None else f"{scaling:.0%}")
        else:
            row.append("OOM" if record["status"] == "oom" else "failed")
        table.add_row(*row)
    console = wide_console()
    console.print(table)
    console.print("Memory is planned, of one device. Efficiency: compared with one device.")
    for record in records:
        if record["reason"]:
            console.print(f"{cell_name(record)}: {record['reason']}")


def heading(records: Sequence[Record]) -> str:
    """Returns a line on the model and the devices, and on the resources that simulated devices
    share.
    """
    record = next((each for each in records if "platform" in each), records[0])
    kind = record.get("device_kind", "an unknown device")
    if record.get("platform") == "cpu":
        kind = f"devices of a CPU, which share its {record['cores']} cores"
    return f"{record['model']} on {record['dataset']}, {record['precision']}; {kind}"
