"""A plan agrees with shapes and with steps compiled at the size it names; for accelerators that are
not here it follows from the compiled program.
"""

import json
import types
from typing import Any

import jax
import pytest

from jaxdp import plan
from jaxdp.build.setup import create_setup
from jaxdp.config import TrainConfig
from jaxdp.errors import ConfigError
from jaxdp.runtime.targets import CHIPS, Target
from jaxdp.sharding import memory
from jaxdp.sharding.memory import StepMemory
from jaxdp.sharding.strategy import Strategy

FLAGS = ["--model", "cnn", "--image-size", "16"]
TARGET = ["--model", "cnn", "--target", "tpu:v5e:2x2", "--global-batch-size", "64"]


def created(**settings: Any) -> Any:
    return create_setup(TrainConfig.of(model="cnn", image_size="16", **settings))


def planned(capsys: pytest.CaptureFixture[str], *flags: str) -> Any:
    assert plan.main([*flags, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def total(setup: Any, examples: int) -> int:
    shards = setup.strategy.num_devices
    return memory.compile_step(setup.strategy, setup.abstract_step, shards * examples)[1].total


# Small batches of the second net show the memory of gradients alone; that of large ones is no
# straight line.
@pytest.mark.parametrize(
    ("hidden", "mebibytes"), [(128, 40), pytest.param(4096, 250, marks=pytest.mark.slow)]
)
def test_the_largest_batch_fits_and_twice_as_many_examples_do_not(
    hidden: int, mebibytes: int, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--devices", "2", "--device-memory", f"{mebibytes}MiB"]
    found = planned(capsys, *FLAGS, *flags, "--model-kwargs", f"hidden={hidden}")
    largest = found["largest_per_device"]
    setup = created(devices=2, model_kwargs={"hidden": hidden}, batch_norm="replica")
    usable = memory.USABLE_FRACTION * mebibytes * 2**20
    assert total(setup, largest) <= usable < total(setup, 2 * largest)
    for kind, name in (("params", "params"), ("statistics", "batch_stats")):
        leaves = jax.tree.leaves(getattr(setup.create_state(), name))
        assert found["bytes"][kind] == sum(leaf.nbytes for leaf in leaves)
    assert found["bytes"]["params"] == 4 * found["parameters"]
    assert found["bytes"]["dataset"] == 1437 * (16 * 16 + 4 + 4)  # pixels, label and weight
    assert found["bytes"]["total"] == sum(found["bytes"][kind] for kind in memory.KINDS)


def test_the_batch_that_fits_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    def automatic(memory_bytes: int, **settings: Any) -> Any:
        monkeypatch.setattr(memory.platform, "device_memory_bytes", lambda devices: memory_bytes)
        return created(global_batch_size="auto", **settings)

    setup = automatic(4 * 2**20, devices=4)
    each = setup.batches.global_batch_size // 4
    assert each & (each - 1) == 0
    assert total(setup, each) <= memory.USABLE_FRACTION * 4 * 2**20 < total(setup, 2 * each)
    # More would leave fewer than ten steps an epoch of 1,437.
    assert automatic(2**40, devices=4).config.global_batch_size == 128
    # Over 2 devices at most 71 on each, in units of 2 parts of 12.
    parts: Any = {"devices": 2, "batch_norm": "group:12", "accumulate_steps": 2}
    assert automatic(2**40, **parts).config.global_batch_size == 2 * 48
    with pytest.raises(ConfigError, match="global_batch_size=auto: a step of one example"):
        automatic(2**16, devices=4)


def test_a_plan_needs_no_batch_that_divides(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--devices", "3", "--batch-norm", "group:24", "--device-memory", "40MiB"]
    found = planned(capsys, *FLAGS, *flags)
    # A third of the default 128, in whole groups: 8 on each device make one.
    assert found["examples_per_device"] == 48


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--device-memory 11apples", "--device-memory 11apples: must be a size, e.g. 11GiB or"),
        ("--global-batch-size autoo", "--global-batch-size autoo: must be an integer"),
        ("--strategy central --devices 2", "--strategy central: has a step of several programs"),
        ("--target tpu:v9:2x2", "--target tpu:v9:2x2: there are"),
        ("--target tpu:v5e:2x2 --devices 4", "--devices 4: write the number of devices in"),
        ("--target tpu:v5e:2x2 --output a.png", "--output: was removed in 0.3.0: use the table"),
        ("--devices 1,2", "--devices 1,2: must be an integer"),
        ("--quick", "--quick: was removed in 0.3.0: set JAX_EXEC_TIME_OPTIMIZATION_EFFORT=-1.0"),
    ],
)
def test_usage_errors_are_one_line(
    flags: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan.main([*FLAGS, *flags.split()]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


class Described(Strategy):
    """Devices that are described only."""

    name = "described"

    def __init__(self, count: int) -> None:
        self.devices, self.num_devices = [], count

    def _build(self) -> None: ...


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Stands in for the compiler; holds devices and examples of each step that was compiled."""
    asked: list[tuple[int, int]] = []

    def setup(config: TrainConfig, target: Any) -> Any:
        return types.SimpleNamespace(
            batches=types.SimpleNamespace(
                global_batch_size=config.global_batch_size or 16 * target.count
            ),
            strategy=Described(target.count),
            shapes=types.SimpleNamespace(params={}),
            dataset=types.SimpleNamespace(image_shape=(32, 32, 3)),
            config=config,
            abstract_step=lambda batch: ((), (), ()),
        )

    def compile_step(strategy: Any, _: Any, batch: int) -> Any:
        examples = batch // strategy.num_devices
        asked.append((strategy.num_devices, examples))
        if examples > 64:
            raise RuntimeError(
                "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory on HBM"
            )
        step = StepMemory(10, 10, 0, 0, examples, 10**8 * examples, flops=1.0)
        return None, step

    monkeypatch.setattr(plan, "_create_setup", setup)
    monkeypatch.setattr(memory, "fewest_examples", lambda strategy: 1)
    monkeypatch.setattr(memory, "compile_step", compile_step)
    return asked


def test_a_plan_for_a_target_has_what_its_compiler_plans(
    compiled: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    found = planned(capsys, *TARGET)
    # 155 would fit by bytes, of powers of two 128; that does not compile, and 64 does.
    assert compiled == [(4, 16), (4, 32), (4, 128), (4, 64)]
    assert found["largest_per_device"] == 64
    assert (found["target"], found["devices"]) == ("tpu:v5e:2x2", 4)
    assert found["device_memory"] == CHIPS["tpu", "v5e"].memory_bytes
    assert found["bytes"]["total"] == 16 * 10**8 + 36
    assert "flops_per_example" not in found  # compilers for devices that are not here count none
    assert plan.main(TARGET) == 0
    out = capsys.readouterr().out
    assert "GFLOP" not in out
    assert "largest batch: 64 examples fit a device, in 92% of its memory" in out


@pytest.mark.usefixtures("compiled")
def test_a_step_that_does_not_fit_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan.main([*TARGET[:-1], "400"]) == 0
    out = capsys.readouterr().out
    assert "does not compile:\nRan out of memory on HBM" in out


def test_workers_on_cpus_have_no_target(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan.platform, "describe_only", lambda: None)
    monkeypatch.setattr(Target, "devices", lambda self: jax.devices()[: self.count])
    assert (
        plan.main(
            ["--model", "cnn", "--target", "cuda:h100:2", "--strategy", "exact", "--workers", "2"]
        )
        == 2
    )
    (line,) = capsys.readouterr().err.splitlines()
    assert "--strategy exact" in line
