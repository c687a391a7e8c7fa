"""A damaged checkpoint is noticed, named and passed over.

The run that continues saves its step again.
"""

import errno
import json
import os
import pathlib
import shutil
from collections.abc import Callable

import numpy as np
import process_group
import pytest
from PIL import Image
from process_group import arrays, flip
from runs import answers

import jaxdp
from jaxdp import evaluate, predict, train
from jaxdp.checkpoint import integrity
from jaxdp.checkpoint.restore import SavedCheckpoints
from jaxdp.errors import ConfigError
from jaxdp.rundir.layout import RunDirectory

pytestmark = pytest.mark.usefixtures("no_pictures")
FLAGS = (
    "--model cnn --model-kwargs width=4 hidden=16 --global-batch-size 160 --steps 6 --schedule"
    " constant --log-every 2 --eval-every 2 --checkpoint-every 2 --devices 2 --validation 0.2"
    " --run-dir run"
).split()
SAVED = pathlib.Path("run", "checkpoints")


def verdicts() -> dict[int, str]:
    return {step: verdict.state for step, verdict in integrity.examine_all(SAVED).items()}


def damaged() -> dict[int, str]:
    found = integrity.examine_all(SAVED).items()
    return {step: verdict.problem for step, verdict in found if verdict.problem}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("original") / "run"
    assert train.main([*FLAGS[:-1], str(folder)]) == 0
    return folder


@pytest.fixture
def run(original: pathlib.Path) -> pathlib.Path:
    return pathlib.Path(shutil.copytree(original, "run"))


def largest(step: int) -> pathlib.Path:
    """Holds arrays."""
    return process_group.largest(SAVED / str(step) / "state")


def names(step: int) -> pathlib.Path:
    return SAVED / str(step) / "state" / "_METADATA"


def figures(step: int) -> pathlib.Path:
    return SAVED / str(step) / "metrics" / "metrics"


def truncate(path: pathlib.Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def delete(path: pathlib.Path) -> None:
    path.unlink()


@pytest.mark.parametrize("file", [largest, names, figures])
@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (truncate, "bytes instead of"),
        (delete, "is missing"),
        (flip, "has other content than was saved"),
    ],
)
@pytest.mark.fault(
    "truncated, deleted or flipped file in the newest checkpoint", "found and named", None
)
def test_each_damage_to_the_newest_is_found_and_named(
    file: Callable[[int], pathlib.Path],
    damage: Callable[[pathlib.Path], None],
    says: str,
    run: pathlib.Path,
) -> None:
    path = file(6)
    damage(path)
    [(step, problem)] = damaged().items()
    assert step == 6
    assert problem.startswith(f"{path.relative_to(SAVED / '6')} ")
    assert says in problem
    integrity.set_aside(SAVED, 6)
    assert integrity.steps(SAVED) == [2, 4]
    assert not damaged()
    assert not (run / "checksums" / "6.json").exists()


# The others differ only in what the test above compares. Cut figures would make Orbax fail when it
# opens the folder.
@pytest.mark.parametrize(
    ("damage", "file", "says"),
    [
        (flip, largest, "has other content than was saved"),
        (delete, names, "is missing"),
        (truncate, figures, "bytes instead of"),
    ],
)
@pytest.mark.fault(
    "damaged newest checkpoint, then the same command",
    "set aside; ends bitwise the same from the one before",
    0,
)
def test_a_run_falls_back_and_saves_the_damaged_step_again(
    damage: Callable[[pathlib.Path], None],
    file: Callable[[int], pathlib.Path],
    says: str,
    run: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    expected = arrays("run", 6)
    damage(file(6))
    capsys.readouterr()
    assert train.main(FLAGS) == 0
    errors = capsys.readouterr().err
    [line] = [line for line in errors.splitlines() if line.startswith("warning")]
    assert "the checkpoint of step 6 is damaged" in line
    assert says in line
    assert "continuing run after step 4" in errors
    for name, array in arrays("run", 6).items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)
    assert integrity.examine(SAVED, 6).state == "whole"
    assert (run / "damaged" / "6").is_dir()
    steps = [(row["split"], row["step"]) for row in RunDirectory(run).read("metrics.jsonl")]
    assert steps == [(split, step) for step in (2, 4, 6) for split in ("train", "validation")]


@pytest.mark.fault("all checkpoints damaged", "exit code 2, nothing touched", None)
def test_with_all_damaged_nothing_is_touched(
    run: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for step in (2, 4, 6):
        flip(largest(step))
    capsys.readouterr()
    for _ in range(2):
        assert train.main(FLAGS) == 2
        [line] = capsys.readouterr().err.splitlines()
        assert "all checkpoints in" in line
        assert "(3 are damaged)" in line
        assert integrity.steps(SAVED) == [2, 4, 6]
    assert evaluate.main(["run", "--devices", "2"]) == 2
    assert "all its checkpoints are damaged" in capsys.readouterr().err


def test_readers_name_a_damaged_step_and_take_the_next_best(
    run: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    accuracies = {step: integrity.read_metrics(SAVED, step)["accuracy"] for step in (2, 4, 6)}
    ranked = sorted(accuracies, key=lambda step: (accuracies[step], step), reverse=True)
    assert jaxdp.load("run").step == ranked[0]
    flip(largest(ranked[0]))
    capsys.readouterr()
    assert evaluate.main(["run", "--devices", "2", "--step", str(ranked[0])]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert f"--step {ranked[0]}: is damaged: state/" in line
    assert evaluate.main(["run", "--devices", "2", "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["step"] == ranked[1]
    assert f"using step {ranked[1]}" in printed.err
    assert len(answers("run", [np.zeros((8, 8, 1), np.uint8)])) == 1
    assert f"using step {ranked[1]}" in capsys.readouterr().err
    assert integrity.steps(SAVED) == [2, 4, 6]  # readers move nothing

    assert verdicts() == {2: "whole", 4: "whole", 6: "whole"} | {ranked[0]: "damaged"}


def test_a_checkpoint_without_checksums_is_unverified_and_continues(
    run: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(run / "checksums")
    assert {*verdicts().values()} == {"unverified"}
    longer = [*FLAGS, "--steps", "8"]
    assert train.main(longer) == 0
    assert "continuing run after step 6" in capsys.readouterr().err
    assert verdicts()[8] == "whole"


def cut(step: int) -> None:
    path = largest(step)
    os.truncate(path, path.stat().st_size // 2)


def empty(step: int) -> None:
    shutil.rmtree(SAVED / str(step))
    (SAVED / str(step)).mkdir()


def without_arrays(step: int) -> None:
    shutil.rmtree(SAVED / str(step) / "state" / "d")
    shutil.rmtree(SAVED / str(step) / "state" / "ocdbt.process_0")


@pytest.mark.parametrize(
    "damage", [cut, empty, without_arrays, lambda step: names(step).write_text("{")]
)
def test_a_newest_checkpoint_without_checksums_that_cannot_be_read_is_damaged(
    damage: Callable[[int], None], run: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(run / "checksums")
    for step in integrity.steps(SAVED)[:-2]:
        shutil.rmtree(SAVED / str(step))
    earlier, newest = integrity.steps(SAVED)
    figures(earlier).unlink()  # so that the newest is read first
    damage(newest)
    says = f"warning: the checkpoint of step {newest} is damaged: it cannot be read ("
    capsys.readouterr()
    Image.new("L", (8, 8)).save("image.png")
    for command, words in ((evaluate.main, ["run"]), (predict.main, ["run", "image.png"])):
        assert command([*words, "--devices", "2"]) == 0
        assert says in (told := capsys.readouterr().err)
        assert f"using step {earlier}" in told
    assert jaxdp.load("run").step == earlier
    capsys.readouterr()
    (run / "summary.json").unlink()
    assert train.main([*FLAGS, "--steps", "8"]) == 0
    told = capsys.readouterr().err
    assert says in told
    assert f"moved to {(run / 'damaged' / str(newest)).absolute()}" in told
    assert f"continuing run after step {earlier}" in told
    assert verdicts()[8] == "whole"


def test_a_checkpoint_of_another_run_is_noticed(
    run: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train.main([*FLAGS[:-1], "other", "--seed", "1", "--keep", "9", "--steps", "8"]) == 0
    for name in ("checkpoints/8", "checksums/8.json"):
        copy = shutil.copytree if name == "checkpoints/8" else shutil.copy
        copy(pathlib.Path("other", name), run / name)
    capsys.readouterr()
    says = "the checkpoint of step 8 is damaged: it is of a run with seed 1, not 0"
    assert evaluate.main(["run", "--devices", "2"]) == 0
    assert says in capsys.readouterr().err
    assert evaluate.main(["run", "--devices", "2", "--step", "8"]) == 2
    assert "is of a run with seed 1, not 0" in capsys.readouterr().err
    assert train.main([*FLAGS, "--steps", "10"]) == 0
    told = capsys.readouterr().err
    assert f"{says}; moved to {(run / 'damaged' / '8').absolute()}" in told
    assert "continuing run after step 6" in told


def test_a_checkpoint_saved_with_another_dataset_is_used_and_said(
    run: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = run / "config.yaml"
    settings.write_text(settings.read_text().replace("dataset: digits", "dataset: mnist"))
    capsys.readouterr()
    jaxdp.load(str(run))
    told = capsys.readouterr().err
    assert "was saved with dataset digits, and its run has mnist" in told
    assert "damaged" not in told


def test_a_checkpoint_is_put_back_after_a_kill_while_it_was_saved_again(
    run: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "replaced").mkdir()
    (run / "checkpoints" / "6").rename(run / "replaced" / "6")
    (run / "checksums" / "6.json").unlink()
    capsys.readouterr()
    assert train.main([*FLAGS, "--steps", "8"]) == 0
    assert "continuing run after step 6" in capsys.readouterr().err
    assert not (run / "replaced").exists()


def test_checksums_go_with_their_checkpoints() -> None:
    assert train.main([*FLAGS, "--keep", "1"]) == 0
    kept = integrity.steps(SAVED)
    assert kept[-1] == 6
    lists = {path.name for path in pathlib.Path("run", "checksums").iterdir()}
    assert lists == {f"{step}.json" for step in kept}


def test_a_reader_says_that_it_passes_over_metrics_that_are_damaged(
    run: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    best = SavedCheckpoints(SAVED, best_metric=("accuracy", True)).best_first()
    truncate(figures(best[0]))
    capsys.readouterr()
    assert evaluate.main(["run", "--devices", "2"]) == 0
    printed = capsys.readouterr()
    assert f"the checkpoint of step {best[0]} is damaged: metrics/metrics has " in printed.err
    assert f"using step {best[1]}" in printed.err
    shutil.rmtree(run / "checksums")  # without which the metrics cannot be compared
    assert evaluate.main(["run", "--devices", "2"]) == 0
    assert (
        f"step {best[0]} is damaged: metrics/metrics cannot be read; using step {best[1]}"
        in capsys.readouterr().err
    )


def test_a_damaged_checkpoint_on_another_file_system(
    run: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rename(*_: object) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    content = largest(6).read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", rename)
        assert integrity.set_aside(SAVED, 6) == run / "damaged" / "6"
    assert integrity.steps(SAVED) == [2, 4]
    assert process_group.largest(run / "damaged" / "6").read_bytes() == content
    shutil.rmtree(run / "damaged")
    (run / "damaged").touch()
    with pytest.raises(
        ConfigError,
        match=r"checkpoints/4 is damaged and cannot be moved to .*; move it away yourself",
    ):
        integrity.set_aside(SAVED, 4)


@pytest.mark.parametrize("moment", ["examined", "read"])
def test_a_reader_of_a_checkpoint_that_is_removed_meanwhile_chooses_again(
    moment: str,
    run: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    reader = SavedCheckpoints(SAVED, best_metric=("accuracy", True))
    first, *others = reader.best_first()
    examine = integrity.examine

    def removed_meanwhile(checkpoints: pathlib.Path, step: int) -> integrity.Verdict:
        if step == first and moment == "examined":
            names(first).unlink(missing_ok=True)
        verdict = examine(checkpoints, step)
        if step == first:
            shutil.rmtree(SAVED / str(first))
        return verdict

    monkeypatch.setattr(integrity, "examine", removed_meanwhile)
    with RunDirectory(run).exclusive():
        found = reader.read_chosen(None, reader.model_arrays)
    assert found is not None
    assert found[0] == others[0]
    assert [*verdicts()] == sorted(others)
    assert capsys.readouterr().err == ""
