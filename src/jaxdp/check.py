"""`python -m jaxdp.check`: tells whether the number of devices changes what is learned, by training
a few steps on each.
"""

import dataclasses
import sys
from collections.abc import Sequence

from jaxdp import command_line
from jaxdp.config import (
    MOST_DEVICES,
    NON_NEGATIVE,
    BatchNormMode,
    OptimizationConfig,
    PartsConfig,
    TrainConfig,
    setting,
)
from jaxdp.parsing import is_count
from jaxdp.registry import ConfigError
from jaxdp.runtime import platform

DESCRIPTION = "Train a few steps on several numbers of devices and compare with one device."


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckConfig(PartsConfig, OptimizationConfig):
    """What `python -m jaxdp.check` takes: of a training run, all that defines its steps."""

    devices: str = setting(
        "1,2,4,8",
        "numbers of devices to compare with one device; on CPU they are simulated",
        metavar="N,N,...",
    )
    strategies: str = setting(
        "pmap",
        "strategies to run on them",
        metavar="NAME,NAME,...",
    )
    tolerance: float = setting(
        1e-05,
        "largest absolute difference that passes, else exit code 1. With --batch-norm "
        "replica the statistics differ by design. Computed in float64 unless --precision is "
        "bfloat16: float32 can put an activation on either side of a ReLU, and one such "
        "flip changes a gradient by 1e-3",
        NON_NEGATIVE,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `python -m jaxdp.check` with these arguments, by default the process's own, and returns
    the exit code.
    """
    return command_line.main(_main, argv, "jaxdp.check")


def _main(argv: Sequence[str]) -> int:
    command = command_line.parse(
        CheckConfig, argv, prog="python -m jaxdp.check", description=DESCRIPTION, steps=3
    )
    words = [word for word in command.devices.split(",") if word]
    if not words or not all(is_count(word) and 0 < int(word) <= MOST_DEVICES for word in words):
        remedy = f"must be numbers separated by commas, e.g. 1,2,4,8, of at most {MOST_DEVICES}"
        raise ConfigError("devices", command.devices, remedy)
    counts, names = (
        [int(word) for word in words],
        [name for name in command.strategies.split(",") if name],
    )
    platform.configure(max(counts), precision=command.precision)
    shared = command.part(TrainConfig, devices=None)
    runs = [("single", 1)] + [
        (name, count) for name in names for count in counts if name != "single" or count == 1
    ]
    configs = [shared.replace(strategy=name, devices=count) for name, count in runs]

    from jaxdp.tools import comparison

    found = comparison.compare(configs, float64=command.precision == "float32")
    comparison.print_table(configs, found)
    worst = max(max(row.differences) for row in found)
    passed = worst <= command.tolerance
    print(
        f"{'passed' if passed else 'FAILED'}: the largest difference is {worst:.1e}, the tolerance"
        f" {command.tolerance:.1e}"
    )
    if not passed and found[0].config.batch_norm == BatchNormMode("replica"):
        print(
            "--batch-norm replica depends on the number of devices by design; group:N and global"
            " do not",
            file=sys.stderr,
        )
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
