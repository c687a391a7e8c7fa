"""Writes what the report says of runs as text: numbers, settings, mistakes and pictures."""

import base64
import functools
import io
from collections.abc import Callable, Sequence
from typing import Any

from PIL import Image

from jaxdp.parsing import is_finite
from jaxdp.registry import shown
from jaxdp.reporting import benchmarks, confusion, progress
from jaxdp.reporting.report_runs import RunRecord
from jaxdp.rundir.read import read_bytes
from jaxdp.units import bytes_text

NOTHING = "–"  # where a value is missing
_LARGEST = (1400, 4200)  # width and height of a picture, in pixels


def number_text(value: object, form: Callable[[Any], str] = "{:,.0f}".format) -> str:
    """Returns a finite number as text, and a dash for anything else."""
    return form(value) if is_finite(value) else NOTHING


def metric_text(value: object, name: str) -> str:
    """Returns a metric as text: a percentage, a decimal number or a count."""
    if name == "examples":
        return number_text(value)
    return number_text(value, functools.partial(progress.metric_text, name))


def setting_text(value: object, missing: str = "default") -> str:
    """Returns a setting as text."""
    if value is None:
        return missing
    if isinstance(value, bool):
        return "yes" if value else "no"
    return shown(value) or "none"


def time_text(seconds: object) -> str:
    """Returns a time as text, e.g. `1 min 15 s`."""
    if not is_finite(seconds) or seconds < 60:
        return number_text(seconds, "{:.1f} s".format)
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {seconds:02} s"


def listed(names: Sequence[str], plural: str, most: int = 4) -> str:
    """Returns e.g. `a, b and c`, or the number of names if there are many."""
    if len(names) > most or not names:
        return f"{len(names) or 'unknown'} {plural}"
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


FILTERS = {
    "bytes": functools.partial(number_text, form=bytes_text),
    "listed": listed,
    "metric": metric_text,
    "number": number_text,
    "setting": setting_text,
    "speed": functools.partial(number_text, form=benchmarks.three_digits),
    "time": time_text,
}


def class_metrics(run: RunRecord) -> dict[str, dict[str, dict[str, Any]]]:
    """Returns metrics of single classes, as `iou/cell`, by kind, class and split."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for split, metrics in run.metrics.items():
        for name, value in metrics.items():
            kind, slash, of_class = name.partition("/")
            if slash:
                found.setdefault(kind, {}).setdefault(of_class, {})[split] = value
    return found


def mistakes(run: RunRecord) -> list[tuple[str, float | None, int, str]]:
    """Returns name, accuracy, images and most frequent mistake of each class."""
    try:
        counts = confusion.read(run.folder / "plots/confusion.csv")
    except (OSError, ValueError):  # runs of earlier versions have no such file
        return []
    rows = []
    for name, predicted in counts.items():
        images = sum(predicted.values())
        right = predicted.pop(name, 0)
        wrong = max(predicted, key=predicted.__getitem__, default=None)
        mistaken = NOTHING if wrong is None else f"{wrong} ({predicted[wrong]:,})"
        rows.append((name, right / images if images else None, images, mistaken))
    return rows


def changes(run: RunRecord) -> list[tuple[str, int, Any, Any]]:
    """Returns settings that were changed when the run was resumed: name, step, before and since."""
    rows = []
    for event in run.history:
        changed = event.get("changed")
        for name, values in changed.items() if isinstance(changed, dict) else ():
            if isinstance(values, list) and len(values) == 2:
                rows.append((name.replace("_", " "), event["step"], *values))
    return rows


def work(run: RunRecord) -> dict[str, str]:
    """Returns what a run with workers cost in addition to its steps."""

    def total(*names: str) -> float:
        values = (row.get(name) for row in run.rows for name in names)
        return sum(float(value) for value in values if is_finite(value))

    if run.fact("workers") is None:
        return {}
    again = f"{total('recomputed_slices'):,.0f}"
    if twice := total("dropped_slices"):
        again += f", of which {twice:,.0f} came twice"
    return {
        "workers lost": str(sum(event["event"] == "worker lost" for event in run.history)),
        "slices given out again": again,
        "moved to and from workers": bytes_text(total("worker_bytes", "exchange_bytes")),
        "workers waited": f"{total('worker_idle_seconds'):,.1f} s in all",
    }


def pictures(run: RunRecord) -> list[dict[str, Any]]:
    """Returns the pictures of a run: name and, if it can be read, source, width and height.

    The page draws the curves itself.
    """
    found: list[dict[str, Any]] = []
    for path in sorted((run.folder / "plots").glob("*.png")):
        if path.stem != "curves" and path.is_file():
            # Pillow raises all of these for damaged files.
            try:
                picture = _embedded(read_bytes(path))
            except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
                picture = {}
            found.append({"name": path.name} | picture)
    return found


def _embedded(content: bytes) -> dict[str, Any]:
    """Returns source, width and height of a picture that is small enough for the page."""
    with Image.open(io.BytesIO(content)) as stored:
        picture = stored.convert("RGB")
    picture.thumbnail(_LARGEST)
    buffer = io.BytesIO()
    picture.save(buffer, "WebP", quality=90)
    source = data_url(buffer.getvalue(), "webp")
    return {"source": source, "width": picture.width, "height": picture.height}


def data_url(content: bytes, kind: str) -> str:
    """Returns the content of an image as the address of it."""
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
