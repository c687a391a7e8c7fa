"""A page about runs says what their folders say, whole or broken, and needs nothing else to be
read.
"""

# Over 300 lines: one page, and what of each kind of run must be on it.

import csv
import html.parser
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

from jaxdp import report, train
from jaxdp.reporting import confusion, report_figures, report_page
from jaxdp.reporting.report_figures import Line, XAxis, YAxis

EXPERIMENTS = pathlib.Path(__file__).parents[1] / "experiments"
EMPTY = {"meta", "img", "input"}
STEPS = XAxis("base", "steps", "step", 2.0)
BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


class Page(html.parser.HTMLParser):
    """Attributes:
    tables: of each, its rows of texts.
    elements: names and attributes of all.
    settings: names in each list of settings.
    titles: what is said of a curve or a mark when one points at it.
    headings: of the sections.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.titles: list[str] = []
        self.headings: list[str] = []
        self.settings: list[list[str]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in EMPTY:
            self._open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
        elif tag == "title":
            self.titles.append("")
        elif tag == "h2":
            self.headings.append("")
        elif tag == "dl" and ("class", "settings") in attrs:
            self.settings.append([])

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
        if {"td", "th"} & set(self._open):
            self.tables[-1][-1][-1] += data
        if self._open and self._open[-1] == "title":
            self.titles[-1] += data
        if self._open and self._open[-1] == "h2":
            self.headings[-1] += data
        if self._open[-3:] == ["dl", "div", "dt"]:
            self.settings[-1].append(data)

    @property
    def run_tables(self) -> list[list[dict[str, str]]]:
        return [
            [dict(zip(head, row, strict=True)) for row in rows]
            for head, *rows in self.tables_of("run")
        ]

    def tables_of(self, first: str) -> list[list[list[str]]]:
        return [table for table in self.tables if table[0][0] == first]

    @property
    def figures(self) -> list[str]:
        return [
            str(attributes["aria-label"]).partition(":")[0]
            for name, attributes in self.elements
            if name == "svg" and "aria-label" in attributes
        ]


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
    figures = {"loss": 1 - accuracy, metric: accuracy, "examples": 360}
    config = {
        "model": "cnn",
        "dataset": "digits",
        "task": task,
        "strategy": "pmap",
        "batch_norm": "replica",
    } | settings
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    measured = {"learning_rate": 0.1, "examples_per_second": 900.0, "input_wait_fraction": 0.01}
    lines = [
        {
            "step": 10 * (number + 1),
            "epoch": 1,
            "split": split,
            "loss": 2 / (number + 1),
            metric: accuracy,
            "examples": 360,
        }
        | (measured if split == "train" else {})
        for number in range(rows)
        for split in ("train", "test")
    ]
    write_lines(folder / "metrics.jsonl", *lines)
    content = {
        "model": config["model"],
        "dataset": config["dataset"],
        "task": task,
        "strategy": config["strategy"],
        "devices": 2,
        "device_kind": "cpu",
        "processes": 1,
        "steps": 10 * rows,
        "batch_norm": config["batch_norm"],
        "metrics": {"train": figures, "test": figures},
        "best": {"step": 10 * rows} | figures,
        "seconds": {"total": 75.0, "first_step": 3.0, "train": 60.0},
        "examples_per_second": 1234.5,
        "versions": {"jax": "0.10.2"},
        "status": "done",
    }
    (folder / "summary.json").write_text(json.dumps(content | (summary or {})))
    return folder


def write_lines(path: pathlib.Path, *rows: dict[str, Any], mode: str = "w") -> None:
    with path.open(mode) as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def write_history(folder: pathlib.Path, *events: tuple[str, int], **facts: Any) -> None:
    write_lines(
        folder / "history.jsonl",
        *({"event": event, "step": step} | facts for event, step in events),
    )


def written(*folders: str | pathlib.Path) -> Page:
    assert report.main([*map(str, folders), "--output", "page.html"]) == 0
    return Page(pathlib.Path("page.html").read_text())


def test_each_task_has_a_table_with_the_best_run_first_and_what_sets_runs_apart(
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_run("runs/low", 0.8, learning_rate=0.05, seed=1)
    write_run("runs/high", 0.95, learning_rate=0.2, seed=1)
    write_run(
        "runs/none",
        0.5,
        rows=0,
        seed=1,
        summary={"best": None, "metrics": {}, "status": "diverged"},
    )
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
    assert (last["test accuracy"], last["status"], last["learning rate"]) == (
        "–",
        "diverged",
        "default",
    )
    assert (
        "5 runs of unet and cnn on digits, which differ in model, seed and learning rate."
        in page.text
    )
    assert page.figures.count("loss, logarithmic") == 2
    by_model, by_rate = ({"learning_rate", "seed"} & set(names) for names in page.settings)
    assert (by_model, by_rate) == ({"learning_rate", "seed"}, {"seed"})  # that all share
    assert ("html", {"lang": "en"}) in page.elements
    assert page.titles[0] == "unet and cnn on digits"


def test_folders_of_the_same_name_are_told_apart() -> None:
    assert [
        row["run"]
        for row in written(write_run("a/run"), write_run("b/run"), "a/../a/run").run_tables[0]
    ] == ["a/run", "b/run"]


def test_text_from_files_is_no_markup() -> None:
    evil = "<script>alert(1)</script>\"'>&"
    folder = write_run(
        "a<b>&",
        model=evil,
        dataset=evil,
        summary={"status": evil, "xla_flags": evil, "versions": {evil: evil}},
    )
    write_history(folder, ("started", 0), ("diverged", 7), reason=evil)
    page = written(folder, write_run("other"))
    assert not {"script", "b"} & {name for name, _ in page.elements}
    assert page.text.count(evil) > 5


def test_a_page_needs_nothing_else() -> None:
    page = written(
        EXPERIMENTS / "digits",
        EXPERIMENTS / "digits-8-devices",
        EXPERIMENTS / "isbi2012",
        EXPERIMENTS / "digits-denoise",
    )
    text = pathlib.Path("page.html").read_text()
    assert "http://" not in text
    assert "https://" not in text
    assert not {"script", "link", "iframe"} & {name for name, _ in page.elements}
    pictures = [attributes for name, attributes in page.elements if name == "img"]
    assert len(pictures) == 4
    for attributes in pictures:
        assert str(attributes["src"]).startswith("data:image/")
        assert len(str(attributes["src"])) < 410_000  # 300 kB as text
        assert attributes["alt"]
    assert len(page.run_tables) == 3
    accuracy = json.loads((EXPERIMENTS / "digits" / "summary.json").read_text())["metrics"]["test"][
        "accuracy"
    ]
    assert f"{accuracy:.2%}" in page.run_tables[0][0]["test accuracy"]
    (of_classes,) = [table for table in page.tables if table[0][:2] == ["class", "iou, train"]]
    assert of_classes[0] == ["class", "iou, train", "iou, test", "dice, train", "dice, test"]
    assert [row[0] for row in of_classes[1:]] == ["0", "1"]
    assert (
        of_classes[2][2]
        == f"{json.loads((EXPERIMENTS / 'isbi2012/summary.json').read_text())['metrics']['test']['iou/1']:.4f}"
    )


def test_broken_runs_are_shown_with_what_there_is() -> None:
    begun, cut, garbage, bare = (
        write_run("begun"),
        write_run("cut"),
        write_run("garbage"),
        pathlib.Path("bare"),
    )
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
    bare.mkdir()
    (bare / "metrics.jsonl").touch()
    nonsense = {
        "metrics": "?",
        "best": 3,
        "seconds": None,
        "versions": [],
        "steps": "many",
        "examples_per_second": "x",
    }
    odd = write_run("odd", summary=nonsense)
    page = written(begun, cut, garbage, bare, odd)
    assert len(page.run_tables) == 2  # of the classifiers, and of those of which nothing is known
    rows_of = {row["run"]: row for table in page.run_tables for row in table}
    assert {name: row["status"] for name, row in rows_of.items()} == {
        "begun": "unfinished",
        "cut": "unfinished",
        "garbage": "unfinished",
        "bare": "unfinished",
        "odd": "done",
    }
    assert (rows_of["cut"]["steps"], rows_of["cut"]["test accuracy"]) == ("40", "90.00%")
    assert (rows_of["odd"]["steps"], rows_of["odd"]["test accuracy"], rows_of["odd"]["time"]) == (
        "40",
        "90.00%",
        "–",
    )
    assert (
        "Incomplete: there is no summary.json; there is no dataset.json; there is no metrics.jsonl."
        in page.text
    )
    assert (
        "summary.json cannot be read; dataset.json cannot be read; config.yaml cannot be read"
        in page.text
    )
    assert "confusion.png cannot be read" in page.text
    assert "metrics.jsonl holds no rows" in page.text


def test_what_befell_a_run_is_marked_on_its_curves() -> None:
    folder = write_run("run", summary={"skipped_updates": 2, "status": "stopped"})
    row = {"step": 50, "split": "train", "loss": 1.0, "skipped_updates": 2, "overflows": 1}
    write_lines(folder / "metrics.jsonl", row, mode="a")
    events: list[dict[str, Any]] = [
        {"event": "started", "step": 0},
        {"event": "stopped", "step": 20},
        {"event": "resumed", "step": 20},
        {"event": "rollback", "step": 33, "to_step": 30, "reason": "the loss of step 33 is nan"},
        {"event": "diverged", "step": 50},
    ]
    write_lines(folder / "history.jsonl", *events)
    page = written(folder)
    for text in (
        "run: resumed after step 20",
        "run: rolled back from step 33 to 30: the loss of step 33 is nan",
        "run: diverged at step 50",
        "run: 2 updates skipped before step 50, 1 of them overflows",
    ):
        # Curves of each figure, and what happened by step.
        assert page.titles.count(text) == len(page.figures)
    assert not any("stopped" in title for title in page.titles)  # it went on
    assert "what happened, by step" in page.figures
    assert page.run_tables[0][0]["status"] == "diverged"


@pytest.mark.parametrize(("last", "status"), [("resumed", "unfinished"), ("done", "done")])
def test_a_summary_of_before_a_resume_is_no_result(last: str, status: str) -> None:
    folder = write_run("run", summary={"status": "stopped", "best": {"accuracy": 0.1}})
    write_history(folder, ("started", 0), ("stopped", 10), (last, 10))
    (row,) = written(folder).run_tables[0]
    assert (row["status"], row["test accuracy"]) == (
        status,
        "90.00%" if status == "unfinished" else "10.00%",
    )


@pytest.mark.usefixtures("no_pictures")
def test_training_records_what_becomes_of_a_run() -> None:
    flags = (
        "--model cnn --model-kwargs width=4 hidden=16 --devices 2 --global-batch-size 160 --run-dir"
        " run --steps".split()
    )
    assert train.main([*flags, "2"]) == 0
    with pathlib.Path("run/history.jsonl").open("a") as file:
        file.write('{"time": "20')  # a kill
    assert train.main([*flags, "3"]) == 0
    assert train.main([*flags, "3"]) == 0  # complete: nothing happens to it
    lines = pathlib.Path("run/history.jsonl").read_text().splitlines()
    assert pathlib.Path("run/damaged/history.jsonl").read_text() == '{"time": "20\n'
    events = [json.loads(line) for line in lines]
    assert [(event["event"], event["step"]) for event in events] == [
        ("started", 0),
        ("done", 2),
        ("resumed", 2),
        ("done", 3),
    ]
    assert {(event["devices"], event["processes"]) for event in events} == {(2, 1)}
    page = written("run")
    assert "resumed after step 2" in page.text
    (row,) = page.run_tables[0]
    assert row["status"] == "done"
    assert row["time"].endswith("s after resuming")


def test_a_grid_of_benchmarks_has_its_table_and_figure() -> None:
    named = {
        "model": "cnn",
        "dataset": "digits",
        "precision": "float32",
        "cores": 2,
        "settings": {},
        "status": "ok",
        "reason": None,
    }
    records = []
    for devices, batch, rate in ((1, 32, 1.0), (1, 32, 100.0), (2, 32, 150.0), (2, 64, None)):
        where = {"strategy": "pmap", "devices": devices, "global_batch_size": batch}
        rates = {
            "images_per_second": {
                "median": rate,
                "min": 0.9 * (rate or 0),
                "max": 1.1 * (rate or 0),
            },
            "platform": "cpu",
        }
        records.append(
            named | where | (rates if rate else {"status": "oom", "reason": "out of memory: <b>"})
        )
    pathlib.Path("bench").mkdir()
    write_lines(pathlib.Path("bench/bench.jsonl"), *records)
    page = written("bench", write_run("run"))
    (table,) = page.tables_of("strategy")
    assert table[0] == ["strategy", "devices", "batch", "images/s", "±%", "strong"]
    assert [row[3] for row in table[1:]] == ["100", "150", "OOM"]
    assert [figure for figure in page.figures if figure.startswith("images per second")] == [
        "images per second on 1 device", "images per second on 2 devices",
    ]  # fmt: skip
    assert "pmap, batch 64: out of memory" in page.titles


def test_large_pictures_are_made_smaller() -> None:
    folder = write_run("run")
    (folder / "plots").mkdir()
    noise = np.random.default_rng(0).integers(0, 256, (900, 1200, 3), np.uint8)
    Image.fromarray(noise).save(folder / "plots/predictions.png")
    Image.fromarray(noise[:40, :60]).save(folder / "plots/confusion.png")
    Image.fromarray(noise).save(folder / "plots/curves.png")
    small, large = [attributes for name, attributes in written(folder).elements if name == "img"]
    assert (small["width"], small["height"]) == ("60", "40")
    assert str(small["src"]).startswith("data:image/png")
    assert str(large["src"]).startswith("data:image/jpeg")
    assert len(str(large["src"])) < 410_000


def test_curves_of_many_points_are_short_and_keep_their_extremes() -> None:
    folder = write_run("run", summary={"steps": 20_000})
    rows = (
        {"step": step, "split": "train", "loss": 1.5 if step == 15_555 else 1 + step % 2 / 10}
        for step in range(20_000)
    )
    write_lines(folder / "metrics.jsonl", *rows)
    written(folder)
    (line,) = lines(caption="loss")
    assert len(line) < 1000
    assert max(line, key=lambda point: point[1]) == pytest.approx((0.778, 1), abs=0.001)


def test_validation_is_a_curve_of_its_own_and_ranks_an_unfinished_run() -> None:
    folder = write_run("run")
    (folder / "summary.json").unlink()
    for step, accuracy in ((10, 0.7), (20, 0.8)):
        row = {"step": step, "split": "validation", "loss": 0.4, "accuracy": accuracy}
        write_lines(folder / "metrics.jsonl", row, mode="a")
    page = written(folder)
    # Of the validation split, not of the test split.
    assert page.run_tables[0][0]["best validation accuracy"] == "80.00%"
    assert page.titles.count("run, validation") == 2  # loss and accuracy
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


@pytest.mark.parametrize("value", [0.0, -3.0, 1e-30, 7e12])
def test_constant_curves_have_a_scale(value: float) -> None:
    curve = Line("run", 0, {"base": np.asarray}, [1.0, 2.0], [value, value])
    for log, zero in ((True, False), (False, True), (False, False)):
        ((_, drawings),) = report_figures.figure("x", [curve], [STEPS], YAxis(log=log, zero=zero))
        assert "nan" not in drawings[0]
        assert "inf" not in drawings[0]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "no folder is named; give those of runs, e.g. runs/*"),
        (["nowhere"], "--run-dir nowhere: is no folder; give folders of runs"),
        (["empty"], "--run-dir empty: holds neither a run nor a bench.jsonl; give folders of runs"),
        (["run", "--output", "empty"], "--output empty: cannot be written: it is a folder"),
        (
            ["run", "--output", "/dev/null/page.html"],
            "--output /dev/null/page.html: cannot be written: ",
        ),
        (["run", "--outptu", "x"], "--outptu: unknown flag; did you mean --output?"),
        (["grid"], "grid/bench.jsonl: cannot be read: it holds something else"),
    ],
)
def test_mistakes_are_one_line_and_code_2(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run("run")
    for name in ("empty", "grid"):
        pathlib.Path(name).mkdir()
    pathlib.Path("grid/bench.jsonl").write_text("{}\n")
    before = sorted(pathlib.Path().rglob("*"))
    assert report.main(argv) == 2
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert line.startswith("jaxdp.report: error: ")
    assert message in line
    assert captured.out == ""
    assert sorted(pathlib.Path().rglob("*")) == before


def test_help_does_not_import_jax() -> None:
    code = (
        "import sys; from jaxdp.report import main\ntry: main(['--help'])\nfinally: assert 'jax'"
        " not in sys.modules"
    )
    helped = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert "--output" in helped
    assert "RUN_DIR" in helped


@pytest.mark.slow
@pytest.mark.skipif(
    BROWSER is None, reason="no chromium, chromium-browser or google-chrome on PATH"
)
def test_a_browser_shows_it_without_complaint() -> None:
    assert BROWSER is not None
    names = ("digits", "digits-8-devices", "digits-8-devices-global", "cells")
    written(
        *(EXPERIMENTS / name for name in names),
        write_run("a-run-whose-name-is-rather-long-" + 60 * "x"),
    )
    # A window is at least 500 pixels wide: a phone is a frame in it.
    pathlib.Path("phone.html").write_text(
        '<iframe src="page.html" style="width:390px;height:3000px"></iframe><script>onload = () =>'
        " {const page = frames[0].document.documentElement; document.title = `${page.scrollWidth}"
        " of ${page.clientWidth}`}</script>"
    )

    def browse(page: str, *flags: str) -> str:
        common = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--allow-file-access-from-files",
            "--enable-logging=stderr",
            "--v=0",
        ]
        folder = f"--user-data-dir={pathlib.Path('profile').absolute()}"
        command = [BROWSER, *common, folder, *flags, pathlib.Path(page).absolute().as_uri()]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=180,
            env=os.environ | {"HOME": os.getcwd()},
        )
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
    browse("page.html", "--print-to-pdf=page.pdf")
    assert pathlib.Path("page.pdf").read_bytes().startswith(b"%PDF")


def test_other_commands_can_write_it() -> None:
    report_page.write_report(
        [write_run("run")], pathlib.Path("deep/er/page.html"), title="A <sweep>"
    )
    assert Page(pathlib.Path("deep/er/page.html").read_text()).titles[0] == "A <sweep>"
    assert not list(pathlib.Path("deep").rglob("*.new"))


def sections(page: Page) -> list[tuple[str, list[str]]]:
    """Returns of each section its heading and its runs."""
    headings = [name for name in page.headings if not name.startswith("Training throughput")]
    return list(
        zip(headings, ([row["run"] for row in table] for table in page.run_tables), strict=True)
    )


def test_runs_are_compared_on_the_same_data_alone() -> None:
    write_run("runs/a", 0.9, dataset="mnist")
    write_run("runs/b", 0.8)
    write_run("runs/c", 0.7, task="segmentation", dataset="mnist")
    write_run("runs/d", 0.95)
    assert sections(written(*sorted(pathlib.Path("runs").iterdir()))) == [
        ("Runs on mnist, by accuracy", ["a"]),
        ("Runs on digits, by accuracy", ["d", "b"]),
        ("Runs on mnist, by iou", ["c"]),
    ]
    assert sections(written("runs/b", "runs/d")) == [("Runs", ["d", "b"])]


@pytest.mark.parametrize("count", [3, 40])
def test_metrics_of_classes_are_a_table_with_a_row_for_each(count: int) -> None:
    names = [f"種{index}/a b" for index in range(count)]
    of_classes = {
        f"{kind}/{name}": (index + start) / 100
        for start, kind in enumerate(("iou", "dice"))
        for index, name in enumerate(names)
    }
    figures = {"loss": 0.1, "iou": 0.5, "examples": 4}
    folder = write_run(
        "run",
        task="segmentation",
        summary={"metrics": {"train": figures, "test": figures | of_classes}, "best": None},
    )
    page = written(folder)
    (table,) = page.tables_of("class")
    assert table[0] == ["class", "iou, train", "iou, test", "dice, train", "dice, test"]
    assert [row[0] for row in table[1:]] == names
    assert table[3] == ["種2/a b", "–", "0.0200", "–", "0.0300"]
    (whole,) = [table for table in page.tables if table[0] == ["", "train", "test"]]
    assert [row[0] for row in whole[1:]] == ["loss", "iou", "examples"]
    opened = [
        attributes
        for name, attributes in page.elements
        if name == "details" and "open" in attributes
    ]
    assert len(opened) == (count == 3)  # many classes are folded


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
    changed = {
        "learning_rate": [0.1, 0.05],
        "augment": [["flip"], ["flip", "crop:4"]],
        "epochs": [20, None],
        "odd": 3,
    }
    events: list[dict[str, Any]] = [
        {"event": "started", "step": 0}, {"event": "resumed", "step": 20, "changed": changed},
        {"event": "resumed", "step": 1000, "changed": "?"}, {"event": "done", "step": 1040},
    ]  # fmt: skip
    write_lines(folder / "history.jsonl", *events)
    (table,) = written(folder).tables_of("setting")
    assert table == [
        ["setting", "after step", "before", "since"],
        ["learning rate", "20", "0.1", "0.05"],
        ["augment", "20", "flip", "flip crop:4"],
        ["epochs", "20", "20", "default"],
    ]
    write_history(folder, ("started", 0), ("resumed", 20), ("done", 40))
    assert not written(folder).tables_of("setting")


def test_wide_tables_can_be_reached_with_the_keyboard_and_have_names() -> None:
    page = written(write_run("run"), write_run("other", seed=3))
    boxes = [attributes for name, attributes in page.elements if attributes.get("class") == "box"]
    assert len(boxes) == len(page.tables)
    assert {(box["tabindex"], box["role"]) for box in boxes} == {("0", "region")}
    assert {box["aria-label"] for box in boxes} == {"Runs", "metrics of run", "metrics of other"}


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
    folder = write_run("run", global_batch_size=36, summary={"steps": 60})
    # 10 steps an epoch.
    (folder / "dataset.json").write_text(json.dumps({"examples": {"train": 360 + 35, "test": 10}}))
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rows.append(rows[-2] | {"step": 60})
    for row, seconds in zip(
        [row for row in rows if row["split"] == "train"], (1.0, 1.0, 4.0, 2.0, 1.0), strict=True
    ):
        row["step_seconds"] = seconds
    write_lines(folder / "metrics.jsonl", *rows)
    page = written(folder)
    chosen = [attributes for name, attributes in page.elements if name == "input"]
    assert [(each["value"], "checked" in each) for each in chosen] == [
        ("base", True),
        ("epoch", False),
        ("time", False),
    ]
    steps, epochs, seconds = (lines(axis) for axis in ("base", "epoch", "time"))
    # Loss and accuracy of two splits, rate, speed, waiting.
    assert len(steps) == len(epochs) == len(seconds) == 7
    assert steps == epochs  # one is 10 of the other

    def shares(line: list[tuple[float, float]]) -> list[float]:
        return [round(x, 2) for x, _ in line]

    assert shares(steps[0]) == [0.17, 0.33, 0.5, 0.67, 1.0]
    assert shares(seconds[0]) == [0.1, 0.2, 0.6, 0.8, 1.0]  # 10, 20, 60, 80 and 100 of 100 seconds
    assert [[y for _, y in line] for line in steps] == [[y for _, y in line] for line in seconds]
    drawing = pathlib.Path("page.html").read_text().split('<svg class="over epoch"')[1]
    ticks = re.findall(r">(\w+)</text>", drawing.split("</svg>")[0])
    assert ticks[:8] == ["0", "1", "2", "3", "4", "5", "6", "epoch"]
    for title in (
        "step",
        "epoch",
        "training time, seconds",
        "loss",
        "accuracy",
        "learning rate",
        "examples per second",
    ):
        assert f">{title}</text>" in pathlib.Path("page.html").read_text()


def test_an_axis_that_is_not_known_of_a_run_is_not_offered_or_says_so() -> None:
    bare = write_run("bare")
    assert not [name for name, _ in written(bare).elements if name == "input"]
    page = written(bare, write_run("known", summary={"epochs": 4.0}))
    assert [attributes["value"] for name, attributes in page.elements if name == "input"] == [
        "base",
        "epoch",
    ]
    assert "Unknown for bare." in page.text
    assert len(lines("base")) == 2 * len(lines("epoch"))


def one_killed() -> pathlib.Path:
    """Writes a run with three workers, of which the last was lost and replaced."""
    where = {"exchange": "exact", "workers": 3}
    folder = write_run("run", rows=0, summary={"steps": 40, "devices": 1} | where, **where)
    row = {
        "split": "train",
        "loss": 1.0,
        "accuracy": 0.5,
        "worker_slices": [30, 10, 20],
        "recomputed_slices": 1,
        "dropped_slices": 0,
        "workers": 3,
        "exchange_bytes": 1024,
        "worker_idle_seconds": 0.5,
    }
    rows = [row | {"step": step, "elapsed_seconds": 1.25 * step} for step in (10, 30, 40)]
    write_lines(folder / "metrics.jsonl", *rows)
    events = [{"event": "started", "step": 0, "devices": 1, "processes": 1} | where]
    for name, worker in (("joined", 0), ("joined", 1), ("joined", 2), ("lost", 2), ("joined", 2)):
        events.append({"event": f"worker {name}", "step": 1, "seconds": 10.0, "worker": worker})
    write_lines(folder / "history.jsonl", *events)
    return folder


def test_a_run_with_workers_does_not_say_that_it_had_one_device() -> None:
    page = written(one_killed(), write_run("other"))
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
    write_lines(folder / "history.jsonl", *events)
    page = written(folder)
    assert "resumed after step 10, on 2 processes instead of 4" in page.text
    assert "resumed after step 20, on 4 processes instead of 1" in page.text
    (points,) = lines(caption="processes")
    assert [40 * x for x, _ in points] == pytest.approx([0, 10, 10, 20, 20, 40], abs=0.1)
    assert [4 * y / points[0][1] for _, y in points] == pytest.approx([4, 4, 1, 1, 4, 4], abs=0.01)
    write_lines(folder / "history.jsonl", *(event | {"processes": 4} for event in events))
    page = written(folder)
    assert "processes" not in page.figures
    assert "instead of" not in page.text
