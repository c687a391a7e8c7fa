"""Kills, signals and full disks at any moment, the same command again, and so on: the run ends
bitwise as an undisturbed one.

`nox -s random_faults` tries a matrix of models, strategies, callbacks and processes, with 200
kills; `-- -k unet` a part of it.
"""

# Over 300 lines: what is done to a run, when, and what is looked at afterwards.

import collections
import contextlib
import dataclasses
import os
import pathlib
import random
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import network
import numpy as np
import pytest
from fault_table import RecordFault
from process_group import environment
from runs import arrays, assert_same_run, rows

from jaxdp.checkpoint import integrity
from jaxdp.training.reader import MEASURED

KEEP = 3
FLAGS = (
    "--devices 2 --global-batch-size 160 --ema-decay 0.9 --checkpoint-every 1 --log-every 1"
    f" --eval-every 3 --keep {KEEP} --validation 0.1"
).split()
PYRAMIDNET = "--model-kwargs depth=8 alpha=6 shake_drop=0.5 dropout=0.2".split()
CNN = "--model cnn --model-kwargs width=4 hidden=16 dropout=0.2".split()  # starts in half the time
# A matrix of 200 kills: flags and processes by name, one run a line.
_RUNS = """
cnn, single: CNN --strategy single --devices 1
cnn, pmap, callbacks: CNN --strategy pmap --callbacks early_stopping:patience=1000 early_stopping:patience=1000,metric=loss
cnn, shard_map, host data: CNN --strategy shard_map --data-placement host
cnn, sharded parameters: CNN --strategy sharded --shard-params --optimizer adamw
cnn, central: CNN --strategy central
pyramidnet, pmap: PYRAMIDNET --strategy pmap
resnet, pmap, accumulation: --model resnet --model-kwargs depth=8 width=4 --strategy pmap --accumulate-steps 2 --augment shift flip
unet, sharded: --model unet --model-kwargs levels=2 base_channels=4 --dataset cells --global-batch-size 8 --strategy sharded
cnn, pmap, 2 processes of 2 devices: CNN --strategy pmap
cnn, pmap, 2 hosts and a network link: CNN --strategy pmap --devices 1
cnn, sharded parameters, 2 processes, callbacks: CNN --strategy sharded --shard-params --devices 1 --callbacks early_stopping:patience=1000
cnn, exact, 2 workers: CNN --devices 1 --strategy exact --workers 2
cnn, exact, other devices at each start: CNN --strategy exact --devices OTHERS
"""
# By the number of a start, where the flags say OTHERS.
DEVICES = ("1", "8", "3", "2", "4")
_MODELS = {"CNN": CNN, "PYRAMIDNET": PYRAMIDNET}
MATRIX = {
    name: [flag for word in flags.split() for flag in _MODELS.get(word, [word])]
    for name, flags in (line.split(": ") for line in _RUNS.strip().splitlines())
}
# What depends on which worker was free when.
OF_WORKERS = (
    "elapsed_seconds",
    "worker_slices",
    "recomputed_slices",
    "dropped_slices",
    "worker_bytes",
    "worker_idle_seconds",
)
FAULTS = (
    "kill -9",
    "kill -9",
    "SIGTERM",
    "SIGSTOP + SIGCONT + kill -9",
    "SIGSTOP + kill -9",
    "full disk",
)
FAULTS_OF_HOSTS = ("network link cut", "network link cut", "kill -9", "full disk")
STOPPED, FAILED, REFUSED = 75, 1, 2  # exit codes
# When step N is shown, the save of N - 1 may be under way, and that of N has not begun: the newest
# complete one is N - 2.
MOST_AHEAD = 2


@dataclasses.dataclass
class Start:
    """One start of the command, which writes what it shows to a file.

    Where there are hosts, of one on each.
    """

    process: subprocess.Popen[bytes]
    log: pathlib.Path
    run_dir: pathlib.Path
    newest_before: int | None
    temporary_before: set[str]
    processes: int = 1
    hosts: Sequence[network.Host] = ()
    others: Sequence[subprocess.Popen[bytes]] = ()

    def shown(self) -> str:
        return self.log.read_text(errors="replace")

    def steps_shown(self) -> list[int]:
        """Returns the training steps that were shown whole."""
        return [
            int(step)
            for step in re.findall(
                r"^(?:\[0\] )?step (\d+)/\d+  epoch \d+/\d+  train .*\n", self.shown(), re.MULTILINE
            )
        ]

    def continued_after(self) -> int | None:
        found = re.search(
            r"^(?:\[0\] )?continuing \S+ after step (\d+)(?: with other settings: devices .*)?$",
            self.shown(),
            re.MULTILINE,
        )
        return int(found[1]) if found else None

    def children(self) -> list[int]:
        """Returns the processes that the launcher has started, or those on the other hosts."""
        if self.hosts:
            return [process.pid for process in self.others if process.poll() is None]
        if self.processes == 1 or self.process.poll() is not None:
            return []
        return [
            int(word)
            for word in (
                pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
                .read_text()
                .split()
            )
        ]

    def new_temporary(self) -> set[str]:
        """Returns folders that are no checkpoint, or not yet, and that this start made."""
        return temporary(self.run_dir) - self.temporary_before


@dataclasses.dataclass
class Injected:
    """Faults by where they landed, and what was found after them."""

    kills: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    faults: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    without_checksums: int = 0
    half_removed: int = 0
    checked_continuations: int = 0
    most_steps_lost: int = 0


def saved(run_dir: pathlib.Path) -> pathlib.Path:
    return run_dir / "checkpoints"


def temporary(run_dir: pathlib.Path) -> set[str]:
    folder = saved(run_dir)
    return (
        {name for name in os.listdir(folder) if not name.isdecimal()} if folder.is_dir() else set()
    )


def newest(run_dir: pathlib.Path) -> int | None:
    return max(integrity.steps(saved(run_dir)), default=None)


def start(
    folder: pathlib.Path,
    number: int,
    run_dir: str,
    flags: list[str],
    processes: int = 1,
    hosts: Sequence[network.Host] = (),
) -> Start:
    flags = [DEVICES[number % len(DEVICES)] if flag == "OTHERS" else flag for flag in flags]
    # A cache of its own: a kill may cut an entry short while it is written, and others read
    # the shared one. A limit on the size of files cuts bytecode short, which Python does not
    # notice.
    own = {"JAX_COMPILATION_CACHE_DIR": str(folder / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
    variables = environment() | own
    log, path = folder / f"{run_dir}-{number}.log", folder / run_dir
    launched = (
        ["jaxdp.launch", "-n", str(processes), "--", "train"]
        if processes > 1 and not hosts
        else ["jaxdp.train"]
    )
    beats = ["--heartbeat-timeout", "5"] if processes > 1 else []
    python = [sys.executable, "-X", "faulthandler", "-m"]
    command = [*python, *launched, *beats, *FLAGS, *flags, "--run-dir", run_dir]
    begun: list[subprocess.Popen[bytes]] = []
    where = (
        f"--coordinator {hosts[0].address}:{9000 + number} --num-processes {processes} --process-id"
        " {}"
        if hosts
        else ""
    )
    for index in range(len(hosts) or 1):
        own_log = log.with_suffix(f".{index}") if index else log
        with own_log.open("wb") as file:
            popen = hosts[index].popen if hosts else subprocess.Popen
            words = [*command, *where.format(index).split()]
            begun.append(
                popen(words, cwd=folder, env=variables, stdout=subprocess.DEVNULL, stderr=file)
            )
    return Start(begun[0], log, path, newest(path), temporary(path), processes, hosts, begun[1:])


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


def check_continuation(begun: Start, injected: Injected) -> None:
    """It went on after exactly the newest complete checkpoint, if it came that far, and complained
    about nothing else.
    """
    text, steps, after = begun.shown(), begun.steps_shown(), begun.continued_after()
    for step in re.findall(r"the checkpoint of step (\d+) is damaged", text):
        # One that was being removed, since enough newer ones are complete.
        assert begun.newest_before is not None, text
        assert int(step) <= begun.newest_before - KEEP, text
        injected.half_removed += 1
    assert "Traceback" not in text, text
    if steps:
        assert after == begun.newest_before, text
        assert steps == list(range((after or 0) + 1, steps[-1] + 1))
    if after is not None:
        assert begun.newest_before is not None, text
        injected.most_steps_lost = max(injected.most_steps_lost, begun.newest_before - after)
        injected.checked_continuations += 1


def check_disk(begun: Start, injected: Injected) -> None:
    """What is there after a kill can be used: the newest checkpoint is whole, and no older than the
    last step shown allows.
    """
    step, shown = newest(begun.run_dir), begun.steps_shown()
    if shown:
        assert (step or 0) >= shown[-1] - MOST_AHEAD
    if step is None:
        return
    verdict = integrity.examine(saved(begun.run_dir), step)
    assert not verdict.problem, verdict
    injected.without_checksums += verdict.state == "unverified"
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


def inflict(fault: str, begun: Start, chance: random.Random) -> None:
    """Does it to the command, or to one of the processes that it started, and waits until all have
    ended as they should.
    """
    children = begun.children()
    victim = chance.choice([begun.process.pid, *children])
    if fault == "SIGTERM":
        begun.process.send_signal(signal.SIGTERM)
        # Before it is handled.
        expected = (
            (STOPPED,) if begun.steps_shown() else (STOPPED, -signal.SIGTERM, 128 + signal.SIGTERM)
        )
    elif fault == "network link cut":
        chance.choice(begun.hosts).cut_link()
        # 2 where the other one was not found yet; where no communication fails, JAX aborts.
        expected = (FAILED, -signal.SIGABRT, *(() if begun.steps_shown() else (REFUSED,)))
    elif fault == "full disk":
        for pid in (
            {begun.process.pid, *children} if begun.hosts else children or [begun.process.pid]
        ):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
        expected = (FAILED,)
    else:
        if fault.startswith("SIGSTOP"):
            os.kill(victim, signal.SIGSTOP)
            time.sleep(chance.uniform(0.1, 1.5))
        if "SIGCONT" in fault:
            os.kill(victim, signal.SIGCONT)
            time.sleep(chance.uniform(0, 0.5))
        assert begun.process.poll() is None, f"it ended before the fault:\n{begun.shown()}"
        os.kill(victim, signal.SIGKILL)
        # The launcher tells how the first of its processes ended; the other one may have noticed
        # within one look at both.
        expected = (
            (-signal.SIGKILL,) if victim == begun.process.pid else (128 + signal.SIGKILL, FAILED)
        )
        if begun.hosts:  # on a busy machine JAX may abort before communication has failed
            expected = (-signal.SIGKILL, FAILED, REFUSED, -signal.SIGABRT)
    for process in (begun.process, *begun.others):
        assert process.wait(timeout=200) in expected, (fault, process.returncode, begun.shown())
    for host in begun.hosts:
        host.restore_link()
    deadline = time.monotonic() + 100  # those of a launcher that is gone save, and leave
    while any(is_running(pid) for pid in children):
        assert time.monotonic() < deadline, begun.shown()
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def disturb(
    folder: pathlib.Path,
    flags: list[str],
    kills: int,
    seed: int,
    *,
    faults: Sequence[str] = ("kill -9",),
    processes: int = 1,
    hosts: Sequence[network.Host] = (),
) -> Injected:
    """Runs once undisturbed and once with faults, at the same time, and compares."""
    print(f"random faults: seed {seed}, {kills} kills, {' '.join(flags)}")
    chance, injected = random.Random(seed), Injected()
    # Of four starts that are killed one makes 5 steps at most, two 3, one none.
    last = 8 + (2 if len(faults) == 1 else 12) * kills
    flags = [*flags, "--steps", str(last)]
    whole = start(folder, 0, "whole", flags, processes)
    try:
        endure(
            folder, flags, kills, chance, injected, faults=faults, processes=processes, hosts=hosts
        )
        assert whole.process.wait(timeout=600) == 0, whole.shown()
    finally:
        whole.process.kill()
        whole.process.wait()
    compare(folder / "whole", folder / "parts", last)
    return injected


def endure(
    folder: pathlib.Path,
    flags: list[str],
    kills: int,
    chance: random.Random,
    injected: Injected,
    *,
    faults: Sequence[str],
    processes: int,
    hosts: Sequence[network.Host],
) -> None:
    start_seconds = 6.0  # until one was seen that found its compiled steps
    for number, (kind, fault) in enumerate(
        zip(moments(kills, chance), drawn(faults, kills, chance), strict=True)
    ):
        began = time.monotonic()
        begun = start(folder, number, "parts", flags, processes, hosts)
        try:
            # What is limited before a step is seen would be files of others.
            wait_for_moment(
                "step" if fault == "full disk" and kind == "start-up" else kind,
                begun,
                chance,
                start_seconds,
            )
            assert begun.process.poll() is None, f"it ended before fault {number}:\n{begun.shown()}"
            if kind == "step":
                start_seconds = time.monotonic() - began
            inflict(fault, begun, chance)
        finally:
            for pid in begun.children():  # none, unless something is wrong
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            begun.process.kill()
            begun.process.wait()
        where = where_it_landed(begun)
        injected.kills[where] += 1
        injected.faults[fault] += 1
        print(
            f"{fault} {number}: {kind} after {time.monotonic() - began:.1f} s, landed in {where};"
            f" newest {newest(begun.run_dir)}"
        )
        check_continuation(begun, injected)
        check_disk(begun, injected)
    end = start(folder, kills, "parts", flags, processes, hosts)
    assert end.process.wait(timeout=600) == 0, end.shown()
    check_continuation(end, injected)


def drawn(faults: Sequence[str], count: int, chance: random.Random) -> list[str]:
    """Returns so many faults, each kind about equally often, in random order."""
    found = [faults[number % len(faults)] for number in range(count)]
    chance.shuffle(found)
    return found


def compare(whole: pathlib.Path, parts: pathlib.Path, last: int) -> None:
    assert_same_run(whole, parts, last, without=(*MEASURED, *OF_WORKERS))
    steps = [row["step"] for row in rows(parts, split="train")]
    assert steps == list(range(1, last + 1))
    assert temporary(parts) == set()  # what kills left behind is gone
    assert integrity.steps(saved(parts)) == integrity.steps(saved(whole))


def report(injected: Injected, record_fault: RecordFault) -> None:
    print(
        f"{injected.kills.total()} kills: {dict(injected.kills)}; {injected.without_checksums} came before"
        " the checksums",
        end=", ",
    )
    print(f"{injected.half_removed} while an old checkpoint was being removed", end="; ")
    print(
        f"{injected.checked_continuations} continuations, at most {injected.most_steps_lost} steps lost"
    )
    outcome = "continues after the newest checkpoint, ends bitwise the same"
    for where, times in injected.kills.items():
        record_fault(f"kill -9, {where}", times, outcome, injected.most_steps_lost)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "kills", "seed"),
    [
        ([*CNN, "--strategy", "pmap"], 3, 0),
        ([*PYRAMIDNET, "--strategy", "pmap", "--data-placement", "device"], 15, 1),
        ([*PYRAMIDNET, "--strategy", "sharded", "--data-placement", "host"], 15, 2),
    ],
)
def test_kills_change_nothing(
    flags: list[str], kills: int, seed: int, tmp_path: pathlib.Path, record_fault: RecordFault
) -> None:
    injected = disturb(tmp_path, flags, kills, seed)
    assert injected.kills.total() == kills
    assert injected.checked_continuations >= 1
    if kills > 10:
        assert (
            min(injected.kills[where] for where in ("start-up", "training", "save under way")) >= 1
        )
    report(injected, record_fault)


@pytest.mark.slow
@pytest.mark.random_faults
@pytest.mark.parametrize("name", MATRIX)
def test_random_faults_over_a_matrix_of_runs(
    name: str, tmp_path: pathlib.Path, record_fault: RecordFault, pytestconfig: pytest.Config
) -> None:
    processes = 2 if "2 processes" in name or "hosts" in name else 1
    shares = {each: 10 if " 2 " in each else 20 for each in MATRIX}
    all_kills = pytestconfig.getoption("--random-faults")
    kills = max(shares[name] * all_kills // sum(shares.values()), 1)
    if "workers" in name:
        pytest.importorskip("ray")
    seed = pytestconfig.getoption("--random-faults-seed") + list(MATRIX).index(name)
    with network.hosts(processes) if "hosts" in name else contextlib.nullcontext(()) as hosts:
        faults = FAULTS_OF_HOSTS if hosts else FAULTS
        injected = disturb(
            tmp_path, MATRIX[name], kills, seed, faults=faults, processes=processes, hosts=hosts
        )
    assert injected.faults.total() == kills
    assert injected.checked_continuations >= kills // 3
    counts = ", ".join(f"{count} {fault}" for fault, count in sorted(injected.faults.items()))
    landed = ", ".join(f"{count} in {where}" for where, count in sorted(injected.kills.items()))
    record_fault(
        name, kills, f"ends bitwise the same: {counts}; {landed}", injected.most_steps_lost
    )
