"""Writes what the report says of runs as text: numbers, settings, mistakes and pictures."""

import base64
import io
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from PIL import Image

from jaxdp.parsing import is_finite
from jaxdp.registry import shown
from jaxdp.reporting import confusion, progress
from jaxdp.reporting.report_runs import RunRecord
from jaxdp.rundir.read import read_bytes
from jaxdp.units import bytes_text

NOTHING = "–"  # where a value is missing
_LARGEST_PICTURE = 300_000  # bytes
_WIDTHS = (1400, 1000, 700, 500, 350)  # of pictures that are larger, in pixels
# Pixels above which a picture has a row of its own, because its text would be too small.
_WIDE, _WIDE_CONFUSION = 1100, 600
_CAPTIONS = {"confusion": "confusion matrix", "predictions": "images, truth and predictions"}


def number_text(value: object, form: Callable[[Any], str] = "{:,.0f}".format) -> str:
    """Returns a finite number as text, and a dash for anything else."""
    return form(value) if is_finite(value) else NOTHING


def metric_text(value: object, name: str) -> str:
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
    "bytes": lambda value: number_text(value, bytes_text),
    "listed": listed,
    "metric": metric_text,
    "number": number_text,
    "pair": lambda *pair: pair,
    "setting": setting_text,
    "speed": speed_text,
    "time": time_text,
}


def metric_names(run: RunRecord) -> dict[str, list[str]]:
    """Returns the names of metrics, and kinds and classes of the metrics of a single class."""
    names = dict.fromkeys(itertools.chain(*run.metrics.values()))
    of_classes = [name.partition("/") for name in names if "/" in name]
    return {
        "whole": [name for name in names if "/" not in name],
        "kinds": list(dict.fromkeys(kind for kind, _, _ in of_classes)),
        "classes": list(dict.fromkeys(name for _, _, name in of_classes)),
    }


def mistakes(run: RunRecord) -> list[tuple[str, float | None, int, str]]:
    """Returns name, accuracy, images and most frequent mistake of each class."""
    try:
        counts = confusion.read(run.folder / "plots/confusion.csv")
    except (OSError, ValueError):  # runs of earlier versions have no such file
        return []
    found = []
    for name, predicted in counts.items():
        images, right = sum(predicted.values()), predicted.pop(name, 0)
        wrong = max(predicted, key=predicted.__getitem__, default=None)
        mistaken = NOTHING if wrong is None else f"{wrong} ({predicted[wrong]:,})"
        found.append((name, right / images if images else None, images, mistaken))
    return found


def changes(run: RunRecord) -> list[tuple[str, int, Any, Any]]:
    """Returns settings that were changed when the run was resumed: name, step, before and since."""
    found = []
    for event in run.history:
        changed = event.get("changed")
        for name, values in changed.items() if isinstance(changed, dict) else ():
            if isinstance(values, list) and len(values) == 2:
                found.append((name.replace("_", " "), int(event["step"]), *values))
    return found


def work(run: RunRecord) -> dict[str, str]:
    """Returns what a run with workers cost in addition to its steps."""

    def total(*names: str) -> float:
        values = (row.get(name) for row in run.rows for name in names)
        return sum((float(value) for value in values if is_finite(value)), 0.0)

    if run.about("workers") is None:
        return {}
    again, twice = f"{total('recomputed_slices'):,.0f}", total("dropped_slices")
    return {
        "workers lost": str(sum(event["event"] == "worker lost" for event in run.history)),
        "slices given out again": f"{again}, of which {twice:,.0f} came twice" if twice else again,
        "moved to and from workers": bytes_text(total("worker_bytes", "exchange_bytes")),
        "workers waited": f"{total('worker_idle_seconds'):,.1f} s in all",
    }


def pictures(run: RunRecord) -> list[dict[str, Any]]:
    """Returns the pictures of a run: name and, if it can be read, data, size and caption.

    The page draws the curves itself.
    """
    found: list[dict[str, Any]] = []
    for path in sorted((run.folder / "plots").glob("*.png")):
        if path.stem == "curves" or not path.is_file():
            continue
        try:
            kind, content, (width, height) = _shrunk(read_bytes(path))
        # Pillow raises all of these for damaged files.
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
            found.append({"name": path.name})
            continue
        found.append(
            {
                "source": f"data:image/{kind};base64,{base64.b64encode(content).decode()}",
                "caption": f"{_CAPTIONS.get(path.stem, path.stem)} of {run.name}",
                "width": width,
                "height": height,
                "wide": width > (_WIDE_CONFUSION if path.stem == "confusion" else _WIDE),
            }
        )
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
            kind = "jpeg"
            content = buffer.getvalue()
            size = smaller.size
    return kind, content, size
