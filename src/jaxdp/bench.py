"""`python -m jaxdp.bench`: measures how many images a second each strategy trains on, and where the
time of a step goes.
"""

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
    PartsConfig,
    ShardingConfig,
    TrainConfig,
)
from jaxdp.runtime import large_pages

DESCRIPTION = "Measure throughput over strategies, batch sizes and devices."
_REPEATS = 5
_HIDDEN = ("global_batch_size", "per_device_batch_size", "epochs", "strategy")


@dataclasses.dataclass(frozen=True)
class BenchConfig(PartsConfig):
    """What `python -m jaxdp.bench` takes: of a training run all that defines its steps, and the
    grid.
    """

    sharding: ShardingConfig = ShardingConfig()
    optimization: OptimizationConfig = OptimizationConfig()
    strategies: Annotated[str, tyro.conf.arg(metavar="NAME,NAME,...")] = "single,pmap"
    """strategies to measure"""
    batch_sizes: Annotated[str, tyro.conf.arg(metavar="N,N,...")] = "32,64,128"
    """global batch sizes, of examples per step over all devices"""
    devices: Annotated[str, tyro.conf.arg(metavar="N,N,...")] = "1,2,4,8"
    """numbers of devices; on a CPU they are simulated and share its cores"""
    steps: Annotated[OptionalInt, POSITIVE] = None
    """steps of a repetition (default: about a second of them, at least 5)"""
    repeats: Annotated[OptionalInt, POSITIVE] = None
    """repetitions, of which median, minimum and maximum are told (default: 5)"""
    output: Annotated[str, tyro.conf.arg(metavar="DIR")] = "bench"
    """folder for bench.jsonl, which grows, and for the figure of this grid, throughput.png and
    throughput.svg"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `python -m jaxdp.bench` with these arguments, by default the process's own, and returns
    the exit code.
    """
    large_pages.restart()
    return command_line.main(_main, argv, "jaxdp.bench")


def _main(argv: Sequence[str]) -> int:
    from jaxdp.tools import bench_cell, bench_grid

    if list(argv) == ["cell"]:
        bench_cell.answer(json.load(sys.stdin))
        return 0
    config = command_line.parse(
        BenchConfig,
        argv,
        prog="python -m jaxdp.bench",
        description=DESCRIPTION,
        defaults_file=False,
        hidden=_HIDDEN,
    )
    shared = TrainConfig(
        config.plugins, config.model, config.data, config.task, config.sharding, config.optimization
    )
    configs = bench_grid.cells(
        shared,
        bench_grid.parse_strategies(config.strategies),
        bench_grid.parse_numbers("devices", config.devices),
        bench_grid.parse_numbers("batch_sizes", config.batch_sizes),
    )
    folder, repeats = pathlib.Path(config.output), config.repeats or _REPEATS
    return bench_grid.run(list(configs), folder, steps=config.steps, repeats=repeats)


if __name__ == "__main__":
    sys.exit(main())
