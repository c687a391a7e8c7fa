"""Steps compiled for a TPU and a CUDA GPU have the properties that make them fast.

Nothing is run; times are not asserted.
"""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import steps

Answer = dict[str, Any]
Ask = Callable[[Answer], Answer]

KINDS_OF_COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "collective-permute",
    "all-to-all",
)
COMBINED_BYTES = 30 * 2**20  # up to which XLA:GPU combines all-reduces


def test_every_pair_of_settings_is_among_the_steps() -> None:
    chosen, product = steps.every_pair(), steps.every_step()
    for one, other in itertools.combinations(range(4), 2):
        assert {(step[one], step[other]) for step in chosen} == {
            (step[one], step[other]) for step in product
        }
    assert len(chosen) == len(set(chosen)) == len(steps.LARGE) * len(steps.STRATEGIES)


def check(found: Answer, step: steps.Choice) -> None:
    """Asserts what holds of every step."""
    _, strategy, precision, kind = step
    assert found["temporary_bytes"] < found["dataset_bytes"] // 2, "the data set is copied"
    trains = kind != "evaluate"
    if trains:
        assert found["donated_bytes"] >= found["state_bytes"], (
            "the new state does not take the memory of the old one"
        )
    if precision == "bfloat16":
        # XLA:TPU computes in bfloat16 what is traced in float32 from bfloat16; others need not.
        assert found["traced_formats"] == ["bf16"], (
            "a convolution of a bfloat16 step is traced in float32"
        )
    collectives = {
        name: [each for each in found["collectives"] if each["kind"] == name]
        for name in KINDS_OF_COLLECTIVES
    }
    assert sum(map(len, collectives.values())) == len(found["collectives"])
    if trains and strategy in ("pmap", "shard_map", "sharded"):
        assert not any(collectives[name] for name in KINDS_OF_COLLECTIVES[1:]), (
            "only all-reduces are needed"
        )
        check_reductions(found, collectives["all-reduce"], step)
    if trains and strategy == "sharded_params":
        check_scattered(found, collectives, step)


def check_reductions(found: Answer, reductions: list[Answer], step: steps.Choice) -> None:
    """Asserts that gradients are combined, and reduced once for each update."""
    _, strategy, precision, kind = step
    updates = steps.STEPS_A_CALL if kind == "several" else 1
    # Where XLA partitions the step, its all-reduces stand in the loop over microbatches. XLA:GPU
    # 0.12 moves those of gradients out.
    if strategy == "sharded" and kind == "accumulation":
        updates = steps.MICROBATCHES
    gradients = found["gradient_bytes"] * updates
    reduced, count = (sum(each[name] for each in reductions) for name in ("bytes", "count"))
    # XLA's partitioner sums what a convolution returns, before that becomes float32.
    least = gradients / 2 if strategy == "sharded" and precision == "bfloat16" else gradients
    assert least <= reduced <= 1.1 * gradients, (
        "gradients are reduced more than once for an update, or not at all"
    )
    most = 4 + found["gradient_bytes"] // COMBINED_BYTES
    if strategy == "sharded":  # metrics and statistics come one by one; so do some kernels
        most += steps.MICROBATCHES + found["state_leaves"] // 10
    assert count <= most * updates, "gradients are not combined"


def check_scattered(
    found: Answer, collectives: dict[str, list[Answer]], step: steps.Choice
) -> None:
    """Asserts that a device receives all sharded parameters, and gradients once for each
    microbatch.
    """
    _, _, precision, kind = step
    moved = {name: sum(each["bytes"] for each in group) for name, group in collectives.items()}
    # The gradients of each microbatch are scattered: a device adds up its own share of them.
    updates = {"several": steps.STEPS_A_CALL, "accumulation": steps.MICROBATCHES}.get(kind, 1)
    least = 0.9 * found["gradient_bytes"] / (2 if precision == "bfloat16" else 1)
    # XLA:TPU gathers in bfloat16 what it multiplies so.
    assert moved["all-gather"] >= 0.45 * found["sharded_bytes"] > 0, "parameters are not gathered"
    assert moved["reduce-scatter"], "gradients are not scattered"
    # Both compilers scatter some of them only, and all-reduce the others.
    reduced = moved["reduce-scatter"] + moved["all-reduce"]
    assert least * updates <= reduced <= 1.1 * found["gradient_bytes"] * updates, (
        "gradients are reduced more than once, or not at all"
    )


@pytest.mark.slow
def test_a_compiled_step(platform: str, step: steps.Choice, compile_step: Ask) -> None:
    check(compile_step(steps.case(platform, step)), step)


CNN = ("cnn", "shard_map")
LARGER = ("pyramidnet20", "sharded_params", "bfloat16", "evaluate")
FAULTS = [
    # XLA:GPU gathers images that are stored as they are without a copy.
    ("tpu", "gather", (*CNN, "float32", "train")),
    *((platform, "donation", (*CNN, "float32", "train")) for platform in steps.TARGETS),
    *(
        (platform, "float32", step)
        for platform in steps.TARGETS
        for step in ((*CNN, "bfloat16", "train"), LARGER)
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("platform", "mutant", "faulty"),
    [
        pytest.param(
            *fault, marks=pytest.mark.xdist_group(fault[0]), id="-".join((*fault[:2], *fault[2]))
        )
        for fault in FAULTS
    ],
)
def test_a_fault_is_found(
    platform: str, mutant: str, faulty: steps.Choice, compile_step: Ask
) -> None:
    check(compile_step(steps.case(platform, faulty)), faulty)
    with pytest.raises(AssertionError):
        check(compile_step(steps.case(platform, faulty, mutant)), faulty)
