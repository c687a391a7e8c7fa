"""What does the page say of a single run: figures, pictures, devices, versions and settings?"""

import base64
import io
import pathlib
import zlib
from typing import Any

from PIL import Image

from jaxdp.config import TrainConfig
from jaxdp.reporting import progress
from jaxdp.reporting.markup import Html, details, table, tag
from jaxdp.reporting.report_runs import NOTHING, Run, number, setting_text

_LARGEST_PICTURE = 300_000  # bytes
_WIDTHS = (1400, 1000, 700, 500, 350)  # of larger ones, in pixels
_MANY = 12  # figures of single classes that a person reads at a glance
_PICTURES = {"confusion": "confusion matrix", "predictions": "images, truth and predictions"}
_CURVES = "curves"  # drawn on the page already


def anchor(run: Run) -> str:
    return f"run-{zlib.crc32(run.name.encode()):x}"


def chip(color: int) -> Html:
    return tag("i", class_=f"chip k{color}", aria_hidden="true")


def status(run: Run) -> Html:
    return tag("span", run.status, class_="bad" if run.status == "diverged" else None)


def figure_text(name: str, value: object) -> str:
    found = number(value)
    if found is None:
        return NOTHING if value is None else str(value)
    return f"{found:,.0f}" if name == "examples" else progress.figure_text(name, found)


def speed_text(value: object) -> str:
    found = number(value)
    return NOTHING if found is None else f"{found:,.{0 if found >= 100 else 1}f}"


def time_text(run: Run, name: str = "total") -> str:
    """Returns one of the times of the run's last process, which is all that a summary knows."""
    seconds = number(run.get("seconds", name))
    if seconds is None:
        return NOTHING
    after = " after resuming" * any(mark.kind == "resumed" for mark in run.marks)
    if seconds < 60:
        return f"{seconds:.1f} s{after}"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return (f"{hours} h {minutes:02} min" if hours else f"{minutes} min {seconds:02} s") + after


def settings_list(settings: dict[str, Any]) -> Html:
    """Shows settings; those that are not the defaults stand out."""
    items = []
    for name, value in settings.items():
        text = setting_text(value)
        changed = text != setting_text(getattr(TrainConfig, name, {}))
        items.append(tag("div", tag("dt", name), tag("dd", tag("strong", text) if changed else text)))
    return tag("dl", *items, class_="settings")


def article(run: Run, color: int) -> Html:
    heading = tag("h3", chip(color), run.name, " ", tag("span", "(", status(run), ")", class_="soft"))
    notes = [tag("p", f"Incomplete: {'; '.join(run.problems)}.", class_="bad")] if run.problems else []
    marks = [mark.text for mark in run.marks if mark.kind != "skipped"]
    marks += [f"{run.get('skipped_updates')} updates skipped in all"] if number(run.get("skipped_updates")) else []
    notes += [tag("p", "; ".join(marks))] if marks else []
    if any(event["event"] == "resumed" for event in run.history) and run.summary:
        notes.append(tag("p", "Time and speed are those of its last process.", class_="soft"))
    columns = [tag("div", *notes, _figures(run)), tag("div", _facts(run)), *_pictures(run)]
    config = details("config.yaml", tag("pre", run.config_text)) if run.config_text else ""
    return tag("article", heading, tag("div", *columns, class_="columns"), config, id=anchor(run))


def _figures(run: Run) -> Html:
    splits = {split: run.figures(split) for split in ("train", "test")}
    best = run.get("best")
    if isinstance(best, dict) and not run.is_open and best.get("step") != run.get("steps"):
        splits[f"best, step {best.get('step')}"] = best
    splits = {split: figures for split, figures in splits.items() if figures}
    names = [name for name in dict.fromkeys(name for figures in splits.values() for name in figures) if name != "step"]
    if not names:
        return tag("p", "No figures yet.", class_="soft")
    head = [tag("th", "", scope="col"), *(tag("th", split, class_="number", scope="col") for split in splits)]
    rows = {
        name: tag(
            "tr", tag("th", name.replace("_", " "), scope="row"),
            *(tag("td", figure_text(name, figures.get(name)), class_="number") for figures in splits.values()),
        )
        for name in names
    }  # fmt: skip
    of_classes = [name for name in names if "/" in name]
    if len(of_classes) <= _MANY:
        return table(head, rows.values())
    whole = table(head, [row for name, row in rows.items() if name not in of_classes])
    return tag("div", whole, details("figures of each class", table(head, [rows[name] for name in of_classes])))


def _facts(run: Run) -> Html:
    """Says where and with what it ran."""
    kind = run.get("device_kind")
    facts: dict[str, Any] = {
        "devices": f"{run.get('devices')} x {kind}" if kind else run.about("devices"),
        "processes": run.about("processes"),
        "strategy": run.about("strategy"),
        "mesh": run.settings.get("mesh"),
        "batch norm": run.about("batch_norm"),
        "global batch": run.about("global_batch_size"),
        "precision": run.settings.get("precision"),
        "dataset held on": run.about("data_placement"),
        "state, a device": _bytes(run.get("state_bytes_per_device")),
        "state, in all": _bytes(run.get("state_bytes")),
        "parameters": _whole(run.get("parameters")),
        "epochs": run.get("epochs"),
        "first step after": time_text(run, "first_step"),
        "time": time_text(run),
        "rollbacks": run.get("rollbacks") or None,
        "XLA flags": tag("code", str(run.get("xla_flags") or "")),
        "versions": ", ".join(f"{name} {version}" for name, version in run.versions.items()),
    }
    items = [tag("dt", name) + tag("dd", value) for name, value in facts.items() if value not in (None, "", NOTHING, tag("code"))]
    return tag("dl", *map(Html, items))


def _bytes(value: object) -> str | None:
    found = number(value)
    return None if found is None else progress.bytes_text(found)


def _whole(value: object) -> str | None:
    found = number(value)
    return None if found is None else f"{found:,.0f}"


def _pictures(run: Run) -> list[Html]:
    paths = sorted(path for path in run.directory.plots.glob("*.png") if path.stem != _CURVES)
    return [_picture(path, f"{_PICTURES.get(path.stem, path.stem)} of {run.name}") for path in paths]


def _picture(path: pathlib.Path, text: str) -> Html:
    try:
        kind, content, (width, height) = _shrunk(path.read_bytes())
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):  # Pillow raises all of them for broken files
        return tag("p", f"{path.name} cannot be read", class_="bad")
    source = f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
    return tag("figure", tag("img", src=source, alt=text, width=width, height=height, loading="lazy"), tag("figcaption", text))


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
