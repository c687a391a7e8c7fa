"""The time of a step by an accelerator's data sheet: a roofline of compute, memory and network."""

from collections.abc import Sequence
from typing import Any

from jaxdp.runtime.targets import Target
from jaxdp.sharding.memory import StepMemory
from jaxdp.sharding.program import Collective


def idealize(
    target: Target,
    precision: str,
    flops: float,
    step: StepMemory,
    collectives: Sequence[Collective],
) -> dict[str, Any]:
    """Returns the seconds of a step by the data sheet.

    The device moves what it holds in and out once, except for the dataset and the batch, while it
    computes. Collectives run before or after that.

    Args:
        flops: of a step on each device.
    """
    chip = target.chip
    moved = 2 * (step.total - step.dataset - step.batch) + step.batch
    parts = {
        "compute_seconds": flops / chip.peak_flops[precision],
        "memory_seconds": moved / chip.memory_bandwidth,
        "network_seconds": network_seconds(target, collectives),
    }
    inside = max(parts["compute_seconds"], parts["memory_seconds"])
    return parts | {
        "step_seconds": inside + parts["network_seconds"],
        "bound": max(parts, key=lambda part: parts[part]).removesuffix("_seconds"),
    }


def network_seconds(target: Target, collectives: Sequence[Collective]) -> float:
    """Returns the seconds of collectives of all devices, at the full rate of all links and without
    latency.

    A ring over n devices sends (n - 1) / n of the bytes from each, an all-reduce twice that.
    Devices beyond the reach of the fast links first combine within it and then, each with its
    share, over the network.

    Source: Thakur et al. 2005, Optimization of Collective Communication Operations in MPICH,
    section 4.
    """
    chip, total = target.chip, 0.0
    near = min(target.count, chip.linked)
    far = -(-target.count // near)
    for each in collectives:
        if each.kind in ("collective-permute", "collective-broadcast"):
            total += each.bytes / chip.link_bandwidth
            continue
        sent = each.bytes * (2 if each.kind == "all-reduce" else 1)
        total += sent * (near - 1) / near / chip.link_bandwidth
        total += sent / near * (far - 1) / far / chip.network_bandwidth
    return total
