"""Predicts a training step on devices that are not there, from the program that XLA compiles for
them and from their data sheets.

Every number here is a prediction; none was measured.
"""

import dataclasses
import math
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from jaxdp.config import TrainConfig
from jaxdp.registry import ConfigError
from jaxdp.runtime import native_output, platform
from jaxdp.runtime.targets import Target

KINDS = ("params", "optimizer", "statistics", "dataset", "batch", "working")
EFFICIENT = 0.9
# XLA:TPU then compiles several times quicker, into programs that take longer.
_QUICK = {"exec_time_optimization_effort": -1.0}
# What XLA:GPU prints, by the hundred, of ways to compile an operation that it tries and leaves.
_ATTEMPTS = re.compile(
    r"(loc\(.*\): )?error: (failed to compute layout|layout propagation failed|expected"
    r" normalized|multi-output results)"
)


@dataclasses.dataclass(frozen=True)
class Step:
    """A step that was compiled for a target.

    Attributes:
        examples: on each device.
        shards: of the batch.
        memory: bytes of a device by kind.
        program: as compiled.
        seconds: predicted, by part: `compute` and `memory` are what the data sheet allows at least,
            `network` likewise, and `program` is what compute and memory take together.
        source: what `program` is from: `compiler` or `roofline`.
    """

    examples: int
    shards: int
    memory: Any
    program: Any
    seconds: Mapping[str, float]
    source: str

    @property
    def total_seconds(self) -> float:
        """Predicted seconds of a step: collectives that have computation beside them count as far
        as they are longer.
        """
        return self.seconds["program"] + self.seconds["exposed"]

    @property
    def bound(self) -> str:
        """What takes longest: `compute`, `memory` or `network`."""
        return max(("compute", "memory", "network"), key=lambda part: self.seconds[part])


def network_seconds(target: Target, collectives: Sequence[Any]) -> float:
    """Returns what collectives take at least, if they use all links at the rates of the data sheet.

    Waiting times are left out.

    A ring over n devices sends (n - 1) / n of the bytes from each, an all-reduce twice that.
    Devices beyond the reach of the fast links first combine within it and then, each with its
    share, over the network.

    Source: Thakur et al. 2005, Optimization of Collective Communication Operations in MPICH,
    section 4.
    """
    chip, total = target.chip, 0.0
    for each in collectives:
        devices = each.devices or target.count
        near = min(devices, chip.linked)
        far = -(-devices // near)
        if each.kind in ("collective-permute", "collective-broadcast"):
            total += each.bytes / chip.link_bandwidth
            continue
        passes = 2 if each.kind == "all-reduce" else 1
        total += passes * each.bytes * (near - 1) / near / chip.link_bandwidth
        total += passes * each.bytes / near * (far - 1) / far / chip.network_bandwidth
    return total


def compile_for(setup: Any, target: Target, examples: int, *, quick: bool = False) -> Step:
    """Compiles a training step for a target.

    Args:
        setup: of a run on that target's devices.
        examples: on each device, rounded up to whole microbatches and groups of batch norm.
        quick: whether to compile a TPU's program with the least effort, whose times are too long.

    Raises:
        ConfigError: for a strategy whose step is several programs.
        RuntimeError: of XLA, where the step cannot be compiled, or does not fit.
    """
    from jaxdp.sharding import memory
    from jaxdp.sharding.program import Program

    shards, unit = setup.strategy.data_shards, memory.fewest_examples(setup.strategy)
    examples = -(-examples // unit) * unit
    options = _QUICK if quick and target.chip.platform == "tpu" else None
    with native_output.without(_ATTEMPTS):
        compiled, found = memory.compile_step(
            setup.strategy, setup.abstract_step, examples * shards, options
        )
    program = Program(compiled.as_text())
    seconds, source = _seconds(program, target, setup.config.precision)
    return Step(examples, shards, found, program, seconds, source)


def _seconds(program: Any, target: Target, precision: str) -> tuple[dict[str, float], str]:
    chip, collectives = target.chip, program.collectives()
    peak = chip.peak_flops[precision]
    hidden = [each for each in collectives if each.overlapped == each.count]
    network = network_seconds(target, collectives)
    beside = network_seconds(target, hidden)
    if chip.cycles_per_second is not None and program.cycles:
        seconds, source = program.cycles / chip.cycles_per_second, "compiler"
    else:
        seconds, source = program.rooflines(peak, chip.memory_bandwidth), "roofline"
    return {
        "compute": program.flops / peak,
        "memory": program.bytes_moved / chip.memory_bandwidth,
        "network": network,
        "exposed": network - beside + max(beside - seconds, 0.0),
        "program": seconds,
    }, source


def predict(
    config: TrainConfig, target: Target, *, quick: bool = False, limit: int | None = None
) -> dict[str, Any]:
    """Returns what is predicted of a step on a target and the largest batch that fits there, ready
    for JSON.

    Args:
        quick: as for `compile_for`.
        limit: bytes of a device; None for what the data sheet has.
    """
    setup, found, step = _compiled(config, target, quick=quick)
    if step is None:
        return found
    limit = target.chip.memory_bytes if limit is None else limit
    return found | {"device_memory": limit} | _largest(setup, target, step, limit)


def _compiled(
    config: TrainConfig, target: Target, *, quick: bool
) -> tuple[Any, dict[str, Any], Step | None]:
    setup = _setup(config, target, training=True)
    found: dict[str, Any] = {
        "target": str(target),
        "devices": target.count,
        "strategy": config.strategy,
        "effort": _effort(target, quick),
    }
    try:
        step = compile_for(
            setup, target, setup.global_batch_size // setup.strategy.data_shards, quick=quick
        )
    except RuntimeError as error:
        return setup, found | {"compiles": False, "reason": _reason(error)}, None
    return setup, found | _described(setup, step), step


def _described(setup: Any, step: Step) -> dict[str, Any]:
    import jax

    config, program, global_batch = setup.config, step.program, step.examples * step.shards
    return {
        "compiles": True,
        "model": config.model,
        "dataset": config.dataset,
        "image_shape": list(setup.dataset.image_shape),
        "precision": config.precision,
        "batch_norm": str(config.batch_norm),
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(setup.shapes.params)),
        "examples_per_device": step.examples,
        "examples_at_once": step.examples // config.accumulate_steps,
        "global_batch_size": global_batch,
        "predicted_bytes": {kind: getattr(step.memory, kind) for kind in (*KINDS, "total")},
        "predicted_flops": program.flops,
        "predicted_bytes_moved": program.bytes_moved,
        "predicted_collectives": [dataclasses.asdict(each) for each in program.collectives()],
        "predicted_seconds": dict(step.seconds) | {"step": step.total_seconds},
        "predicted_seconds_from": step.source,
        "predicted_images_per_second": global_batch / step.total_seconds,
        "predicted_bound": step.bound,
    }


def _largest(setup: Any, target: Target, step: Step, limit: int) -> dict[str, Any]:
    """Returns the most examples that fit a device, a power of 2 of the fewest there can be, as
    compiling the step for them shows.

    That is done with the least effort, several times quicker, whose programs take as much memory as
    others or more.
    """
    from jaxdp.sharding import memory

    def bytes_of(examples: int) -> int | float:
        print(f"compiling with {examples:,} examples on each device", file=sys.stderr)
        try:
            return compile_for(setup, target, examples, quick=True).memory.total
        except RuntimeError:  # it does not fit
            return math.inf

    unit, usable = memory.fewest_examples(setup.strategy), memory.USABLE_FRACTION * limit
    fixed = step.memory.total - step.memory.working - step.memory.batch
    most = memory.largest_fitting(
        bytes_of, {0: fixed, step.examples: step.memory.total}, unit, usable
    )
    return {"predicted_largest_per_device": most, "predicted_largest_global": most * step.shards}


def _setup(config: TrainConfig, target: Target, *, training: bool) -> Any:
    """Returns the setup of a run on a target, with JAX ready to compile for other devices than it
    has.
    """
    platform.describe_only()
    from jaxdp.training.setup import create_setup

    if config.global_batch_size == "auto":  # that is what the prediction tells
        config = config.replace(global_batch_size=None)
    return create_setup(config, training=training, target=target)


def _effort(target: Target, quick: bool) -> str:
    return "least" if quick and target.chip.platform == "tpu" else "default"


def _reason(error: Exception) -> str:
    """Returns what XLA says in one line, from where it says that memory is out if it does."""
    text = " ".join(str(error).split())
    start = max(text.find("Ran out of memory"), 0)
    return text[start : start + 300]


def scale(
    config: TrainConfig, target: Target, counts: Sequence[int], *, quick: bool = False
) -> dict[str, Any]:
    """Returns predicted weak and strong scaling over these numbers of devices, ready for JSON.

    Weak scaling keeps the examples of a device, those of the configured batch on `target`; strong
    scaling keeps the global batch.

    Raises:
        ConfigError: for a mesh, which is for one number of devices.
    """
    if config.mesh is not None:
        raise ConfigError(
            "mesh",
            config.mesh,
            "is for one number of devices; leave it out to scale over several",
        )
    setup = _setup(config, target, training=True)
    if setup.strategy.one_device:
        raise ConfigError(
            "strategy", setup.strategy.name, "uses one device; scale another strategy"
        )
    whole = setup.global_batch_size
    each = max(whole // target.count, 1)
    # The same examples share statistics on any number of devices, and batches are those of this
    # table.
    config = config.replace(
        batch_norm=setup.config.batch_norm, global_batch_size=None, per_device_batch_size=None
    )
    steps: dict[tuple[int, int], Step | str] = {}
    rows = []
    for count in counts:
        row: dict[str, Any] = {"devices": count}
        for name, examples in (
            ("weak", each),
            ("strong", whole // count if whole % count == 0 else None),
        ):
            if examples is None:
                row[name] = {"reason": f"{count} devices do not divide {whole}"}
                continue
            # A slice of TPUs has its limit, beyond which pods are connected by the network: the
            # program is that of one pod.
            whole_target = target.of_size(count)
            near = (
                target.of_size(min(count, target.chip.linked))
                if target.chip.platform == "tpu"
                else whole_target
            )
            if (near.count, examples) not in steps:
                print(
                    f"compiling for {near.count} devices with {examples} examples each",
                    file=sys.stderr,
                )
                steps[near.count, examples] = _scaled(config, near, examples, quick=quick)
            step = _widened(steps[near.count, examples], near, whole_target)
            row[name] = {"reason": step} if isinstance(step, str) else _row(step, count)
        rows.append(row)
    for name in ("weak", "strong"):
        _add_efficiency([row[name] for row in rows])
    below = {
        name: _first_below([(row["devices"], row[name]) for row in rows])
        for name in ("weak", "strong")
    }
    return {
        "target": f"{target.chip.platform}:{target.chip.name}",
        "model": config.model,
        "precision": config.precision,
        "strategy": config.strategy,
        "effort": _effort(target, quick),
        "weak_examples_per_device": each,
        "strong_global_batch_size": whole,
        "predicted_scaling": rows,
        "efficient": EFFICIENT,
        "predicted_devices_below_efficient": below,
    }


def _scaled(config: TrainConfig, target: Target, examples: int, *, quick: bool) -> Step | str:
    """Returns a compiled step, or why there is none."""
    try:
        return compile_for(_setup(config, target, training=False), target, examples, quick=quick)
    except RuntimeError as error:
        return _reason(error)


def _widened(step: Step | str, near: Target, target: Target) -> Step | str:
    """Returns a step of several slices from that of one: collectives of all its devices go on over
    the network.
    """
    if isinstance(step, str) or near.count == target.count:
        return step
    wider = [
        dataclasses.replace(each, devices=0 if each.devices == near.count else each.devices)
        for each in step.program.collectives()
    ]
    network = network_seconds(target, wider)
    exposed = step.seconds["exposed"] + network - step.seconds["network"]
    return dataclasses.replace(
        step, seconds=dict(step.seconds) | {"network": network, "exposed": exposed}
    )


def _row(step: Step, count: int) -> dict[str, Any]:
    return {
        "examples_per_device": step.examples,
        "predicted_step_seconds": step.total_seconds,
        "predicted_network_seconds": step.seconds["network"],
        "predicted_images_per_second": count * step.examples / step.total_seconds,
        "predicted_bound": step.bound,
        "devices": count,
    }


def _add_efficiency(rows: Sequence[dict[str, Any]]) -> None:
    """Adds to each row its images per second on a device as a fraction of those in the first row
    that has any.
    """
    base = next(
        (row["predicted_images_per_second"] / row["devices"] for row in rows if "devices" in row),
        math.nan,
    )
    for row in rows:
        if "devices" in row:
            row["predicted_efficiency"] = (
                row["predicted_images_per_second"] / row.pop("devices") / base
            )


def _first_below(rows: Sequence[tuple[int, Mapping[str, Any]]]) -> int | None:
    return next(
        (count for count, row in rows if row.get("predicted_efficiency", 1.0) < EFFICIENT), None
    )
