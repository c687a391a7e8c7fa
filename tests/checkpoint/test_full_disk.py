"""What cannot be written ends the run with one line and exit code 1.

The checkpoint before it stays whole, and the run resumes.
"""

import errno
import json
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest
from process_group import environment

from jaxdp import train
from jaxdp.checkpoint import integrity

pytestmark = pytest.mark.usefixtures("no_pictures")
CONTINUED = "exit code 1 and one line; the checkpoint before is whole and continued from"
FLAGS = (
    "--model cnn --model-kwargs width=8 hidden=32 --global-batch-size 160 --schedule constant"
    " --log-every 1 --eval-every 2 --checkpoint-every 2 --devices 2 --run-dir run"
).split()
# What a full disk is to the file that does not fit: a write that fails. Nobody has to be root for
# it.
LIMITED = """
import resource, sys
from jaxdp import train
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
sys.exit(train.main(sys.argv[1:]))
"""
DISTURBED = """
import shutil, subprocess, sys
from jaxdp import train
from jaxdp.callbacks.progress import Progress
def advance(self, run, event):
    step = event.step
    if step == 3:
        {action}
Progress.on_step_end = advance
sys.exit(train.main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    assert train.main([*FLAGS[:-1], str(folder), "--steps", "2"]) == 0
    return folder


@pytest.fixture
def resumable(trained: pathlib.Path) -> pathlib.Path:
    return pathlib.Path(shutil.copytree(trained, "run"))


@pytest.fixture
def mounted() -> Iterator[pathlib.Path]:
    """A file system of its own, empty and large."""
    folder = pathlib.Path("mounted").absolute()
    folder.mkdir()
    if sys.platform != "linux" or shutil.which("mount") is None:
        pytest.skip("needs a tmpfs, and there is no mount command that makes one")
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
    )
    if made.returncode != 0:
        pytest.skip(
            f"needs a tmpfs, and may not mount one: {made.stderr.strip() or made.stdout.strip()}"
        )
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def remount(folder: pathlib.Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(folder)], check=True)


def only_error(program: str, *flags: str) -> str:
    """Runs a program that ends with 1, and returns its only line on standard error but for
    progress.
    """
    variables = environment()
    # The limit would cut its entries short, for everybody who reads them.
    variables["JAX_ENABLE_COMPILATION_CACHE"] = "false"
    command = [sys.executable, "-c", program, *FLAGS, "--steps", "6", *flags]
    ended = subprocess.run(command, capture_output=True, text=True, env=variables, timeout=240)
    lines = ended.stderr.splitlines()
    shown = ("step ", "continuing ", "cnn (", "unet (")  # progress
    lines = [line for line in lines if not line.startswith(shown)]
    assert (ended.returncode, len(lines)) == (1, 1), ended.stderr
    assert lines[0].startswith("jaxdp.train: error: ")
    return lines[0]


def verdicts() -> list[tuple[int, str]]:
    found = integrity.examine_all(pathlib.Path("run/checkpoints"))
    return [(step, verdict.state) for step, verdict in found.items()]


def assert_step_4_is_not_saved(program: str, reason: str) -> None:
    line = only_error(program)
    assert line.startswith("jaxdp.train: error: the checkpoint of step 4 could not be saved in ")
    assert reason in line
    assert verdicts() == [(2, "whole")]


def assert_completes(capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert train.main([*FLAGS, "--steps", "6"]) == 0
    assert "continuing run after step 2" in capsys.readouterr().err
    assert verdicts() == [(2, "whole"), (4, "whole"), (6, "whole")]


@pytest.mark.fault("file size limit while saving", CONTINUED, 0)
def test_a_save_that_does_not_fit_leaves_the_one_before_whole(
    resumable: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_step_4_is_not_saved(LIMITED.format(limit=40_000), "File too large")
    assert_completes(capsys)


@pytest.mark.slow
@pytest.mark.fault("full file system while saving (tmpfs)", CONTINUED, 0)
def test_a_file_system_that_is_full(
    trained: pathlib.Path, mounted: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(trained, mounted / "run")
    pathlib.Path("run").symlink_to(mounted / "run")
    system = os.statvfs(mounted)
    used = (system.f_blocks - system.f_bfree) * system.f_frsize
    # Rows, events and pictures fit, 200 kB of arrays do not.
    remount(mounted, f"size={used + 150_000}")
    assert_step_4_is_not_saved(LIMITED.format(limit=-1), "No space left on device")
    remount(mounted, "size=64m")
    assert_completes(capsys)


@pytest.mark.slow
@pytest.mark.fault("file system becomes read-only", CONTINUED, 0)
def test_a_file_system_that_becomes_read_only(
    resumable: pathlib.Path,
    mounted: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    # That of the checkpoints alone: while the run holds its metrics open the system would refuse.
    shutil.copytree("run/checkpoints", mounted, dirs_exist_ok=True)
    subprocess.run(["mount", "--bind", str(mounted), "run/checkpoints"], check=True)
    request.addfinalizer(
        lambda: subprocess.run(["umount", "--lazy", "run/checkpoints"], check=True)
    )
    action = f"subprocess.run(['mount', '-o', 'remount,ro', {str(mounted)!r}], check=True)"
    assert_step_4_is_not_saved(DISTURBED.format(action=action), "Read-only file system")
    remount(mounted, "rw")
    assert_completes(capsys)


@pytest.mark.slow
@pytest.mark.fault(
    "metrics.jsonl cut short by a full disk",
    "exit code 1 and one line; no row missing after the next start",
    0,
)
def test_a_row_that_is_cut_short(
    resumable: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = resumable / "metrics.jsonl"
    long = len(rows.read_text().splitlines()[0])
    # In the middle of the second row: where one happened to end there, nothing would be cut short.
    program = LIMITED.format(limit=rows.stat().st_size + 3 * long // 2)
    assert "File too large" in only_error(program, "--checkpoint-every", "6")
    with pytest.raises(json.JSONDecodeError):
        json.loads(rows.read_text().splitlines()[-1])
    assert verdicts() == [(2, "whole")]
    assert_completes(capsys)
    found = [(row["split"], row["step"]) for row in map(json.loads, rows.read_text().splitlines())]
    trained, evaluated = (("train", step) for step in range(1, 7)), (("test", n) for n in (2, 4, 6))
    assert sorted(found) == sorted([*trained, *evaluated])


@pytest.mark.slow
@pytest.mark.fault("run folder removed while training", "exit code 1 and one line", None)
def test_a_folder_that_vanishes_ends_the_run(resumable: pathlib.Path) -> None:
    line = only_error(DISTURBED.format(action="shutil.rmtree('run')"))
    assert "No such file or directory" in line
    assert not pathlib.Path("run").exists()


@pytest.mark.parametrize("when", ["step", "end"])
@pytest.mark.fault(
    "run folder moved while training", "exit code 1 and one line; continued where it is now", 0
)
def test_a_folder_that_is_moved_ends_the_run(
    when: str, resumable: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    move = "__import__('os').rename('run', 'moved')"
    program = DISTURBED.format(action=move)
    if when == "end":
        program = program.replace("step == 3", "step == 6")
    assert "run was moved, removed or replaced; put it back, or give its" in only_error(program)
    saved = integrity.steps(pathlib.Path("moved/checkpoints"))[-1]
    capsys.readouterr()
    assert train.main([*FLAGS, "--run-dir", "moved", "--steps", "6"]) == 0
    assert f"continuing moved after step {saved}" in capsys.readouterr().err
    rows = pathlib.Path("moved/metrics.jsonl").read_text()
    steps = {json.loads(row)["step"] for row in rows.splitlines()}
    assert steps == {*range(1, 7)}


def test_a_folder_that_is_replaced_ends_the_run_and_stays_as_it_is(resumable: pathlib.Path) -> None:
    action = (
        "import os; os.rename('run', 'moved'); shutil.copytree('moved', 'run');"
        " os.truncate('run/writer.lock', 0)"
    )
    only_error(DISTURBED.format(action=action))
    assert {path.name for path in pathlib.Path("run/checkpoints").iterdir()} == {"2"}
    lengths = [pathlib.Path(name, "metrics.jsonl").stat().st_size for name in ("run", "moved")]
    assert lengths == sorted(lengths)
    # As far as this run knows, the lock belongs to another one.
    assert pathlib.Path("run/writer.lock").read_bytes() == b""


def test_a_checkpoint_whose_checksums_cannot_be_written_is_one_all_the_same(
    resumable: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(path: pathlib.Path, content: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(integrity, "replace_file", full)
    assert train.main([*FLAGS, "--steps", "4"]) == 0
    warnings = [
        line for line in capsys.readouterr().err.splitlines() if "checkpoint of step" in line
    ]
    assert warnings == [
        "warning: the checkpoint of step 4 is complete, but has no checksums: No space left on"
        " device"
    ]
    assert verdicts() == [(2, "whole"), (4, "unverified")]
