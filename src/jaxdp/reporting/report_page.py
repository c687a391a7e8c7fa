"""Writes the page of `python -m jaxdp.report`, with its content and order.

The folder templates/ has its texts and styles.
"""

import base64
import datetime
import io
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jinja2
from PIL import Image

from jaxdp.config import TrainConfig
from jaxdp.errors import ConfigError
from jaxdp.reporting.progress import metric_text
from jaxdp.reporting.report_figures import COLORS, compact, figures
from jaxdp.reporting.report_runs import SPLITS, ReportedRun
from jaxdp.rundir.read import read_bytes
from jaxdp.rundir.write import check_file, write_output
from jaxdp.text.messages import shown
from jaxdp.text.parsing import is_finite, resolved
from jaxdp.text.version import version

_FILES = ("config.yaml", "metrics.jsonl", "summary.json")  # a run has at least one of these files
_HAVE_COLUMNS = ("devices", "steps", "workers")  # whether the settings are the same or differ
_LARGEST_PICTURE = (1400, 4200)  # width and height in pixels


def write_report(
    folders: Sequence[pathlib.Path], output: pathlib.Path, title: str | None = None
) -> None:
    """Writes one HTML file about folders of runs, which requires no other file.

    Raises:
        ConfigError: if a folder has no run, or the file cannot be written.
    """
    runs: list[ReportedRun] = []
    given = {resolved(folder): folder for folder in folders}
    common = os.path.commonpath([folder.parent for folder in given])
    for folder in given:
        if not any((folder / file).is_file() for file in _FILES):
            problem = "holds no run" if folder.is_dir() else "is no folder"
            raise ConfigError("run_dir", given[folder], f"{problem}; give folders of runs")
        runs.append(ReportedRun(folder, str(folder.relative_to(common))))
    page = _page(runs, title)
    check_file("output", output, "report.html")
    # Names of folders can have bytes that are not UTF-8.
    write_output("output", output, page.encode(errors="replace"))


def _page(runs: Sequence[ReportedRun], title: str | None) -> str:
    """Returns the page. Its template escapes every value."""
    alike: dict[
        tuple[str, str], list[ReportedRun]
    ] = {}  # scores are comparable only on the same data
    for run in runs:
        alike.setdefault((str(run.fact("dataset")), run.metric), []).append(run)
    models, datasets = (
        ", ".join(dict.fromkeys(str(run.fact(name) or "unknown") for run in runs))
        for name in ("model", "dataset")
    )
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("jaxdp.reporting"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {
        "change": lambda both: " → ".join(map(shown, both if isinstance(both, list) else [both])),
        "compact": _number(compact),
        "metric": _number(lambda value, name: metric_text(name, value)),
        "number": _number("{:,.0f}".format),
        "setting": lambda value: "default" if value is None else shown(value) or "none",
        "shown": shown,
        "time": _number(_time_text),
    }
    return environment.get_template("page.html.jinja").render(
        title=title or f"{models} on {datasets}",
        runs=runs,
        written=f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M UTC}",
        version=version(),
        sections=[_section(group) for group in alike.values()],
        defaults=TrainConfig().plain(),
        pictures=_pictures,
        colors=COLORS,
        splits=SPLITS,
    )


def _section(runs: list[ReportedRun]) -> dict[str, Any]:
    """Returns the content for runs on one dataset, compared by one metric, the best first."""
    sign = -1 if runs[0].larger_is_better else 1
    runs = sorted(runs, key=lambda run: (run.score is None, sign * (run.score or 0)))
    for index, run in enumerate(runs):
        run.color = min(index, len(COLORS))
    known = [run.settings for run in runs if run.settings] or [{}]
    shared = {
        name: value
        for name, value in known[0].items()
        if all(settings[name] == value for settings in known)
    }
    return {
        "runs": runs,
        "differing": [name for name in known[0] if name not in (*shared, *_HAVE_COLUMNS)],
        "shared": shared,
        "figures": figures(runs),
    }


def _number(text: Callable[..., str]) -> Callable[..., str]:
    """Returns a filter that writes a dash for anything but a finite number."""
    return lambda value, *rest: text(value, *rest) if is_finite(value) else "–"


def _time_text(seconds: float | int) -> str:
    """Returns a time as text, e.g. `1:02:03`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    return str(datetime.timedelta(seconds=round(seconds)))


def _pictures(run: ReportedRun) -> dict[str, str]:
    """Returns the pictures of a run, small enough for the page, as data URLs by name, with an empty
    URL for an unreadable picture.

    The page draws the curves itself.
    """
    found: dict[str, str] = {}
    for path in sorted((run.folder / "plots").glob("*.png")):
        if path.stem != "curves" and path.is_file():
            # Pillow raises all of these for damaged files.
            try:
                with Image.open(io.BytesIO(read_bytes(path))) as stored:
                    picture = stored.convert("RGB")
                picture.thumbnail(_LARGEST_PICTURE)
                buffer = io.BytesIO()
                picture.save(buffer, "WebP", quality=90)
                content = base64.b64encode(buffer.getvalue()).decode()
                found[path.name] = f"data:image/webp;base64,{content}"
            except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
                found[path.name] = ""
    return found
