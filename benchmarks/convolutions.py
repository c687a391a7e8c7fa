"""Compares single 3x3 convolutions and their gradients with PyTorch's, on one core. They take most
of the time of a step.

    python benchmarks/convolutions.py [--rounds N] [--seconds N] [--write FILE]

Both libraries run in this process, which keeps itself to one core, on arrays that exist; PyTorch in
the faster of its two memory orders. A figure is the median over rounds, in which all take turns.
Before a shape is measured, both have the same results.
"""

import argparse
import os
import pathlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tables
import torch
from torch.nn import functional

from jaxdp.models.convolution import convolve
from jaxdp.runtime import platform

# Batch, side of the map, channels in and out.
SHAPES = {
    "PyramidNet and ResNet": [
        (128, 32, 16, 16),
        (64, 32, 16, 32),
        (64, 16, 64, 64),
        (128, 32, 64, 64),
        (128, 16, 128, 128),
        (128, 8, 256, 256),
    ],
    "U-Net": [
        (8, 128, 16, 16),
        (8, 128, 32, 16),
        (8, 64, 32, 32),
        (8, 32, 64, 64),
        (8, 16, 128, 128),
    ],
}
PARTS = ("forward", "gradient of the input", "gradient of the kernel")
ORDERS = {"first": torch.contiguous_format, "last": torch.channels_last}
Call = Callable[[], Any]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="how often each is measured")
    parser.add_argument(
        "--seconds", type=float, default=0.2, help="how long a measurement takes at least"
    )
    parser.add_argument(
        "--write", type=pathlib.Path, help="Markdown file with a place for the table"
    )
    arguments = parser.parse_args()
    # As the threads have it that JAX starts with the first array.
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    platform.configure(None)
    torch.set_num_threads(1)
    lines = [
        f"| batch, map, channels | {' | '.join(PARTS)} | torch / jaxdp, all three |",
        "|---" * (len(PARTS) + 2) + "|",
    ]
    lines += [
        row(shape, arguments.rounds, arguments.seconds)
        for shapes in SHAPES.values()
        for shape in shapes
    ]
    heading = (
        "Milliseconds of one core, of jaxdp and PyTorch, and in brackets GFLOP/s, written by"
        " `nox -s bench -- convolutions`."
    )
    text = "\n".join([f"{heading} {tables.machine('jax', 'torch')}", "", *lines, ""])
    print(text)
    if arguments.write:
        tables.write(arguments.write, "convolutions", text)


def row(shape: tuple[int, int, int, int], rounds: int, seconds: float) -> str:
    """Returns the line of a shape."""
    batch, side, inputs, outputs = shape
    calls = create(*shape)
    times: dict[tuple[str, str], list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            times[name].append(measured(call, seconds))
    medians = {name: statistics.median(values) for name, values in times.items()}
    operations = 2 * batch * side**2 * 9 * inputs * outputs
    ours = {part: medians[part, "jaxdp"] for part in PARTS}
    theirs = {part: min(medians[part, order] for order in ORDERS) for part in PARTS}

    def cell(took: float) -> str:
        return f"{1e3 * took:.1f} ({operations / took / 1e9:.0f})"

    cells = [f"{cell(ours[part])}, {cell(theirs[part])}" for part in PARTS]
    ratio = sum(theirs.values()) / sum(ours.values())
    return (
        f"| {batch} x {side}x{side}, {inputs} to {outputs} | {' | '.join(cells)} |"
        f" **{ratio:.2f}** |"
    )


def create(batch: int, side: int, inputs: int, outputs: int) -> dict[tuple[str, str], Call]:
    """Returns the calls by part and side, which have the same results.

    Raises:
        AssertionError: if they do not.
    """
    rng = np.random.default_rng(0)
    drawn = [
        rng.normal(size=size).astype(np.float32)
        for size in ((batch, side, side, inputs), (3, 3, inputs, outputs))
    ]
    drawn.append(rng.normal(size=(batch, side, side, outputs)).astype(np.float32))
    x, kernel, of_y = map(jnp.asarray, drawn)

    def forward(x: Any, kernel: Any) -> Any:
        return convolve(x, kernel, (1, 1), ((1, 1), (1, 1)))

    programs = {
        "forward": jax.jit(
            lambda x, kernel, of_y: jax.vjp(forward, x, kernel)[0]
        ),  # as in training
        "gradient of the input": jax.jit(
            lambda x, kernel, of_y: jax.vjp(lambda x: forward(x, kernel), x)[1](of_y)[0]
        ),
        "gradient of the kernel": jax.jit(
            lambda x, kernel, of_y: jax.vjp(lambda kernel: forward(x, kernel), kernel)[1](of_y)[0]
        ),
    }
    calls: dict[tuple[str, str], Call] = {}
    for part, program in programs.items():
        calls[part, "jaxdp"] = lambda program=program: jax.block_until_ready(
            program(x, kernel, of_y)
        )
    for name, order in ORDERS.items():
        theirs = [
            torch.from_numpy(each.transpose(*axes)).contiguous(memory_format=order)
            for each, axes in zip(drawn, [(0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2)], strict=True)
        ]
        for part, call in of_torch(*theirs).items():
            calls[part, name] = call
            axes = (2, 3, 1, 0) if part == PARTS[2] else (0, 2, 3, 1)
            found = call().numpy().transpose(*axes)
            np.testing.assert_allclose(
                calls[part, "jaxdp"](), found, rtol=1e-3, atol=1e-3 * np.abs(found).max()
            )
    return calls


def of_torch(x: torch.Tensor, kernel: torch.Tensor, of_y: torch.Tensor) -> dict[str, Call]:
    def gradient(mask: list[bool]) -> Call:
        arguments = (of_y, x, kernel, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, mask)
        return lambda: torch.ops.aten.convolution_backward(*arguments)[mask.index(True)]

    return {
        PARTS[0]: lambda: functional.conv2d(x, kernel, padding=1),
        PARTS[1]: gradient([True, False, False]),
        PARTS[2]: gradient([False, True, False]),
    }


def measured(call: Call, seconds: float) -> float:
    """Returns the median of the seconds of a call."""
    call()
    found: list[float] = []
    while sum(found) < seconds or len(found) < 3:
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return statistics.median(found)


if __name__ == "__main__":
    main()
