"""Writes what the report says of a single run as text: tables, facts and pictures."""

import base64
import io
from collections.abc import Callable
from typing import Any

from PIL import Image

from jaxdp import run_files, units
from jaxdp.config import TrainConfig
from jaxdp.parsing import is_finite
from jaxdp.registry import shown
from jaxdp.reporting import confusion, progress
from jaxdp.reporting.report_figures import LINE_STYLES
from jaxdp.reporting.report_runs import RunRecord

NOTHING = "–"  # where a value is missing
MANY = 12  # classes above which a table is folded
Column = tuple[str, str]  # title, and the class of its cells: number, text, status or nothing
TableRow = tuple[Any, dict[str, Any], list[str]]  # head, attributes of the element, cells
Table = tuple[list[Column], list[TableRow]]
_LARGEST_PICTURE = 300_000  # bytes
_WIDTHS = (1400, 1000, 700, 500, 350)  # of pictures that are larger, in pixels
# Pixels above which a picture has a row of its own, because its text would be too small.
_WIDE = {"confusion": 600}
_CAPTIONS = {"confusion": "confusion matrix", "predictions": "images, truth and predictions"}


def number_text(value: object, form: Callable[[Any], str] = "{:,.0f}".format) -> str:
    """Returns a finite number as text, and a dash for anything else."""
    return form(value) if is_finite(value) else NOTHING


def metric_text(name: str, value: object) -> str:
    """Returns a metric as text: a percentage, a decimal number or a count."""
    if name == "examples":
        return number_text(value)
    return number_text(value, lambda number: progress.metric_text(name, number))


def speed_text(value: object) -> str:
    """Returns a speed as text, with one decimal below 100."""
    return number_text(value, lambda number: f"{number:,.{0 if number >= 100 else 1}f}")


def setting_text(value: object, missing: str = "default") -> str:
    """Returns a setting as text."""
    if value is None or isinstance(value, bool):
        return {None: missing, True: "yes", False: "no"}[value]
    return shown(value) or "none"


def fact_text(run: RunRecord, name: str) -> str:
    """Returns a fact of a run as text, a dash if it is unknown."""
    value = getattr(run, name) if name in ("strategy", "devices") else run.about(name)
    return setting_text(value, missing=NOTHING)


def has_resumed(run: RunRecord) -> bool:
    """Whether the run was resumed at least once."""
    return any(mark.kind == "resumed" for mark in run.track.marks)


def time_text(run: RunRecord, name: str = "total") -> str:
    """Returns a time of the run's last process, the only one that a summary has."""
    seconds = run.summary.get("seconds", {}).get(name)
    after = " after resuming" * has_resumed(run)
    if not is_finite(seconds):
        return NOTHING
    if seconds < 60:
        return f"{seconds:.1f} s{after}"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return (f"{hours} h {minutes:02} min" if hours else f"{minutes} min {seconds:02} s") + after


def settings(values: dict[str, Any]) -> list[tuple[str, str, bool]]:
    """Returns name and text of each setting, and whether it differs from its default."""
    defaults = TrainConfig().plain()
    return [
        (name, setting_text(value), setting_text(value) != setting_text(defaults.get(name)))
        for name, value in values.items()
    ]


def notes(run: RunRecord) -> list[str]:
    """Returns the events of a run as texts, with a single one for all skipped updates."""
    events = [mark.text for mark in run.track.marks if mark.kind != "updates skipped"]
    skipped = run.summary.get("skipped_updates")
    total = [f"{skipped} updates skipped in all"] if is_finite(skipped) and skipped else []
    return events + total


def metrics(run: RunRecord) -> tuple[Table, Table]:
    """Returns a table of metrics, and one of the metrics of each class (`METRIC/CLASS`)."""
    splits = {split: run.metrics(split) for split in LINE_STYLES}
    best = run.summary.get("best", {})
    if best and best.get("step") != run.steps:
        splits[f"best, step {best.get('step')}"] = best
    splits = {split: values for split, values in splits.items() if values}
    names = dict.fromkeys(name for values in splits.values() for name in values if name != "step")
    whole = [
        (
            name.replace("_", " "),
            {},
            [metric_text(name, each.get(name)) for each in splits.values()],
        )
        for name in names
        if "/" not in name
    ]
    of_classes = [name.split("/", 1) for name in names if "/" in name]
    kinds = dict.fromkeys(kind for kind, _ in of_classes)
    rows = [
        (
            name,
            {},
            [
                metric_text(kind, values.get(f"{kind}/{name}"))
                for kind in kinds
                for values in splits.values()
            ],
        )
        for name in dict.fromkeys(name for _, name in of_classes)
    ]
    columns = [
        (f"{kind.replace('_', ' ')}, {split}", "number") for kind in kinds for split in splits
    ]
    classes = (columns, rows) if rows else _confused(run)
    return ([(split, "number") for split in splits], whole), classes


def _confused(run: RunRecord) -> Table:
    """Returns accuracy and most frequent mistake of each class, from the confusion matrix."""
    try:
        counts = confusion.read(run.directory.plots / "confusion.csv")
    except (OSError, ValueError):  # runs of earlier versions have no such file
        return [], []
    rows: list[TableRow] = []
    for name, predicted in counts.items():
        images, right = sum(predicted.values()), predicted.pop(name, 0)
        accuracy = right / images if images else None
        wrong = max(predicted, key=predicted.__getitem__, default=None)
        mistaken = NOTHING if wrong is None else f"{wrong} ({predicted[wrong]:,})"
        rows.append((name, {}, [metric_text("accuracy", accuracy), f"{images:,}", mistaken]))
    accuracy = (f"accuracy, {run.held_out}", "number")
    return [accuracy, ("images", "number"), ("most often mistaken for", "text")], rows


def changes(run: RunRecord) -> Table:
    """Returns a table of the settings that were changed when the run was resumed."""
    rows: list[TableRow] = []
    for event in run.history:
        changed = event.get("changed")
        for name, values in changed.items() if isinstance(changed, dict) else ():
            if isinstance(values, list) and len(values) == 2:
                cells = [f"{event['step']:,.0f}", *map(setting_text, values)]
                rows.append((name.replace("_", " "), {}, cells))
    return [("after step", "number"), ("before", "text"), ("since", "text")], rows


def facts(run: RunRecord) -> dict[str, str]:
    """Returns where and with what the run trained."""
    workers, kind = run.about("workers"), run.summary.get("device_kind")
    devices = fact_text(run, "devices")
    versions = run.summary.get("versions", {})
    found: dict[str, Any] = {
        "devices": f"{devices} x {kind}" if kind else devices,
        "processes": run.about("processes"),
        "strategy": fact_text(run, "strategy"),
        "mesh": run.settings.get("mesh"),
        "batch norm": run.about("batch_norm"),
        "global batch": run.about("global_batch_size"),
        "precision": run.settings.get("precision"),
        "dataset held on": run.about("data_placement"),
        "state, a device": number_text(run.about("state_bytes_per_device"), units.bytes_text),
        "state, in all": number_text(run.about("state_bytes"), units.bytes_text),
        "parameters": number_text(run.about("parameters")),
        "epochs": number_text(run.summary.get("epochs"), "{:g}".format),
        "first step after": time_text(run, "first_step"),
        "time": time_text(run),
        "rollbacks": run.summary.get("rollbacks") or None,
        "XLA flags": run.summary.get("xla_flags"),
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }
    if workers is not None:  # the process that has the workers is no fact of interest
        found |= {"devices": f"{devices}, one CPU core each", "processes": None} | _work(run)
    return {name: str(value) for name, value in found.items() if value not in (None, "", NOTHING)}


def _work(run: RunRecord) -> dict[str, str]:
    """Returns what a run with workers cost in addition to its steps."""
    lost = sum(event["event"] == "worker lost" for event in run.history)
    names = ("recomputed_slices", "dropped_slices", "exchange_bytes", "worker_idle_seconds")
    total = {name: sum(row[name] for row in run.rows if is_finite(row.get(name))) for name in names}
    twice = f", of which {total['dropped_slices']:,.0f} came twice" * bool(total["dropped_slices"])
    return {
        "workers lost": f"{lost}",
        "slices given out again": f"{total['recomputed_slices']:,.0f}{twice}",
        "moved to and from workers": units.bytes_text(total["exchange_bytes"]),
        "workers waited": f"{total['worker_idle_seconds']:,.1f} s in all",
    }


def pictures(run: RunRecord) -> list[dict[str, Any]]:
    """Returns the pictures of a run: name and, if it can be read, data, size and caption.

    The page draws the curves itself.
    """
    found = []
    for path in sorted(run.directory.plots.glob("*.png")):
        if path.stem == "curves" or not path.is_file():
            continue
        picture: dict[str, Any] = {"name": path.name}
        # Pillow raises all of these for damaged files.
        try:
            kind, content, size = _shrunk(run_files.read_bytes(path))
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
            pass
        else:
            picture["source"] = f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
            picture["caption"] = f"{_CAPTIONS.get(path.stem, path.stem)} of {run.name}"
            picture["width"], picture["height"] = size
            picture["wide"] = size[0] > _WIDE.get(path.stem, 1100)
        found.append(picture)
    return found


def _shrunk(content: bytes) -> tuple[str, bytes, tuple[int, int]]:
    """Returns kind, content and size of a picture that is small enough for the page."""
    with Image.open(io.BytesIO(content)) as image:
        image.load()
        kind, size = str(image.format).lower(), image.size
        for width in _WIDTHS:
            if len(content) <= _LARGEST_PICTURE:
                break
            smaller = image.convert("RGB")
            smaller.thumbnail((width, 3 * width))
            buffer = io.BytesIO()
            smaller.save(buffer, "JPEG", quality=85, optimize=True)
            kind, content, size = "jpeg", buffer.getvalue(), smaller.size
    return kind, content, size
