"""`python -m jaxdp.plan`: shows the memory of a training step, the batch that fits, and what would
change that, for the devices here or for accelerators that only a description stands for.

Steps are compiled and their plans are read; nothing runs, and no memory of a device is taken.
"""

import concurrent.futures
import dataclasses
import json
import re
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jaxdp.command_line import command
from jaxdp.config import TrainConfig, setting
from jaxdp.config.values import TargetCounts
from jaxdp.registry import ConfigError
from jaxdp.reporting import plans
from jaxdp.runtime import native_output, platform
from jaxdp.runtime.targets import Target
from jaxdp.units import parse_bytes

if TYPE_CHECKING:
    from jaxdp.sharding.memory import StepMemory

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
        search = len(targets) < 2
        with native_output.without(_ATTEMPTS):
            records = [
                plan(config, each, limit=limit, quick=asked.quick, search=search)
                for each in targets or [target]
            ]
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
) -> Record:
    """Returns what a step takes, ready for JSON.

    Args:
        target: devices to compile for; None for the devices here.
        limit: bytes of a device; None for what the devices have.
        quick: whether to compile for a TPU with the least effort.
        search: whether to find the largest batch that fits, also with settings that save memory.

    Raises:
        ConfigError: for a run that could not be trained.
    """
    setup = _create_setup(config, target)
    from jaxdp.sharding import memory
    from jaxdp.sharding.program import Program
    from jaxdp.sharding.roofline import idealize

    strategy, config = setup.strategy, setup.config
    if limit is None:
        here = platform.device_memory_bytes
        limit = target.chip.memory_bytes if target else here(strategy.devices)
    least = _QUICK if target is not None and target.chip.platform == "tpu" else None
    examples, effort = _examples(setup), "least" if quick and least else "default"
    record: Record = _describe(setup, target, limit) | {"effort": effort}
    try:
        compiled, step = memory.compile_step(
            strategy, setup.abstract_step, record["global_batch_size"], least if quick else None
        )
    except RuntimeError as error:
        text = " ".join(str(error).split())
        reason = text[max(text.find("Ran out of memory"), 0) :][:300]
        return record | {"compiles": False, "reason": reason}
    collectives = Program(compiled.as_text()).collectives()
    flops = _count_flops(config, examples, setup) if target else step.flops
    record |= {
        "compiles": True,
        "flops_per_example": flops / examples,
        "bytes": {kind: getattr(step, kind) for kind in (*memory.KINDS, "total")},
        "collectives": [dataclasses.asdict(each) for each in collectives],
    }
    if target is not None:
        ideal = idealize(target, config.precision, flops, step, collectives)
        rate = record["global_batch_size"] / ideal["step_seconds"]
        record["idealized"] = ideal | {"images_per_second": rate}
    if search:
        others = {} if target else variants(config, strategy.num_devices)
        setups = {"as configured": setup} | {
            name: _create_setup(each, target) for name, each in others.items()
        }
        record["variants"] = _search(setups, step, limit, least)
    return record


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


def _create_setup(config: TrainConfig, target: Target | None) -> Any:
    if target is None:
        platform.configure(
            config.devices,
            deterministic=config.deterministic,
            precision=config.precision,
        )
    else:
        platform.describe_only()
    from jaxdp.training.setup import create_setup

    if config.global_batch_size == "auto":  # the plan shows it
        config = config.replace(global_batch_size=None)
    # Here as if not to train: the batches to plan for need not be the configured one.
    return create_setup(config, training=target is not None, target=target)


def _examples(setup: Any) -> int:
    """Returns the examples on a device, in whole microbatches and groups of batch norm."""
    from jaxdp.sharding.memory import fewest_examples

    unit = fewest_examples(setup.strategy)
    return -(-setup.global_batch_size // (setup.strategy.data_shards * unit)) * unit


def _count_flops(config: TrainConfig, examples: int, setup: Any) -> float:
    """Returns the operations of a step on each device, as XLA counts them for one CPU: compilers
    for GPUs that are not here count none, compilers for TPUs a loop once.
    """
    from jaxdp.training.setup import create_setup

    alone = create_setup(
        config.replace(
            strategy="single",
            devices=1,
            mesh=None,
            shard_params=False,
            batch_norm="replica",
            global_batch_size=examples,
        ),
        training=False,
    )
    step: Any = alone.strategy.train_step
    lowered = step.lower(*alone.abstract_step(examples))
    return (
        lowered.cost_analysis()["flops"] * setup.strategy.data_shards / setup.strategy.num_devices
    )


def variants(config: TrainConfig, devices: int) -> dict[str, TrainConfig]:
    """Returns settings that could save memory, by the flags that choose them."""
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


def _search(
    setups: Mapping[str, Any], step: "StepMemory", limit: int, options: Mapping[str, Any] | None
) -> dict[str, Record]:
    """Returns the largest batch of each setup.

    Args:
        step: of the first setup.
    """
    from jaxdp.sharding import memory

    first = next(iter(setups))

    def find(name: str) -> Record:
        setup, strategy = setups[name], setups[name].strategy
        examples, shards = _examples(setup), strategy.data_shards
        known = step
        if name != first:
            _, known = memory.compile_step(
                strategy, setup.abstract_step, examples * shards, options
            )
        largest = memory.find_largest(
            strategy, setup.abstract_step, limit, known={examples: known}, options=options
        )
        return {
            "bytes": known.total,
            "bytes_per_example": largest.bytes_per_example,
            "largest_per_device": largest.examples,
            "largest_global": largest.examples * shards,
        }

    print(f"looking for the largest batch: {', '.join(setups)}", file=sys.stderr)
    # XLA compiles outside the interpreter's lock.
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return dict(zip(setups, pool.map(find, setups), strict=True))


def _add_efficiency(records: Sequence[Record]) -> None:
    """Adds to each record its images per second on a device as a fraction of the first record's."""
    ideals = [(record["devices"], record["idealized"]) for record in records if record["compiles"]]
    for devices, ideal in ideals:
        base = ideals[0][1]["images_per_second"] / ideals[0][0]
        ideal["efficiency"] = ideal["images_per_second"] / devices / base


if __name__ == "__main__":
    sys.exit(main())
