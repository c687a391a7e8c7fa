"""Tells of a single run what the report shows: metrics, devices, versions, settings and pictures,
as text.
"""

import base64
import io
from collections.abc import Callable
from typing import Any

from PIL import Image

from jaxdp import run_files, units
from jaxdp.config import TrainConfig
from jaxdp.reporting import confusion, progress
from jaxdp.reporting.report_figures import STROKES
from jaxdp.reporting.report_runs import NOTHING, Run, fact_text, number, setting_text

Column = tuple[str, str]  # of a table: title, and number, text or another class of its cells
# What heads it, attributes of the element, texts of its cells.
TableRow = tuple[Any, dict[str, Any], list[str]]
_LARGEST_PICTURE = 300_000  # bytes
_WIDTHS = (1400, 1000, 700, 500, 350)  # of larger ones, in pixels
# Pixels from which a picture has a row of its own; its texts would be too small to read.
_WIDE, _WIDE_CONFUSION = 1100, 600
_PICTURES = {"confusion": "confusion matrix", "predictions": "images, truth and predictions"}
MANY = 12  # classes that a person reads at a glance
_CURVES = "curves"  # drawn on the page already


def text_of(value: object, form: Callable[[float], str] = "{:,.0f}".format) -> str:
    """Returns a finite number in a form for people, and a dash for all else."""
    found = number(value)
    return NOTHING if found is None else form(found)


def metric_text(name: str, value: object) -> str:
    """Returns a metric as text, and a dash where it is no finite number."""
    return (
        text_of(value)
        if name == "examples"
        else text_of(value, lambda found: progress.metric_text(name, found))
    )


def speed_text(value: object) -> str:
    """Returns a speed as text, with one decimal below 100, and a dash where it is no finite
    number.
    """
    return text_of(value, lambda found: f"{found:,.{0 if found >= 100 else 1}f}")


def has_resumed(run: Run) -> bool:
    """Tells whether a run was resumed at least once."""
    return any(mark.kind == "resumed" for mark in run.marks)


def time_text(run: Run, name: str = "total") -> str:
    """Returns one of the times of the run's last process, which is all that a summary knows."""
    seconds = number(run.get("seconds", name))
    if seconds is None:
        return NOTHING
    after = " after resuming" * has_resumed(run)
    if seconds < 60:
        return f"{seconds:.1f} s{after}"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return (f"{hours} h {minutes:02} min" if hours else f"{minutes} min {seconds:02} s") + after


def settings_texts(settings: dict[str, Any]) -> list[tuple[str, str, bool]]:
    """Returns of each setting its name, its text and whether it is not the default."""
    texts = {name: setting_text(value) for name, value in settings.items()}
    defaults = TrainConfig().plain()
    return [(name, text, text != setting_text(defaults.get(name))) for name, text in texts.items()]


def notes(run: Run) -> list[str]:
    """Returns the events of a run as texts, with the skipped updates summed up in one of them."""
    found = [mark.text for mark in run.marks if mark.kind != "updates skipped"]
    skipped = run.get("skipped_updates")
    return found + ([f"{skipped} updates skipped in all"] if number(skipped) else [])


def _splits(run: Run) -> dict[str, dict[str, Any]]:
    """Returns metrics by split, and those of the best state where it is another than the last."""
    splits = {split: run.metrics(split) for split in STROKES}
    best = run.get("best")
    if isinstance(best, dict) and not run.is_open and best.get("step") != run.get("steps"):
        splits[f"best, step {best.get('step')}"] = best
    return {split: found for split, found in splits.items() if found}


def metrics(run: Run) -> tuple[list[Column], list[TableRow]]:
    """Returns a table's columns, one for each split, and its rows, one for each metric of all
    classes together.
    """
    splits = _splits(run)
    names = dict.fromkeys(
        name for found in splits.values() for name in found if name != "step" and "/" not in name
    )
    rows = [
        (
            name.replace("_", " "),
            {},
            [metric_text(name, found.get(name)) for found in splits.values()],
        )
        for name in names
    ]
    return [(split, "number") for split in splits], rows


def classes(run: Run) -> tuple[list[Column], list[TableRow]]:
    """Returns a table's columns and its rows, one for each class: its metrics (`METRIC/CLASS`), or
    what it was taken for.
    """
    splits = _splits(run)
    found = dict.fromkeys(
        tuple(name.split("/", 1)) for metrics in splits.values() for name in metrics if "/" in name
    )
    if not found:
        return _confused(run)
    kinds, names = (
        dict.fromkeys(kind for kind, _ in found),
        dict.fromkeys(name for _, name in found),
    )
    columns = [
        (f"{kind.replace('_', ' ')}, {split}", "number") for kind in kinds for split in splits
    ]
    return columns, [
        (
            name,
            {},
            [
                metric_text(kind, of_split.get(f"{kind}/{name}"))
                for kind in kinds
                for of_split in splits.values()
            ],
        )
        for name in names
    ]


def _confused(run: Run) -> tuple[list[Column], list[TableRow]]:
    """Returns accuracy and most frequent mistake of each class, from the confusion matrix of the
    evaluation.
    """
    try:
        counts = confusion.read(run.directory.plots / "confusion.csv")
    except (OSError, ValueError):  # runs of earlier versions have none
        return [], []
    columns = [
        (f"accuracy, {run.held_out}", "number"),
        ("images", "number"),
        ("most often mistaken for", "text"),
    ]
    rows: list[TableRow] = []
    for name, predicted in counts.items():
        images, right = sum(predicted.values()), predicted.get(name, 0)
        wrong = max(
            (other for other in predicted if other != name), key=predicted.__getitem__, default=None
        )
        mistaken = NOTHING if wrong is None else f"{wrong} ({predicted[wrong]:,})"
        rows.append(
            (
                name,
                {},
                [
                    metric_text("accuracy", right / images if images else None),
                    f"{images:,}",
                    mistaken,
                ],
            )
        )
    return columns, rows


def changes(run: Run) -> tuple[list[Column], list[TableRow]]:
    """Returns a table's columns and its rows, one for each setting that was changed when the run
    was resumed.
    """
    columns = [("after step", "number"), ("before", "text"), ("since", "text")]
    return columns, [(name, {}, [f"{step:,}", old, new]) for name, step, old, new in run.changes]


def facts(run: Run) -> dict[str, str]:
    """Says where and with what it ran."""
    found: dict[str, Any] = {
        "devices": _devices(run),
        # That one which has the workers.
        "processes": run.about("processes") if not run.workers else None,
        "strategy": fact_text(run, "strategy"),
        "mesh": run.settings.get("mesh"),
        "batch norm": run.about("batch_norm"),
        "global batch": run.about("global_batch_size"),
        "precision": run.settings.get("precision"),
        "dataset held on": run.about("data_placement"),
        "state, a device": text_of(run.get("state_bytes_per_device"), units.bytes_text),
        "state, in all": text_of(run.get("state_bytes"), units.bytes_text),
        "parameters": text_of(run.get("parameters")),
        "epochs": text_of(run.get("epochs"), "{:g}".format),
        "first step after": time_text(run, "first_step"),
        "time": time_text(run),
        "rollbacks": run.get("rollbacks") or None,
        "XLA flags": run.get("xla_flags"),
        "versions": ", ".join(f"{name} {version}" for name, version in run.versions.items()),
    }
    found |= _work(run)
    return {name: str(value) for name, value in found.items() if value not in (None, "", NOTHING)}


def _work(run: Run) -> dict[str, str]:
    """Returns what the work of a run with workers cost in addition to the work itself."""
    rows = [row for row in run.rows if "worker_slices" in row]

    def total(*names: str) -> float:
        values = [number(row.get(name)) for row in rows for name in names]
        return sum((value for value in values if value is not None), 0.0)

    again, twice = total("recomputed_slices"), total("dropped_slices")
    lost = sum(event["event"] == "worker lost" for event in run.history)
    found = {
        "workers lost": f"{lost}",
        "slices given out again": (
            f"{again:,.0f}, of which {twice:,.0f} came twice" if twice else f"{again:,.0f}"
        ),
        "moved to and from workers": units.bytes_text(
            total("worker_bytes", "exchange_bytes")  # the second in rows of version 0.2
        ),
        "workers waited": f"{total('worker_idle_seconds'):,.1f} s in all",
    }
    return found if rows else {}


def _devices(run: Run) -> str:
    count, kind = fact_text(run, "devices"), run.get("device_kind")
    if run.workers:
        return f"{count}, one CPU core each"
    return f"{count} x {kind}" if kind else count


def pictures(run: Run) -> list[dict[str, Any]]:
    """Returns of each picture its name and, unless it cannot be read, its caption, data and
    size.
    """
    found = []
    for path in sorted(
        path
        for path in run.directory.plots.glob("*.png")
        if path.stem != _CURVES and path.is_file()
    ):
        picture: dict[str, Any] = {"name": path.name, "source": None}
        try:
            kind, content, size = _shrunk(run_files.read_bytes(path))
        except (
            OSError,
            ValueError,
            SyntaxError,
            Image.DecompressionBombError,
        ):  # Pillow raises all of them for broken files
            pass
        else:
            picture["source"] = f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
            picture |= {
                "caption": f"{_PICTURES.get(path.stem, path.stem)} of {run.name}",
                "width": size[0],
                "height": size[1],
            }
            picture["wide"] = size[0] > (_WIDE_CONFUSION if path.stem == "confusion" else _WIDE)
        found.append(picture)
    return found


def _shrunk(content: bytes) -> tuple[str, bytes, tuple[int, int]]:
    """Returns kind, content and size of a picture that is small enough to be part of a page."""
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
