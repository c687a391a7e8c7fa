"""A page about runs says what their folders say, whole or broken, and needs nothing else to be
read.
"""

# Over 300 lines: one page, and what of each kind of run must be on it.

import base64
import html
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
from typing import Any

import pytest
import yaml
from PIL import Image

from jaxdp import report
from jaxdp.reporting import report_figures, report_page

EXPERIMENTS = pathlib.Path(__file__).parents[2] / "experiments" / "results"
BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


def plain(text: str) -> str:
    return html.unescape(re.sub("<[^>]+>", "", text))


class Page:
    """Attributes:
    text: without elements.
    tables: of each, its rows of texts.
    figures: captions.
    """

    def __init__(self, content: str) -> None:
        self.content, self.text = content, plain(content)
        self.figures = [str(svg["aria-label"]).partition(":")[0] for svg in self.elements("svg")]
        self.tables = [
            [[*map(plain, re.findall(r"<t[dh].*?>(.*?)</t[dh]>", row))] for row in table]
            for table in (table.split("<tr")[1:] for table in content.split("<table>")[1:])
        ]

    def elements(self, tag: str) -> list[dict[str, str]]:
        """Returns the attributes of each element."""
        found = re.findall(rf"<{tag}( [^>]*)?>", self.content)
        return [
            {name: html.unescape(value) for name, value in re.findall(r'([\w-]+)="(.*?)"', each)}
            for each in found
        ]

    def texts(self, tag: str) -> list[str]:
        return [*map(plain, re.findall(rf"<{tag}.*?>(.*?)</{tag}>", self.content))]

    def tables_of(self, first: str) -> list[list[list[str]]]:
        return [table for table in self.tables if table[0][0] == first]

    @property
    def run_tables(self) -> list[list[dict[str, str]]]:
        return [
            [dict(zip(head, row, strict=True)) for row in rows]
            for head, *rows in self.tables_of("run")
        ]

    @property
    def runs(self) -> dict[str, dict[str, str]]:
        """Rows of the tables of runs, by run."""
        return {row["run"]: row for table in self.run_tables for row in table}


def write_run(
    name: str,
    accuracy: float = 0.9,
    *,
    task: str = "classification",
    rows: int = 4,
    summary: dict[str, Any] | None = None,
    **settings: Any,
) -> pathlib.Path:
    """Writes the folder of a finished run of 10 steps a row."""
    folder = pathlib.Path(name)
    folder.mkdir(parents=True)
    metric = {"classification": "accuracy", "segmentation": "iou", "regression": "mse"}[task]
    defaults = {"model": "cnn", "dataset": "digits", "strategy": "pmap", "batch_norm": "replica"}
    config = defaults | {"task": task} | settings
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    measured = {"learning_rate": 0.1, "examples_per_second": 900.0, "input_wait_fraction": 0.01}
    for number in range(1, rows + 1):
        row = {"step": 10 * number, "epoch": 1, "loss": 2 / number, metric: accuracy}
        train, test = {"split": "train"} | measured, {"split": "test", "examples": 360}
        write_lines(folder / "metrics.jsonl", row | train, row | test)
    values = {"loss": 1 - accuracy, metric: accuracy, "examples": 360}
    ended = {"steps": 10 * rows, "examples_per_second": 1234.5, "status": "done"}
    ended |= {"metrics": {"train": values, "test": values}, "best": {"step": 10 * rows} | values}
    ended |= {"seconds": {"total": 75.0, "first_step": 3.0}, "versions": {"jax": "0.10.2"}}
    where = {"devices": 2, "device_kind": "cpu", "processes": 1}
    content = {name: config[name] for name in ("task", *defaults)} | where | ended
    (folder / "summary.json").write_text(json.dumps(content | (summary or {})))
    return folder


def write_lines(path: pathlib.Path, *rows: dict[str, Any], mode: str = "a") -> None:
    with path.open(mode) as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def write_history(folder: pathlib.Path, *events: tuple[Any, ...], **facts: Any) -> None:
    """Writes history.jsonl from names, steps and further facts of events."""
    rows = (
        {"event": event, "step": step} | facts | dict(*further) for event, step, *further in events
    )
    write_lines(folder / "history.jsonl", *rows, mode="w")


def written(*folders: str | pathlib.Path) -> Page:
    assert report.main([*map(str, folders), "--output", "page.html"]) == 0
    return Page(pathlib.Path("page.html").read_text())


def test_each_task_has_a_table_with_the_best_run_first_and_what_sets_runs_apart(
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_run("runs/low", 0.8, learning_rate=0.05, seed=1)
    write_run("runs/high", 0.95, learning_rate=0.2, seed=1)
    nothing = {"best": None, "metrics": {}, "status": "diverged"}
    write_run("runs/none", 0.5, rows=0, seed=1, summary=nothing)
    write_run("runs/rough", 0.3, task="regression", model="unet")
    write_run("runs/fine", 0.1, task="regression", model="unet")
    page = written(*sorted(pathlib.Path("runs").iterdir()))
    assert capsys.readouterr().out == "page.html\n"
    by_task = {
        next(name for name in table[0] if name.startswith("test")): table
        for table in page.run_tables
    }
    assert {name: [row["run"] for row in table] for name, table in by_task.items()} == {
        "test mse": ["fine", "rough"],
        "test accuracy": ["high", "low", "none"],
    }
    first, _, last = by_task["test accuracy"]
    assert first == {
        "run": "high",
        "test accuracy": "95.00%",
        "test loss": "0.0500",
        "learning rate": "0.2",
        "examples/s": "1.234k",
        "time": "0:01:15",
        "steps": "40",
        "status": "done",
        "devices": "2",
    }
    shown = (last["test accuracy"], last["status"], last["learning rate"])
    assert shown == ("–", "diverged", "default")
    assert page.figures.count("loss") == 2  # one for each task
    shared = [part.split("</dl>")[0] for part in page.content.split('<dl class="settings">')[1:]]
    named = [("<dt>seed<" in each, "<dt>learning_rate<" in each) for each in shared]
    assert named == [(True, True), (True, False)]  # that all share
    assert page.elements("html") == [{"lang": "en"}]
    assert page.texts("title")[0] == "unet, cnn on digits"


def test_runs_are_compared_on_the_same_data_alone() -> None:
    write_run("runs/a", 0.9, dataset="mnist")
    write_run("runs/b", 0.8)
    write_run("runs/c", 0.7, task="segmentation", dataset="mnist")
    write_run("runs/d", 0.95)
    page = written(*sorted(pathlib.Path("runs").iterdir()))
    sections = {
        "Runs on mnist, by accuracy": ["a"],
        "Runs on digits, by accuracy": ["d", "b"],
        "Runs on mnist, by iou": ["c"],
    }
    assert page.texts("h2") == list(sections)
    tables = [[row["run"] for row in table] for table in page.run_tables]
    assert tables == list(sections.values())
    # Wide tables can be reached with the keyboard, and have names.
    boxes = [each for each in page.elements("div") if each.get("class") == "box"]
    assert len(boxes) == len(page.tables)
    assert {(box["tabindex"], box["role"]) for box in boxes} == {("0", "region")}
    assert {box["aria-label"] for box in boxes} == set(sections) | {
        f"metrics of {name}" for name in "abcd"
    }
    page = written("runs/b", "runs/d")
    assert page.texts("h2") == ["Runs"]
    assert list(page.runs) == ["d", "b"]


def test_folders_of_the_same_name_are_told_apart() -> None:
    folders = [write_run("a/run"), write_run("b/run"), pathlib.Path("a/../a/run")]
    report_page.write_report(folders, pathlib.Path("deep/er/page.html"), title="A <search>")
    page = Page(pathlib.Path("deep/er/page.html").read_text())
    assert list(page.runs) == ["a/run", "b/run"]
    assert page.texts("title")[0] == "A <search>"
    assert len(list(pathlib.Path("deep").rglob("*"))) == 2  # no file is left beside it


def test_text_from_files_is_no_markup() -> None:
    evil = "<script>alert(1)</script>\"'>&"
    summary = {"status": evil, "xla_flags": evil, "versions": {evil: evil}}
    folder = write_run("a<b>&", model=evil, dataset=evil, summary=summary)
    write_history(folder, ("started", 0), ("diverged", 7), reason=evil)
    page = written(folder, write_run("other"))
    assert not page.elements("script") + page.elements("b")
    assert page.text.count(evil) > 5


def test_a_page_needs_nothing_else() -> None:
    names = ("digits", "digits-8-devices", "isbi2012", "digits-denoise")
    page = written(*(EXPERIMENTS / name for name in names))
    assert not re.search("https?://|<script|<link|<iframe", page.content)
    assert len(page.elements("img")) == 4
    for picture in page.elements("img"):
        assert picture["src"].startswith("data:image/")
        assert len(picture["src"]) < 410_000  # 300 kB as text
        assert picture["alt"]
    assert len(page.run_tables) == 3
    summary = json.loads((EXPERIMENTS / "digits/summary.json").read_text())
    accuracy = f"{summary['metrics']['test']['accuracy']:.2%}"
    assert accuracy in page.run_tables[0][0]["test accuracy"]


def test_broken_runs_are_shown_with_what_there_is() -> None:
    begun, cut, garbage, odd = (write_run(name) for name in ("begun", "cut", "garbage", "odd"))
    for name in ("summary.json", "metrics.jsonl"):
        (begun / name).unlink()
    (cut / "summary.json").unlink()
    rows = (cut / "metrics.jsonl").read_text()
    (cut / "metrics.jsonl").write_text(rows[:-30])
    for name in ("summary.json", "config.yaml", "dataset.json"):
        (garbage / name).write_bytes(b"{\xff: [")
    (garbage / "metrics.jsonl").write_text(
        '7\n[]\n{"step": "x"}\n{"loss": NaN, "step": 3, "split": "train"}\nnull\n'
    )
    (garbage / "history.jsonl").write_text('{"event": 3, "step": 1}\n{"event": "started"}\n')
    (garbage / "plots").mkdir()
    (garbage / "plots/confusion.png").write_bytes(b"no picture")
    bare = pathlib.Path("bare")
    bare.mkdir()
    (bare / "metrics.jsonl").touch()
    nonsense = {"metrics": "?", "best": 3, "seconds": None, "versions": [], "steps": "many"}
    (odd / "summary.json").write_text(json.dumps(nonsense | {"status": "done"}))
    page = written(begun, cut, garbage, bare, odd)
    assert len(page.run_tables) == 2  # of the classifiers, and of those of which nothing is known
    assert {name: row["status"] for name, row in page.runs.items()} == dict.fromkeys(
        ("begun", "cut", "garbage", "bare", "odd"), "unfinished"
    )
    for name in ("cut", "odd"):
        row = page.runs[name]
        assert (row["steps"], row["test accuracy"], row["time"]) == ("40", "90.00%", "–")
    for text in (
        "Incomplete: summary.json cannot be read (No such file or directory); it has the result",
        "Incomplete: dataset.json cannot be read (byte 1 is no UTF-8)",
        "Incomplete: config.yaml cannot be read",
        "Incomplete: 4 rows of metrics.jsonl cannot be read.",
        "holds no run: there is no config.yaml in it",
        "confusion.png cannot be read",
        "metrics.jsonl holds no rows",
    ):
        assert text in page.text


@pytest.mark.parametrize(
    ("last", "status", "accuracy"),
    [("resumed", "unfinished", "90.00%"), ("done", "done", "10.00%")],
)
def test_a_summary_of_before_a_resume_is_no_result(last: str, status: str, accuracy: str) -> None:
    folder = write_run("run", summary={"status": "stopped", "best": {"accuracy": 0.1}})
    write_history(folder, ("started", 0), ("stopped", 10), (last, 10))
    row = written(folder).runs["run"]
    assert (row["status"], row["test accuracy"]) == (status, accuracy)


def test_large_pictures_are_made_smaller() -> None:
    folder = write_run("run")
    (folder / "plots").mkdir()
    picture = Image.linear_gradient("L")
    for name, size in (("predictions", (2100, 1500)), ("confusion", (60, 40)), ("curves", (9, 9))):
        picture.resize(size).save(folder / f"plots/{name}.png")
    sizes = []
    for picture in written(folder).elements("img"):
        content = base64.b64decode(picture["src"].partition(",")[2])
        sizes.append(Image.open(io.BytesIO(content)).size)
    assert sizes == [(60, 40), (1400, 1000)]


def test_validation_is_a_curve_of_its_own_and_ranks_an_unfinished_run() -> None:
    folder = write_run("run")
    (folder / "summary.json").unlink()
    for step, accuracy in ((10, 0.7), (20, 0.8)):
        row = {"step": step, "split": "validation", "loss": 0.4, "accuracy": accuracy}
        write_lines(folder / "metrics.jsonl", row)
    page = written(folder)
    # Of the validation split, not of the test split.
    assert page.runs["run"]["best validation accuracy"] == "80.00%"
    assert page.texts("title").count("run: validation") == 2  # loss and accuracy
    assert page.tables[1][0] == ["", "train", "validation", "test"]


def test_curves_are_a_figure_that_a_notebook_shows_without_pyplot() -> None:
    code = """
import sys
from jaxdp.reporting import plots
for splits in (["train", "test"], ["validation", "test", "train"], []):
    rows = [{"step": step, "split": split, "loss": 1 / step, "accuracy": 0.5} for step in (1, 2) for split in splits]
    figure = plots.curves_figure([*rows, {"step": 3, "split": "train", "loss": float("nan")}], title="t", metric_name="accuracy")
    assert figure._repr_png_().startswith(b"\\x89PNG")
    for axes, name in zip(figure.axes, ("loss", "accuracy"), strict=True):
        print(axes.get_xlabel(), axes.get_ylabel() == name, *(line.get_label() for line in axes.lines))
assert "matplotlib.pyplot" not in sys.modules
"""
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    expected = ("step True train test", "step True train validation test", "step True")
    assert shown.splitlines() == [line for line in expected for _ in range(2)]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("", "RUN_DIR ... is required: folders of runs, e.g. runs/*"),
        ("nowhere", "--run-dir nowhere: is no folder; give folders of runs"),
        ("empty", "--run-dir empty: holds no run; give folders of runs"),
        ("run --output empty", "--output empty: is a folder; give a file, e.g. report.html"),
        ("run --output /dev/null/page.html", "--output /dev/null/page.html: cannot be written: "),
        ("run --outptu x", "--outptu: unknown flag; did you mean --output?"),
    ],
)
def test_mistakes_are_one_line_and_code_2(
    argv: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run("run")
    pathlib.Path("empty").mkdir()
    before = sorted(pathlib.Path().rglob("*"))
    assert report.main(argv.split()) == 2
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert line.startswith("jaxdp.report: error: ")
    assert message in line
    assert captured.out == ""
    assert sorted(pathlib.Path().rglob("*")) == before


@pytest.mark.slow
@pytest.mark.skipif(
    BROWSER is None, reason="no chromium, chromium-browser or google-chrome on PATH"
)
def test_a_browser_shows_it_without_complaint() -> None:
    assert BROWSER is not None
    names = ("digits", "digits-8-devices", "digits-8-devices-global", "cells")
    long_name = "a-run-whose-name-is-rather-long-" + 60 * "x"
    written(*(EXPERIMENTS / name for name in names), write_run(long_name))
    # A window is at least 500 pixels wide: a phone is a frame in it.
    pathlib.Path("phone.html").write_text(
        '<iframe src="page.html" style="width:390px;height:3000px"></iframe><script>onload = () =>'
        " {const page = frames[0].document.documentElement; document.title = `${page.scrollWidth}"
        " of ${page.clientWidth}`}</script>"
    )

    def browse(page: str, *flags: str) -> str:
        folder = f"--user-data-dir={pathlib.Path('profile').absolute()}"
        common = (
            "--headless --no-sandbox --disable-gpu --allow-file-access-from-files"
            " --enable-logging=stderr --v=0".split()
        )
        command = [BROWSER, *common, folder, *flags, pathlib.Path(page).absolute().as_uri()]
        home = os.environ | {"HOME": os.getcwd()}
        done = subprocess.run(command, capture_output=True, text=True, timeout=180, env=home)
        assert done.returncode == 0, done.stderr
        assert "CONSOLE" not in done.stderr, done.stderr
        return done.stdout

    shown = browse("page.html", "--dump-dom")
    assert shown.count("<svg") == 2 * 6  # figures of each dataset
    # But for a scroll bar.
    assert re.search(r"<title>(3[0-9]{2}) of \1</title>", browse("phone.html", "--dump-dom"))
    browse("page.html", "--screenshot=wide.png", "--window-size=1280,2000")
    with Image.open("wide.png") as picture:
        colors = {color for _, color in picture.convert("RGB").getcolors(2**24) or []}
    assert {tuple(bytes.fromhex(color[1:])) for color in report_figures.COLORS[:3]} <= colors


def test_metrics_of_classes_are_a_table_with_a_row_for_each() -> None:
    values = {"loss": 0.1, "iou": 0.5, "examples": 4}
    of_classes = {
        f"{kind}/種{index}/a b": index / 100 for kind in ("iou", "dice") for index in (1, 2)
    }
    summary = {"metrics": {"train": values, "test": values | of_classes}, "best": None}
    page = written(write_run("masks", task="segmentation", summary=summary))
    (table,) = page.tables_of("class")
    expected = [[f"種{index}/a b", f"0.0{index}00", f"0.0{index}00"] for index in (1, 2)]
    assert table == [["class", "iou, test", "dice, test"], *expected]
    (whole,) = [table for table in page.tables if table[0] == ["", "train", "test"]]
    assert [row[0] for row in whole[1:]] == ["loss", "iou", "examples"]
    assert "<details open><summary>each of 2 classes" in page.content


def test_what_befell_a_run_is_a_table_and_marked_on_its_curves() -> None:
    folder = write_run("run")
    changed = {"learning_rate": [0.1, 0.05], "augment": [["flip"], ["crop:4"]], "odd": 3}
    events = [("started", 0, {"processes": 4}), ("resumed", 20, {"changed": changed})]
    events += [("worker lost", 25), ("resumed", 30, {"changed": "?"})]
    write_history(folder, *events, ("diverged", 40, {"reason": "the loss is nan"}))
    page = written(folder)
    (table,) = page.tables_of("event")
    assert table == [
        ["event", "step", "facts"],
        ["started", "0", "processes: 4"],
        ["resumed", "20", "learning_rate: 0.1 → 0.05; augment: flip → crop:4; odd: 3"],
        ["worker lost", "25", ""],
        ["resumed", "30", ""],
        ["diverged", "40", "reason: the loss is nan"],
    ]
    for text in ("run: resumed at step 20", "run: diverged at step 40"):
        assert page.texts("title").count(text) == len(page.figures) == 5
    row = page.runs["run"]
    assert (row["status"], row["time"]) == ("diverged", "0:01:15 after resuming")


def test_a_run_with_workers_does_not_say_that_it_had_one_device() -> None:
    where = {"exchange": "exact", "workers": 3}  # as version 0.2 wrote it
    folder = write_run("run", summary={"devices": 1} | where, **where)
    page = written(folder, write_run("other"))
    assert (page.runs["run"]["devices"], page.runs["run"]["strategy"]) == ("3 workers", "exact")
    assert (page.runs["other"]["devices"], page.runs["other"]["strategy"]) == ("2", "pmap")
    assert "1 x cpu" not in page.text


def lines(caption: str = "") -> list[list[tuple[float, float]]]:
    """Returns the points of the curves that page.html draws, in parts of the panel from its lower
    left corner.
    """
    found = []
    for figure in pathlib.Path("page.html").read_text().split("<figure>")[1:]:
        if f"<figcaption>{caption}" not in figure:
            continue
        drawing, *_ = figure.split("<svg ")[1].split("</svg>")
        curves = r'</title>\s*<path d="([^"]*)" style="fill: none[^"]*stroke-width: 1.8'
        for curve in re.findall(curves, drawing):
            points = [tuple(map(float, point.split())) for point in re.split("[ML]", curve)[1:]]
            found.append([((x - 60) / 306, (188 - y) / 174) for x, y in points])
    return found


def test_curves_are_drawn_over_steps() -> None:
    folder = write_run("run", rows=0, summary={"steps": 60})
    row = {"loss": 1.0, "accuracy": 0.5, "learning_rate": 0.1, "examples_per_second": 9.0}
    for step in (10, 20, 30, 40, 60):
        row |= {"split": "train", "step": step, "loss": 1 / step}
        write_lines(folder / "metrics.jsonl", row)
    page = written(folder)
    assert len(lines()) == 4
    assert [round(x, 2) for x, _ in lines()[0]] == [0.17, 0.33, 0.5, 0.67, 1.0]
    ticks = re.findall(r">(\w+)</text>", page.content.split("<svg ")[1].split("</svg>")[0])
    assert ticks[:8] == ["0", "10", "20", "30", "40", "50", "60", "step"]
