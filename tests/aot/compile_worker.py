"""Compiles a step for accelerators that are not there: the argument is a case as JSON, and what is
printed is what its program shows.
"""

import dataclasses
import json
import re
import sys
from typing import Any

from jaxdp.runtime import platform

platform.describe_only()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from hlo import read_collectives  # noqa: E402

from jaxdp.build.inputs import Inputs  # noqa: E402
from jaxdp.build.setup import create_setup  # noqa: E402
from jaxdp.config import TrainConfig  # noqa: E402
from jaxdp.data import placement  # noqa: E402
from jaxdp.data.sources import ArraySource, Dataset  # noqa: E402
from jaxdp.models import convolution  # noqa: E402
from jaxdp.runtime.targets import Target  # noqa: E402
from jaxdp.sharding.partition import bytes_per_device  # noqa: E402

LEAST_EFFORT = {"exec_time_optimization_effort": -1.0}


def dataset(case: dict[str, Any]) -> Dataset:
    """Returns images of nothing, which take no memory, with labels or masks."""
    shape, task = tuple(case["shape"]), case["settings"].get("task", "classification")
    field, dtype, dims = (
        ("masks", np.uint8, shape[:2]) if task == "segmentation" else ("labels", np.int32, ())
    )
    images, targets = (
        np.broadcast_to(np.zeros((), kind), (case["images"], *each))
        for kind, each in ((np.uint8, shape), (dtype, dims))
    )
    source = ArraySource(images, targets, field)
    moments: dict[str, Any] = {"mean": (125.3, 123.0, 113.9), "std": (63.0, 62.1, 66.7)}
    return Dataset(source, source, num_classes=10, image_shape=shape, task=task, **moments)


def prepare(case: dict[str, Any]) -> Any:
    target = Target.parse(case["target"])
    return create_setup(
        TrainConfig.of(**case["settings"]),
        Inputs(dataset=dataset(case)),
        training=False,
        target=target,
    )


def lowered(case: dict[str, Any], setup: Any) -> Any:
    """Returns the program before it is compiled."""
    state, batch, constants = setup.abstract_step(setup.batches.global_batch_size)
    if case["evaluates"]:
        constants = dataclasses.replace(constants, learning_rates=(), key=())
        return setup.strategy.eval_step.lower(state, batch, constants)
    if case["steps_a_call"]:  # the last dim of indices and weights
        batch = {
            name: jax.ShapeDtypeStruct((*leaf.shape, case["steps_a_call"]), leaf.dtype)
            for name, leaf in batch.items()
        }
    return setup.strategy.train_step.lower(state, batch, constants)


def formats(text: str) -> list[str]:
    """Returns the formats of the factors of convolutions in a program as it was traced."""
    lines = [line for line in text.splitlines() if "stablehlo.convolution" in line]
    factors = [re.search(r": \((tensor<.*>)\) ->", line) for line in lines]
    return sorted(
        {
            kind
            for found in factors
            if found
            for kind in re.findall(r"x([a-z]+\d+)>", found.group(1))
        }
    )


def smallest_array(setup: Any) -> int:
    """Returns the bytes of the smallest array of the data set that has more than a number for each
    example.
    """
    sizes = [
        int(np.prod(shape)) * np.dtype(dtype).itemsize
        for shape, dtype in setup.dataset.fields().values()
    ]
    return len(setup.dataset.train) * min(size for size in sizes if size > 8)


def sharded_bytes(setup: Any) -> int:
    """Returns the bytes of the parameters that are sharded, whole."""
    params = jax.tree.leaves(setup.strategy.abstract(setup.shapes).params)
    return sum(
        4 * leaf.size for leaf in params if leaf.sharding and not leaf.sharding.is_fully_replicated
    )


def properties(case: dict[str, Any]) -> dict[str, Any]:
    """Returns what a test asserts of a program."""
    setup = prepare(case)
    before = lowered(case, setup)
    options = LEAST_EFFORT if case["target"].startswith("tpu") else None
    compiled = before.compile(compiler_options=options)
    memory = compiled.memory_analysis()
    return {
        "donated_bytes": memory.alias_size_in_bytes,
        "temporary_bytes": memory.temp_size_in_bytes,
        "state_bytes": bytes_per_device(setup.strategy.abstract(setup.shapes)),
        "state_leaves": len(jax.tree.leaves(setup.shapes)),
        "dataset_bytes": smallest_array(setup),
        "traced_formats": formats(before.as_text()),
        "collectives": [dataclasses.asdict(each) for each in read_collectives(compiled.as_text())],
        "sharded_bytes": sharded_bytes(setup),
        "gradient_bytes": sum(4 * leaf.size for leaf in jax.tree.leaves(setup.shapes.params)),
    }


def mutate(name: str) -> None:
    """Puts one of the faults back that the tests are there to find."""
    if name == "gather":  # the images stored as they are
        placement.abstract = lambda example, count: {
            name: jax.ShapeDtypeStruct((count, *array.shape[1:]), array.dtype)
            for name, array in example.items()
        }
    elif name == "donation":
        jit = jax.jit
        jax.jit = lambda *args, donate_argnums=None, **kwargs: jit(*args, **kwargs)  # pyright: ignore
    elif name == "float32":
        plain = convolution.plain
        convolution.plain = lambda x, kernel, *rest: plain(
            x.astype(jnp.float32), kernel.astype(jnp.float32), *rest
        ).astype(x.dtype)
    else:
        raise ValueError(name)


def main() -> None:
    case = json.loads(sys.argv[1])
    if case.get("mutant"):
        mutate(case["mutant"])
    print(json.dumps(properties(case)))


if __name__ == "__main__":
    main()
