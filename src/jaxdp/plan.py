"""`python -m jaxdp.plan`: prints the memory of a training step and the batch that fits, for the
devices of this machine or for accelerators that only a description represents.

It compiles steps and reads XLA's memory plans. It runs nothing and allocates no device memory.
"""

import json
import re
import sys
from typing import Any

from jaxdp.cli import streams
from jaxdp.cli.command_line import command
from jaxdp.config import TrainConfig, setting, settings_group
from jaxdp.config.values import memory_limit
from jaxdp.errors import ConfigError, flag
from jaxdp.runtime import platform
from jaxdp.runtime.targets import Target
from jaxdp.text.messages import printable
from jaxdp.text.units import bytes_text

DESCRIPTION = "Show what a training step takes, and which batch fits, without running it."
# XLA:GPU prints hundreds of ways to compile an operation that it tries and discards.
_ATTEMPTS = re.compile(
    r"(loc\(.*\): )?error: (failed to compute layout|layout propagation failed|expected"
    r" normalized|multi-output results)"
)
Record = dict[str, Any]


@settings_group
class PlanConfig(TrainConfig):
    """The devices to plan for, and the form of the plan."""

    target: str | None = setting(
        None,
        """compile for this machine, without having it: tpu:v5e:4x4, tpu:v5p:2x2x4, tpu:v6e:8x8,
        cuda:a100:8, cuda:h100:8, cuda:h200:1 and other numbers of devices. Needs pip install
        '.[tpu]' or '.[cuda13]', no accelerator and no driver""",
        metavar="PLATFORM:CHIP:TOPOLOGY",
    )
    device_memory: str | None = setting(
        None, "memory of a device, e.g. 11GiB (default: what the devices have)", metavar="SIZE"
    )
    json: bool = setting(False, "print one line of JSON instead of text")


@command(PlanConfig, "jaxdp.plan", DESCRIPTION)
def main(asked: PlanConfig) -> int:
    """Plans, and prints the plan."""
    limit = memory_limit(asked.device_memory)
    config = asked.part(TrainConfig)
    if asked.target is None:
        record = plan(config, None, limit)
    elif asked.devices is not None:
        remedy = f"write the number of devices in {flag('target')}"
        raise ConfigError("devices", asked.devices, remedy)
    else:
        with streams.without(_ATTEMPTS):
            record = plan(config, Target.parse(asked.target), limit)
    if asked.json:
        print(json.dumps(record))
    else:
        print_plan(record)
    return 0


def plan(config: TrainConfig, target: Target | None, limit: int | None) -> Record:
    """Returns the resources that a step requires, ready for JSON.

    Args:
        target: devices to compile for; None for the devices of this machine.
        limit: bytes of a device; None for the memory that the devices have.

    Raises:
        ConfigError: for a run that could not be trained.
    """
    from jaxdp.build.step_memory import plan_setup

    return plan_setup(_create_setup(config, target), target, limit)


def _create_setup(config: TrainConfig, target: Target | None) -> Any:
    if target is None:
        platform.configure(
            config.devices, deterministic=config.deterministic, precision=config.precision
        )
    else:
        platform.describe_only()
    from jaxdp.build.pretrained_settings import with_pretrained
    from jaxdp.build.setup import create_setup

    if target is None:  # otherwise, the setup is one of training
        config = with_pretrained(config)
    if config.global_batch_size == "auto":  # the plan shows it
        config = config.replace(global_batch_size=None)
    # As if not training, because the planned batches need not be the configured batch.
    return create_setup(config, training=target is not None, target=target)


def print_plan(record: Record) -> None:
    """Prints the resources that a step requires on standard output."""
    what = printable(f"{record['model']} on {record['dataset']}")
    print(
        f"{what} ({'x'.join(map(str, record['image_shape']))}),"
        f" {record['strategy']} on {record['devices']} {record['platform']},"
        f" {record['precision']}, batch norm {record['batch_norm']}:"
        f" {record['parameters']:,} parameters"
    )
    step = f"a step of {record['examples_per_device']} examples on a device"
    if not record["compiles"]:
        print(f"{step} does not compile:\n{record['reason']}")
        return
    sizes = {kind: bytes_text(size) for kind, size in record["bytes"].items() if size}
    total = sizes.pop("total")
    print(
        f"{step} compiles. It takes {total} of {bytes_text(record['device_memory'])}:"
        f" {', '.join(map(' '.join, sizes.items()))}"
    )
    if "flops_per_example" in record:
        print(f"training on an example: {record['flops_per_example'] / 1e9:.3g} GFLOP")
    print(
        f"largest batch: {record['largest_per_device']:,} examples fit a device, in"
        f" {record['usable_bytes'] / record['device_memory']:.0%} of its memory, as XLA plans it"
        f" for {record['platform']}"
    )


if __name__ == "__main__":
    sys.exit(main())
