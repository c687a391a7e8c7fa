"""Plans the memory of a training step: what it takes, which batch fits, and which settings would
make room.

Steps are compiled and their plans read; no memory of a device is taken.
"""

import concurrent.futures
import sys
from collections.abc import Mapping
from typing import Any

from jaxdp.config import TrainConfig
from jaxdp.parsing import printable
from jaxdp.runtime import platform
from jaxdp.units import bytes_text

KINDS = ("params", "optimizer", "statistics", "dataset", "batch", "working")


def variants(config: TrainConfig, devices: int) -> dict[str, TrainConfig]:
    """Returns what could save memory, by the flags that would do it."""
    changes: dict[str, dict[str, Any]] = {}
    if config.remat == "none":
        changes["--remat blocks"] = {"remat": "blocks"}
    if config.remat != "full":
        changes["--remat full"] = {"remat": "full"}
    if config.precision == "float32":
        changes["--precision bfloat16"] = {"precision": "bfloat16"}
    if config.accumulate_steps == 1:
        changes["--accumulate-steps 4"] = {"accumulate_steps": 4}
    if devices > 1 and not config.shard_params:
        changes["--strategy sharded --shard-params"] = {"strategy": "sharded", "shard_params": True}
    return {name: config.replace(**change) for name, change in changes.items()}


def plan(config: TrainConfig, limit: int | None = None) -> dict[str, Any]:
    """Returns what a step takes and which batches fit, ready for JSON.

    Args:
        limit: bytes of a device; None for what the devices here have.

    Raises:
        ConfigError: for a run that could not be trained.
    """
    platform.configure(
        config.devices,
        deterministic=config.deterministic,
        precision=config.precision,
    )
    import jax

    from jaxdp.sharding import memory
    from jaxdp.training.setup import create_setup

    if config.global_batch_size == "auto":  # that is what the plan tells
        config = config.replace(global_batch_size=None)
    # As if not to train: the batches to plan for are not the configured one, which need not divide.
    setup = create_setup(config, training=False)
    shares, devices = setup.strategy.data_shards, setup.strategy.devices
    limit = platform.device_memory_bytes(devices) if limit is None else limit
    base = memory.forecast(setup.strategy, setup.abstract_step)
    changed = {
        name: create_setup(each, training=False)
        for name, each in variants(setup.config, len(devices)).items()
    }
    if changed:
        print(
            f"compiling {len(changed)} variants of the step, at two batch sizes each",
            file=sys.stderr,
        )
    # XLA compiles outside the interpreter's lock.
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        work = {
            name: pool.submit(memory.forecast, each.strategy, each.abstract_step)
            for name, each in changed.items()
        }
        forecasts = {"as configured": base} | {
            name: future.result() for name, future in work.items()
        }
    setups = {"as configured": setup} | changed
    examples = -(-setup.global_batch_size // shares)
    usable = memory.USABLE_FRACTION * limit
    return {
        "model": config.model,
        "dataset": setup.config.dataset,
        "image_shape": list(setup.dataset.image_shape),
        "strategy": setup.config.strategy,
        "platform": devices[0].platform,
        "devices": setup.strategy.num_devices,
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(setup.shapes.params)),
        "flops_per_example": base.slope("flops"),
        "device_memory": limit,
        "usable_bytes": int(usable),
        "examples_per_device": examples,
        "bytes": {kind: round(base.at(examples, kind)) for kind in (*KINDS, "total")},
        "variants": {
            name: {
                "bytes": round(found.at(examples)),
                "bytes_per_example": found.slope(),
                "largest_per_device": found.largest(usable),
                "largest_global": found.largest(usable) * setups[name].strategy.data_shards,
            }
            for name, found in forecasts.items()
        },
    }


def verdict(found: Mapping[str, Any]) -> str:
    """Says which powers of two of examples a device can take, and what would let it take twice as
    many.
    """
    from jaxdp.sharding.memory import power_of_two

    largest = {name: each["largest_per_device"] for name, each in found["variants"].items()}
    fits = largest.pop("as configured")
    wanted = 2 * power_of_two(fits) if fits else 1
    helps = [name for name, count in largest.items() if count >= wanted]
    memory = bytes_text(found["device_memory"])
    first = f"{wanted} examples on a device do not fit {memory}" + (
        f"; {power_of_two(fits)} do" if fits else ""
    )
    return first + (f"; {wanted} do with {' or '.join(helps)}" if helps else "") + "."


def print_plan(found: Mapping[str, Any]) -> None:
    """Prints a memory plan on standard output."""
    import rich.console
    import rich.table

    console = rich.console.Console()
    where, shape = (
        printable(f"{found['model']} on {found['dataset']}"),
        "x".join(map(str, found["image_shape"])),
    )
    console.print(
        f"{where} ({shape}), {found['strategy']} on {found['devices']} {found['platform']}:"
        f" {found['parameters']:,} parameters, {found['flops_per_example'] / 1e9:.3g} GFLOP to"
        " train on an example",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    examples = found["examples_per_device"]
    kinds = ", ".join(
        f"{kind} {bytes_text(found['bytes'][kind])}" for kind in KINDS if found["bytes"][kind]
    )
    console.print(
        f"a step of {examples} examples on a device takes {bytes_text(found['bytes']['total'])}:"
        f" {kinds}",
        highlight=False,
        soft_wrap=True,
    )
    table = rich.table.Table("", f"{examples} take", "each more", "fit a device")
    for column in table.columns:
        column.no_wrap, column.justify = True, "left" if column is table.columns[0] else "right"
    for name, each in found["variants"].items():
        sizes = [bytes_text(each["bytes"]), bytes_text(each["bytes_per_example"])]
        table.add_row(name, *sizes, f"{each['largest_per_device']:,}")
    console.print(table)
    console.print(verdict(found), highlight=False, soft_wrap=True)
    share = round(100 * found["usable_bytes"] / found["device_memory"])
    console.print(
        f"As XLA plans it for {found['platform']}; other platforms take other amounts. {share} % of"
        " the memory is counted on.",
        highlight=False,
        soft_wrap=True,
    )
