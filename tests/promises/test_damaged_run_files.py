"""Whatever becomes of a file of a run, each command writes it again, goes on without it or says in
one line what to do.
"""

import csv
import io
import itertools
import json
import os
import pathlib
import re
import shutil
from typing import Any

import pytest
from command_run import COMMANDS, FLAGS, RUN, train_once
from runs import error_line as line_of
from shared_run import copy_here

import jaxdp
from jaxdp import convert, evaluate, predict, train
from jaxdp.checkpoint import integrity
from jaxdp.rundir.read import DamagedFile, read_object, read_rows, read_text
from jaxdp.runtime import free_memory
from jaxdp.text import console

GARBAGE = [b"{", b"\xff\xfe", b"[1, 2]", b'{"task": 3}', b"[" * 100_000, b""]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return train_once(tmp_path_factory)


@pytest.fixture(autouse=True)
def _run(trained: pathlib.Path, no_pictures: None) -> None:
    copy_here(trained)


def write(name: str, content: str | bytes) -> pathlib.Path:
    """Writes a file of the run."""
    RUN.file(name).write_bytes(content.encode() if isinstance(content, str) else content)
    return RUN.file(name)


@pytest.mark.parametrize(
    ("name", "unaffected"),
    [
        ("dataset.json", ("train",)),
        ("summary.json", tuple(COMMANDS)),
        ("config.yaml", ()),
    ],
)
def test_each_command_answers_damage_in_one_line(
    name: str, unaffected: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("dataset.json", "summary.json", "config.yaml")
    whole = {each: RUN.file(each).read_bytes() for each in names}
    remedy = "put a copy back, or move it away" if name == "config.yaml" else "writes it again"
    assert len(GARBAGE) >= len(COMMANDS)  # so that each of both is tried
    for content, (command, run) in zip(GARBAGE, itertools.cycle(COMMANDS.items())):
        for each, before in whole.items():
            write(each, before)
        write(name, content)
        console._warned.clear()
        capsys.readouterr()
        code = run()
        lines = [line for line in capsys.readouterr().err.splitlines() if "cannot be read" in line]
        assert code == (0 if command in unaffected else 2), (command, lines)
        if command in unaffected:
            assert all(line.startswith("warning: ") for line in lines)
        else:
            (line,) = lines
            assert line.count("cannot be read") == 1
            assert re.search(rf"--(run-dir|init-from) run: {name} cannot be read \(", line)
            assert remedy in line
            assert RUN.file(name).read_bytes() == content
        if (name, command) == ("dataset.json", "train"):
            (line,) = lines
            assert "; made again from digits" in line, command
            again = json.loads(RUN.file("dataset.json").read_text())
            assert again | {"fingerprint": ""} == json.loads(whole[name]) | {"fingerprint": ""}


def test_training_writes_a_damaged_summary_again(capsys: pytest.CaptureFixture[str]) -> None:
    before = json.loads(RUN.file("summary.json").read_text())
    RUN.file("summary.json").write_text('{"status": "do')
    assert RUN.read("summary.json") is None
    assert "summary.json cannot be read" in capsys.readouterr().err
    assert train.main(FLAGS) == 0
    after = json.loads(RUN.file("summary.json").read_text())
    for name in ("status", "steps", "best", "result"):
        assert after[name] == before[name]
    assert after["metrics"]["test"] == before["metrics"]["test"]


def test_settings_moved_away_are_written_again() -> None:
    before = RUN.file("config.yaml").read_text()
    RUN.file("config.yaml").unlink()
    assert train.main([*FLAGS, "--steps", "6"]) == 0
    assert RUN.file("config.yaml").read_text() == before.replace("steps: 4", "steps: 6")


def test_rows_that_cannot_be_read_are_kept_aside(capsys: pytest.CaptureFixture[str]) -> None:
    lines = RUN.file("metrics.jsonl").read_bytes().splitlines(keepends=True)
    texts = (lines[0][:20], b"\xff\xfe", b"[1]", b'{"step": "two", "split": "train"}')
    damaged = [text + b"\n" for text in texts]
    write("metrics.jsonl", b"".join([lines[0], *damaged, *lines[1:]]) + b'{"step": 5')
    assert jaxdp.load("run").history == [json.loads(line) for line in lines]
    assert "run/metrics.jsonl: 4 rows cannot be read, and left out" in capsys.readouterr().err
    assert train.main([*FLAGS, "--steps", "6"]) == 0
    text = "4 rows cannot be read, and moved to run/damaged/metrics.jsonl"
    assert text in capsys.readouterr().err
    assert pathlib.Path("run/damaged/metrics.jsonl").read_bytes() == b"".join(damaged)
    rows, lost = read_rows(RUN.file("metrics.jsonl"))
    assert not lost
    assert [row["step"] for row in rows if row["split"] == "train"] == [*range(1, 7)]


def test_an_event_that_was_cut_short_is_dropped() -> None:
    before = RUN.read("history.jsonl")
    with RUN.file("history.jsonl").open("ab") as file:
        file.write(b'{"time": "2026-')
    RUN.record("resumed", 4)
    events = [row["event"] for row in [*before, {"event": "resumed"}]]
    assert [row["event"] for row in RUN.read("history.jsonl")] == events
    # Whole, but for the end of its line.
    RUN.file("history.jsonl").write_bytes(RUN.file("history.jsonl").read_bytes().rstrip(b"\n"))
    RUN.record("done", 4)
    assert [row["event"] for row in RUN.read("history.jsonl")[-2:]] == ["resumed", "done"]


def test_a_list_of_bad_examples_that_is_damaged_begins_anew(
    capsys: pytest.CaptureFixture[str],
) -> None:
    RUN.file("skipped.csv").write_bytes(b"split,example,reason\r\ntrain,\xff.png,is cut\r\n")
    RUN.write_skipped([("train", "a.png", "is cut")])
    assert RUN.file("skipped.csv").read_text() == "split,example,reason\ntrain,a.png,is cut\n"
    assert "skipped.csv cannot be read (" in capsys.readouterr().err


def test_what_is_no_file_is_no_file_of_a_run() -> None:
    RUN.file("summary.json").unlink()
    os.mkfifo(RUN.file("summary.json"))  # reading it would wait for ever
    assert RUN.read("summary.json") is None
    with pytest.raises(DamagedFile, match=r"summary\.json cannot be read \(it is no regular file"):
        read_object(RUN.file("summary.json"))


@pytest.mark.slow
def test_other_settings_and_other_data_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    flags = [*FLAGS, "--steps", "6"]
    assert train.main([*flags, "--learning-rate", "0.05", "--label-smoothing", "0.1"]) == 0
    said = capsys.readouterr().err
    assert "continuing run after step 4 with other settings: " in said
    assert "learning_rate 0.05 instead of none" in said
    assert "label_smoothing 0.1 instead of 0.0" in said
    assert train.main([*flags, "--steps", "8", "--clip-norm", "1"]) == 2
    assert "other settings than before: " in (said := capsys.readouterr().err)
    assert "clip_norm 1.0 instead of none" in said
    description = RUN.read("dataset.json")
    RUN.write("dataset.json", description | {"fingerprint": "0" * 16})
    assert train.main([*flags, "--steps", "8"]) == 0
    line = "warning: digits has other examples than when run began, though as many"
    assert line in capsys.readouterr().err
    assert RUN.read("dataset.json") == description
    resumed = [row for row in RUN.read("history.jsonl") if row["event"] == "resumed"][-1]
    assert resumed["changed"]["examples"] == ["0" * 16, description["fingerprint"]]
    console._warned.clear()
    assert train.main([*flags, "--steps", "10"]) == 0
    assert "other examples" not in capsys.readouterr().err


def test_pipes_in_a_checkpoint_are_not_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    names = (
        "checksums/4.json",
        "checkpoints/4/metrics/metrics",
        "checkpoints/4/state/manifest.ocdbt",
    )
    for name in names:
        path = RUN.path / name
        path.unlink()
        os.mkfifo(path)
        whole = name.startswith("checksums")
        assert predict.main(["run", "image.png"]) == 0
        assert ("step 4 is damaged" in capsys.readouterr().err) != whole
        assert bool(integrity.examine_all(RUN.checkpoints)[4].problem) != whole
    assert train.main([*FLAGS, "--steps", "6"]) == 0


def test_a_checkpoint_without_checksums_whose_metadata_are_damaged(
    capsys: pytest.CaptureFixture[str],
) -> None:
    (RUN.path / "checksums" / "2.json").unlink()
    metadata = RUN.path / "checkpoints" / "2" / "state" / "_METADATA"
    metadata.write_bytes(b"z" + metadata.read_bytes()[1:])
    assert evaluate.main(["run", "--step", "2"]) == 2
    reason = "checkpoints/2 cannot be read (its metadata are damaged); move it away to use another"
    assert reason in line_of(capsys)


def test_files_that_would_take_all_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(free_memory, "available_memory_bytes", lambda: 2**30)
    for name in ("metrics.jsonl", "summary.json", "dataset.json", "history.jsonl"):
        os.truncate(RUN.path / name, 2**31)  # of which nothing is on the disk
        problem = r"it would take 2.0 GiB of memory, and 1.0 GiB are free"
        with pytest.raises(DamagedFile, match=rf"{name} cannot be read \({problem}\)"):
            read_text(RUN.path / name)


def test_a_lock_that_is_no_file(capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(RUN.file("writer.lock"))
    assert train.main([*FLAGS, "--steps", "6"]) == 2
    assert (
        "--run-dir run: writer.lock in it is no regular file; remove it" in capsys.readouterr().err
    )


def test_texts_in_files_of_a_run_are_neither_escapes_nor_formulas(
    capsys: pytest.CaptureFixture[str],
) -> None:
    names = ["\x1b[31mred", "=1+1", *"-2 @a +b '=c d e f g".split()]
    text = RUN.file("summary.json").read_text()
    RUN.write("dataset.json", RUN.read("dataset.json") | {"class_names": names})
    text = text.replace('"accuracy"', '"\\u001b[31mred"').replace('"cpu"', '"\\u009b31mcpu"')
    write("summary.json", text)
    shutil.copy("image.png", "=1+1.png")
    assert predict.main(["run", "=1+1.png", "--csv", "classes.csv"]) == 0
    assert evaluate.main(["run"]) == 0
    RUN.write("dataset.json", RUN.read("dataset.json") | {"class_names": [*"0123456789"]})
    assert train.main(FLAGS) == 0  # of a run that is done it prints the summary
    text = RUN.file("config.yaml").read_text()
    write("config.yaml", text.replace("dataset: digits", 'dataset: "folder:\\x1b[31m"'))
    said = "".join(capsys.readouterr()) + repr(jaxdp.load("run"))
    assert "\x1b" not in said
    assert "\x9b" not in said
    assert "\\x1b[31mred" in said
    text = pathlib.Path("classes.csv").read_text()
    assert (
        text.splitlines()[0] == "file,class,probability,\\x1b[31mred,'=1+1,-2,'@a,'+b,''=c,d,e,f,g"
    )
    assert all(line.startswith("'=1+1.png,") for line in text.splitlines()[1:])
    cells = [cell for row in csv.reader(io.StringIO(text)) for cell in row]
    assert not any(cell.startswith(("=", "@", "+")) for cell in cells)
    assert "\x1b" not in text


def test_numbers_in_rows_that_are_none(no_pictures: None) -> None:
    text = RUN.file("metrics.jsonl").read_text()
    RUN.file("metrics.jsonl").write_text(text.replace('"loss": ', '"loss": "", "other": ', 2))
    rows = RUN.read("metrics.jsonl")
    assert not isinstance(rows[0]["loss"], float)
    assert jaxdp.load("run").plot() is not None


def test_a_description_that_contradicts_itself_is_damaged(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = RUN.read("dataset.json")
    for field, value in (
        ("image_shape", [8, 8, 10**9]),
        ("image_shape", [0, 8, 1]),
        ("mean", []),
        ("std", [0.0]),
        ("std", [1.0, 1.0]),
        ("mean", [10**400]),
        ("class_names", ["a"]),
        ("kind", "x"),
        ("pixel_range", [1, 1]),
        ("num_classes", 10**30),
    ):
        RUN.write("dataset.json", before | {field: value})
        with pytest.raises(DamagedFile, match=f"{field} is missing in it, or no such value"):
            RUN.read("dataset.json")
    assert predict.main(["run", "image.png"]) == 2
    problem = "num_classes is missing in it, or no such value"
    assert f"dataset.json cannot be read ({problem})" in capsys.readouterr().err
    assert train.main(FLAGS) == 0
    assert RUN.read("dataset.json") | {"fingerprint": ""} == before | {"fingerprint": ""}


@pytest.mark.parametrize("name", ["pipe", "loop"])
def test_what_is_no_file_is_not_written_over(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo("pipe")
    os.symlink("loop", "loop")
    os.symlink(name, "out.safetensors")
    os.mkfifo("out.stablehlo.json")
    commands: list[tuple[Any, str]] = [
        (predict, f"run image.png --csv {name}"),
        (convert, "export run --output out.safetensors"),
        (convert, "export run --output out.stablehlo"),
    ]
    for command, words in commands:
        assert command.main(words.split()) == 2, words
        assert "; give a file, e.g. " in capsys.readouterr().err.splitlines()[-1]
    assert os.path.islink("loop")
    assert pathlib.Path("pipe").is_fifo()


def test_links_to_themselves_are_no_folders(capsys: pytest.CaptureFixture[str]) -> None:
    os.symlink("loop", "loop")
    commands: list[tuple[Any, str]] = [
        (evaluate, "loop"),
        (predict, "run loop"),
        (predict, "run image.png --output-dir loop"),
        (train, f"{' '.join(FLAGS)} --plugins loop"),
        (train, f"{' '.join(FLAGS)} --run-dir loop"),
    ]
    for command, words in commands:
        assert command.main(words.split()) == 2, words
        assert line_of(capsys).startswith("jaxdp."), words
