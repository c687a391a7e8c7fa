"""What a plan says agrees with shapes, and with steps compiled at the size it names."""

import json
from typing import Any

import jax
import pytest

from jaxdp import plan
from jaxdp.config import TrainConfig
from jaxdp.registry import ConfigError
from jaxdp.sharding import memory
from jaxdp.tools import memory_plan
from jaxdp.training.setup import create_setup

FLAGS = ["--model", "cnn", "--image-size", "16"]


def created(**settings: Any) -> Any:
    return create_setup(TrainConfig.of(model="cnn", image_size="16", **settings))


def planned(capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, Any]:
    assert plan.main([*FLAGS, *flags, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


# Small batches of the second net show the memory of gradients alone; that of large ones is no
# straight line.
@pytest.mark.parametrize(
    ("hidden", "mebibytes", "tolerance"),
    [(128, 40, 0.15), pytest.param(4096, 250, 0.25, marks=pytest.mark.slow)],
)
def test_a_plan_holds_at_the_size_it_names(
    hidden: int,
    mebibytes: int,
    tolerance: float,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory_plan, "variants", lambda config, devices: {})
    found = planned(
        capsys,
        "--devices",
        "2",
        "--device-memory",
        f"{mebibytes}MiB",
        "--model-kwargs",
        f"hidden={hidden}",
    )
    largest = found["variants"]["as configured"]["largest_per_device"]
    setup = created(devices=2, model_kwargs={"hidden": hidden}, batch_norm="replica")
    at_the_largest = memory.step_memory(setup.strategy, setup.abstract_step, 2 * largest)
    assert at_the_largest.total == pytest.approx(
        memory.USABLE_FRACTION * mebibytes * 2**20, rel=tolerance
    )
    state = setup.create_state()
    sizes = {
        name: sum(leaf.nbytes for leaf in jax.tree.leaves(getattr(state, name)))
        for name in ("params", "batch_stats")
    }
    assert found["bytes"]["params"] == sizes["params"] == 4 * found["parameters"]
    assert found["bytes"]["statistics"] == sizes["batch_stats"]
    assert found["bytes"]["dataset"] == 1437 * (16 * 16 + 4 + 4)  # pixels, label and weight
    assert found["bytes"]["total"] == sum(found["bytes"][kind] for kind in memory_plan.KINDS)


def test_the_batch_that_fits_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory.platform, "device_memory_bytes", lambda devices: 4 * 2**20)
    config: Any = {"devices": 4, "global_batch_size": "auto"}
    setup = created(**config)
    each = setup.global_batch_size // 4
    assert each & (each - 1) == 0
    limit = memory.USABLE_FRACTION * 4 * 2**20
    assert memory.step_memory(setup.strategy, setup.abstract_step, 4 * each).total <= limit
    assert memory.step_memory(setup.strategy, setup.abstract_step, 8 * each).total > limit
    monkeypatch.setattr(memory.platform, "device_memory_bytes", lambda devices: 2**40)
    # More would leave fewer than ten steps an epoch of 1,437.
    assert created(**config).global_batch_size == 128
    monkeypatch.setattr(memory.platform, "device_memory_bytes", lambda devices: 2**16)
    with pytest.raises(ConfigError, match="--global-batch-size auto: a step of one example"):
        created(**config)


def test_parts_and_groups_of_batch_norm_divide_the_batch_that_is_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory.platform, "device_memory_bytes", lambda devices: 2**40)
    # 1,437 images over 2 devices, at least ten steps an epoch: at most 71 on each, in units of 2
    # parts of 12.
    setup = created(devices=2, batch_norm="group:12", accumulate_steps=2, global_batch_size="auto")
    assert setup.global_batch_size == 2 * 48


def test_a_plan_needs_no_batch_that_divides(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_plan, "variants", lambda config, devices: {})
    found = planned(
        capsys, "--devices", "3", "--batch-norm", "group:24", "--device-memory", "40MiB"
    )
    assert found["examples_per_device"] == 43  # of the default 128


@pytest.mark.parametrize(
    ("largest", "expected"),
    [
        (
            {"as configured": 300, "--remat blocks": 700, "--precision bfloat16": 400},
            "512 examples on a device do not fit 1.0 GiB; 256 do; 512 do with --remat blocks.",
        ),
        ({"as configured": 0, "--remat full": 0}, "1 examples on a device do not fit 1.0 GiB."),
    ],
)
def test_the_verdict_names_what_helps(largest: dict[str, int], expected: str) -> None:
    found = {
        "device_memory": 2**30,
        "variants": {name: {"largest_per_device": count} for name, count in largest.items()},
    }
    assert memory_plan.verdict(found) == expected


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--device-memory", "11 apples"],
            "--device-memory 11 apples: must be a size, e.g. 11GiB or 40GB",
        ),
        (["--global-batch-size", "autoo"], "--global-batch-size autoo: must be an integer or auto"),
        (
            ["--strategy", "central", "--devices", "2"],
            "--strategy central: has a step of several programs",
        ),
    ],
)
def test_what_cannot_be_planned(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan.main([*FLAGS, *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
