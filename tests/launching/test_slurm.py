"""The batch script says what Slurm must know, keeps every argument whole, and asks for a requeue
after 75 and nothing else.
"""

import os
import pathlib
import subprocess
import sys

import pytest

from jaxdp import launch

NEEDED = "slurm --nodes 3 --gpus-per-node 4".split()
TRAIN = ["--", "train", "--model", "pyramidnet"]


def printed(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert launch.main(words) == 0
    return capsys.readouterr().out


def program(name: str, text: str) -> None:
    path = pathlib.Path("bin", name)
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)


def directives(script: str) -> dict[str, str]:
    words = [
        line.removeprefix("#SBATCH --").partition("=")
        for line in script.splitlines()
        if line.startswith("#SBATCH")
    ]
    return {name: value for name, _, value in words}


def test_the_script_says_what_slurm_must_know(capsys: pytest.CaptureFixture[str]) -> None:
    more = "--time 04:00:00 --cpus-per-task 6"
    script = printed([*NEEDED, *more.split(), *TRAIN], capsys)
    assert directives(script) == {
        "job-name": "jaxdp",
        "nodes": "3",
        "ntasks-per-node": "4",
        "gpus-per-node": "4",
        "cpus-per-task": "6",
        "time": "04:00:00",
        "output": "%x-%j.out",
        "open-mode": "append",
        "signal": "USR1@120",
        "requeue": "",
    }
    assert script.splitlines()[1].startswith("#SBATCH")  # they count only before the first command
    (line,) = [line for line in script.splitlines() if line.startswith("srun ")]
    assert line.endswith(f" --cpus-per-task=6 {sys.executable} -m jaxdp.train --model pyramidnet")


def test_a_cpu_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    for flags, tasks in (([], "1"), (["--tasks-per-node", "2"], "2")):
        found = directives(
            printed([*"slurm --nodes 1 --gpus-per-node 0".split(), *flags, *TRAIN], capsys)
        )
        assert found["ntasks-per-node"] == tasks
        assert not {"gpus-per-node", "cpus-per-task", "time"} & set(found)


@pytest.mark.parametrize("code", [0, 1, 3, 75, 137])
def test_the_script_requeues_after_75_only(
    code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = 'it\'s $HOME; `rm -rf x` "q" *'
    script = printed([*NEEDED, "--", "train", "--run-dir", run_dir], capsys)
    program("srun", f'printf "%s\\n" "$@" > words; exit {code}')
    program("scontrol", 'echo "$@" > requeued')
    environment = os.environ | {
        "PATH": f"{pathlib.Path('bin').absolute()}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "77",
    }
    assert subprocess.run(["bash"], input=script, text=True, env=environment).returncode == code
    assert pathlib.Path("words").read_text().splitlines()[-1] == run_dir
    requeued = pathlib.Path("requeued")
    assert (requeued.read_text() if requeued.exists() else None) == (
        "requeue 77\n" if code == 75 else None
    )
