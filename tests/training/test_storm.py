"""Kill -9 at any moment, the same command again, and so on: the run ends bitwise where an undisturbed one does."""

import collections
import dataclasses
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from fault_table import RecordFault
from process_group import environment

from jaxdp.checkpoint import integrity
from jaxdp.checkpoint.restore import SavedCheckpoints
from jaxdp.training.reader import MEASURED

KEEP = 3
FLAGS = (
    f"--devices 2 --global-batch-size 160 --ema-decay 0.9 --checkpoint-every 1 --log-every 1 --eval-every 3 --keep {KEEP} "
    "--validation 0.1"
).split()
PYRAMIDNET = "--model-kwargs depth=8 alpha=6 shake_drop=0.5 dropout=0.2".split()
CNN = "--model cnn --model-kwargs width=4 hidden=16 dropout=0.2".split()  # starts in half the time
# When step N is shown, the save of N - 1 may be under way, and that of N has not begun: the newest complete one is N - 2.
MOST_AHEAD = 2


@dataclasses.dataclass
class Start:
    """One start of the command, which writes what it shows to a file."""

    process: subprocess.Popen[bytes]
    log: pathlib.Path
    run_dir: pathlib.Path
    newest_before: int | None
    temporary_before: set[str]

    def shown(self) -> str:
        return self.log.read_text(errors="replace")

    def steps_shown(self) -> list[int]:
        """Returns the training steps that were shown whole."""
        return [int(step) for step in re.findall(r"^step (\d+)/\d+  epoch \d+/\d+  train .*\n", self.shown(), re.MULTILINE)]

    def continued_after(self) -> int | None:
        found = re.search(r"^continuing \S+ after step (\d+)$", self.shown(), re.MULTILINE)
        return int(found[1]) if found else None

    def new_temporary(self) -> set[str]:
        """Returns folders that are no checkpoint, or not yet, and that this start made."""
        return temporary(self.run_dir) - self.temporary_before


@dataclasses.dataclass
class Storm:
    """Kills by where they landed, and what was found after them."""

    kills: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    without_checksums: int = 0
    half_removed: int = 0
    checked_continuations: int = 0
    most_steps_lost: int = 0


def saved(run_dir: pathlib.Path) -> pathlib.Path:
    return run_dir / "checkpoints"


def temporary(run_dir: pathlib.Path) -> set[str]:
    folder = saved(run_dir)
    return {name for name in os.listdir(folder) if not name.isdecimal()} if folder.is_dir() else set()


def newest(run_dir: pathlib.Path) -> int | None:
    return max(integrity.steps(saved(run_dir)), default=None)


def arrays(run_dir: pathlib.Path, step: int) -> dict[str, np.ndarray]:
    return SavedCheckpoints(saved(run_dir), best_metric=("accuracy", True)).arrays(step)


def rows(run_dir: pathlib.Path) -> list[dict[str, Any]]:
    """Strictly: a line that is no JSON is an error here."""
    found = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name not in MEASURED} for row in found]


def start(folder: pathlib.Path, number: int, run_dir: str, flags: list[str]) -> Start:
    # A cache of the storm's own: a kill may cut an entry short while it is written, and others read the shared one.
    variables = environment() | {"JAX_COMPILATION_CACHE_DIR": str(folder / "cache")}
    log, path = folder / f"{run_dir}-{number}.log", folder / run_dir
    command = [sys.executable, "-X", "faulthandler", "-m", "jaxdp.train", *FLAGS, *flags, "--run-dir", run_dir]
    with log.open("wb") as file:
        process = subprocess.Popen(command, cwd=folder, env=variables, stdout=subprocess.DEVNULL, stderr=file)
    return Start(process, log, path, newest(path), temporary(path))


def wait_for(begun: Start, condition: Callable[[], Any], seconds: float = 400) -> None:
    """Looks every few milliseconds; returns at once when the process has ended."""
    deadline = time.monotonic() + seconds
    while not condition() and begun.process.poll() is None:
        if time.monotonic() > deadline:
            begun.process.send_signal(signal.SIGABRT)  # its log then says where every thread is
            begun.process.wait()
            raise AssertionError(f"nothing happened for {seconds} s:\n{begun.shown()}")
        time.sleep(0.003)


def wait_for_moment(kind: str, begun: Start, chance: random.Random, start_seconds: float) -> None:
    if kind == "start-up":
        time.sleep(chance.uniform(0, start_seconds))
        return
    wait_for(begun, begun.steps_shown)
    if kind == "step":
        count = chance.randint(1, 3)
        wait_for(begun, lambda: len(begun.steps_shown()) >= count)
        time.sleep(chance.uniform(0, 0.15))
    elif kind == "save begins":
        if chance.random() < 0.5:  # the first save of this start, or a later one
            before = newest(begun.run_dir)
            wait_for(begun, lambda: newest(begun.run_dir) != before)
        wait_for(begun, begun.new_temporary)
        time.sleep(chance.uniform(0, 0.05))
    else:  # the checkpoint is complete; its checksums, and the removal of the oldest one, are still to come
        before = newest(begun.run_dir)
        wait_for(begun, lambda: newest(begun.run_dir) != before)
        time.sleep(chance.uniform(0, 0.03))


def check_continuation(begun: Start, storm: Storm) -> None:
    """It went on after exactly the newest complete checkpoint, if it came that far, and complained about nothing else."""
    text, steps, after = begun.shown(), begun.steps_shown(), begun.continued_after()
    for step in re.findall(r"the checkpoint of step (\d+) is damaged", text):
        # One that was being removed, since enough newer ones are complete.
        assert begun.newest_before is not None, text
        assert int(step) <= begun.newest_before - KEEP, text
        storm.half_removed += 1
    assert "Traceback" not in text, text
    if steps:
        assert after == begun.newest_before, text
        assert steps == list(range((after or 0) + 1, steps[-1] + 1))
    if after is not None:
        assert begun.newest_before is not None, text
        storm.most_steps_lost = max(storm.most_steps_lost, begun.newest_before - after)
        storm.checked_continuations += 1


def check_disk(begun: Start, storm: Storm) -> None:
    """What is there after a kill can be used: the newest checkpoint is whole, and no older than the last step shown allows."""
    step, shown = newest(begun.run_dir), begun.steps_shown()
    if shown:
        assert (step or 0) >= shown[-1] - MOST_AHEAD
    if step is None:
        return
    verdict = integrity.examine(saved(begun.run_dir), step, thorough=True)
    assert verdict.usable, verdict
    storm.without_checksums += verdict.state == "unverified"
    found = arrays(begun.run_dir, step)
    assert int(found["step"]) == step
    assert all(np.isfinite(array).all() for array in found.values())


def where_it_landed(begun: Start) -> str:
    if not begun.steps_shown():
        return "start-up"
    return "save under way" if begun.new_temporary() else "training"


def moments(kills: int, chance: random.Random) -> Iterator[str]:
    kinds = ["save ends", "save begins", "step", "start-up"]
    found = [kinds[number % len(kinds)] for number in range(kills)]
    chance.shuffle(found)
    return iter(found)


def weather(folder: pathlib.Path, flags: list[str], kills: int, seed: int) -> Storm:
    """Runs once undisturbed, beside it through the storm, and compares."""
    chance, storm = random.Random(seed), Storm()
    last = 8 + 2 * kills  # of four starts that are killed one makes 5 steps at most, two 3, one none
    flags = [*flags, "--steps", str(last)]
    whole = start(folder, 0, "whole", flags)
    try:
        endure(folder, flags, kills, chance, storm)
        assert whole.process.wait(timeout=300) == 0, whole.shown()
    finally:
        whole.process.kill()
        whole.process.wait()
    compare(folder / "whole", folder / "parts", last)
    return storm


def endure(folder: pathlib.Path, flags: list[str], kills: int, chance: random.Random, storm: Storm) -> None:
    start_seconds = 6.0  # until one was seen that found its compiled steps
    for number, kind in enumerate(moments(kills, chance)):
        began = time.monotonic()
        begun = start(folder, number, "parts", flags)
        try:
            wait_for_moment(kind, begun, chance, start_seconds)
            assert begun.process.poll() is None, f"it ended before kill {number}:\n{begun.shown()}"
            if kind == "step":
                start_seconds = time.monotonic() - began
        finally:
            begun.process.send_signal(signal.SIGKILL)
            code = begun.process.wait()
        assert code == -signal.SIGKILL, begun.shown()
        where = where_it_landed(begun)
        storm.kills[where] += 1
        print(f"kill {number}: {kind} after {time.monotonic() - began:.1f} s, landed in {where}; newest {newest(begun.run_dir)}")
        check_continuation(begun, storm)
        check_disk(begun, storm)
    end = start(folder, kills, "parts", flags)
    assert end.process.wait(timeout=300) == 0, end.shown()
    check_continuation(end, storm)


def compare(whole: pathlib.Path, parts: pathlib.Path, last: int) -> None:
    expected, ours = arrays(whole, last), arrays(parts, last)
    assert expected.keys() == ours.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(ours[name], array, err_msg=name)
    assert [row["step"] for row in rows(parts) if row["split"] == "train"] == list(range(1, last + 1))
    assert rows(parts) == rows(whole)
    summaries = [json.loads((path / "summary.json").read_text()) for path in (whole, parts)]
    for name in ("metrics", "best", "steps", "epochs", "status"):
        assert summaries[0][name] == summaries[1][name]
    assert temporary(parts) == set()  # what kills left behind is gone
    assert integrity.steps(saved(parts)) == integrity.steps(saved(whole))


def tell(storm: Storm, record_fault: RecordFault) -> None:
    print(f"{storm.kills.total()} kills: {dict(storm.kills)}; {storm.without_checksums} came before the checksums", end=", ")
    print(f"{storm.half_removed} while an old checkpoint was being removed", end="; ")
    print(f"{storm.checked_continuations} continuations, at most {storm.most_steps_lost} steps lost")
    outcome = "continues after the newest checkpoint, ends bitwise the same"
    for where, times in storm.kills.items():
        record_fault(f"kill -9, {where}", times, outcome, storm.most_steps_lost)


@pytest.mark.slow
def test_a_few_kills_change_nothing(tmp_path: pathlib.Path, record_fault: RecordFault) -> None:
    storm = weather(tmp_path, [*CNN, "--strategy", "pmap"], kills=3, seed=0)
    assert storm.kills.total() == 3
    assert storm.checked_continuations >= 1
    tell(storm, record_fault)


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "placement", "seed"), [("pmap", "device", 1), ("sharded", "host", 2)])
def test_a_storm_changes_nothing(
    strategy: str, placement: str, seed: int, tmp_path: pathlib.Path, record_fault: RecordFault
) -> None:
    storm = weather(tmp_path, [*PYRAMIDNET, "--strategy", strategy, "--data-placement", placement], kills=15, seed=seed)
    assert storm.kills.total() == 15
    assert min(storm.kills[where] for where in ("start-up", "training", "save under way")) >= 1
    tell(storm, record_fault)
