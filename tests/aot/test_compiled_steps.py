"""Steps compiled for a TPU and a CUDA GPU have the properties that make them fast. Nothing is run; times are not asserted."""

import json
import pathlib
from collections.abc import Callable
from typing import Any

import pytest

Answer = dict[str, Any]
Ask = Callable[[Answer], Answer]

TARGETS = {"tpu": "tpu:v5e:2x2", "cuda": "cuda:h100:4"}
MODELS: dict[str, Answer] = {
    "pyramidnet20": {"model": "pyramidnet", "model_kwargs": {"depth": 20, "alpha": 48}},
    "cnn": {"model": "cnn"},
}
STRATEGIES: dict[str, Answer] = {
    "pmap": {"strategy": "pmap"},
    "shard_map": {"strategy": "shard_map"},
    "sharded": {"strategy": "sharded"},
    "sharded_params": {"strategy": "sharded", "shard_params": True},
    "space": {"strategy": "sharded", "mesh": "data=2,space=2"},
}
# Bytes that a step moves, by name of the case: a change that makes one heavier is seen. `pytest --write-bytes` writes it.
TABLE = pathlib.Path(__file__).parent / "bytes_moved.json"
TOLERANCE = 0.02
# Collectives by strategy: gradients, statistics and metrics are combined into one or few. Each sharded parameter is gathered.
MOST_REDUCTIONS = 4


def case(platform: str, model: str, strategy: str, precision: str = "float32", kind: str = "train", **more: Any) -> Answer:
    settings = MODELS[model] | STRATEGIES[strategy] | {"precision": precision}
    if kind == "accumulation":
        settings["accumulate_steps"] = 2
    return {"target": TARGETS[platform], "settings": settings, "kind": kind, "examples": 16} | more


def name(chosen: Answer) -> str:
    settings = chosen["settings"]
    model = next(key for key, value in MODELS.items() if value.items() <= settings.items())
    own = {key: value for key, value in settings.items() if key in ("strategy", "shard_params", "mesh")}
    strategy = next(key for key, value in STRATEGIES.items() if value == own)
    return "-".join([chosen["target"].partition(":")[0], model, strategy, settings["precision"], chosen["kind"]])


# `python -m jaxdp.plan --target ...` compiles the larger models in minutes each.
STEPS = [
    *(("cnn", strategy, "float32", "train") for strategy in STRATEGIES),
    ("cnn", "shard_map", "bfloat16", "train"),
    ("cnn", "shard_map", "bfloat16", "evaluate"),
    ("cnn", "shard_map", "float32", "several"),
    ("cnn", "shard_map", "float32", "accumulation"),
    ("cnn", "sharded_params", "bfloat16", "evaluate"),
]
CASES = [case(platform, *rest) for rest in STEPS for platform in TARGETS]
every_case = pytest.mark.parametrize("chosen", [pytest.param(each, id=name(each)) for each in CASES])


def check(found: Answer, chosen: Answer) -> None:
    """Asserts what holds of every step."""
    assert not found["copies"], "the step writes something as large as the data set"
    trains = chosen["kind"] != "evaluate"
    if trains:
        assert found["donated"] >= found["state_leaves"], "the new state does not take the memory of the old one"
    if chosen["settings"]["precision"] == "bfloat16":
        # XLA:TPU computes in bfloat16 what is traced in float32 from bfloat16, other compilers need not.
        assert found["traced_formats"] == ["bf16"], "a convolution of a bfloat16 step is traced in float32"
        # The metrics of an evaluation count in float32, by matrix products.
        assert found["formats"] == ["bf16"] or not trains, "a convolution or matrix product of a bfloat16 step is in float32"
    reductions = sum(count for kind, count, _, _ in found["collectives"] if kind == "all-reduce")
    strategy = chosen["settings"]
    if trains and "mesh" not in strategy and not strategy.get("shard_params"):
        steps = {"several": 3}.get(chosen["kind"], 1)
        assert 1 <= reductions <= MOST_REDUCTIONS * steps, "gradients are not combined into few all-reduces"
        reduced = sum(size for kind, _, size, _ in found["collectives"] if kind == "all-reduce")
        assert reduced >= found["gradient_bytes"] * steps


@pytest.mark.slow
@every_case
def test_a_compiled_step(chosen: Answer, compile_step: Ask) -> None:
    check(compile_step(chosen), chosen)


@pytest.mark.slow
@every_case
def test_a_step_moves_as_many_bytes_as_before(chosen: Answer, compile_step: Ask, request: pytest.FixtureRequest) -> None:
    found, table = compile_step(chosen)["bytes_moved"], json.loads(TABLE.read_text())
    if request.config.getoption("--write-bytes"):
        table[name(chosen)] = found
        TABLE.write_text(json.dumps(dict(sorted(table.items())), indent=1) + "\n")
    assert found == pytest.approx(table[name(chosen)], rel=TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("platform", TARGETS)
def test_memory_between_two_compiled_steps_lies_on_their_line(platform: str, compile_step: Ask) -> None:
    found = compile_step(case(platform, "pyramidnet20", "shard_map", between=32))
    assert found["planned"] == pytest.approx(found["total"], rel=0.02)


FAULTS = [("tpu", "gather", "float32")]  # XLA:GPU gathers images that are stored as they are without a copy
FAULTS += [(platform, *rest) for platform in TARGETS for rest in (("donation", "float32"), ("float32", "bfloat16"))]


@pytest.mark.slow
@pytest.mark.parametrize(("platform", "mutant", "precision"), FAULTS)
def test_a_fault_is_found(platform: str, mutant: str, precision: str, compile_step: Ask) -> None:
    chosen = case(platform, "cnn", "shard_map", precision)
    check(compile_step(chosen), chosen)
    broken = chosen | {"mutant": mutant}
    with pytest.raises(AssertionError):
        check(compile_step(broken), broken)
