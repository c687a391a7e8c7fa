"""A page about runs says what their folders say, whole or broken, and needs nothing else to be
read.
"""

# Over 300 lines: one page, and what of each kind of run must be on it.

import csv
import html
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from jaxdp import report
from jaxdp.reporting import confusion, report_figures, report_page

EXPERIMENTS = pathlib.Path(__file__).parents[1] / "experiments"
BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


def plain(text: str) -> str:
    return html.unescape(re.sub("<[^>]+>", "", text))


class Page:
    """Attributes:
    text: without elements.
    tables: of each, its rows of texts.
    figures: captions, one for each axis.
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
        "examples/s": "1,234",
        "time": "1 min 15 s",
        "steps": "40",
        "status": "done",
        "model": "cnn",
        "dataset": "digits",
        "strategy": "pmap",
        "devices": "2",
        "batch norm": "replica",
    }
    shown = (last["test accuracy"], last["status"], last["learning rate"])
    assert shown == ("–", "diverged", "default")
    differ = "5 runs of unet and cnn on digits, which differ in model, seed and learning rate."
    assert differ in page.text
    assert page.figures.count("loss") == 2
    shared = [part.split("</dl>")[0] for part in page.content.split('<dl class="settings">')[1:]]
    named = [("<dt>seed<" in each, "<dt>learning_rate<" in each) for each in shared]
    assert named == [(True, True), (True, False)]  # that all share
    assert page.elements("html") == [{"lang": "en"}]
    assert page.texts("title")[0] == "unet and cnn on digits"


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
    report_page.write_report(folders, pathlib.Path("deep/er/page.html"), title="A <sweep>")
    page = Page(pathlib.Path("deep/er/page.html").read_text())
    assert list(page.runs) == ["a/run", "b/run"]
    assert page.texts("title")[0] == "A <sweep>"
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
        "Incomplete: there is no summary.json; there is no dataset.json; there is no metrics.jsonl.",
        "summary.json cannot be read; dataset.json cannot be read; config.yaml cannot be read; 4 rows",
        "confusion.png cannot be read",
        "metrics.jsonl holds no rows",
    ):
        assert text in page.text


def test_what_befell_a_run_is_marked_on_its_curves() -> None:
    folder = write_run("run", summary={"skipped_updates": 2, "status": "stopped"})
    row = {"step": 50, "split": "train", "loss": 1.0, "skipped_updates": 2, "overflows": 1}
    write_lines(folder / "metrics.jsonl", row)
    back = {"to_step": 30, "reason": "the loss of step 33 is nan"}
    events = [("started", 0), ("stopped", 20), ("resumed", 20), ("rollback", 33, back)]
    write_history(folder, *events, ("diverged", 50))
    page = written(folder)
    for text in (
        "run: resumed after step 20",
        "run: rolled back from step 33 to 30: the loss of step 33 is nan",
        "run: diverged at step 50",
        "run: 2 updates skipped before step 50, 1 of them overflows",
    ):
        assert page.texts("title").count(text) == len(page.figures) == 5
    assert not any("stopped" in title for title in page.texts("title"))  # it went on
    row = page.runs["run"]
    assert (row["status"], row["time"]) == ("diverged", "1 min 15 s after resuming")


@pytest.mark.parametrize(
    ("last", "status", "accuracy"),
    [("resumed", "unfinished", "90.00%"), ("done", "done", "10.00%")],
)
def test_a_summary_of_before_a_resume_is_no_result(last: str, status: str, accuracy: str) -> None:
    folder = write_run("run", summary={"status": "stopped", "best": {"accuracy": 0.1}})
    write_history(folder, ("started", 0), ("stopped", 10), (last, 10))
    row = written(folder).runs["run"]
    assert (row["status"], row["test accuracy"]) == (status, accuracy)


def test_a_grid_of_benchmarks_has_its_table_and_figure() -> None:
    names = {"model": "cnn", "dataset": "digits", "precision": "float32", "strategy": "pmap"}
    pathlib.Path("bench").mkdir()
    for devices, batch, rate in ((1, 32, 1.0), (1, 32, 100.0), (2, 32, 150.0), (2, 64, None)):
        record = names | {"devices": devices, "global_batch_size": batch, "cores": 2}
        record |= {"status": "oom", "reason": "out of memory: <b>"}
        if rate:
            rates = dict.fromkeys(("median", "min", "max"), rate)
            record |= {"status": "ok", "images_per_second": rates, "platform": "cpu"}
        write_lines(pathlib.Path("bench/bench.jsonl"), record)
    page = written("bench", write_run("run"))
    (table,) = page.tables_of("strategy")
    assert table[0] == ["strategy", "devices", "batch", "images/s", "±%", "strong"]
    assert [row[3] for row in table[1:]] == ["100", "150", "OOM"]
    assert page.elements("tr")[-1]["title"] == "out of memory: <b>"
    (figure,) = page.elements("img")
    assert figure["src"].startswith("data:image/svg+xml;base64,")
    assert figure["alt"].startswith("images per second: cnn on digits, float32; simulated")


def test_large_pictures_are_made_smaller() -> None:
    folder = write_run("run")
    (folder / "plots").mkdir()
    picture = Image.linear_gradient("L")
    for name, size in (("predictions", (2100, 1500)), ("confusion", (60, 40)), ("curves", (9, 9))):
        picture.resize(size).save(folder / f"plots/{name}.png")
    small, large = written(folder).elements("img")
    assert (small["width"], small["height"]) == ("60", "40")
    assert (large["width"], large["height"]) == ("1400", "1000")


def test_validation_is_a_curve_of_its_own_and_ranks_an_unfinished_run() -> None:
    folder = write_run("run")
    (folder / "summary.json").unlink()
    for step, accuracy in ((10, 0.7), (20, 0.8)):
        row = {"step": step, "split": "validation", "loss": 0.4, "accuracy": accuracy}
        write_lines(folder / "metrics.jsonl", row)
    page = written(folder)
    # Of the validation split, not of the test split.
    assert page.runs["run"]["best validation accuracy"] == "80.00%"
    assert page.texts("title").count("run, validation") == 2  # loss and accuracy
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
        ("", "no folder is named; give those of runs, e.g. runs/*"),
        ("nowhere", "--run-dir nowhere: is no folder; give folders of runs"),
        ("empty", "--run-dir empty: holds neither a run nor a bench.jsonl; give folders of runs"),
        ("run --output empty", "--output empty: is a folder; give a file, e.g. report.html"),
        ("run --output /dev/null/page.html", "--output /dev/null/page.html: cannot be written: "),
        ("run --outptu x", "--outptu: unknown flag; did you mean --output?"),
        ("grid", "grid/bench.jsonl: cannot be read: it holds something else"),
    ],
)
def test_mistakes_are_one_line_and_code_2(
    argv: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run("run")
    for name in ("empty", "grid"):
        pathlib.Path(name).mkdir()
    pathlib.Path("grid/bench.jsonl").write_text("{}\n")
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
    assert shown.count("<svg") >= 14
    # But for a scroll bar.
    assert re.search(r"<title>(3[0-9]{2}) of \1</title>", browse("phone.html", "--dump-dom"))
    pathlib.Path("axis.html").write_text(
        '<iframe src="page.html"></iframe><script>onload = () => { const page ='
        ' frames[0].document;const shown = () => ["base", "epoch", "time"].filter(axis =>'
        " frames[0].getComputedStyle(page.querySelector(`svg.over.${axis}`)).display !=="
        ' \'none\');const found = [shown()]; for (const axis of ["time", "epoch", "base"])'
        " {page.querySelector(`input[value=${axis}]`).click(); found.push(shown()); }"
        " document.title = found.join('; ')}</script>"
    )
    assert "<title>base; time; epoch; base</title>" in browse("axis.html", "--dump-dom")
    browse("page.html", "--screenshot=wide.png", "--window-size=1280,2000")
    with Image.open("wide.png") as picture:
        colors = {color for _, color in picture.convert("RGB").getcolors(2**24) or []}
    assert {tuple(bytes.fromhex(color[1:])) for color in report_figures.COLORS[:3]} <= colors


@pytest.mark.parametrize("count", [3, 40])
def test_metrics_of_classes_are_a_table_with_a_row_for_each(count: int) -> None:
    names = [f"種{index}/a b" for index in range(count)]
    values = {"loss": 0.1, "iou": 0.5, "examples": 4}
    of_classes = {f"iou/{name}": index / 100 for index, name in enumerate(names)}
    of_classes |= {f"dice/{name}": (index + 1) / 100 for index, name in enumerate(names)}
    summary = {"metrics": {"train": values, "test": values | of_classes}, "best": None}
    page = written(write_run("run", task="segmentation", summary=summary))
    (table,) = page.tables_of("class")
    assert table[0] == ["class", "iou, train", "iou, test", "dice, train", "dice, test"]
    assert [row[0] for row in table[1:]] == names
    assert table[3] == ["種2/a b", "–", "0.0200", "–", "0.0300"]
    (whole,) = [table for table in page.tables if table[0] == ["", "train", "test"]]
    assert [row[0] for row in whole[1:]] == ["loss", "iou", "examples"]
    assert ("<details open>" in page.content) == (count == 3)  # many classes are folded


def test_accuracy_of_each_class_comes_from_the_confusion_matrix() -> None:
    folder, names = write_run("run"), ["cat", 'dog, "small"', "鳥", "never seen"]
    counts = np.array([[8.0, 2, 0, 0], [0, 5, 0, 0], [1, 3, 6, 0], [0, 0, 0, 0]])
    confusion.write(counts, names, folder / "plots/confusion.csv")
    (table,) = written(folder).tables_of("class")
    assert table == [
        ["class", "accuracy, test", "images", "most often mistaken for"],
        ["cat", "80.00%", "10", 'dog, "small" (2)'],
        ['dog, "small"', "100.00%", "5", "–"],
        ["鳥", "60.00%", "10", 'dog, "small" (3)'],
        ["never seen", "–", "0", "–"],
    ]
    with (folder / "plots/confusion.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert sum(int(row["images"]) for row in rows) == 25
    for broken in (b"\xff\xfe", b"actual,predicted,images\na,b\n", b"x\n", b""):
        (folder / "plots/confusion.csv").write_bytes(broken)
        assert not written(folder).tables_of("class")


def test_settings_changed_on_resuming_are_told() -> None:
    folder = write_run("run")
    augment = [["flip"], ["flip", "crop:4"]]
    changed = {"learning_rate": [0.1, 0.05], "augment": augment, "epochs": [20, None], "odd": 3}
    events = [("started", 0), ("resumed", 20, {"changed": changed})]
    write_history(folder, *events, ("resumed", 1000, {"changed": "?"}), ("done", 1040))
    (table,) = written(folder).tables_of("setting")
    assert table == [
        ["setting", "after step", "before", "since"],
        ["learning rate", "20", "0.1", "0.05"],
        ["augment", "20", "flip", "flip crop:4"],
        ["epochs", "20", "20", "default"],
    ]
    write_history(folder, ("started", 0), ("resumed", 20), ("done", 40))
    assert not written(folder).tables_of("setting")


def lines(axis: str = "base", caption: str = "") -> list[list[tuple[float, float]]]:
    """Returns the points of the curves that page.html draws over an axis, in parts of the panel
    from its lower left corner.
    """
    found = []
    for figure in pathlib.Path("page.html").read_text().split("<figure>")[1:]:
        if f"<figcaption>{caption}" not in figure:
            continue
        drawing, *_ = figure.split(f'<svg class="over {axis}"')[1].split("</svg>")
        curves = r'</title>\s*<path d="([^"]*)" style="fill: none[^"]*stroke-width: 1.8'
        for curve in re.findall(curves, drawing):
            points = [tuple(map(float, point.split())) for point in re.split("[ML]", curve)[1:]]
            found.append([((x - 60) / 306, (188 - y) / 174) for x, y in points])
    return found


def test_curves_are_drawn_over_steps_epochs_and_time() -> None:
    folder = write_run("run", rows=0, global_batch_size=36, summary={"steps": 60})
    dataset = json.loads((EXPERIMENTS / "digits/dataset.json").read_text())
    # 10 steps an epoch.
    dataset |= {"examples": {"train": 360 + 35, "test": 10}}
    (folder / "dataset.json").write_text(json.dumps(dataset))
    row = {"loss": 1.0, "accuracy": 0.5, "learning_rate": 0.1, "examples_per_second": 9.0}
    for step, seconds in ((10, 1.0), (20, 1.0), (30, 4.0), (40, 2.0), (60, 1.0)):
        row |= {"split": "train", "step": step, "step_seconds": seconds, "loss": 1 / step}
        write_lines(folder / "metrics.jsonl", row)
    page = written(folder)
    assert [each["value"] for each in page.elements("input")] == ["base", "epoch", "time"]
    assert page.content.count(" checked") == 1
    steps, epochs, seconds = (lines(axis) for axis in ("base", "epoch", "time"))
    assert len(steps) == len(epochs) == len(seconds) == 4
    assert steps == epochs  # one is 10 of the other

    def shares(line: list[tuple[float, float]]) -> list[float]:
        return [round(x, 2) for x, _ in line]

    assert shares(steps[0]) == [0.17, 0.33, 0.5, 0.67, 1.0]
    assert shares(seconds[0]) == [0.1, 0.2, 0.6, 0.8, 1.0]  # 10, 20, 60, 80 and 100 of 100 seconds
    assert [[y for _, y in line] for line in steps] == [[y for _, y in line] for line in seconds]
    drawing = page.content.split('<svg class="over epoch"')[1].split("</svg>")[0]
    ticks = re.findall(r">(\w+)</text>", drawing)
    assert ticks[:8] == ["0", "1", "2", "3", "4", "5", "6", "epoch"]
    titles = {"step", "epoch", "training time, seconds", "loss", "accuracy", "learning rate"}
    assert titles < set(page.texts("text"))


def test_an_axis_that_is_not_known_of_a_run_is_not_offered_or_says_so() -> None:
    bare = write_run("bare")
    assert not written(bare).elements("input")
    page = written(bare, write_run("known", summary={"epochs": 4.0}))
    assert [each["value"] for each in page.elements("input")] == ["base", "epoch"]
    assert "Unknown for bare." in page.text
    assert len(lines("base")) == 2 * len(lines("epoch"))


def test_a_run_with_workers_does_not_say_that_it_had_one_device() -> None:
    where = {"exchange": "exact", "workers": 3}  # as version 0.2 wrote it
    folder = write_run("run", rows=0, summary={"steps": 40, "devices": 1} | where, **where)
    work = {"recomputed_slices": 1, "dropped_slices": 0, "exchange_bytes": 1024}
    for step in (10, 30, 40):
        row = {"step": step, "split": "train", "worker_idle_seconds": 0.5} | work
        write_lines(folder / "metrics.jsonl", row)
    write_history(folder, ("started", 0), ("worker joined", 1), ("worker lost", 1), **where)
    page = written(folder, write_run("other"))
    assert (page.runs["run"]["devices"], page.runs["run"]["strategy"]) == ("3 workers", "exact")
    assert (page.runs["other"]["devices"], page.runs["other"]["strategy"]) == ("2", "pmap")
    assert not {"exchange", "workers"} & set(page.runs["run"])  # said already
    assert "1 x cpu" not in page.text
    for fact in (
        "3 workers, one CPU core each",
        "workers lost1",
        "slices given out again3",
        "moved to and from workers3.0 KiB",
        "workers waited1.5 s in all",
    ):
        assert fact in re.sub(r"\s*\n\s*", "", page.text)


def test_a_run_whose_width_changed_shows_its_parts() -> None:
    folder = write_run("run")
    events = [("started", 0, 4), ("resumed", 10, 2), ("resumed", 10, 1), ("stopped", 20, 1)]
    events += [("resumed", 20, 4), ("done", 40, 4)]
    write_history(folder, *((name, step, {"processes": count}) for name, step, count in events))
    page = written(folder)
    assert "resumed after step 10, on 2 processes instead of 4" in page.text
    assert "resumed after step 20, on 4 processes instead of 1" in page.text
    (points,) = lines(caption="processes")
    assert [40 * x for x, _ in points] == pytest.approx([0, 10, 10, 20, 20, 40, 40], abs=0.1)
    assert [4 * y / points[0][1] for _, y in points] == pytest.approx(
        [4, 4, 1, 1, 4, 4, 4], abs=0.01
    )
    write_history(folder, *(event[:2] for event in events), processes=4)
    page = written(folder)
    assert "processes" not in page.figures
    assert "instead of" not in page.text
