"""The steps that are compiled: a product of models, strategies, precisions and kinds, or a few of
it that hold every pair.
"""

import itertools
from typing import Any

Case = dict[str, Any]

TARGETS = {"tpu": "tpu:v5e:2x2", "cuda": "cuda:h100:4"}
# Settings, images, their number and how many a device has of a batch. All images together are far
# more than what a step takes in addition.
CIFAR: Case = {"shape": (32, 32, 3), "images": 1_000_000, "examples": 16}
MODELS: dict[str, tuple[Case, Case]] = {
    "pyramidnet110": ({"model": "pyramidnet", "model_kwargs": {"depth": 110, "alpha": 48}}, CIFAR),
    "pyramidnet20": ({"model": "pyramidnet", "model_kwargs": {"depth": 20, "alpha": 48}}, CIFAR),
    "unet": (
        {"model": "unet", "task": "segmentation"},
        {"shape": (128, 128, 3), "images": 160_000, "examples": 4},
    ),
    "resnet50": (
        {"model": "resnet", "model_kwargs": {"depth": 50}},
        {"shape": (224, 224, 3), "images": 40_000, "examples": 16},
    ),
    "cnn": ({"model": "cnn"}, CIFAR),
}
LARGE = [model for model in MODELS if model != "cnn"]
STRATEGIES: dict[str, Case] = {
    "pmap": {"strategy": "pmap"},
    "shard_map": {"strategy": "shard_map"},
    "sharded": {"strategy": "sharded"},
    "sharded_params": {"strategy": "sharded", "shard_params": True},
}
PRECISIONS = ("float32", "bfloat16")
KINDS = ("evaluate", "train", "several", "accumulation")  # the quickest to compile first
STEPS_A_CALL = 3
MICROBATCHES = 4

Choice = tuple[str, str, str, str]  # model, strategy, precision, kind

# Small ones, in which each property is seen by itself, and in which the tests put faults.
SMALL: list[Choice] = [
    *(("cnn", strategy, "float32", "train") for strategy in STRATEGIES),
    ("cnn", "shard_map", "bfloat16", "train"),
    ("cnn", "shard_map", "bfloat16", "evaluate"),
    ("cnn", "shard_map", "float32", "several"),
    ("cnn", "shard_map", "float32", "accumulation"),
    ("cnn", "sharded_params", "bfloat16", "evaluate"),
]


def every_pair() -> list[Choice]:
    """Returns choices in which every pair of a model, a strategy, a precision and a kind is found.

    No fewer can do: each model meets each strategy once. The kinds are those of a Latin square, one
    to each model of a strategy.
    """
    return [
        (model, strategy, PRECISIONS[(column + row // 2) % 2], KINDS[(column + row) % len(KINDS)])
        for (row, model), (column, strategy) in itertools.product(
            enumerate(LARGE), enumerate(STRATEGIES)
        )
    ]


def every_step() -> list[Choice]:
    return list(itertools.product(LARGE, STRATEGIES, PRECISIONS, KINDS))


def name(platform: str, choice: Choice) -> str:
    return "-".join([platform, *choice])


def case(platform: str, choice: Choice, mutant: str = "") -> Case:
    """Returns what `compile_worker.py` compiles."""
    model, strategy, precision, kind = choice
    settings, data = MODELS[model]
    # Statistics of a device's own examples: those of more have a collective at each layer.
    settings = settings | STRATEGIES[strategy] | {"precision": precision, "batch_norm": "replica"}
    settings |= {"data_placement": "device"}
    settings |= {"per_device_batch_size": data["examples"]} | (
        {"accumulate_steps": MICROBATCHES} if kind == "accumulation" else {}
    )
    return {
        "target": TARGETS[platform],
        "settings": settings,
        "shape": data["shape"],
        "images": data["images"],
        "evaluates": kind == "evaluate",
        "steps_a_call": STEPS_A_CALL if kind == "several" else 0,
        "mutant": mutant,
    }
