"""Only training writes in the folder of a run, and no command writes outside of its folder or through
a link.
"""

import os
import pathlib
import shutil

import numpy as np
import pytest
from command_run import COMMANDS, FLAGS, RUN, train_once
from PIL import Image
from runs import error_line as line_of
from shared_run import copy_here

import jaxdp
from jaxdp import plan, train
from jaxdp.errors import ConfigError
from jaxdp.reporting import predictions
from jaxdp.rundir import lock
from jaxdp.rundir.write import append_row, replace_file


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return train_once(tmp_path_factory)


@pytest.fixture(autouse=True)
def _run(trained: pathlib.Path, no_pictures: None) -> None:
    copy_here(trained)


def everything_in(folder: str) -> dict[str, object]:
    """Returns what would show that anything in a folder was written, made anew or removed."""
    found: dict[str, object] = {}
    for path in [pathlib.Path(folder), *sorted(pathlib.Path(folder).rglob("*"))]:
        status = path.lstat()
        content = (
            os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else b""
        )
        found[str(path)] = (status.st_ino, status.st_mode, status.st_mtime_ns, content)
    return found


@pytest.mark.parametrize("state", ["whole", "damaged", "link"])
def test_reading_a_run_writes_nothing_in_its_folder(state: str) -> None:
    pathlib.Path("outside").mkdir()
    pathlib.Path("outside/mine").write_text("mine")
    if state == "damaged":
        RUN.file("dataset.json").write_text("{")
        RUN.file("summary.json").write_text("{")
        RUN.file("metrics.jsonl").write_bytes(
            b"{\n" + RUN.file("metrics.jsonl").read_bytes() + b'{"step"'
        )
        (RUN.path / "checkpoints" / "4" / "metrics" / "metrics").write_text("{")
    elif state == "link":
        RUN.file("dataset.json").unlink()
        RUN.file("dataset.json").symlink_to(pathlib.Path("outside/mine").absolute())
        (RUN.path / "dataset.json.new").symlink_to(pathlib.Path("outside/mine").absolute())
    before = {name: everything_in(name) for name in ("run", "outside")}
    for name, run in COMMANDS.items():
        if name != "train":
            assert run() == (0 if state == "whole" else 2), name
    if state == "whole":
        jaxdp.load("run").evaluate()
        assert plan.main(["--config", "run/config.yaml"]) == 0
    assert {name: everything_in(name) for name in ("run", "outside")} == before


WRITTEN = (
    "config.yaml dataset.json metrics.jsonl history.jsonl summary.json skipped.csv"
    " writer.lock wandb-id.txt hang-0.txt checkpoints checksums damaged plots tensorboard profile"
    " plots/curves.png checksums/4.json checkpoints/4"
).split()


def test_a_run_with_a_link_out_of_its_folder_is_not_continued(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in WRITTEN:
        shutil.rmtree("elsewhere", ignore_errors=True)
        shutil.copytree("run", "elsewhere/run")
        inside, target = pathlib.Path("elsewhere/run", name), pathlib.Path("elsewhere/target")
        inside.parent.mkdir(exist_ok=True)
        if inside.exists():  # otherwise the link leads nowhere, where a file would be made
            inside.rename(target)
        inside.symlink_to(target.absolute())
        before = everything_in("elsewhere")
        assert train.main([*FLAGS, "--run-dir", "elsewhere/run", "--steps", "6"]) == 2, name
        line = f"jaxdp.train: error: --run-dir elsewhere/run: {name} in it is a link out of it; "
        assert line_of(capsys).startswith(line)
        assert everything_in("elsewhere") == before, name


def test_links_that_lead_nowhere_else_are_fine() -> None:
    pathlib.Path("whole").symlink_to("run")
    pathlib.Path("mine").write_text("mine")
    (RUN.path / "best").symlink_to("checkpoints/2")
    (RUN.path / "wandb").mkdir()
    # As wandb.save makes it.
    (RUN.path / "wandb" / "saved.txt").symlink_to(pathlib.Path("mine").absolute())
    # What version 0.2 wrote first.
    for name in (".write-probe", "config.yaml.new", "summary.json.new"):
        (RUN.path / name).symlink_to("config.yaml")
    before = RUN.file("config.yaml").read_text()
    assert train.main([*FLAGS, "--run-dir", "whole", "--steps", "6"]) == 0
    assert RUN.file("config.yaml").read_text() == before.replace("steps: 4", "steps: 6")
    assert pathlib.Path("mine").read_text() == "mine"


def test_writing_follows_no_link(tmp_path: pathlib.Path) -> None:
    mine, link = tmp_path / "mine", tmp_path / "metrics.jsonl"
    mine.write_text('{"step": 1, "split": "tr')  # cut short, so that a writer would mend it
    for path in (link, tmp_path / "metrics.jsonl.new", tmp_path / "a-prediction.png.new"):
        path.symlink_to(mine)
    before = mine.read_bytes()
    for write in (append_row, lambda path, _: lock.held(path).__enter__()):
        with pytest.raises((OSError, ConfigError)):
            write(link, {"step": 2, "split": "train"})
    picture = Image.fromarray(np.zeros((8, 8), np.uint8))
    predictions.save(picture, tmp_path / "a-prediction.png")
    assert mine.read_bytes() == before
    replace_file(link, "whole")
    assert (link.is_symlink(), link.read_text()) == (False, "whole")
    assert mine.read_bytes() == before
    assert not list(tmp_path.glob(".*"))


def test_a_file_that_cannot_be_written_leaves_nothing_and_has_its_own_name(
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / "summary.json").mkdir()
    with pytest.raises(OSError, match=r"summary\.json'$"):
        replace_file(tmp_path / "summary.json", "{}")
    with pytest.raises(OSError, match=r"none/summary\.json'$"):
        replace_file(tmp_path / "none" / "summary.json", "{}")
    assert not list(tmp_path.glob(".*"))
