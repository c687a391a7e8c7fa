"""`python -m jaxdp.plan`: shows the memory of a training step and the batch that fits, for the
devices here or for accelerators that only a description stands for.

Steps are compiled and their plans are read; nothing runs, and no memory of a device is taken.
"""

import dataclasses
import functools
import json
import math
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import rich.box
import rich.console
import rich.table

from jaxdp.command_line import command
from jaxdp.config import BatchNormMode, TrainConfig, setting
from jaxdp.config.values import TargetCounts
from jaxdp.parsing import printable
from jaxdp.registry import ConfigError
from jaxdp.runtime import platform, streams
from jaxdp.runtime.targets import Target
from jaxdp.units import bytes_text, parse_bytes

DESCRIPTION = "Show what a training step takes, and which batch fits, without running it."
# XLA:GPU prints hundreds of ways to compile an operation that it tries and leaves.
_ATTEMPTS = re.compile(
    r"(loc\(.*\): )?error: (failed to compute layout|layout propagation failed|expected"
    r" normalized|multi-output results)"
)
Record = dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanConfig(TrainConfig):  # pyright: ignore[reportIncompatibleVariableOverride]
    """The devices to plan for, and the form of the plan."""

    target: str | None = setting(
        None,
        "compile for this machine, without having it: tpu:v5e:4x4, tpu:v5p:2x2x4, tpu:v6e:8x8, "
        "cuda:a100:8, cuda:h100:8, cuda:h200:1 and other numbers of devices. Needs pip install "
        "'.[tpu]' or '.[cuda13]', no accelerator and no driver",
        metavar="PLATFORM:CHIP:TOPOLOGY",
    )
    devices: TargetCounts | None = setting(  # pyright: ignore[reportIncompatibleVariableOverride]
        None,
        "how many devices to use (default: all); simulated on CPU. With --target also several "
        "numbers, e.g. 1,4,16,64: weak scaling with --per-device-batch-size, else strong scaling",
        metavar="N[,N,...]",
        numbers=(int,),
        basic=True,
    )
    device_memory: str | None = setting(
        None, "memory of a device, e.g. 11GiB (default: what the devices have)", metavar="SIZE"
    )
    json: bool = setting(False, "print one line of JSON instead of tables")


@command(PlanConfig, "jaxdp.plan", DESCRIPTION, restarts=False)
def main(asked: PlanConfig) -> int:
    """Plans, and prints the plan."""
    try:
        limit = parse_bytes(asked.device_memory) if asked.device_memory else None
    except ValueError:
        remedy = "must be a size, e.g. 11GiB or 40GB"
        raise ConfigError("device_memory", asked.device_memory, remedy) from None
    config = asked.part(TrainConfig, devices=None)
    counts = asked.devices.values if asked.devices is not None else ()
    if asked.target is None:
        if len(counts) > 1:
            raise ConfigError("devices", asked.devices, "several numbers are for --target")
        records = [plan(config.replace(devices=counts[0] if counts else None), limit=limit)]
    else:
        target = Target.parse(asked.target)
        targets = [target.resize(count) if count != target.count else target for count in counts]
        search = len(targets) < 2
        with streams.without(_ATTEMPTS):
            records = [
                plan(config, each, limit=limit, search=search) for each in targets or [target]
            ]
        _add_efficiency(records)
    if asked.json:
        print(json.dumps(records[0] if len(records) == 1 else records))
    else:
        print_plan(records)
    return 0


def plan(
    config: TrainConfig,
    target: Target | None = None,
    *,
    limit: int | None = None,
    search: bool = True,
) -> Record:
    """Returns what a step takes, ready for JSON.

    Args:
        target: devices to compile for; None for the devices here.
        limit: bytes of a device; None for what the devices have.
        search: whether to find the largest batch that fits.

    Raises:
        ConfigError: for a run that could not be trained.
    """
    setup = _create_setup(config, target)
    from jaxdp.sharding import memory
    from jaxdp.sharding.program import read_collectives
    from jaxdp.sharding.roofline import idealize

    if limit is None:
        here = platform.device_memory_bytes
        limit = target.chip.memory_bytes if target else here(setup.strategy.devices)
    record = _describe(setup, target, limit)
    examples, size = record["examples_per_device"], record["global_batch_size"]
    compile_batch = functools.cache(
        functools.partial(memory.compile_step, setup.strategy, setup.abstract_step)
    )
    try:
        compiled, step = compile_batch(size)
    except RuntimeError as error:
        text = " ".join(str(error).split())
        reason = text[max(text.find("Ran out of memory"), 0) :][:300]
        return record | {"compiles": False, "reason": reason}
    collectives = read_collectives(compiled.as_text())
    flops = _count_flops(setup, examples) if target else step.flops
    record |= {
        "compiles": True,
        "flops_per_example": flops / examples,
        "bytes": {kind: getattr(step, kind) for kind in (*memory.KINDS, "total")},
        "collectives": [dataclasses.asdict(each) for each in collectives],
    }
    if target is not None:
        ideal = idealize(target, setup.config.precision, flops, step, collectives)
        record["idealized"] = ideal | {"images_per_second": size / ideal["step_seconds"]}
    if search:
        record["largest_per_device"] = memory.largest_batch(
            setup.strategy, compile_batch, limit, first=examples
        )
    return record


def _create_setup(config: TrainConfig, target: Target | None) -> Any:
    if target is None:
        platform.configure(
            config.devices, deterministic=config.deterministic, precision=config.precision
        )
    else:
        platform.describe_only()
    from jaxdp.training.setup import create_setup

    if config.global_batch_size == "auto":  # the plan shows it
        config = config.replace(global_batch_size=None)
    # Here as if not to train: the batches to plan for need not be the configured one.
    return create_setup(config, training=target is not None, target=target)


def _describe(setup: Any, target: Target | None, limit: int) -> Record:
    """Returns the facts of a step that are known before it is compiled."""
    import jax

    from jaxdp.sharding.memory import USABLE_FRACTION, fewest_examples

    strategy, config = setup.strategy, setup.config
    unit = fewest_examples(strategy)
    examples = math.ceil(setup.global_batch_size / (strategy.data_shards * unit)) * unit
    return {
        "model": config.model,
        "dataset": config.dataset,
        "image_shape": list(setup.dataset.image_shape),
        "precision": config.precision,
        "batch_norm": str(config.batch_norm),
        "strategy": config.strategy,
        "platform": str(target.chip) if target else strategy.devices[0].platform,
        "target": str(target) if target else None,
        "devices": strategy.num_devices,
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(setup.shapes.params)),
        "device_memory": limit,
        "usable_bytes": int(USABLE_FRACTION * limit),
        "examples_per_device": examples,
        "global_batch_size": examples * strategy.data_shards,
    }


def _count_flops(setup: Any, examples: int) -> float:
    """Returns the operations of a step on each device, as XLA counts them for one CPU: compilers
    for GPUs that are not here count none, compilers for TPUs a loop once.
    """
    from jaxdp.sharding.strategy import create_strategy

    recipe = dataclasses.replace(setup.recipe, batch_norm=BatchNormMode(), scan=False)
    alone: Any = create_strategy("single", recipe, platform.select_devices(1))
    lowered = alone.train_step.lower(
        *dataclasses.replace(setup, strategy=alone).abstract_step(examples)
    )
    shards, devices = setup.strategy.data_shards, setup.strategy.num_devices
    return lowered.cost_analysis()["flops"] * shards / devices


def _add_efficiency(records: list[Record]) -> None:
    """Adds to each record its images per second on a device as a fraction of the first record's."""
    compiled = [record for record in records if record["compiles"]]
    rates = [record["idealized"]["images_per_second"] / record["devices"] for record in compiled]
    for rate, record in zip(rates, compiled, strict=True):
        record["idealized"]["efficiency"] = rate / rates[0]


def print_plan(records: Sequence[Record]) -> None:
    """Prints a plan, or the plans for several numbers of devices, on standard output."""
    console = rich.console.Console(highlight=False, markup=False, soft_wrap=True)
    for record in records:
        for line in _lines(record):
            console.print(line)
    ideals = [record for record in records if "idealized" in record]
    if not ideals:
        return
    table = rich.table.Table(
        title="idealized, milliseconds", box=rich.box.SIMPLE_HEAD, pad_edge=False
    )
    parts = ["compute", "memory", "network", "step"]
    for title in ("devices", "batch", *parts, "bound by", "images/s", "efficiency"):
        table.add_column(title, justify="right", no_wrap=True)
    for record in ideals:
        ideal = record["idealized"]
        table.add_row(
            f"{record['devices']:,}",
            f"{record['global_batch_size']:,}",
            *(f"{1e3 * ideal[f'{part}_seconds']:,.3f}" for part in parts),
            ideal["bound"],
            f"{ideal['images_per_second']:,.0f}",
            f"{ideal['efficiency']:.0%}",
        )
    console.print(table)
    console.print(
        "Idealized: the rates of the data sheet, every byte moved once, no latency and no overlap"
        " of network and computation."
    )


def _lines(record: Record) -> Iterator[str]:
    """Yields what is printed of a step, its memory and its collectives."""
    what = printable(f"{record['model']} on {record['dataset']}")
    yield (
        f"{what} ({'x'.join(map(str, record['image_shape']))}),"
        f" {record['strategy']} on {record['devices']} {record['platform']},"
        f" {record['precision']}, batch norm {record['batch_norm']}:"
        f" {record['parameters']:,} parameters"
    )
    step = f"a step of {record['examples_per_device']} examples on a device"
    if not record["compiles"]:
        yield f"{step} does not compile:"
        yield record["reason"]
        return
    sizes = {kind: bytes_text(size) for kind, size in record["bytes"].items() if size}
    total = sizes.pop("total")
    yield (
        f"{step} compiles. It takes {total} of {bytes_text(record['device_memory'])}:"
        f" {', '.join(map(' '.join, sizes.items()))};"
        f" {record['flops_per_example'] / 1e9:.3g} GFLOP to train on an example"
    )
    for each in record["collectives"]:
        yield f"collective: {each['count']} x {each['kind']}, {bytes_text(each['bytes'])}"
    if not record["collectives"]:
        yield "collectives: none"
    if "largest_per_device" in record:
        share = record["usable_bytes"] / record["device_memory"]
        yield (
            f"largest batch: {record['largest_per_device']:,} examples fit a device, in {share:.0%}"
            f" of its memory, as XLA plans it for {record['platform']}"
        )


if __name__ == "__main__":
    sys.exit(main())
