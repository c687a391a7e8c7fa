"""`python -m jaxdp.plan`: tells what a training step takes, which batch fits, and what would change
that.
"""

import dataclasses
import json
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

from jaxdp import command_line
from jaxdp.config import Settings, TrainConfig, setting
from jaxdp.registry import ConfigError
from jaxdp.rundir.write import check_file
from jaxdp.units import parse_bytes

DESCRIPTION = "Tell what a training step takes, and which batch fits, without running it."


@dataclasses.dataclass(frozen=True, kw_only=True)
class TargetConfig(Settings):
    """Flags that choose accelerators to compile for that are not here.

    What is told of them is predicted.
    """

    target: str | None = setting(
        None,
        "compile for this machine, without having it: tpu:v5e:4x4, tpu:v5p:2x2x4, "
        "tpu:v6e:8x8, cuda:a100:8, cuda:h100:8, cuda:h200:1 and other numbers of devices. "
        "Needs pip install 'jaxdp[tpu]' or 'jaxdp[cuda13]', no accelerator and no driver",
        metavar="PLATFORM:CHIP:TOPOLOGY",
    )
    devices: str | None = setting(
        None,
        "how many devices to use (default: all); simulated on CPU. With --target, several "
        "numbers, e.g. 1,4,16,64,256: the predicted scaling curve over them",
        metavar="N[,N,...]",
        numbers=(int,),
    )
    quick: bool = setting(
        False,
        "with --target tpu:...: compile with the least effort, several times quicker, into "
        "a program whose predicted time is longer",
    )
    output: str | None = setting(
        None,
        "with several --devices: file for the figure of the predicted scaling curve, e.g. "
        "scaling.png",
        metavar="PATH",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class LimitConfig(Settings):
    """Flags that choose the memory limit and the form of the output."""

    device_memory: str | None = setting(
        None,
        "memory of a device, e.g. 11GiB (default: what the devices here have)",
        metavar="SIZE",
    )
    json: bool = setting(
        False,
        "print one line of JSON instead of tables",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanConfig(LimitConfig, TargetConfig, TrainConfig):  # pyright: ignore[reportIncompatibleVariableOverride]
    """What `python -m jaxdp.plan` takes."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `python -m jaxdp.plan` with these arguments, by default the process's own, and returns
    the exit code.
    """
    return command_line.main(_main, argv, "jaxdp.plan")


def _main(argv: Sequence[str]) -> int:
    config = command_line.parse(
        PlanConfig, argv, prog="python -m jaxdp.plan", description=DESCRIPTION
    )
    try:
        limit = parse_bytes(config.device_memory) if config.device_memory else None
    except ValueError:
        raise ConfigError(
            "device_memory", config.device_memory, "must be a size, e.g. 11GiB or 40GB"
        ) from None
    found, show = _predicted(config, limit) if config.target else _planned(config, limit)
    print(json.dumps(found)) if config.json else show(found)
    return 0


def _planned(
    config: PlanConfig, limit: int | None
) -> tuple[dict[str, Any], Callable[[dict[str, Any]], None]]:
    """Returns the plan for the devices here, and what prints it."""
    chosen = config
    for name in ("quick", "output"):
        if value := getattr(chosen, name):
            raise ConfigError(
                name, value if name == "output" else "", "is for --target; see --help"
            )
    try:
        devices = int(chosen.devices) if chosen.devices else None
    except ValueError:
        raise ConfigError(
            "devices", chosen.devices, "must be an integer; several are for --target"
        ) from None
    from jaxdp.tools import memory_plan

    return memory_plan.plan(
        config.part(TrainConfig, devices=devices), limit
    ), memory_plan.print_plan


def _predicted(
    config: PlanConfig, limit: int | None
) -> tuple[dict[str, Any], Callable[[dict[str, Any]], None]]:
    """Returns what is predicted for a target, and what prints it."""
    from jaxdp.runtime.targets import Target
    from jaxdp.tools import prediction, prediction_text

    chosen, training = config, config.part(TrainConfig, devices=None)
    target = Target.parse(chosen.target or "")
    counts = _numbers(chosen.devices)
    if len(counts) > 1:
        if chosen.output is not None:
            check_file("output", pathlib.Path(chosen.output), "scaling.png")
        found = prediction.scale(training, target, counts, quick=chosen.quick)
        if chosen.output is not None:
            from jaxdp.reporting import scaling

            scaling.plot(found, chosen.output)
        return found, prediction_text.print_scaling
    if chosen.output is not None:
        raise ConfigError(
            "output",
            chosen.output,
            "is for the curve over several --devices, e.g. --devices 1,4,16",
        )
    target = target.of_size(counts[0]) if counts and counts[0] != target.count else target
    return prediction.predict(
        training, target, quick=chosen.quick, limit=limit
    ), prediction_text.print_prediction


def _numbers(text: str | None) -> list[int]:
    from jaxdp.runtime.targets import MOST_DEVICES

    words = [word.strip() for word in (text or "").split(",") if word.strip()]
    for word in words:
        if not (word.isascii() and word.isdecimal() and 0 < int(word) <= MOST_DEVICES):
            raise ConfigError("devices", text, f"{word} is no number of devices; write e.g. 1,4,16")
    return sorted({int(word) for word in words})


if __name__ == "__main__":
    sys.exit(main())
