"""`python -m jaxdp.bench`: measures how many images a second each strategy trains on, and where the
time of a step goes.
"""

import dataclasses
import json
import pathlib
import sys
from collections.abc import Sequence

from jaxdp import command_line
from jaxdp.config import (
    POSITIVE,
    LayoutConfig,
    OptimizationConfig,
    PartsConfig,
    TrainConfig,
    setting,
)
from jaxdp.runtime import large_pages

DESCRIPTION = "Measure throughput over strategies, batch sizes and devices."
_REPEATS = 5
_HIDDEN = ("global_batch_size", "per_device_batch_size", "epochs", "strategy")


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchConfig(PartsConfig, LayoutConfig, OptimizationConfig):
    """What `python -m jaxdp.bench` takes: of a training run all that defines its steps, and the
    grid.
    """

    strategies: str = setting(
        "single,pmap",
        "strategies to measure",
        metavar="NAME,NAME,...",
    )
    batch_sizes: str = setting(
        "32,64,128",
        "global batch sizes, of examples per step over all devices",
        metavar="N,N,...",
    )
    devices: str = setting(
        "1,2,4,8",
        "numbers of devices; on a CPU they are simulated and share its cores",
        metavar="N,N,...",
    )
    steps: int | None = setting(
        None,
        "steps of a repetition (default: about a second of them, at least 5)",
        POSITIVE,
    )
    repeats: int | None = setting(
        None,
        "repetitions, of which median, minimum and maximum are told (default: 5)",
        POSITIVE,
    )
    output: str = setting(
        "bench",
        "folder for bench.jsonl, which grows, and for the figure of this grid, "
        "throughput.png and throughput.svg",
        metavar="DIR",
    )


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
    shared = config.part(TrainConfig, devices=None, steps=None)
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
