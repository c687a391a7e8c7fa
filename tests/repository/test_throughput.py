"""A grid of throughput: which cells run, what becomes of those that fail, and its table.
benchmarks/throughput.py
"""

import json
import pathlib
import sys
from typing import Any

import grid
import measurement
import pytest
import throughput

Record = dict[str, Any]
OOM: Record = {"status": "oom", "reason": "out of memory: RESOURCE_EXHAUSTED: too much"}


def ok(rate: float) -> Record:
    rates = {"median": rate, "min": 0.9 * rate, "max": 1.1 * rate}
    ended = {"status": "ok", "reason": None, "images_per_second": rates}
    where = {"platform": "cpu", "device_kind": "cpu"}
    return ended | where | {"compile_seconds": 2.0, "memory_bytes": 2**20}


def cell(strategy: str, devices: int, batch: int, rate: float) -> Record:
    return {"strategy": strategy, "devices": devices, "global_batch_size": batch} | ok(rate)


def fake_cells(
    monkeypatch: pytest.MonkeyPatch, results: dict[tuple[str, int, int], Record | BaseException]
) -> list[Any]:
    """Lets cells end with these results, all others with 100 images/s.

    Returns the list of those that were run.
    """
    ran: list[Any] = []

    def run(request: Record, cache: str) -> Record:
        settings = request["config"]
        ran.append((settings["strategy"], settings["devices"], settings["global_batch_size"]))
        found = results.get(ran[-1], ok(100.0))
        if isinstance(found, BaseException):
            raise found
        return found

    monkeypatch.setattr(measurement, "run", run)
    return ran


def run(flags: str) -> int:
    return throughput.main(["--model", "cnn", *flags.split()])


def lines(path: str = "bench/bench.jsonl") -> list[Record]:
    return [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]


def test_efficiency_compares_with_one_device() -> None:
    records = [
        cell("single", 1, 64, 120.0),
        cell("pmap", 1, 64, 110.0),
        cell("pmap", 2, 64, 165.0),
        cell("central", 2, 64, 60.0),
        cell("pmap", 2, 128, 100.0),
    ]
    found = [grid.efficiency(each, records) for each in records]
    assert found == [None, None, 165 / 2 / 110, 60 / 2 / 120, None]


@pytest.mark.parametrize(
    ("code", "status", "reason"),
    [
        ("import os; os.kill(os.getpid(), 9)", "oom", "out of memory: killed"),
        (
            "raise RuntimeError('RESOURCE_EXHAUSTED: no 9 bytes')",
            "oom",
            "out of memory: RESOURCE_EXHAUSTED: no 9 bytes",
        ),
        ("raise ValueError('no such thing')", "failed", "ValueError: no such thing"),
        ("import os; os.kill(os.getpid(), 15)", "failed", "ended by signal 15"),
        ("raise SystemExit(4)", "failed", "ended with 4"),
        (
            'print(\'{"status": "ok", "reason": null}\'); print(7); print(\'a library speaks\')',
            "ok",
            None,
        ),
    ],
)
def test_a_cell_that_ends_badly_is_a_result(
    code: str,
    status: str,
    reason: str | None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: pathlib.Path,
) -> None:
    said = 'import sys; print(\'{"platform": "cpu"}\', flush=True); sys.stdin.read(); '
    monkeypatch.setattr(measurement, "COMMAND", (sys.executable, "-c", said + code))
    found = measurement.run({}, str(tmp_path))
    assert found == {"platform": "cpu", "status": status, "reason": reason}


def test_a_grid_is_measured_written_and_drawn(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = fake_cells(monkeypatch, {("pmap", 2, 64): OOM, ("pmap", 2, 32): ok(150.0)})
    asked = "--strategies single,pmap --batch-sizes 64,32,33 --devices 1,2 --remat blocks"
    assert run(asked) == 0
    assert ran == [
        *(("single", 1, size) for size in (32, 33, 64)),
        *(("pmap", 1, size) for size in (32, 33, 64)),
        *(("pmap", 2, size) for size in (32, 64)),
    ]
    said = capsys.readouterr()
    left_out = [line for line in said.err.splitlines() if line.startswith("left out")]
    assert left_out == [
        *(f"left out: single on 2 devices, batch {size}: it uses one" for size in (32, 33, 64)),
        "left out: pmap on 2 devices, batch 33: the devices and their microbatches do not divide it",
    ]
    assert [record["status"] for record in lines()] == ["ok"] * 7 + ["oom"]
    assert lines()[0]["settings"]["remat"] == "blocks"
    rows = [
        [cell.strip() for cell in line.split("│")[1:-1]]
        for line in said.out.splitlines()
        if "│" in line
    ]
    # 150 on two devices, 100 on one.
    assert rows[-2] == ["pmap", "2", "32", "150", "10", "2.0", "1.0 MiB", "75%"]
    assert rows[-1] == ["pmap", "2", "64", "OOM", "", "", "", ""]
    assert "which share its" in said.out
    assert "pmap on 2 devices, batch 64: out of memory" in said.out
    assert run("--strategies pmap --batch-sizes 32 --devices 1") == 0
    assert len(lines()) == 9  # it grows


def test_an_interrupt_leaves_what_there_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = fake_cells(monkeypatch, {("pmap", 1, 64): KeyboardInterrupt()})
    assert run("--strategies pmap --batch-sizes 32,64,128 --devices 1") == 1
    assert len(ran) == 2
    assert len(lines()) == 1
    said = capsys.readouterr()
    assert "interrupted" in said.err
    assert "100" in said.out


@pytest.mark.parametrize(
    ("ends", "code", "ran", "message"),
    [
        (["ok", "--global-batch-size 64: larger"], 0, 2, "pmap on 1 device, batch 64: --global-b"),
        (["--model cnm: unknown model"], 2, 1, "throughput.py: error: --model cnm: unknown model"),
        (["failed", "failed"], 1, 2, "pmap on 1 device, batch 64: failed"),
    ],
)
def test_only_a_mistake_in_the_first_cell_ends_the_grid(
    ends: list[str],
    code: int,
    ran: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    results: dict[tuple[str, int, int], Record | BaseException] = {
        ("pmap", 1, size): ok(1.0)
        if end == "ok"
        else {"status": "refused" if end.startswith("--") else "failed", "reason": end}
        for size, end in zip((32, 64), ends, strict=False)
    }
    started = fake_cells(monkeypatch, results)
    assert run("--strategies pmap --batch-sizes 32,64 --devices 1") == code
    assert len(started) == ran
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--strategies pnap,pmap", "--strategy pnap: unknown strategy; did you mean pmap?"),
        ("--batch-sizes 32,many", "--batch-sizes 32,many: many is no number from 1"),
        ("--devices 0", "--devices 0: 0 is no number from 1"),
        ("--devices 100000", "--devices 100000: must be at most 512"),
        ("--repeats 0", "--repeats 0: must be greater than 0"),
        ("--steps 0", "--steps 0: must be greater than 0"),
        ("--tiny", "--tiny: unknown flag"),
        ("--strategies single --devices 2", "no cell of the grid is left"),
        ("--strategy single", "--strategy: is set by the grid; use --strategies"),
        ("--global-batch-size 32", "--global-batch-size: is set by the grid; use --batch-sizes"),
        ("--epochs 3", "--epochs: is set by the grid; use --steps"),
    ],
)
def test_mistakes_are_one_line(
    flags: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(flags) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_flags_of_the_figure_draw_it(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []
    monkeypatch.setattr(throughput, "run", lambda name, *_: drawn.append(name))
    for flags in ([], ["--tiny"], ["--data-dir", "sets", "--output", "figure", "--write"]):
        assert throughput.main(flags) == 0
    assert drawn == ["throughput"] * 3


def test_a_repetition_takes_about_a_second() -> None:
    assert [measurement.steps_for(seconds) for seconds in (3.0, 0.01, 1e-6)] == [5, 100, 2000]


def test_a_real_cell(capsys: pytest.CaptureFixture[str]) -> None:
    flags = "--strategies pmap --batch-sizes 8 --devices 2 --steps 3 --repeats 2"
    assert run(flags) == 0
    (record,) = lines()
    assert record["status"] == "ok"
    assert (record["platform"], record["steps"], record["repeats"]) == ("cpu", 3, 2)
    rates, times = record["images_per_second"], record["ms_per_step"]
    assert rates["min"] <= rates["median"] <= rates["max"]
    assert rates["max"] == pytest.approx(8 / (1e-3 * times["min"]))
    assert record["memory_bytes"] > 2 * 4 * record["parameters"]  # parameters and momentum
    assert record["versions"]["jax"]
    assert "pmap" in capsys.readouterr().out
