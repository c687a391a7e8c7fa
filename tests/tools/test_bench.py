"""The grid of a bench: which cells run, what becomes of those that fail, and what is made of the figures."""

import json
import pathlib
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from jaxdp import bench
from jaxdp.registry import ConfigError
from jaxdp.reporting import benchmarks
from jaxdp.runtime import trial
from jaxdp.runtime.targets import Target
from jaxdp.tools import bench_prediction, throughput

Record = dict[str, Any]
OOM: Record = {"status": "oom", "reason": "out of memory: RESOURCE_EXHAUSTED: too much"}


def ok(rate: float) -> Record:
    return {
        "status": "ok", "reason": None, "platform": "cpu", "device_kind": "cpu", "image_shape": [8, 8, 1], "parameters": 1000,
        "repeats": 5, "images_per_second": {"median": rate, "min": 0.9 * rate, "max": 1.1 * rate},
    }  # fmt: skip


def cell(strategy: str, devices: int, batch: int, rate: float | None) -> Record:
    named = {"model": "cnn", "dataset": "digits", "precision": "float32", "cores": 2, "settings": {}}
    where = {"strategy": strategy, "devices": devices, "global_batch_size": batch}
    return named | where | (OOM if rate is None else ok(rate))


def fake_cells(monkeypatch: pytest.MonkeyPatch, results: dict[tuple[str, int, int], Record | BaseException]) -> list[Any]:
    """Lets cells end with these results, all others with 100 images/s; returns the list of those that were run."""
    ran: list[Any] = []

    def run(request: Record, cache: str) -> Record:
        settings = request["config"]
        ran.append((settings["strategy"], settings["devices"], settings["global_batch_size"]))
        found = results.get(ran[-1], ok(100.0))
        if isinstance(found, BaseException):
            raise found
        return found

    monkeypatch.setattr(trial, "run", run)
    return ran


def run(*flags: str) -> int:
    return bench.main(["--model", "cnn", *flags])


def lines(path: str = "bench/bench.jsonl") -> list[Record]:
    return [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]


def test_scaling_compares_with_one_device() -> None:
    records = [
        cell("single", 1, 32, 100.0), cell("single", 1, 64, 120.0), cell("pmap", 1, 64, 110.0), cell("pmap", 2, 64, 165.0),
        cell("pmap", 4, 64, 220.0), cell("pmap", 2, 128, None), cell("central", 2, 64, 60.0),
    ]  # fmt: skip
    found = [(each["strong"], each["weak"]) for each in benchmarks.efficiencies(records)]
    assert found[:3] == [(None, None)] * 3
    assert found[3] == pytest.approx((165 / 2 / 110, 165 / 2 / 100))  # its own 64 on one device; 32 only of single
    assert found[4] == (pytest.approx(220 / 4 / 110), None)
    assert found[5] == (None, None)
    assert found[6] == pytest.approx((60 / 2 / 120, 60 / 2 / 100))


@pytest.mark.parametrize(
    ("code", "status", "reason"),
    [
        ("import os; os.kill(os.getpid(), 9)", "oom", "out of memory: killed"),
        ("raise RuntimeError('RESOURCE_EXHAUSTED: no 9 bytes')", "oom", "out of memory: RESOURCE_EXHAUSTED: no 9 bytes"),
        ("raise ValueError('no such thing')", "failed", "ValueError: no such thing"),
        ("import os; os.kill(os.getpid(), 15)", "failed", "ended by signal 15"),
        ("raise SystemExit(4)", "failed", "ended with 4"),
        ('print(\'{"status": "ok", "reason": null}\'); print(7); print(\'a library speaks\')', "ok", None),
    ],
)
def test_a_cell_that_ends_badly_is_a_result(
    code: str, status: str, reason: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    said = 'import sys; print(\'{"platform": "cpu"}\', flush=True); sys.stdin.read(); '
    monkeypatch.setattr(trial, "COMMAND", (sys.executable, "-c", said + code))
    assert trial.run({}, str(tmp_path)) == {"platform": "cpu", "status": status, "reason": reason}


def test_a_grid_is_measured_written_and_drawn(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    ran = fake_cells(monkeypatch, {("pmap", 2, 64): OOM, ("pmap", 2, 32): ok(150.0)})
    assert run("--strategies", "single,pmap", "--batch-sizes", "64,32,33", "--devices", "1,2", "--remat", "full") == 0
    assert ran == [
        ("single", 1, 32), ("single", 1, 33), ("single", 1, 64), ("pmap", 1, 32), ("pmap", 1, 33), ("pmap", 1, 64),
        ("pmap", 2, 32), ("pmap", 2, 64),
    ]  # fmt: skip
    said = capsys.readouterr()
    left_out = [line for line in said.err.splitlines() if line.startswith("left out")]
    assert left_out == [
        "left out: single on 2 devices: it uses one",
        "left out: pmap on 2 devices, batch 33: 2 devices do not divide it",
    ]
    assert [record["status"] for record in lines()] == ["ok"] * 7 + ["oom"]
    assert lines()[0]["settings"] == {"remat": "full"}
    assert "75%" in said.out  # 150 on two devices, 100 on one
    assert "OOM" in said.out
    assert "pmap on 2 devices, batch 64: out of memory" in said.out
    assert max(map(len, said.out.splitlines()[1:-2])) <= 100
    assert pathlib.Path("bench/throughput.png").read_bytes().startswith(b"\x89PNG")
    svg = pathlib.Path("bench/throughput.svg").read_text()
    assert "oom-pmap-2-64" in svg
    assert "oom-pmap-2-32" not in svg
    assert "simulated devices share the" in svg
    assert run("--strategies", "pmap", "--batch-sizes", "32", "--devices", "1") == 0
    assert len(lines()) == 9  # it grows


def test_a_grid_is_compared_cell_by_cell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    earlier = [cell("pmap", 1, 32, 10.0), cell("pmap", 1, 32, 50.0), cell("pmap", 1, 32, None), cell("pmap", 2, 32, 400.0)]
    pathlib.Path("old.jsonl").write_text("".join(json.dumps(record) + "\n" for record in earlier))
    now = [cell("pmap", 1, 32, 100.0), cell("pmap", 2, 32, 100.0), cell("pmap", 1, 64, 100.0), cell("pmap", 2, 32, None)]
    now.append(cell("pmap", 1, 32, 100.0) | {"precision": "bfloat16"})
    assert benchmarks.ratios(now, benchmarks.read("old.jsonl")) == [2.0, 0.25, None, None, None]
    fake_cells(monkeypatch, {})
    grid = ["--strategies", "pmap", "--batch-sizes", "32", "--devices", "1,2"]
    assert run(*grid, "--compare", "old.jsonl", "--optimizer", "sgd") == 0
    said = capsys.readouterr()
    assert "2.00x" in said.out
    assert "0.25x" in said.out
    assert "warning: the cells compared with differ in settings" in said.err
    assert run(*grid, "--compare", "bench/bench.jsonl", "--optimizer", "sgd") == 0  # read before it grows
    said = capsys.readouterr()
    assert said.out.count("1.00x") == 2
    assert "warning" not in said.err


def test_an_interrupt_leaves_what_there_is(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    ran = fake_cells(monkeypatch, {("pmap", 1, 64): KeyboardInterrupt()})
    assert run("--strategies", "pmap", "--batch-sizes", "32,64,128", "--devices", "1") == 1
    assert len(ran) == 2
    assert len(lines()) == 1
    said = capsys.readouterr()
    assert "interrupted" in said.err
    assert "100" in said.out
    assert pathlib.Path("bench/throughput.png").exists()


def test_a_mistake_of_all_cells_ends_the_bench_and_one_of_a_cell_does_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = ["--strategies", "pmap", "--batch-sizes", "32,64", "--devices", "1"]
    too_large = {"status": "refused", "reason": "--global-batch-size 64: larger than the training set"}
    fake_cells(monkeypatch, {("pmap", 1, 64): too_large})
    assert run(*grid) == 0
    assert "left out: pmap on 1 device, batch 64: --global-batch-size 64: larger" in capsys.readouterr().err
    assert len(lines()) == 1
    fake_cells(monkeypatch, {("pmap", 1, size): too_large for size in (32, 64)})
    assert run(*grid) == 2
    ran = fake_cells(monkeypatch, {("pmap", 1, 32): {"status": "refused", "reason": "--model cnm: unknown model"}})
    assert run(*grid) == 2
    assert len(ran) == 1
    assert capsys.readouterr().err.splitlines()[-1] == "jaxdp.bench: error: --model cnm: unknown model"
    fake_cells(monkeypatch, {("pmap", 1, size): {"status": "failed", "reason": "so"} for size in (32, 64)})
    assert run(*grid) == 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--strategies", "pmap,pnap"], "--strategies pnap: unknown strategy; did you mean pmap?"),
        (["--strategies", ","], "--strategies ,: names nothing"),
        (["--batch-sizes", "32,many"], "--batch-sizes 32,many: many is no number"),
        (["--devices", "0"], "--devices 0: 0 is no number"),
        (["--repeats", "0"], "--repeats 0: must be greater than 0"),
        (["--compare", "none.jsonl"], "--compare none.jsonl: cannot be read: No such file"),
        (["--strategies", "single", "--devices", "2"], "no cell of the grid is left"),
        (["--strategies", "central", "--shard-params"], "no cell of the grid is left"),
        (["--strategy", "single"], "--strategy: unknown flag; did you mean --strategies?"),
        (["--global-batch-size", "32"], "--global-batch-size: unknown flag"),
        (["--epochs", "3"], "--epochs: unknown flag"),
    ],
)
def test_mistakes_are_one_line(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*flags) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_a_file_that_is_no_bench_is_refused(tmp_path: pathlib.Path) -> None:
    for content in ("not JSON", '{"model": "cnn"}', "3", ""):
        (tmp_path / "other").write_text(content)
        with pytest.raises(ConfigError, match="--compare"):
            benchmarks.read(str(tmp_path / "other"))


def test_collectives_are_found_under_the_names_of_each_platform() -> None:
    def event(name: str, duration: float, **stats: str) -> Any:
        return SimpleNamespace(name=name, duration_ns=duration, stats=list(stats.items()))

    def profile(**planes: list[Any]) -> Any:
        made = [SimpleNamespace(name=name, lines=[SimpleNamespace(events=events)]) for name, events in planes.items()]
        return SimpleNamespace(planes=made)

    cpu = [event("all-reduce.1", 5.0), event("end: all-reduce.1", 7.0), event("reduce.3", 9.0), event("all-gather", 2.0)]
    assert throughput.collective_nanoseconds(profile(**{"/host:CPU": cpu})) == [5.0, 2.0]
    kernels = [event("ncclDevKernel_AllReduce_Sum_f32", 3.0, hlo_op="all-reduce-start.2"), event("gemm", 4.0, hlo_op="dot.1")]
    assert throughput.collective_nanoseconds(profile(**{"/host:CPU": cpu, "/device:GPU:0": kernels})) == [3.0]


def test_a_repetition_takes_about_a_second() -> None:
    assert [throughput.steps_for(seconds) for seconds in (3.0, 0.01, 1e-6)] == [5, 100, 2000]


def test_a_real_cell(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--strategies", "pmap", "--batch-sizes", "8", "--devices", "2", "--steps", "3", "--repeats", "2") == 0
    (record,) = lines()
    assert record["status"] == "ok"
    assert (record["platform"], record["steps"], record["repeats"]) == ("cpu", 3, 2)
    rates, times, parts = record["images_per_second"], record["ms_per_step"], record["parts_ms"]
    assert rates["min"] <= rates["median"] <= rates["max"]
    assert rates["max"] == pytest.approx(8 / (1e-3 * times["min"]))
    assert parts["all_reduce"] > 0
    assert parts["compute"] == pytest.approx(max(parts["step"] - parts["all_reduce"], 0))
    assert 0 < parts["dispatch"] <= parts["step"]
    assert record["memory_bytes"] > 2 * 4 * record["parameters"]  # parameters and momentum
    achieved = record["flops_per_step"] / (1e-3 * times["median"])
    assert record["fraction_of_peak"] == pytest.approx(achieved / record["peak_flops_per_second"])
    assert record["versions"]["jax"]
    assert "all-" in capsys.readouterr().out


def test_a_grid_is_predicted_for_what_is_not_here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked = []

    def predict_step(config: Any, target: Target, *, quick: bool) -> Record:
        asked.append((str(target), config.sharding.strategy, config.optimization.global_batch_size))
        if config.optimization.global_batch_size == 64:
            return {"compiles": False, "reason": "Ran out of memory on HBM"}
        seconds = dict.fromkeys(("step", "compute", "memory", "network"), 0.001)
        return {
            "compiles": True, "image_shape": [8, 8, 1], "parameters": 1000, "predicted_images_per_second": 40.0 * target.count,
            "predicted_seconds": seconds, "predicted_bytes": {"total": 2**20}, "predicted_bound": "memory",
        }  # fmt: skip

    monkeypatch.setattr(bench_prediction.prediction, "predict_step", predict_step)
    monkeypatch.setattr(bench_prediction.platform, "describe_only", lambda: None)
    monkeypatch.setattr(Target, "devices", lambda target: [])
    assert run("--target", "cuda:h100:8", "--strategies", "single,pmap", "--batch-sizes", "32,64") == 0
    assert asked == [
        ("cuda:h100:1", "single", 32), ("cuda:h100:1", "single", 64), ("cuda:h100:1", "pmap", 32), ("cuda:h100:1", "pmap", 64),
        ("cuda:h100:8", "pmap", 32), ("cuda:h100:8", "pmap", 64),
    ]  # fmt: skip
    records = lines("bench/predicted.jsonl")
    assert [record["status"] for record in records] == ["ok", "oom"] * 3
    known = {"time", "model", "dataset", "strategy", "devices", "global_batch_size", "precision", "settings", "target", "status"}
    known |= {"reason", "image_shape", "parameters"}
    assert all(name in known or name.startswith("predicted_") for record in records for name in record)
    out = capsys.readouterr().out
    assert "predicted for cuda:h100" in out
    assert "320" in out
    assert "100%" in out  # strong: 320 images/s on 8 devices, 40 on one
    assert max(map(len, out.splitlines())) <= 120
    assert "Predicted training throughput" in pathlib.Path("bench/predicted.svg").read_text()
    assert not pathlib.Path("bench/bench.jsonl").exists()


@pytest.mark.parametrize("flags", [("--steps", "5"), ("--repeats", "2"), ("--compare", "old.jsonl"), ("--target", "tpu:v5e:4x5x6")])
def test_what_measures_is_refused_where_nothing_is_measured(flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--target", "cuda:h100:8", *flags) == 2
    assert capsys.readouterr().err.startswith(f"jaxdp.bench: error: {flags[0]} {flags[1]}")
    assert run("--quick") == 2
