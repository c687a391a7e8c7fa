"""The report shows what a run with workers did, and how many processes a run had."""

import json
import pathlib
import re

import pytest
from test_report import lines, write_run, written


def one_killed(*, old: bool) -> pathlib.Path:
    """Writes a run with three workers, of which the last was lost and replaced.

    Args:
        old: whether it is of version 0.2.
    """
    where = {"strategy": "exact", "workers": 3}
    where = {"exchange": "exact", "workers": 3} if old else where
    folder = write_run("run", rows=0, summary={"steps": 40, "devices": 1} | where, **where)
    row = {
        "split": "train",
        "loss": 1.0,
        "accuracy": 0.5,
        "worker_slices": [30, 10, 20],
        "recomputed_slices": 1,
        "dropped_slices": 0,
        "workers": 3,
        "exchange_bytes" if old else "worker_bytes": 1024,
        "worker_idle_seconds": 0.5,
    }
    rows = [row | {"step": step, "elapsed_seconds": 1.25 * step} for step in (10, 30, 40)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    events = [{"event": "started", "step": 0, "devices": 1, "processes": 1} | where]
    for name, worker in (("joined", 0), ("joined", 1), ("joined", 2), ("lost", 2), ("joined", 2)):
        events.append({"event": f"worker {name}", "step": 1, "seconds": 10.0, "worker": worker})
    (folder / "history.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return folder


@pytest.mark.parametrize("old", [False, True])
def test_a_run_with_workers_does_not_say_that_it_had_one_device(old: bool) -> None:
    page = written(one_killed(old=old), write_run("other"))
    rows = {row["run"]: row for row in page.run_tables[0]}
    assert (rows["run"]["devices"], rows["run"]["strategy"]) == ("3 workers", "exact")
    assert (rows["other"]["devices"], rows["other"]["strategy"]) == ("2", "pmap")
    assert not {"exchange", "workers"} & set(rows["run"])  # said already
    assert "3 workers, one CPU core each" in page.text
    assert "1 x cpu" not in page.text
    assert not [figure for figure in page.figures if "worker" in figure]
    for fact in (
        "workers lost1",
        "slices given out again3",
        "moved to and from workers3.0 KiB",
        "workers waited1.5 s in all",
    ):
        assert fact in re.sub(r"\s*\n\s*", "", page.text)


def test_a_run_whose_width_changed_shows_its_parts() -> None:
    folder = write_run("run")
    events = [
        {"event": "started", "step": 0, "processes": 4},
        {"event": "resumed", "step": 10, "processes": 2},
        {"event": "resumed", "step": 10, "processes": 1},
        {"event": "stopped", "step": 20, "processes": 1},
        {"event": "resumed", "step": 20, "processes": 4},
        {"event": "done", "step": 40, "processes": 4},
    ]
    (folder / "history.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    page = written(folder)
    assert "resumed after step 10, on 2 processes instead of 4" in page.text
    assert "resumed after step 20, on 4 processes instead of 1" in page.text
    (points,) = lines(caption="processes")
    assert [40 * x for x, _ in points] == pytest.approx([0, 10, 10, 20, 20, 40], abs=0.1)
    assert [4 * y / points[0][1] for _, y in points] == pytest.approx([4, 4, 1, 1, 4, 4], abs=0.01)
    (folder / "history.jsonl").write_text(
        "".join(json.dumps(event | {"processes": 4}) + "\n" for event in events)
    )
    page = written(folder)
    assert "processes" not in page.figures
    assert "instead of" not in page.text
