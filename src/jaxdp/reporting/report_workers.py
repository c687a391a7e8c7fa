"""Draws the workers of a run as lanes over time: from when to when each was there, and its share of the work."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from jaxdp import units
from jaxdp.reporting import report_axes
from jaxdp.reporting.report_figures import SHAPES, Scale
from jaxdp.reporting.report_runs import Run, number
from jaxdp.reporting.templates import render
from jaxdp.run_directory import Row

_WIDTH, _LEFT, _LEFT_OF_HOSTS, _RIGHT, _TOP = 760, 66, 170, 706, 24
_HEIGHTS, _HEIGHT_OF_ALL = (10, 28), 300  # of a lane, and of so many that they are lower
_STRETCHES = 120  # of the time that are told apart: a share between two steps is mostly chance
_TEXT = 84  # width of what is said of a lost worker, where there is room


@dataclasses.dataclass
class _Process:
    """What one process of the run has written; its time begins at `start`."""

    step: float  # after which it began
    rows: list[tuple[float, list[float]]] = dataclasses.field(default_factory=list)  # seconds, and slices by worker since the last
    events: list[tuple[float, Row]] = dataclasses.field(default_factory=list)
    start: float = 0.0

    @property
    def seconds(self) -> float:
        return max((seconds for seconds, _ in (*self.rows, *self.events)), default=0.0)


@dataclasses.dataclass(frozen=True)
class Sign:
    """Something that happened, in seconds of the whole run."""

    kind: str  # a key of SHAPES
    at: float
    text: str
    step: int


@dataclasses.dataclass
class Lane:
    """One of the workers, and those that replaced it.

    Attributes:
        spans: from when to when there was one.
        bars: from when, to when, and its share of the work then.
        slices: that it computed.
    """

    worker: int
    host: str = ""
    spans: list[tuple[float, float]] = dataclasses.field(default_factory=list)
    bars: list[tuple[float, float, float]] = dataclasses.field(default_factory=list)
    signs: list[Sign] = dataclasses.field(default_factory=list)
    slices: float = 0.0


def lanes(run: Run) -> tuple[list[Lane], list[Sign], float]:
    """Returns a lane for each worker, what happened to all of them, and the seconds of the run.

    The times of several processes, each of which resumed the run, follow one another without the time between them.
    """
    processes = [process for process in _processes(run) if process.rows]
    count = max((len(slices) for process in processes for _, slices in process.rows), default=0)
    found, signs, end = [Lane(worker) for worker in range(count)], list[Sign](), 0.0
    for process in processes:
        process.start = end
        end += process.seconds
    for process in processes:
        if process.start:
            signs.append(Sign("resumed", process.start, f"resumed after step {process.step:.0f}", int(process.step)))
        _add_events(process, found, signs)
        _add_work(process, found, end / _STRETCHES)
    return found, signs, end


def _processes(run: Run) -> list[_Process]:
    found = list[_Process]()
    for event in run.history:
        if event["event"] in ("started", "resumed"):
            found.append(_Process(float(event["step"])))
        elif found and (seconds := number(event.get("seconds"))) is not None:
            found[-1].events.append((seconds, event))
    for row in run.rows:
        seconds, slices = number(row.get("elapsed_seconds")), row.get("worker_slices")
        mine = [process for process in found if process.step < row["step"]]  # a resumed run has dropped the rows after its start
        if mine and seconds is not None and isinstance(slices, list):
            mine[-1].rows.append((seconds, [max(number(each) or 0.0, 0.0) for each in slices]))
    return found


def _add_events(process: _Process, found: Sequence[Lane], signs: list[Sign]) -> None:
    """Adds when workers were there, and what is marked: those lost, and those that joined after training had begun."""
    since: dict[int, float] = {}
    begun = next((event["step"] for _, event in process.events if event["event"] == "worker joined"), 0)
    for seconds, event in process.events:
        kind, at, worker = event["event"], process.start + seconds, event.get("worker")
        said = f" at {at:,.1f} s, step {event['step']:.0f}"
        if kind == "server lost":
            back = f"; back to step {event['to_step']}" if "to_step" in event else ""
            signs.append(Sign(kind, at, f"a server was lost{said}{back}", int(event["step"])))
        if kind not in ("worker joined", "worker lost") or type(worker) is not int or not 0 <= worker < len(found):
            continue
        lane = found[worker]
        if kind == "worker joined":
            since[worker], lane.host = at, str(event.get("host", ""))
            said += f", on {lane.host}" if lane.host else ""
        elif worker in since:
            lane.spans.append((since.pop(worker), at))
        if kind == "worker lost" or event["step"] > begun:
            lane.signs.append(Sign(kind, at, f"{kind.replace(' ', f' {worker} ')}{said}", int(event["step"])))
    for worker, at in since.items():
        found[worker].spans.append((at, process.start + process.seconds))


def _add_work(process: _Process, found: Sequence[Lane], least: float) -> None:
    """Adds the share of each worker in every stretch of at least so many seconds."""
    for _, slices in process.rows:
        for lane, done in zip(found, slices, strict=False):
            lane.slices += done
    starts = [start for lane in found for start, _ in lane.spans if start >= process.start]
    for start, end, slices in _stretches(process, min(starts, default=process.start), least):
        total = sum(slices)
        for lane, done in zip(found, slices, strict=False):
            for first, last in lane.spans if done else ():
                if min(end, last) > max(start, first):
                    lane.bars.append((max(start, first), min(end, last), done / total))


def _stretches(process: _Process, start: float, least: float) -> Iterator[tuple[float, float, list[float]]]:
    slices: list[float] = []
    for index, (seconds, new) in enumerate(process.rows):
        end = process.start + seconds
        slices = [a + b for a, b in zip(slices, new, strict=False)] if slices else new
        if any(slices) and end > start and (end - start >= least or index + 1 == len(process.rows)):
            yield start, end, slices
            start, slices = end, []


def drawing(run: Run) -> dict[str, Any] | None:
    """Returns the figure of a run's workers and the kinds of its marks, None of a run without workers."""
    found, signs, end = lanes(run)
    highest = max((share for lane in found for *_, share in lane.bars), default=0.0)
    if not highest:
        return None
    size, unit = report_axes.unit_of(end)
    hosts = len({lane.host for lane in found if lane.host}) > 1
    first = min(start for lane in found for start, _ in lane.spans)
    first = max(first - 0.02 * (end - first), 0.0)  # before that there is nothing to see
    left, title = _LEFT_OF_HOSTS if hosts else _LEFT, f"{unit} since the workers were started"
    x = Scale(first / size, end / size, left, _RIGHT, title=title)
    height = max(_HEIGHTS[0], min(_HEIGHTS[1], _HEIGHT_OF_ALL // len(found)))
    all_slices = sum(lane.slices for lane in found)
    kinds = {sign.kind for sign in signs} | {sign.kind for lane in found for sign in lane.signs}
    rows = [
        {
            "name": f"worker {lane.worker}" + f", {lane.host}" * hosts,
            "share": _share_text(lane.slices / all_slices),
            "slices": f"{lane.slices:,.0f}",
            "spans": [(x(start / size), x(last / size)) for start, last in lane.spans],
            "bars": [(x(start / size), x(last / size), share / highest) for start, last, share in lane.bars],
            "signs": [(sign, x(sign.at / size), _has_room(sign, lane, float(x(end / size)), x, size)) for sign in lane.signs],
        }
        for lane in found
    ]
    svg = render(
        "lanes.svg.jinja", run=run, rows=rows, signs=[(sign, x(sign.at / size)) for sign in signs], x=x, width=_WIDTH, top=_TOP,
        height=height, labelled=-(-12 // height), highest=_share_text(highest), shapes=SHAPES,
    )  # fmt: skip
    return {"svg": svg, "marks": [kind for kind in SHAPES if kind in kinds]}


def _share_text(share: float) -> str:
    return f"{100 * share:.{0 if share > 0.0995 else 1}f}%"


def _has_room(sign: Sign, lane: Lane, right: float, x: Scale, size: float) -> bool:
    """Tells whether what is said of a lost worker fits between it and whoever replaced it."""
    following = [float(x(start / size)) for start, _ in lane.spans if start > sign.at]
    return sign.kind == "worker lost" and min(following, default=right) - float(x(sign.at / size)) > _TEXT


def facts(run: Run) -> dict[str, str]:
    """Says what the work of a run with workers took beside the work itself; nothing of a run without."""
    rows: list[Row] = [row for row in run.rows if "worker_slices" in row]

    def total(name: str) -> float:
        return sum((found for row in rows if (found := number(row.get(name))) is not None), 0.0)

    again, twice = total("recomputed_slices"), total("dropped_slices")
    lost = sum(event["event"] == "worker lost" for event in run.history)
    found = {
        "workers lost": f"{lost}",
        "slices given out again": f"{again:,.0f}, of which {twice:,.0f} came twice" if twice else f"{again:,.0f}",
        "moved to and from workers": units.bytes_text(total("exchange_bytes")),
        "workers waited": f"{total('worker_idle_seconds'):,.1f} s in all",
    }
    return found if rows else {}
