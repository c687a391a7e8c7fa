"""No character in a path loses a run: Orbax takes some for a pattern, a separator or a protocol."""

import contextlib
import os
import pathlib
import resource
import subprocess
import sys

import jax
import numpy as np
import optax
import pytest
from example_files import split_classes, write
from flax import nnx
from process_group import environment
from runs import error_line

import jaxdp
from jaxdp import convert, evaluate, models, predict, train
from jaxdp.checkpoint import checkpoints as checkpoints_lib
from jaxdp.checkpoint import paths
from jaxdp.checkpoint.checkpoints import Checkpoints, NotSavedError
from jaxdp.checkpoint.restore import SavedCheckpoints
from jaxdp.errors import ConfigError
from jaxdp.rundir.layout import RunDirectory
from jaxdp.step.state import TrainState, create_train_state

pytestmark = pytest.mark.usefixtures("no_pictures")
FLAGS = (
    "--model cnn --model-kwargs width=4 hidden=8 --devices 1 --global-batch-size 4 --steps 2"
    " --checkpoint-every 1"
).split()
ODD = [
    "a[b]",
    "[!x]",
    "a?b",
    "a*b",
    "a**b",
    "**",
    "a\\b",
    "\\",
    "gs:",
    "s3:",
    "logs:",
    "a:b",
    "{a,b}",
]
ODD += [
    "file:",
    "a#b",
    "a%20b",
    "a|b",
    "'a'",
    '"a"',
    "$HOME",
    "`a`",
    "a;b&c",
    "~",
    " a ",
    "a\nb",
    "é ü",
    "日本",
]
MATCHED = {"a[b]": "ab", "[!x]": "y", "a?b": "axb", "a*b": "axxb"}  # what the pattern leads to


def state(value: float) -> TrainState:
    model = models.create("cnn", num_classes=2, in_channels=1, rngs=nnx.Rngs(0), width=4, hidden=8)
    created = create_train_state(model, optax.sgd(0.1))
    return jax.tree.map(lambda leaf: np.full_like(leaf, value), created)


def save(folder: pathlib.Path, value: float) -> None:
    folder.mkdir(parents=True)
    with contextlib.closing(Checkpoints(folder, keep=1, best_metric=None)) as checkpoints:
        for step in (1, 2):  # of which the second removes the first
            checkpoints.save(step, state(value), {"position": step}, {"loss": value})


def restored(folder: pathlib.Path) -> float:
    """Returns the value that all arrays of a checkpoint have."""
    found, position = SavedCheckpoints(folder, best_metric=None).restore(2, state(0))
    assert position == {"position": 2}
    (value,) = {float(each) for leaf in jax.tree.leaves(found) for each in np.ravel(leaf)}
    return value


@pytest.mark.parametrize("name", ODD)
def test_a_checkpoint_is_read_back_from_any_folder(name: str) -> None:
    if name in MATCHED:
        save(pathlib.Path(MATCHED[name], "checkpoints"), 1.0)
    for number, folder in enumerate((name, f"{name}/run", f"x/{name}/y/run"), 2):
        save(pathlib.Path(folder, "checkpoints"), float(number))
        assert restored(pathlib.Path(folder, "checkpoints")) == number
        kept = [path.name for path in pathlib.Path(folder, "checkpoints").iterdir()]
        assert kept == ["2"]
    os.rename(name, "renamed")
    assert restored(pathlib.Path("renamed", "checkpoints")) == 2
    before = {"renamed", "x", *({MATCHED[name]} if name in MATCHED else ())}
    assert {path.name for path in pathlib.Path().iterdir()} == before
    pathlib.Path("[link]").symlink_to("renamed")
    assert restored(pathlib.Path("[link]", "checkpoints")) == 2
    os.chdir(pathlib.Path("x", name))
    assert restored(pathlib.Path("y", "run", "checkpoints")) == 4


def test_commands_work_in_a_folder_with_any_name(capfd: pytest.CaptureFixture[str]) -> None:
    os.makedirs("Mice [2024]/a?b**")
    os.chdir("Mice [2024]")
    write(split_classes(8), pathlib.Path("photos [1]"))
    run, flags = "a?b**/run: {x} \\ [1]", [*FLAGS, "--dataset", "folder:photos [1]"]
    assert train.main([*flags, "--run-dir", run]) == 0
    assert train.main([*flags, "--steps", "4", "--run-dir", run]) == 0
    assert f"continuing {run} after step 2" in capfd.readouterr().err
    assert evaluate.main([run]) == 0
    assert predict.main([run, "photos [1]", "--csv", "[x].csv"]) == 0
    assert convert.main(["export", run, "--output", "[w].safetensors"]) == 0
    assert train.main([*flags, "--init-from", run, "--run-dir", "[2]"]) == 0
    imported = ["[w].safetensors", *FLAGS[:5], "--dataset", "folder:photos [1]"]
    assert convert.main(["import", *imported, "--run-dir", "[4]"]) == 0
    result = jaxdp.load(run)
    assert result.step == 4
    assert jaxdp.load(result.save("gs:")).step == 4


def test_a_new_run_gets_a_folder_with_a_plain_name() -> None:
    odd = "Mice [2024] *?"
    write(split_classes(8), pathlib.Path(odd))
    flags = [*FLAGS, "--dataset", f"folder:{odd}"]
    assert train.main(flags) == 0
    (run,) = pathlib.Path("runs").iterdir()
    name, _, digest = run.name.rpartition("-")
    assert name == "cnn-folder-Mice _2024_ __"
    assert jaxdp.load(run).step == 2
    # A run of an earlier version has the old name, and goes on there.
    earlier = run.rename(run.with_name(f"cnn-folder-{odd}-{digest}"))
    assert train.main([*flags, "--steps", "2"]) == 0
    assert [*pathlib.Path("runs").iterdir()] == [earlier]


@pytest.mark.parametrize("url", ["gs://bucket/run", "s3://b/run", "file:///tmp/run", "gs:/run"])
def test_a_url_is_refused_in_one_line(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = [*FLAGS, "--dataset", "digits"]
    told = f"{url}: must be a path on this machine, not a URL"
    assert train.main([*flags, "--run-dir", url]) == 2
    assert told in error_line(capsys)
    assert evaluate.main([url]) == 2
    assert told in error_line(capsys)
    assert predict.main(["run", "images", "--csv", url]) == 2
    assert told in error_line(capsys)
    assert convert.main(["export", "run", "--output", f"{url}.safetensors"]) == 2
    assert "must be a path on this machine" in error_line(capsys)
    with pytest.raises(ConfigError, match="must be a path on this machine"):
        jaxdp.Trainer("cnn", "digits", run_dir=url)
    assert not [*pathlib.Path().iterdir()]


def test_two_processes_save_in_a_folder_with_any_name() -> None:
    command = [sys.executable, "-m", *"jaxdp.launch -n 2 --devices-per-process 1 -- train".split()]
    run = ["--run-dir", "[x]/a\\b", "--dataset", "digits", "--global-batch-size", "32"]
    flags = [*command, *FLAGS[:5], "--steps", "2", "--checkpoint-every", "1", *run]
    ended = subprocess.run(flags, capture_output=True, text=True, env=environment())
    assert ended.returncode == 0, ended.stderr
    assert jaxdp.load("[x]/a\\b").step == 2


def test_a_run_whose_checkpoints_cannot_be_read_ends_at_its_first_save(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(paths, "plain", contextlib.nullcontext)
    flags = [*FLAGS, "--dataset", "digits", "--steps", "5", "--run-dir", "run[x]"]
    assert train.main(flags) == 1
    line = capsys.readouterr().err.splitlines()[-1]
    assert "the checkpoint of step 1 was saved, but cannot be used: " in line
    assert f"{pathlib.Path('run[x]', 'checkpoints', '1').absolute()} cannot be read" in line
    assert not pathlib.Path("run[x]", "checkpoints", "3").exists()


def test_a_first_checkpoint_with_other_arrays_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = checkpoints_lib.flatten
    monkeypatch.setattr(checkpoints_lib, "flatten", lambda tree: dict([*whole(tree).items()][1:]))
    with pytest.raises(NotSavedError, match=r"of step 1 was saved, but cannot be used: .*1 arrays"):
        save(pathlib.Path("run", "checkpoints"), 1.0)


def test_a_system_without_paths_of_descriptors_refuses_before_training(
    capsys: pytest.CaptureFixture[str],
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (500, hard))
    try:
        flags = [*FLAGS, "--dataset", "digits", "--run-dir", "run[x]"]
        assert train.main(flags) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert "Orbax misreads the path" in error_line(capsys)
    assert RunDirectory(pathlib.Path("run[x]")).load_config  # may be tried again
