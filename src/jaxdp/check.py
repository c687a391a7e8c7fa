"""`python -m jaxdp.check`: checks whether the number of devices changes the result, by training a
few steps on each number.
"""

import sys
from collections.abc import Sequence

import rich.console
import rich.table

from jaxdp.cli.command_line import command
from jaxdp.config import (
    NON_NEGATIVE,
    BatchNormMode,
    OptimizationConfig,
    PartsConfig,
    TrainConfig,
    setting,
    settings_group,
)
from jaxdp.config.values import Counts
from jaxdp.plugins.loading import load_plugins
from jaxdp.runtime import platform
from jaxdp.text.console import say_again
from jaxdp.text.flags import flag
from jaxdp.text.messages import printable

DESCRIPTION = "Train a few steps on several numbers of devices and compare with one device."


@settings_group
class CheckConfig(PartsConfig, OptimizationConfig):
    """The runs that are compared."""

    devices: Counts = setting(
        Counts((1, 2, 4, 8)),
        "numbers of devices to compare with one device; on CPU they are simulated",
        metavar="N,N,...",
    )
    strategies: tuple[str, ...] = setting(
        ("pmap",), "strategies to run on them", metavar="NAME,NAME,...", separator=","
    )
    bits: bool = setting(
        False,
        """compare every bit instead: train with --strategy exact on each number of devices, in the
        precision of the run, and print the SHA-256 of each state; exit code 1 if they differ""",
    )
    tolerance: float = setting(
        1e-5,
        """largest absolute difference that passes, else exit code 1. With --batch-norm replica the
        statistics differ by design. Computed in float64 unless --precision is bfloat16: float32 can
        put an activation on either side of a ReLU, and one such flip changes a gradient by 1e-3""",
        NON_NEGATIVE,
    )


@command(CheckConfig, "jaxdp.check", DESCRIPTION, steps=3)
def main(asked: CheckConfig) -> int:
    """Compares the runs and prints a table; returns 1 if they differ.

    Raises:
        ConfigError: for the first setting that cannot work, before anything is computed.
    """
    counts = asked.devices.values
    strategy = "exact" if asked.bits else ""
    platform.configure(max(counts), precision=asked.precision, strategy=strategy)
    from jaxdp.training.comparison import COLUMNS, compare, left_out

    load_plugins(asked.plugins)
    shared = asked.part(TrainConfig, devices=None)
    if asked.bits:
        return _compare_bits(shared, counts)
    differences, config, reference = compare(
        shared, counts, asked.strategies, tolerance=asked.tolerance
    )
    where = printable(f"{config.model} on {config.dataset}")
    title = f"{where}, batch norm {config.batch_norm}: largest differences"
    table = rich.table.Table("strategy", "devices", *COLUMNS, title=title)
    for (name, count), row in differences.items():
        table.add_row(name, str(count), *(f"{difference:.1e}" for difference in row.values()))
    rich.console.Console(markup=False, emoji=False).print(table)
    steps = len(reference)
    print(f"compared after each of {steps} steps, which begin at the states of one device", end="")
    print(left_out(reference, asked.tolerance))
    worst = max(max(row.values()) for row in differences.values())
    passed = worst <= asked.tolerance
    print(
        f"{'passed' if passed else 'FAILED'}: the largest difference is {worst:.1e}, the tolerance"
        f" {asked.tolerance:.1e}"
    )
    if not passed and config.batch_norm == BatchNormMode("replica"):
        say_again(
            f"{flag('batch_norm', 'replica')} depends on the number of devices by design; group:N"
            " and global do not"
        )
    return int(not passed)


def _compare_bits(config: TrainConfig, counts: Sequence[int]) -> int:
    """Prints the digest of each number of devices; returns 1 if they differ."""
    from jaxdp.training.comparison import digest

    found = dict[str, str]()
    for count in counts:
        found[str(count)] = digest(config, count)
        print(f"{count} device{'s' * (count > 1)}: {found[str(count)]}", flush=True)
    passed = len({*found.values()}) == 1
    where = platform.rounding_facts(platform.select_devices(None)[0])
    print(f"{'passed' if passed else 'FAILED'}: states after {config.steps} steps, with {where}")
    return int(not passed)


if __name__ == "__main__":
    sys.exit(main())
