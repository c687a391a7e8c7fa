"""`python -m jaxdp.bench`: measures how many images a second each strategy trains on, and where the time of a step goes."""

import dataclasses
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Annotated

import tyro

from jaxdp import command_line
from jaxdp.config import (
    POSITIVE,
    OptimizationConfig,
    OptionalInt,
    OptionalPath,
    PartsConfig,
    ShardingConfig,
    TrainConfig,
)
from jaxdp.registry import ConfigError
from jaxdp.runtime import large_pages

DESCRIPTION = "Measure throughput over strategies, batch sizes and devices."
_REPEATS = 5
_HIDDEN = ("global_batch_size", "per_device_batch_size", "epochs", "strategy")


@dataclasses.dataclass(frozen=True)
class BenchConfig(PartsConfig):
    """What `python -m jaxdp.bench` takes: of a training run all that defines its steps, and the grid."""

    sharding: ShardingConfig = ShardingConfig()
    optimization: OptimizationConfig = OptimizationConfig()
    strategies: Annotated[str, tyro.conf.arg(metavar="NAME,NAME,...")] = "single,pmap"
    """strategies to measure"""
    batch_sizes: Annotated[str, tyro.conf.arg(metavar="N,N,...")] = "32,64,128"
    """global batch sizes, of examples per step over all devices"""
    devices: Annotated[str | None, tyro.conf.arg(metavar="N,N,...", help_behavior_hint="")] = None
    """numbers of devices (default: 1,2,4,8; with --target 1 and all); on a CPU they are simulated and share its cores"""
    target: Annotated[str | None, tyro.conf.arg(metavar="PLATFORM:CHIP:TOPOLOGY", help_behavior_hint="")] = None
    """measure nothing: compile for this machine, e.g. tpu:v5e:4x4 or cuda:h100:8, and predict; see python -m jaxdp.plan --help"""
    quick: tyro.conf.FlagCreatePairsOff[bool] = False
    """with --target tpu:...: compile with the least effort, several times quicker, into programs whose predicted time is longer"""
    steps: Annotated[OptionalInt, POSITIVE] = None
    """steps of a repetition (default: about a second of them, at least 5)"""
    repeats: Annotated[OptionalInt, POSITIVE] = None
    """repetitions, of which median, minimum and maximum are told (default: 5)"""
    output: Annotated[str, tyro.conf.arg(metavar="DIR")] = "bench"
    """folder for bench.jsonl, which grows, and for the figure of this grid, throughput.png and throughput.svg; with --target for
    predicted.jsonl, predicted.png and predicted.svg"""
    compare: OptionalPath = None
    """bench.jsonl of an earlier time, to show the ratio of images/s to"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `python -m jaxdp.bench` with these arguments, by default the process's own, and returns the exit code."""
    large_pages.restart()
    return command_line.main(_main, argv, "jaxdp.bench")


def _main(argv: Sequence[str]) -> int:
    from jaxdp.runtime.targets import Target
    from jaxdp.tools import bench_cell, bench_grid

    if list(argv) == ["cell"]:
        bench_cell.answer(json.load(sys.stdin))
        return 0
    config = command_line.parse(
        BenchConfig, argv, prog="python -m jaxdp.bench", description=DESCRIPTION, defaults_file=False, hidden=_HIDDEN
    )
    shared = TrainConfig(config.plugins, config.model, config.data, config.task, config.sharding, config.optimization)
    target = Target.parse(config.target) if config.target else None
    if target is None and config.quick:
        raise ConfigError("quick", "", "is for --target; see --help")
    for name in ("steps", "repeats", "compare") if target is not None else ():
        if (value := getattr(config, name)) is not None:
            raise ConfigError(name, value, "is for measuring, and with --target nothing is measured; leave it out")
    words = config.devices or (f"1,{target.count}" if target else "1,2,4,8")
    strategies, devices = bench_grid.parse_strategies(config.strategies), bench_grid.parse_numbers("devices", words)
    batch_sizes = bench_grid.parse_numbers("batch_sizes", config.batch_sizes)
    configs = list(bench_grid.cells(shared, strategies, devices, batch_sizes))
    folder = pathlib.Path(config.output)
    if target is None:
        return bench_grid.run(configs, folder, steps=config.steps, repeats=config.repeats or _REPEATS, compare=config.compare)
    from jaxdp.tools import bench_prediction

    return bench_prediction.run(configs, target, folder, quick=config.quick)


if __name__ == "__main__":
    sys.exit(main())
