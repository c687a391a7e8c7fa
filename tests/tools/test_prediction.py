"""What is told of a prediction follows from the compiled program and the data sheet, and is called
predicted everywhere.
"""

import dataclasses
import json
import os
import pathlib
import types
from typing import Any

import matplotlib
import pytest

from jaxdp import plan
from jaxdp.reporting import scaling
from jaxdp.runtime.targets import Target
from jaxdp.sharding import memory
from jaxdp.sharding.memory import StepMemory
from jaxdp.sharding.program import Collective
from jaxdp.tools import prediction

GRADIENTS = Collective("all-reduce", 0, 1, 4 * 10**8, 0, 0)
TEN_MILLISECONDS = 15_029_907  # cycles of a v5e


@dataclasses.dataclass
class Compiled:
    """A program that computes as long as there are examples."""

    examples: int
    cycles: int = 0
    flops: float = 1e9
    bytes_moved: int = 10**8

    def __post_init__(self) -> None:
        self.cycles = self.examples * TEN_MILLISECONDS // 16

    def collectives(self) -> list[Collective]:
        return [GRADIENTS]


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Stands in for the compiler; holds devices and examples of what it was asked for."""
    asked: list[tuple[int, int]] = []

    def setup(config: Any, target: Target, *, training: bool) -> Any:
        size = config.optimization.global_batch_size or 128
        shapes = types.SimpleNamespace(params={})
        dataset = types.SimpleNamespace(image_shape=(32, 32, 3))
        strategy = types.SimpleNamespace(data_shards=target.count)
        return types.SimpleNamespace(
            global_batch_size=size, strategy=strategy, shapes=shapes, dataset=dataset, config=config
        )

    def compile_for(
        setup: Any, target: Target, examples: int, *, quick: bool = False
    ) -> prediction.Step:
        asked.append((target.count, examples))
        if examples > 64:
            raise RuntimeError(
                "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory on HBM"
            )
        program = Compiled(examples)
        planned = StepMemory(10, 10, 0, 0, examples, 10**8 * examples, flops=1.0)
        seconds, source = prediction._seconds(program, target, "float32")
        return prediction.Step(examples, target.count, planned, program, seconds, source)

    monkeypatch.setattr(prediction, "_setup", setup)
    monkeypatch.setattr(prediction, "compile_for", compile_for)
    monkeypatch.setattr(memory, "fewest_examples", lambda strategy: 1)
    return asked


def test_a_prediction_says_predicted_beside_every_number(
    compiled: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--model", "cnn", "--target", "tpu:v5e:2x2", "--global-batch-size", "64"]
    assert plan.main([*flags, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    # 155 would fit by bytes, of powers of two 128; that does not compile, and 64 does.
    assert compiled == [(4, 16), (4, 128), (4, 64)]
    assert found["predicted_largest_per_device"] == 64
    # All-reduce of 400 MB over 4 chips at 200 GB/s; nothing hides it.
    assert found["predicted_seconds"]["network"] == pytest.approx(2 * 3 / 4 * 4e8 / 200e9)
    assert found["predicted_seconds"]["step"] == pytest.approx(0.010 + 0.003, rel=1e-6)
    assert found["predicted_images_per_second"] == pytest.approx(64 / 0.013, rel=1e-6)
    # 1 GFLOP at 197 TFLOP/s and 100 MB at 819 GB/s are less.
    assert found["predicted_bound"] == "network"
    known = {
        "target",
        "devices",
        "strategy",
        "compiles",
        "model",
        "dataset",
        "image_shape",
        "precision",
        "batch_norm",
        "parameters",
    }
    known |= {
        "effort",
        "examples_per_device",
        "examples_at_once",
        "global_batch_size",
        "device_memory",
    }  # of the run and of the data sheet
    assert all(name in known or name.startswith("predicted_") for name in found)
    assert plan.main(flags) == 0
    out = capsys.readouterr().out
    assert "predicted" in out.splitlines()[1]  # the head of the table


@pytest.mark.parametrize(
    ("mode", "hint"),
    [("group:32", True), ("global", True), ("group:16", False), ("replica", False)],
)
def test_many_collectives_are_pointed_out(
    mode: str,
    hint: bool,
    compiled: list[Any],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flags = [
        "--model",
        "cnn",
        "--target",
        "tpu:v5e:2x2",
        "--global-batch-size",
        "64",
        "--batch-norm",
        mode,
    ]
    assert plan.main(flags) == 0
    assert "left out of the time" not in capsys.readouterr().out
    many = Collective("all-gather", 0, 100, 4 * 10**3, 0, 0)
    monkeypatch.setattr(Compiled, "collectives", lambda self: [GRADIENTS, many])
    assert plan.main(flags) == 0
    out = capsys.readouterr().out
    assert (
        "predicted: 101 collectives a step; what each takes to begin is left out of the time" in out
    )
    assert ("--batch-norm group:16 has none" in out) is hint


def test_workers_on_cpus_are_not_predicted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prediction.platform, "describe_only", lambda: None)
    assert plan.main(["--model", "cnn", "--target", "cuda:h100:2", "--strategy", "exact"]) == 2
    assert "--strategy exact: computes on CPUs, which cuda:h100:2 is not" in capsys.readouterr().err


def test_what_does_not_fit_is_said(compiled: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        plan.main(["--model", "cnn", "--target", "tpu:v5e:1x1", "--global-batch-size", "100"]) == 0
    )
    assert "does not compile: Ran out of memory on HBM" in capsys.readouterr().out


def test_the_scaling_curve(
    compiled: list[Any], capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    flags = [
        "--model",
        "cnn",
        "--target",
        "tpu:v5e:2x2",
        "--global-batch-size",
        "64",
        "--devices",
        "1,4,64,1024",
    ]
    assert plan.main([*flags, "--json", "--output", str(tmp_path / "curve.png")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (tmp_path / "curve.png").stat().st_size > 1000
    weak = [row["weak"] for row in found["predicted_scaling"]]
    # One chip has 16 examples and no network; more add an all-reduce that grows to 2 x 400 MB over
    # the links.
    assert [each["predicted_efficiency"] for each in weak][:3] == pytest.approx(
        [1, 10 / 13, 10 / (10 + 4 * 63 / 64)], rel=1e-6
    )
    # 1,024 chips are four pods: each chip of a pod sends its 256th part to the others over the
    # network.
    network = 4 * 255 / 256 + 2 * 3 / 4 * (4e8 / 256) / 3.125e9 * 1e3
    assert weak[3]["predicted_efficiency"] == pytest.approx(10 / (10 + network), rel=1e-6)
    assert (256, 16) in compiled  # the program of one pod
    strong = [row["strong"] for row in found["predicted_scaling"]]
    assert strong[3] == {"reason": "1024 devices do not divide 64"}
    assert found["predicted_devices_below_efficient"] == {"weak": 4, "strong": 4}


def test_a_figure_that_cannot_be_written_is_a_usage_error(
    compiled: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [
        "--model",
        "cnn",
        "--target",
        "tpu:v5e:2x2",
        "--devices",
        "1,4",
        "--output",
        "curve.nothing",
    ]
    assert plan.main(flags) == 2
    assert "--output curve.nothing: cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize("output", ["pipe", "device.png"])
def test_a_figure_replaces_only_a_regular_file(
    output: str, compiled: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo("pipe")
    pathlib.Path("device.png").symlink_to("/dev/null")
    assert (
        plan.main(
            ["--model", "cnn", "--target", "tpu:v5e:2x2", "--devices", "1,4", "--output", output]
        )
        == 2
    )
    assert (
        f"--output {output}: is no regular file; give a file, e.g. scaling.png"
        in capsys.readouterr().err
    )
    assert not compiled


def test_the_figure_says_predicted(tmp_path: pathlib.Path) -> None:
    row = {"predicted_images_per_second": 100.0, "predicted_efficiency": 1.0}
    rows = [{"devices": 1, "weak": row, "strong": {"reason": "none"}}]
    found = {
        "target": "tpu:v5e",
        "model": "cnn",
        "precision": "float32",
        "strategy": "pmap",
        "efficient": 0.9,
    }
    sizes = {"weak_examples_per_device": 16, "strong_global_batch_size": 64}
    with matplotlib.rc_context({"svg.fonttype": "none"}):  # letters rather than their outlines
        scaling.plot(found | sizes | {"predicted_scaling": rows}, str(tmp_path / "curve.svg"))
    written = (tmp_path / "curve.svg").read_text()
    for text in ("Predicted scaling: cnn", "predicted images/s", "predicted efficiency"):
        assert text in written
