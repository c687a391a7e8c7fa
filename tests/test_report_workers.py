"""The report shows workers as lanes: when each was there, what share of the work it did, who was lost and who joined."""

import json
import pathlib
import re
from typing import Any

import pytest
from test_report import Page, write_run, written

from jaxdp.reporting import report_figures, report_runs, report_workers

TASK_SETTINGS: dict[str, Any] = {"exchange": "exact", "workers": 3}


def write_workers_run(name: str, processes: list[list[dict[str, Any]]], slices: list[tuple[int, float, list[int]]]) -> pathlib.Path:
    """Writes a run with workers.

    Args:
        processes: events of each process, but for its start.
        slices: step, seconds and slices by worker of each training row.
    """
    folder = write_run(name, rows=0, summary={"steps": 40, "devices": 1, "exchange": "exact", "workers": 3}, **TASK_SETTINGS)
    rows = [
        {"step": step, "split": "train", "loss": 1.0, "accuracy": 0.5, "elapsed_seconds": seconds, "worker_slices": done,
         "workers": 3, "recomputed_slices": 1, "dropped_slices": 0, "exchange_bytes": 1024, "worker_idle_seconds": 0.5}
        for step, seconds, done in slices
    ]  # fmt: skip
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = []
    for number, events in enumerate(processes):
        where = {"devices": 1, "processes": 1, "exchange": "exact", "workers": 3}
        lines += [{"event": "resumed" if number else "started", "step": events[0].pop("start", 0)} | where, *events]
    (folder / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def joined(worker: int, seconds: float, step: int = 1, host: str = "a") -> dict[str, Any]:
    return {"event": "worker joined", "step": step, "seconds": seconds, "worker": worker, "pid": 1, "host": host}


def lost(worker: int, seconds: float, step: int) -> dict[str, Any]:
    return {"event": "worker lost", "step": step, "seconds": seconds, "worker": worker, "reason": "ActorDiedError"}


def one_killed() -> pathlib.Path:
    """Worker 2 is lost after 18 of 50 seconds and replaced after 42; worker 1 does a third of what worker 0 does."""
    events = [joined(0, 10.0), joined(1, 10.0), joined(2, 10.0), lost(2, 18.0, 13), joined(2, 42.0, 32)]
    rows = [(10, 20.0, [30, 10, 20]), (30, 40.0, [60, 20, 0]), (40, 50.0, [15, 5, 20])]
    return write_workers_run("run", [events], rows)


def test_a_lane_is_there_from_joining_to_loss_and_as_high_as_its_share() -> None:
    lanes, signs, end = report_workers.lanes(report_runs.read(one_killed(), "run"))
    assert (end, signs) == (50.0, [])
    assert [lane.spans for lane in lanes] == [[(10.0, 50.0)], [(10.0, 50.0)], [(10.0, 18.0), (42.0, 50.0)]]
    assert lanes[0].bars == [(10.0, 20.0, 0.5), (20.0, 40.0, 0.75), (40.0, 50.0, 0.375)]
    assert lanes[2].bars == [(10.0, 18.0, pytest.approx(1 / 3)), (42.0, 50.0, 0.5)]
    assert [lane.slices for lane in lanes] == [105, 35, 40]
    assert [[sign.kind for sign in lane.signs] for lane in lanes] == [[], [], ["worker lost", "worker joined"]]


def test_the_page_draws_what_the_rows_say() -> None:
    page = written(one_killed())
    text = pathlib.Path("page.html").read_text()
    (label,) = [str(each["aria-label"]) for name, each in page.elements if str(each.get("aria-label")).startswith("workers over")]
    assert label == "workers over time: worker 0 58%, worker 1 19%, worker 2 22%"
    assert "worker 2 lost at 18.0 s, step 13" in page.titles
    assert "worker 2 joined at 42.0 s, step 32, on a" in page.titles
    assert not any("worker 0 joined" in title for title in page.titles)  # it was there when training began
    assert re.search(r">lost, step 13</text>", text)
    assert "a full lane: 75%" in page.text
    there, bars = (re.findall(rf'<path class="{kind}" d="([^"]*)"', text) for kind in ("there", "work"))
    assert len(there) == len(bars) == 3
    left, right = (float(x) for x in re.match(r"M([\d.]+) \d+H([\d.]+)V", there[0]).groups())  # pyright: ignore
    per_second = (right - left) / 40
    starts, ends = re.findall(r"M([\d.]+) ", there[2]), re.findall(r"\dH([\d.]+)V\d+H", there[2])
    assert [(float(x) - left) / per_second for x in starts] == pytest.approx([0, 32], abs=0.1)
    assert [(float(x) - left) / per_second for x in ends] == pytest.approx([8, 40], abs=0.1)
    shares = [[(float(low) - float(high)) for low, high in re.findall(r"M[\d.]+ ([\d.]+)V([\d.]+)H", bar)] for bar in bars]
    highest = max(map(max, shares))
    assert shares[0] == pytest.approx([highest * share / 0.75 for share in (0.5, 0.75, 0.375)], abs=0.11)
    assert shares[1][1] == pytest.approx(highest / 3, abs=0.11)


def test_a_run_with_workers_does_not_say_that_it_had_one_device() -> None:
    page = written(one_killed(), write_run("other"))
    rows = {row["run"]: row for row in page.run_tables[0]}
    assert (rows["run"]["devices"], rows["run"]["strategy"]) == ("3 workers", "exact")
    assert (rows["other"]["devices"], rows["other"]["strategy"]) == ("2", "pmap")
    assert not {"exchange", "workers"} & set(rows["run"])  # said already
    assert "3 workers, one CPU core each" in page.text
    assert "1 x cpu" not in page.text
    for fact in ("workers lost1", "slices given out again3", "moved to and from workers3.0 KiB", "workers waited1.5 s in all"):
        assert fact in re.sub(r"\s*\n\s*", "", page.text)


def test_times_of_a_run_that_was_resumed_follow_one_another() -> None:
    server = {"event": "server lost", "step": 33, "seconds": 8.0, "to_step": 20}
    first, second = [joined(0, 5.0), joined(1, 6.0)], [joined(0, 2.0, 21) | {"start": 20}, joined(1, 3.0, 21), server]
    folder = write_workers_run("run", [first, second], [(10, 10.0, [4, 4]), (20, 15.0, [4, 4]), (40, 12.0, [9, 3])])
    lanes, signs, end = report_workers.lanes(report_runs.read(folder, "run"))
    assert end == 27.0
    assert lanes[1].spans == [(6.0, 15.0), (18.0, 27.0)]
    assert lanes[0].bars == [(5.0, 10.0, 0.5), (10.0, 15.0, 0.5), (17.0, 27.0, 0.75)]
    assert [(sign.kind, sign.at) for sign in signs] == [("resumed", 15.0), ("server lost", 23.0)]
    assert not any(lane.signs for lane in lanes)
    titles = written(folder).titles
    assert "resumed after step 20" in titles
    assert "a server was lost at 23.0 s, step 33; back to step 20" in titles  # as the axis tells it


@pytest.mark.parametrize("count", [1, 16, 80])
def test_any_number_of_workers(count: int) -> None:
    events = [joined(worker, 1.0, host=f"host-{worker}") for worker in range(count)]
    rows = [(step, float(step), [step % 3 + 1] * count) for step in range(2, 1000)]
    page = written(write_workers_run("run", [events], rows))
    text = pathlib.Path("page.html").read_text()
    bars = re.findall(r'<path class="work" d="([^"]*)"', text)
    assert len(bars) == count
    assert all(100 <= bar.count("Z") <= 121 for bar in bars)  # not one for each of 998 rows
    assert (f"worker {count - 1}, host-{count - 1}" in page.text) == (count != 1)  # one host need not be named
    assert f"of all work{'worker 0' if count == 1 else ''}" in page.text.replace("\n", "")


def test_rows_that_say_nothing_of_time_or_are_garbage_have_no_lanes() -> None:
    good = one_killed()
    rows = [json.loads(line) for line in (good / "metrics.jsonl").read_text().splitlines()]
    for change in ({"elapsed_seconds": None}, {"elapsed_seconds": "x"}, {"worker_slices": 3}, {"worker_slices": [None, -1, "x"]}):
        (good / "metrics.jsonl").write_text("".join(json.dumps(row | change) + "\n" for row in rows))
        assert not [figure for figure in written(good).figures if figure.startswith("workers")]
    (good / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    events = [{"event": "worker joined", "step": 1, "seconds": 1.0, "worker": worker} for worker in (0, 7, -1, "x", None, True)]
    lines = [{"event": "started", "step": 0}, *events, {"event": "worker lost", "step": 2, "worker": 0, "seconds": "y"}]
    (good / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [figure for figure in written(good).figures if figure.startswith("workers")]
    lanes, _, _ = report_workers.lanes(report_runs.read(good, "run"))
    assert [len(lane.spans) for lane in lanes] == [1, 0, 0]


def drawn(page: Page, title: str) -> list[tuple[float, float]]:
    """Returns the points of the only line of a figure, over steps."""
    figure = pathlib.Path("page.html").read_text().split(f"<figcaption>{title}</figcaption>")[1].split("</figure>")[0]
    (line,) = re.findall(r'<g class="over base">\s*<path class="line[^"]*" d="([^"]*)"', figure)
    return [tuple(map(float, point.split())) for point in re.split("[ML]", line)[1:]]  # pyright: ignore


def test_a_run_whose_width_changed_shows_its_parts() -> None:
    folder = write_run("run")
    events = [
        {"event": "started", "step": 0, "processes": 4}, {"event": "resumed", "step": 10, "processes": 2},
        {"event": "resumed", "step": 10, "processes": 1}, {"event": "stopped", "step": 20, "processes": 1},
        {"event": "resumed", "step": 20, "processes": 4}, {"event": "done", "step": 40, "processes": 4},
    ]  # fmt: skip
    (folder / "history.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    page = written(folder)
    assert "resumed after step 10, on 2 processes instead of 4" in page.text
    assert "resumed after step 20, on 4 processes instead of 1" in page.text
    points = drawn(page, "processes")
    left, right, bottom = report_figures._LEFT, report_figures._RIGHT, report_figures._BOTTOM
    assert [40 * (x - left) / (right - left) for x, _ in points] == pytest.approx([0, 10, 10, 20, 20, 40], abs=0.1)
    assert [4 * (bottom - y) / (bottom - points[0][1]) for _, y in points] == pytest.approx([4, 4, 1, 1, 4, 4], abs=0.01)
    (folder / "history.jsonl").write_text("".join(json.dumps(event | {"processes": 4}) + "\n" for event in events))
    page = written(folder)
    assert "processes" not in page.figures
    assert "instead of" not in page.text
