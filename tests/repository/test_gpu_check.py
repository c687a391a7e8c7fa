"""Does the check for the day there is a GPU come through whatever happens to its measurements?
benchmarks/gpu_check.py
"""

import json
import math
import pathlib
import subprocess
import sys
import time
from typing import Any

import pytest

BENCHMARKS = pathlib.Path(__file__).parents[2] / "benchmarks"
Record = dict[str, Any]


@pytest.fixture(autouse=True)
def _scripts_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.mark.parametrize(
    ("target", "precision", "flops", "expected"),
    [
        ("cuda:h100:1", "bfloat16", 989.4e9, (1.0, "compute")),
        ("cuda:h200:1", "float32", 989.4e9, (2.0, "compute")),
        ("cuda:a100:1", "bfloat16", 0.0, (1.0, "memory")),  # 2 x 1,019 MB, and a batch of 1 MB
    ],
)
def test_the_bound_is_that_of_computation_or_memory(
    target: str, precision: str, flops: float, expected: tuple[float, str]
) -> None:
    from gpu import roofline

    from jaxdp.sharding.memory import StepMemory

    step = StepMemory(10**6, 10**6, 0, 10**9, 10**6, 1017 * 10**6, flops=flops)
    least, bound = roofline.bound(target, precision, flops, step)
    assert (pytest.approx(least), bound) == expected


def test_three_steps_that_differ_are_found() -> None:
    import gpu_check
    import jax
    from gpu import cells

    device = jax.devices()[0]
    end, again = (
        cells.three_steps("cnn", {}, 16, device, learning_rate=rate * cells.LEARNING_RATE)
        for rate in (1, 1.02)
    )
    same, other = cells.differences(end, end), cells.differences(again, end)
    assert same == {"of_weights": 0.0, "of_updates": 0.0}
    assert other["of_weights"] > gpu_check.TOLERANCE
    assert 0.01 < other["of_updates"] < 0.05


@pytest.mark.parametrize(
    ("program", "status", "reason"),
    [
        ("print(1)", "ok", None),
        ("raise SystemExit('no such thing')", "failed", "no such thing"),
        ("import time; time.sleep(60)", "late", "the minutes were up"),
    ],
)
def test_what_happens_to_a_process_is_a_result(
    program: str, status: str, reason: str | None
) -> None:
    from gpu.processes import Clock

    clock = Clock(time.monotonic() + (1 if status == "late" else 60))
    found = clock.run([sys.executable, "-c", program])
    assert (found["status"], found["reason"]) == (status, reason)


def test_the_comparison_with_pytorch_has_a_step() -> None:
    import versus_torch

    versus_torch.jaxdp_step("cnn", {}, 8, 4, devices=1)()


def check(monkeypatch: pytest.MonkeyPatch, answers: Any, *flags: str) -> int:
    """Runs the check with measurements that end as `answers(name, arguments)` says."""
    import gpu_check
    import versus_torch
    from gpu.processes import Clock

    def cell(clock: Clock, name: str, /, *, what: str = "", **arguments: Any) -> Record:
        return {"status": "ok", "reason": None} | answers(name, arguments)

    monkeypatch.setattr(Clock, "cell", cell)
    monkeypatch.setattr(versus_torch, "has_torch", lambda: True)
    monkeypatch.setattr(gpu_check.tables, "machine", lambda *packages: "machine")
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--output", "out", *flags])
    return gpu_check.main()


def answer(name: str, arguments: Record) -> Record:
    """A GPU on which jaxdp's steps fit up to 128 images and PyTorch's up to 256."""
    if name == "device":
        return {"kind": "NVIDIA H200", "platform": "gpu", "target": "cuda:h200:1"}
    if name == "agreement":
        return {"of_weights": 2e-6, "of_updates": 1e-4}
    if name == "predict":
        return {"predicted_ms": 4.0, "predicted_bytes": 2e9, "bound": "memory"}
    batch = arguments["batch"]
    if batch > {"jaxdp": 128, "torch": 256}[name]:
        return {"status": "oom", "reason": "out of memory: no more", "planned_bytes": 99e9}
    return {
        "ms": 5.0,
        "images_per_second": {"jaxdp": 3000.0, "torch": 2000.0}[name],
        "planned_bytes": 4e9,
        "compiling_peak_bytes": 1e9,
        "peak_bytes": 5e9,
        "predicted_ms": 4.0,
        "bound": "memory",
    }


def lines() -> list[Record]:
    return [
        json.loads(line) for line in pathlib.Path("out/gpu_check.jsonl").read_text().splitlines()
    ]


def test_batches_double_until_memory_is_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--parts", "throughput", "prediction", "--models", "resnet")
    assert check(monkeypatch, answer, *flags) == 0
    rows = [
        row.split(" | ")
        for row in capsys.readouterr().out.splitlines()
        if row.startswith("| ResNet-50")
    ]
    assert [row[1:5] for row in rows[:4]] == [
        ["64", "3,000", "2,000", "1.50"],
        ["128", "3,000", "2,000", "1.50"],
        ["256", "OOM", "2,000", "–"],
        ["512", "–", "OOM", "–"],
    ]
    assert rows[0][5:] == ["5.00", "4.00 memory", "0.80", "4.00", "5.00 |"]
    assert rows[2][8:] == ["99.00", "OOM |"]  # what was planned is known where it did not fit
    assert rows[4][1:] == ["64", "4.00 memory", "5.00", "0.80", "2.00", "5.00 |"]
    measured = [f"{each['side']} {each['batch']}" for each in lines() if "side" in each]
    assert measured[:4] == ["jaxdp 64", "torch 64", "jaxdp 128", "torch 128"]
    assert measured[4:7] == ["jaxdp 256", "torch 256", "torch 512"]


def test_a_difference_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(monkeypatch, answer, "--parts", "agreement") == 0
    assert "NO" not in capsys.readouterr().out

    def apart(name: str, arguments: Record) -> Record:
        wrong = {"of_weights": math.nan} if arguments.get("name") == "unet" else {}
        return answer(name, arguments) | wrong

    assert check(monkeypatch, apart, "--parts", "agreement") == 1
    assert "| unet | nan | 1.0e-04 | NO |" in capsys.readouterr().out


def test_a_crash_is_one_row(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def crash(name: str, arguments: Record) -> Record:
        if name == "agreement":
            raise OSError("the check itself fails here")
        if name == "jaxdp" and arguments["name"] == "pyramidnet":
            return {"status": "failed", "reason": "CUDA_ERROR_ILLEGAL_ADDRESS"}
        return answer(name, arguments)

    assert check(monkeypatch, crash, "--parts", "agreement", "throughput") == 1
    captured = capsys.readouterr()
    assert "| PyramidNet 110 α48, 32x32 | 512 | failed | OOM | – |" in captured.out
    assert "| U-Net base 64, 256x256 | 16 | 3,000 | 2,000 | 1.50 |" in captured.out
    assert "agreement failed: OSError" in captured.err
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in captured.err


def test_a_machine_without_what_was_asked_for_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(monkeypatch, lambda *_: {"status": "failed", "reason": "no devices"}) == 1
    assert "no devices" in capsys.readouterr().err
    for flags, answers, said in (
        ((), lambda *_: {"kind": "cpu", "platform": "cpu", "target": None}, "no GPU here; --tiny"),
        (("--first-batch", "-2"), answer, "must be above 0"),
    ):
        with pytest.raises(SystemExit, match="2"):
            check(monkeypatch, answers, *flags)
        assert said in capsys.readouterr().err


@pytest.mark.slow
def test_all_of_it_runs_on_a_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    flags = "--tiny --output out --minutes 30".split()
    command = [sys.executable, str(BENCHMARKS / "gpu_check.py"), *flags]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = lines()
    assert all(each.get("status", "ok") == "ok" for each in found), found
    parts = ["agreement", "throughput", "trainer", "resume"]
    agreement, throughput, trainer, (resumed,) = (
        [each for each in found if each["part"] == part] for part in parts
    )
    assert [each["of_weights"] for each in agreement] == [0.0] * 4
    ours = [each for each in throughput if each["side"] == "jaxdp"]
    assert {(each["model"], each["batch"]) for each in ours} == {
        (model, batch)
        for model, first in (("pyramidnet", 8), ("resnet", 4), ("unet", 2))
        for batch in (first, 2 * first)
    }
    assert all(each["planned_bytes"] > 0 and each["images_per_second"] > 0 for each in ours)
    assert len([each for each in trainer if 0 <= each["input_wait_fraction"] <= 1]) == 3
    assert resumed["differ"] == []
    assert 0 < resumed["stopped_at"] < resumed["steps"]
    bits = [each["digests"] for each in found if each["part"] == "bits"]
    assert [[*each] for each in bits] == [["1", "2", "4", "8"]] * 2
    assert len({digest for each in bits for digest in each.values()}) == 1
