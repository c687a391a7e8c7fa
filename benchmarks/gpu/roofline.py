"""Computes the minimum time of a training step on one GPU, from the GPU's data sheet."""

import dataclasses

from jaxdp.sharding.memory import StepMemory


@dataclasses.dataclass(frozen=True)
class Sheet:
    """Rates of a GPU.

    Attributes:
        peak_flops: operations per second of products of dense matrices, by format. XLA multiplies
            float32 in TF32.
        memory_bandwidth: bytes per second.
    """

    peak_flops: dict[str, float]
    memory_bandwidth: float


_HOPPER = {"bfloat16": 989.4e12, "float16": 989.4e12, "float32": 494.7e12}
# NVIDIA's data sheets of A100 80GB SXM, H100 SXM and H200 SXM, by the name in jaxdp's chips.toml.
SHEETS = {
    "a100": Sheet({"bfloat16": 312e12, "float16": 312e12, "float32": 156e12}, 2039e9),
    "h100": Sheet(_HOPPER, 3352e9),
    "h200": Sheet(_HOPPER, 4800e9),
}


def bound(target: str, precision: str, flops: float, step: StepMemory) -> tuple[float, str]:
    """Returns the least milliseconds of a step, and what bounds them: compute or memory.

    The GPU moves what it holds in and out once, except for the dataset and the batch, while it
    computes.

    Args:
        target: e.g. `cuda:h100:1`.
        flops: of a step.
    """
    sheet = SHEETS[target.split(":")[1]]
    moved = 2 * (step.total - step.dataset - step.batch) + step.batch
    compute, memory = flops / sheet.peak_flops[precision], moved / sheet.memory_bandwidth
    return 1e3 * max(compute, memory), "compute" if compute >= memory else "memory"
