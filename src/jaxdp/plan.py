"""`python -m jaxdp.plan`: shows the memory of a training step, the batch that fits, and what would
change that, for the devices here or for accelerators that only a description stands for.

Steps are compiled and their plans are read; nothing runs, and no memory of a device is taken.
"""

import dataclasses
import json
import re
import sys
from typing import Any

from jaxdp.command_line import command
from jaxdp.config import BatchNormMode, TrainConfig, setting
from jaxdp.config.values import TargetCounts
from jaxdp.registry import ConfigError
from jaxdp.reporting import plans
from jaxdp.runtime import platform, streams
from jaxdp.runtime.targets import Target
from jaxdp.units import parse_bytes

DESCRIPTION = "Show what a training step takes, and which batch fits, without running it."
# XLA:TPU then compiles several times as fast, into programs that take as much memory or more.
_QUICK = {"exec_time_optimization_effort": -1.0}
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
        "'jaxdp[tpu]' or 'jaxdp[cuda13]', no accelerator and no driver",
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
    quick: bool = setting(
        False, "with --target tpu:...: compile with the least effort, several times as fast"
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
        if asked.quick:
            raise ConfigError("quick", "", "is for --target; see --help")
        if len(counts) > 1:
            raise ConfigError("devices", asked.devices, "several numbers are for --target")
        records = [plan(config.replace(devices=counts[0] if counts else None), limit=limit)]
    else:
        target = Target.parse(asked.target)
        targets = [target.resize(count) if count != target.count else target for count in counts]
        options: dict[str, Any] = {"quick": asked.quick, "search": len(targets) < 2}
        with streams.without(_ATTEMPTS):
            records = [plan(config, each, limit=limit, **options) for each in targets or [target]]
        _add_efficiency(records)
    if asked.json:
        print(json.dumps(records[0] if len(records) == 1 else records))
    else:
        plans.print_plan(records)
    return 0


def plan(
    config: TrainConfig,
    target: Target | None = None,
    *,
    limit: int | None = None,
    quick: bool = False,
    search: bool = True,
    compare: bool = True,
) -> Record:
    """Returns what a step takes, ready for JSON.

    Args:
        target: devices to compile for; None for the devices here.
        limit: bytes of a device; None for what the devices have.
        quick: whether to compile for a TPU with the least effort.
        search: whether to find the largest batch that fits.
        compare: whether to find it with other settings, too, that save memory on the devices here.

    Raises:
        ConfigError: for a run that could not be trained.
    """
    setup = _create_setup(config, target)
    from jaxdp.sharding import memory
    from jaxdp.sharding.program import Program
    from jaxdp.sharding.roofline import idealize

    if limit is None:
        here = platform.device_memory_bytes
        limit = target.chip.memory_bytes if target else here(setup.strategy.devices)
    least = _QUICK if target is not None and target.chip.platform == "tpu" else None
    record = _describe(setup, target, limit)
    examples, size = record["examples_per_device"], record["global_batch_size"]
    try:
        compiled, step = memory.compile_step(
            setup.strategy, setup.abstract_step, size, least if quick else None
        )
    except RuntimeError as error:
        text = " ".join(str(error).split())
        reason = text[max(text.find("Ran out of memory"), 0) :][:300]
        return record | {"compiles": False, "reason": reason}
    collectives = Program(compiled.as_text()).collectives()
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
        record["variants"] = {"as configured": _find_largest(setup, step, limit, least)}
    if search and compare and target is None:
        for name, each in variants(setup.config, setup.strategy.num_devices).items():
            print(f"looking for the largest batch: {name}", file=sys.stderr)
            found = plan(each, limit=limit, compare=False)
            if found["compiles"]:
                record["variants"][name] = found["variants"]["as configured"]
    return record


def _find_largest(setup: Any, step: Any, limit: int, options: dict[str, Any] | None) -> Record:
    """Returns the largest batch.

    Args:
        step: the memory of the configured step.
    """
    from jaxdp.sharding.memory import find_largest

    strategy, known = setup.strategy, {_examples(setup): step}
    largest = find_largest(strategy, setup.abstract_step, limit, known=known, options=options)
    return {
        "bytes": step.total,
        "bytes_per_example": largest.bytes_per_example,
        "largest_per_device": largest.examples,
        "largest_global": largest.examples * strategy.data_shards,
    }


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

    from jaxdp.sharding.memory import USABLE_FRACTION

    strategy, config = setup.strategy, setup.config
    examples = _examples(setup)
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
        "examples_at_once": examples // config.accumulate_steps,
        "global_batch_size": examples * strategy.data_shards,
    }


def _examples(setup: Any) -> int:
    """Returns the examples on a device, in whole microbatches and groups of batch norm."""
    from jaxdp.sharding.memory import fewest_examples

    unit = fewest_examples(setup.strategy)
    return -(-setup.global_batch_size // (setup.strategy.data_shards * unit)) * unit


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


def variants(config: TrainConfig, devices: int) -> dict[str, TrainConfig]:
    """Returns settings that could save memory, by the flags that choose them."""
    offered: list[tuple[bool, str, dict[str, Any]]] = [
        (config.remat == "none", "--remat blocks", {"remat": "blocks"}),
        (config.precision == "float32", "--precision bfloat16", {"precision": "bfloat16"}),
        (config.accumulate_steps == 1, "--accumulate-steps 4", {"accumulate_steps": 4}),
        (
            devices > 1 and not config.shard_params,
            "--strategy sharded --shard-params",
            {"strategy": "sharded", "shard_params": True},
        ),
    ]
    return {flags: config.replace(**changes) for applies, flags, changes in offered if applies}


def _add_efficiency(records: list[Record]) -> None:
    """Adds to each record its images per second on a device as a fraction of the first record's."""
    compiled = [record for record in records if record["compiles"]]
    rates = [record["idealized"]["images_per_second"] / record["devices"] for record in compiled]
    for rate, record in zip(rates, compiled, strict=True):
        record["idealized"]["efficiency"] = rate / rates[0]


if __name__ == "__main__":
    sys.exit(main())
