"""Training over a slow wire: gradients put together in each step, beside replicas that meet every
ten (`--exchange local`).

    python benchmarks/wire.py [--workers N ...] [--optimizers NAME ...] [--seeds S ...] [--tiny]
    [--write FILE]

Hosts are network namespaces of this machine, made by tests/network.py: each has an address of its
own, and a cable of 20 Mbit/s and 20 ms to the others. On them run the commands that docs/scale.md
gives for as many machines: all-reduce is `jaxdp.train --coordinator`, a process on each; `local` is
a Ray cluster with a worker on each, and the command on the first one, with a server on each; or on
one more host that has no worker, without servers. The small CNN on the digits, 20 epochs. It takes
Linux, root, iproute2, and the packages of `pip install '.[dev]'`.
"""

import argparse
import importlib
import importlib.util
import itertools
import json
import os
import pathlib
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import tables

BITS_PER_SECOND, DELAY_SECONDS = 20e6, 0.02
LOCAL_STEPS = 10
# What is aimed at: the rate of local over that of all-reduce, and its accuracy at most so much
# less.
TIMES, POINTS = 4, 0.5
CASES = {
    "allreduce": "`allreduce`",
    "servers": "`local`, a server beside each worker",
    "apart": "`local`, no servers, the command on a host of its own",
}
# What local sends depends on the optimizer's state: that of Nesterov momentum is as large as the
# parameters, sgd has none.
RECIPES = {"nesterov": [], "sgd": ["--optimizer", "sgd", "--learning-rate", "0.3"]}
RAY_PORT, COORDINATOR_PORT = 6379, 29400
TESTS = pathlib.Path(__file__).parents[1] / "tests"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--workers",
        type=int,
        nargs="+",
        default=[2, 4],
        help="how many there are, each number in turn",
    )
    parser.add_argument(
        "--optimizers",
        nargs="+",
        default=list(RECIPES),
        choices=list(RECIPES),
        help="each is rows of its own",
    )
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[0], help="each is a run of every row"
    )
    parser.add_argument(
        "--tiny", action="store_true", help="try it, with 20 steps of two workers with sgd"
    )
    parser.add_argument(
        "--write", type=pathlib.Path, help="Markdown file with a place for the table"
    )
    arguments = parser.parse_args()
    network = load_network()
    counts, optimizers, seeds, steps = arguments.workers, arguments.optimizers, arguments.seeds, 220
    if arguments.tiny:
        counts, optimizers, seeds, steps = [2], ["sgd"], [0], 20
    columns = (
        "workers | optimizer | exchange | examples/s | times all-reduce | test accuracy | MB on the"
        " busiest cable | "
    )
    columns += "slices by worker"
    lines = [f"| {columns} |", "|---" * len(columns.split("|")) + "|"]
    verdicts = []
    for count, optimizer in itertools.product(counts, optimizers):
        found: dict[str, list[dict[str, Any]]] = {case: [] for case in CASES}
        for seed in seeds:
            length = (
                f"--steps {steps} --eval-every {steps} --checkpoint-every {steps} --log-every 20"
                f" --seed {seed}"
            )
            for case, results in found.items():
                results.append(
                    measure(
                        network,
                        count,
                        case,
                        ["--model", "cnn", *length.split(), *RECIPES[optimizer]],
                    )
                )
                print(
                    f"{count} workers, {optimizer}, seed {seed}, {case}: {results[-1]}",
                    file=sys.stderr,
                    flush=True,
                )
        rows, verdict = shown(count, optimizer, found)
        lines += rows
        verdicts.append(verdict)
    what = (
        f"{BITS_PER_SECOND / 1e6:.0f} Mbit/s and {DELAY_SECONDS * 1000:.0f} ms, `--local-steps"
        f" {LOCAL_STEPS}`, "
    )
    what += f"{steps} steps of 128, seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}."
    aim = (
        f"Aimed at: {TIMES} times all-reduce's examples/s, at most {POINTS} points less accuracy. "
    )
    aim += f"Reached, in the order of the rows: {'; '.join(verdicts)}."
    chosen = "" if optimizers == list(RECIPES) else f" -- --optimizers {' '.join(optimizers)}"
    text = "\n".join(
        [
            *lines,
            "",
            what,
            aim,
            "",
            f"Written by `nox -s wire{chosen}`. {tables.machine('jax', 'ray')}",
        ]
    )
    print(text)
    if arguments.write and not arguments.tiny:
        tables.write(arguments.write, "wire", text)


def load_network() -> Any:
    """Returns tests/network.py, or leaves where this machine cannot make hosts."""
    missing = [name for name in ("pytest", "ray") if importlib.util.find_spec(name) is None]
    if missing:
        sys.exit(f"benchmarks/wire.py: needs {' and '.join(missing)}: pip install '.[dev]'")
    sys.path.append(str(TESTS))
    network: Any = importlib.import_module("network")
    skipped: Any = importlib.import_module("pytest").skip.Exception
    try:
        with network.hosts(1):
            return network
    except skipped as reason:
        sys.exit(f"benchmarks/wire.py: {reason}")


def shown(
    count: int, optimizer: str, found: dict[str, list[dict[str, Any]]]
) -> tuple[list[str], str]:
    """Returns the lines of some workers, and what of the aim was reached."""
    rate = {
        case: statistics.median(each["rate"] for each in results) for case, results in found.items()
    }
    accuracy = {
        case: statistics.fmean(each["accuracy"] for each in results)
        for case, results in found.items()
    }
    lines, reached = [], []
    for case, results in found.items():
        each = ", ".join(f"{100 * result['accuracy']:.2f}" for result in results)
        times, points = (
            rate[case] / rate["allreduce"],
            100 * (accuracy[case] - accuracy["allreduce"]),
        )
        cells = [str(count), optimizer, CASES[case], f"{rate[case]:,.0f}", f"{times:.1f}"]
        cells += [f"{accuracy[case]:.2%} ({each})" if len(results) > 1 else f"{accuracy[case]:.2%}"]
        cells += [f"{statistics.median(result['megabytes'] for result in results):,.0f}"]
        cells += [", ".join(map(str, results[0]["slices"])) or "equal"]
        lines.append(f"| {' | '.join(cells)} |")
        reached += [f"{times:.1f} times and {points:+.2f} points"] if case != "allreduce" else []
    return lines, f"{count} workers, {optimizer}: {', '.join(reached)}"


def measure(network: Any, count: int, case: str, flags: Sequence[str]) -> dict[str, Any]:
    """Trains on hosts made for it, and returns examples per second, test accuracy, and who did how
    much.
    """
    with tempfile.TemporaryDirectory(prefix="jaxdp-wire-") as text:
        folder, run = pathlib.Path(text), pathlib.Path(text, "run")
        words, total = [*flags, "--run-dir", str(run)], count + (case == "apart")
        with network.hosts(
            total, delay_seconds=DELAY_SECONDS, bits_per_second=BITS_PER_SECOND
        ) as hosts:
            if case == "allreduce":
                all_reduce(hosts, words, folder)
            else:
                local(
                    hosts,
                    count,
                    [*words, "--servers", str(count)] if case == "servers" else words,
                    folder,
                )
            megabytes = max(moved(host) for host in hosts)
        summary = json.loads((run / "summary.json").read_text())
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    by_worker = [row["worker_slices"] for row in rows if "worker_slices" in row]
    return {
        "rate": summary["examples_per_second"],
        "accuracy": summary["metrics"]["test"]["accuracy"],
        "megabytes": megabytes,
        "slices": [sum(each) for each in zip(*by_worker, strict=True)],
    }


def moved(host: Any) -> float:
    """Returns how many megabytes a host has received and sent."""
    (counted,) = [
        line.split(":")[1].split()
        for line in host.run(["cat", "/proc/net/dev"]).stdout.splitlines()
        if "eth0:" in line
    ]
    return (int(counted[0]) + int(counted[8])) / 1e6


def all_reduce(hosts: Sequence[Any], words: Sequence[str], folder: pathlib.Path) -> None:
    where = (
        f"--devices 1 --num-processes {len(hosts)} --coordinator"
        f" {hosts[0].address}:{COORDINATOR_PORT} --distributed-timeout 120"
    )
    started = []
    for index, host in enumerate(hosts):
        command = [
            sys.executable,
            "-m",
            "jaxdp.train",
            *words,
            *where.split(),
            "--process-id",
            str(index),
        ]
        started.append(popen(host, command, folder / f"process-{index}"))
    for index, process in enumerate(started):
        finish(process, folder / f"process-{index}")


def local(hosts: Sequence[Any], workers: int, words: Sequence[str], folder: pathlib.Path) -> None:
    """Trains with the command on the first host, which has a worker only if there are no more hosts
    than workers.
    """
    environment = os.environ | {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    address = f"{hosts[0].address}:{RAY_PORT}"
    ray = [sys.executable, "-m", "ray.scripts.scripts", "start", "--object-store-memory=200000000"]
    # Without a route to the internet a head does not find its own address. All hosts have this
    # machine's /tmp.
    head = (
        f"--head --num-cpus={int(len(hosts) == workers)} --port={RAY_PORT}"
        f" --node-ip-address={hosts[0].address}"
    )
    head += f" --include-dashboard=false --temp-dir={folder}/ray"
    finish(popen(hosts[0], [*ray, *head.split()], folder / "ray-0", environment), folder / "ray-0")
    for index, host in enumerate(hosts[1:], 1):
        join = [*ray, "--num-cpus=1", f"--address={address}", f"--node-ip-address={host.address}"]
        finish(popen(host, join, folder / f"ray-{index}", environment), folder / f"ray-{index}")
    exchange = (
        f"--exchange local --local-steps {LOCAL_STEPS} --workers {workers} --ray-address {address}"
    )
    command = [sys.executable, "-m", "jaxdp.train", *words, *exchange.split()]
    finish(popen(hosts[0], command, folder / "command", environment), folder / "command")


def popen(
    host: Any, command: Sequence[str], log: pathlib.Path, environment: dict[str, str] | None = None
) -> Any:
    with log.open("w") as file:
        return host.popen(
            command,
            stdout=file,
            stderr=file,
            stdin=subprocess.DEVNULL,
            env=environment or dict(os.environ),
        )


def finish(process: Any, log: pathlib.Path, seconds: float = 900) -> None:
    """Waits for a process, and leaves with its last words if it failed."""
    deadline = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    if process.poll() != 0:
        sys.exit(
            f"benchmarks/wire.py: {log.name} ended with {process.poll()}:\n"
            + log.read_text()[-3000:]
        )


if __name__ == "__main__":
    main()
