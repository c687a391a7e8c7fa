"""The grid of a bench, strategy x devices x batch: which cells it has, and how they are measured
one after the other.
"""

import itertools
import json
import pathlib
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import TypeVar

from jaxdp.config import MOST_DEVICES, TrainConfig
from jaxdp.parsing import is_count
from jaxdp.registry import ConfigError, nearest
from jaxdp.rundir.write import no_link
from jaxdp.runtime import trial
from jaxdp.runtime.trial import Record
from jaxdp.tools import bench_cell

T = TypeVar("T")

STRATEGIES = ("single", "central", "pmap", "shard_map", "sharded")
# More than could be measured: the pipeline must not come to its end.
_ENDLESS = 10**6
# What a cell can be refused for while others run; any other usage error is one of all cells.
_OF_A_CELL = (
    "strategy devices global-batch-size accumulate-steps batch-norm mesh shard-params".split()
)


def parse_strategies(text: str) -> list[str]:
    """Reads `single,pmap`; raises ConfigError for an unknown name, or none."""
    words = list(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    for word in words:
        if word not in STRATEGIES:
            raise ConfigError(
                "strategies", word, "unknown strategy; " + nearest(word, list(STRATEGIES))
            )
    return _given("strategies", text, words)


def parse_numbers(field: str, text: str) -> list[int]:
    """Reads `4,1,2` as 1, 2, 4; raises ConfigError for what is no number above 0, or none."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    for word in words:
        if not is_count(word) or not int(word):
            raise ConfigError(
                field,
                text,
                f"{word} is no number; write numbers with commas between them, e.g. 1,2,4",
            )
        if field == "devices" and int(word) > MOST_DEVICES:
            raise ConfigError(field, text, f"must be at most {MOST_DEVICES}")
    return _given(field, text, sorted({int(word) for word in words}))


def _given(field: str, text: str, found: list[T]) -> list[T]:
    if not found:
        raise ConfigError(field, text, "names nothing; write at least one")
    return found


def cells(
    settings: TrainConfig,
    strategies: Sequence[str],
    devices: Sequence[int],
    batch_sizes: Sequence[int],
) -> Iterator[TrainConfig]:
    """Yields what to train in each cell, and says on standard error which cells make no sense.

    Args:
        settings: what all cells share.
    """
    for strategy, count in itertools.product(strategies, devices):
        reason = _why_not(settings, strategy, count)
        if reason:
            _leave_out(f"{strategy} on {_devices(count)}", reason)
            continue
        for size in batch_sizes:
            microbatches = settings.accumulate_steps
            if size % (count * microbatches) and not settings.mesh:
                times = f" with {microbatches} microbatches each" if microbatches > 1 else ""
                _leave_out(
                    f"{strategy} on {_devices(count)}, batch {size}",
                    f"{_devices(count)}{times} do not divide it",
                )
                continue
            yield settings.replace(
                strategy=strategy, devices=count, global_batch_size=size, steps=_ENDLESS
            )


def _why_not(settings: TrainConfig, strategy: str, devices: int) -> str | None:
    if strategy == "single" and devices > 1:
        return "it uses one"
    if (settings.mesh or settings.shard_params) and strategy != "sharded":
        return "it has no --mesh or --shard-params"
    return None


def _leave_out(cell: str, reason: str) -> None:
    print(f"left out: {cell}: {reason}", file=sys.stderr)


def _devices(count: int) -> str:
    return f"{count} device{'s' if count > 1 else ''}"


def run(
    configs: Sequence[TrainConfig],
    folder: pathlib.Path,
    *,
    steps: int | None,
    repeats: int,
) -> int:
    """Measures the cells, writes their records and a figure, prints a table, and returns the
    command's exit code.

    Args:
        folder: where bench.jsonl grows.
        steps, repeats: as for `throughput.benchmark_training`.

    Raises:
        ConfigError: if nothing could be run, or the folder cannot be written.
    """
    if not configs:
        raise ConfigError(
            "", "", "no cell of the grid is left; change --strategies, --devices or --batch-sizes"
        )
    from jaxdp.reporting import benchmarks

    records: list[Record] = []
    interrupted = False
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / "bench.jsonl", "a", opener=no_link) as file:
            for record in measure_all(configs, steps, repeats):
                print(json.dumps(record), file=file, flush=True)
                records.append(record)
    except KeyboardInterrupt:
        interrupted = True
        print("jaxdp.bench: interrupted; what follows is of the cells before", file=sys.stderr)
    except OSError as error:
        raise ConfigError(
            "output", folder, f"cannot be written: {error.strerror or error}"
        ) from error
    if records:
        benchmarks.show(records)
    measured = any(record["status"] == "ok" for record in records)
    if measured:
        paths = benchmarks.plot(records, folder)
        print(
            f"{folder / 'bench.jsonl'} and {' and '.join(map(str, paths))} are written",
            file=sys.stderr,
        )
    elif not interrupted and not records:
        raise ConfigError(
            "",
            "",
            "no cell of the grid could be run; change --strategies, --devices or --batch-sizes",
        )
    return int(interrupted or not measured)


def measure_all(
    configs: Sequence[TrainConfig], steps: int | None, repeats: int
) -> Iterator[Record]:
    """Yields the record of each cell as it ends.

    Raises:
        ConfigError: for a usage error that is one of all cells.
    """
    measured = False
    with tempfile.TemporaryDirectory(prefix="jaxdp-bench-") as cache:
        for number, config in enumerate(configs, 1):
            assert config.devices is not None
            name = (
                f"{config.strategy} on {_devices(config.devices)}, batch {config.global_batch_size}"
            )
            request = {"config": config.plain(), "steps": steps, "repeats": repeats}
            record = bench_cell.describe(config) | trial.run(request, cache)
            reason = record["reason"]
            if record["status"] == "refused":
                if not measured and not reason.startswith(
                    tuple(f"--{flag} " for flag in _OF_A_CELL)
                ):
                    raise ConfigError("", "", reason)
                _leave_out(name, reason)
                continue
            measured = True
            said = (
                f"{record['images_per_second']['median']:,.0f} images/s"
                if record["status"] == "ok"
                else reason
            )
            print(f"[{number}/{len(configs)}] {name}: {said}", file=sys.stderr)
            yield record
