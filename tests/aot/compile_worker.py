"""Compiles steps for accelerators that are not there: reads a case as JSON from each line, answers with what its program shows.

A process of its own: the tests' own carries flags for the CPU, over which the other compilers fail.
"""

import json
import re
import sys
import traceback
from typing import Any

from jaxdp.runtime import platform

platform.describe_only()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

from jaxdp.components import Objects  # noqa: E402
from jaxdp.config import TrainConfig  # noqa: E402
from jaxdp.data import placement  # noqa: E402
from jaxdp.data.sources import ArraySource, Dataset  # noqa: E402
from jaxdp.ops import convolution  # noqa: E402
from jaxdp.runtime.targets import Target  # noqa: E402
from jaxdp.sharding.memory import Forecast, compile_step  # noqa: E402
from jaxdp.sharding.program import Program  # noqa: E402
from jaxdp.training.setup import create_setup  # noqa: E402

EXAMPLES = 50_000  # as many as CIFAR-10 has, of which a batch takes few: a copy of all stands out
QUICK = {"exec_time_optimization_effort": -1.0}


def dataset() -> Dataset:
    """Images of nothing, which take no memory."""
    images = np.broadcast_to(np.zeros((), np.uint8), (EXAMPLES, 32, 32, 3))
    source = ArraySource(images, np.broadcast_to(np.zeros((), np.int32), (EXAMPLES,)))
    moments: dict[str, Any] = {"mean": (125.3, 123.0, 113.9), "std": (63.0, 62.1, 66.7)}
    return Dataset(source, source, num_classes=10, image_shape=(32, 32, 3), task="classification", **moments)


def prepare(case: dict[str, Any]) -> Any:
    target = Target.parse(case["target"])
    return create_setup(TrainConfig.of(**case["settings"]), Objects(dataset=dataset()), training=False, target=target)


def lowered(case: dict[str, Any], setup: Any, examples: int) -> Any:
    """Returns the program before it is compiled, of a step with so many examples on a device."""
    state, batch, constants = setup.abstract_step(examples * setup.strategy.data_shards)
    if case["kind"] == "evaluate":
        return setup.strategy.eval_step.lower(state, batch, constants.examples)
    if case["kind"] == "several":  # of several steps a call K is the last dim of indices and weights
        batch = {name: jax.ShapeDtypeStruct((*leaf.shape, 3), leaf.dtype) for name, leaf in batch.items()}
    return setup.strategy.train_step.lower(state, batch, constants)


def formats(text: str) -> list[str]:
    """Returns the formats of the factors of convolutions in a program as it was traced."""
    lines = [line for line in text.splitlines() if "stablehlo.convolution" in line]
    factors = [re.search(r": \((tensor<.*>)\) ->", line) for line in lines]
    return sorted({kind for found in factors if found for kind in re.findall(r"x([a-z]+\d+)>", found.group(1))})


def properties(case: dict[str, Any]) -> dict[str, Any]:
    """Returns what a test asserts of a program."""
    examples = case.get("examples", 16)
    setup = prepare(case)
    before = lowered(case, setup, examples)
    options = QUICK if case["target"].startswith("tpu") else None
    read = Program(before.compile(compiler_options=options).as_text())
    bytes_of_images = len(setup.dataset.train) * int(np.prod(setup.dataset.image_shape))
    # What results from an instruction, and is no name for something that was there before.
    names = {"parameter", "tuple", "get-tuple-element", "while", "bitcast", "opt-barrier", "conditional", "call"}
    large = [each for _, each, _ in read.everything() if each.opcode not in names and each.bytes >= bytes_of_images // 2]
    found = {
        "donated": read.donated,
        "state_leaves": len(jax.tree.leaves(setup.shapes)),
        "copies": [f"{each.opcode} {each.type}" for each in large],
        "traced_formats": formats(before.as_text()),
        "formats": sorted({kind for _, kind in read.convolutions()}),
        "collectives": [[each.kind, each.count, each.bytes, each.asynchronous] for each in read.collectives()],
        "gradient_bytes": sum(4 * leaf.size for leaf in jax.tree.leaves(setup.shapes.params)),
        "flops": read.flops,
        "bytes_moved": read.bytes_moved,
        "cycles": read.cycles,
        "image_bytes": bytes_of_images,
    }
    if between := case.get("between"):
        sizes = (examples, between, 4 * examples)
        total = [compile_step(setup.strategy, setup.abstract_step, size * setup.strategy.data_shards, options)[1] for size in sizes]
        found |= {"planned": Forecast(sizes[::2], (total[0], total[2])).at(between), "total": total[1].total}
    return found


def mutate(name: str) -> None:
    """Puts one of the faults back that the tests are there to find."""
    if name == "gather":  # the images stored as they are
        placement.abstract = lambda example, count: {
            name: jax.ShapeDtypeStruct((count, *array.shape[1:]), array.dtype) for name, array in example.items()
        }
    elif name == "donation":
        jit = jax.jit
        jax.jit = lambda *args, donate_argnums=None, **kwargs: jit(*args, **kwargs)  # pyright: ignore
    elif name == "float32":
        plain = convolution.plain
        convolution.plain = lambda x, kernel, *rest: plain(x.astype(jnp.float32), kernel.astype(jnp.float32), *rest).astype(x.dtype)
    else:
        raise ValueError(name)


def main() -> None:
    for line in sys.stdin:
        case = json.loads(line)
        try:
            if case.get("mutant"):
                mutate(case["mutant"])
            answer = properties(case)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:500]}", "trace": traceback.format_exc()}
        print("answer " + json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
