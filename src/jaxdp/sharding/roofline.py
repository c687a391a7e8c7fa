"""The least time of a step by an accelerator's data sheet: a roofline of compute, memory and
network.
"""

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
    """Returns the least seconds of a step by the data sheet: a roofline of compute, memory and
    network.

    The device moves what it holds in and out once, except for the dataset and the batch.
    Collectives with computation between start and end cost nothing as long as that takes longer.

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
    hidden = [each for each in collectives if each.overlapped == each.count]
    overlap = min(network_seconds(target, hidden), inside)
    return parts | {
        "step_seconds": inside + parts["network_seconds"] - overlap,
        "bound": max(parts, key=lambda part: parts[part]).removesuffix("_seconds"),
    }


def network_seconds(target: Target, collectives: Sequence[Collective]) -> float:
    """Returns the least seconds of collectives, at the full rate of all links and without latency.

    A ring over n devices sends (n - 1) / n of the bytes from each, an all-reduce twice that.
    Devices beyond the reach of the fast links first combine within it and then, each with its
    share, over the network.

    Source: Thakur et al. 2005, Optimization of Collective Communication Operations in MPICH,
    section 4.
    """
    chip, total = target.chip, 0.0
    for each in collectives:
        if each.kind in ("collective-permute", "collective-broadcast"):
            total += each.bytes / chip.link_bandwidth
            continue
        near = min(each.devices or target.count, chip.linked)
        far = -(-(each.devices or target.count) // near)
        sent = each.bytes * (2 if each.kind == "all-reduce" else 1)
        total += sent * (near - 1) / near / chip.link_bandwidth
        total += sent / near * (far - 1) / far / chip.network_bandwidth
    return total
