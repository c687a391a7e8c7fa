"""Simulates a run on a thousand hosts on this machine, as far as possible, and computes the rest.

    python benchmarks/thousand_hosts.py [--hosts N ...] [--write FILE]

Start-up: threads stand for processes, each with a connection of its own to a real coordination
service, and call what a run of several processes calls. They share this machine's cores, so that
they take more seconds than as many machines would. Order of the data: what every host computes at
the start of an epoch. Slow hosts: the slowest of so many draws. Failures: Young's interval.
"""

import argparse
import importlib
import json
import math
import pathlib
import resource
import socket
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import tables

# Dubey et al. 2024, The Llama 3 Herd of Models, section 3.3.4: unexpected interruptions in 54 days
# on 16,384 GPUs.
INTERRUPTIONS, DAYS, GPUS = 419, 54, 16_384
GPUS_PER_HOST = 8
SAVE_SECONDS = (1, 10, 60)
JITTER = 0.05  # standard deviation of a host's step, as a share of its mean
IMAGES = 1_281_167  # ImageNet's training set
WAITS_SECONDS = 500


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--hosts", type=int, nargs="+", default=[10, 100, 1000], help="each number is a row"
    )
    parser.add_argument(
        "--write", type=pathlib.Path, help="Markdown file with a place for the tables"
    )
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(agree(arguments.one)))
        return
    lines = [
        "| hosts | connected | names known | settings compared | met | steps a second, at most |",
        "|---" * 6 + "|",
    ]
    for hosts in arguments.hosts:
        done = subprocess.run(
            [sys.executable, __file__, "--one", str(hosts)],
            check=True,
            capture_output=True,
            text=True,
        )
        found = json.loads(done.stdout.splitlines()[-1])
        print(f"{hosts} hosts: {found}", file=sys.stderr, flush=True)
        cells = [f"{found[name]:.1f} s" for name in ("connect", "members", "checks", "meet")]
        cells = [f"{hosts:,}", *cells, f"{found['steps_per_second']:,.0f}"]
        lines.append(f"| {' | '.join(cells)} |")
    seconds, megabytes = order()
    lines += [
        "",
        (
            f"Order of an epoch of {IMAGES:,} images, which every host computes: {seconds:.2f} s,"
            f" {megabytes:.0f} MB."
        ),
        "",
    ]
    saves = " | ".join(f"{each} s" for each in SAVE_SECONDS)
    lines.append(f"| hosts | a step takes | a failure every | save every, with saves of {saves} |")
    lines.append("|---" * (3 + len(SAVE_SECONDS)) + "|")
    for hosts in arguments.hosts:
        failure = DAYS * 86_400 * GPUS / INTERRUPTIONS / (hosts * GPUS_PER_HOST)
        intervals = [f"{young(save, failure) / 60:.0f} min" for save in SAVE_SECONDS]
        lines.append(
            f"| {hosts:,} | {slowest(hosts):.0%} of the mean | {failure / 3600:.1f} h |"
            f" {' | '.join(intervals)} |"
        )
    text = "\n".join(
        [*lines, "", f"Written by `python benchmarks/thousand_hosts.py`. {tables.machine('jax')}"]
    )
    print(text)
    if arguments.write:
        tables.write(arguments.write, "thousand hosts", text)


def agree(hosts: int) -> dict[str, float]:
    """Returns how many seconds after the start each part of the agreement was over for all, and
    what the service was asked.
    """
    from jaxdp.config import TrainConfig
    from jaxdp.runtime import group as group_lib
    from jaxdp.training import stopping

    # The module from which jax.distributed.initialize makes its client.
    runtime: Any = importlib.import_module("jax._src.lib")._jax
    # Each host of a real run has limits of its own; here one process has the connections of all.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    service = runtime.get_distributed_runtime_service(
        address, hosts, heartbeat_timeout=WAITS_SECONDS
    )
    own = threading.local()
    group_lib._client = lambda: own.client
    settings: Any = TrainConfig().plain()
    marks: list[list[float]] = []
    asked: list[float] = []

    def host(index: int) -> None:
        own.client = runtime.get_distributed_runtime_client(
            address,
            index,
            init_timeout=WAITS_SECONDS,
            shutdown_timeout=WAITS_SECONDS,
            heartbeat_timeout=WAITS_SECONDS,
        )
        times = [time.perf_counter()]
        own.client.connect()
        times.append(time.perf_counter())
        members = tuple(f"process {number}" for number in range(hosts))
        group = group_lib.Group(index, hosts, members, _prefix="simulated")
        group.members = tuple(
            group.all_gather_text(
                "members", f"process {index} (pid {10_000 + index} on node-{index})", WAITS_SECONDS
            )
        )
        times.append(time.perf_counter())
        group.check_equal(settings, WAITS_SECONDS)
        times.append(time.perf_counter())
        group.barrier()
        times.append(time.perf_counter())
        for _ in range(10):  # as to find out whether to stop
            assert group.get("stop") is None
        asked.append(time.perf_counter())
        group.barrier()
        marks.append(times)
        own.client.shutdown()

    threads = [threading.Thread(target=host, args=(index,)) for index in range(hosts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    service.shutdown()
    assert len(marks) == hosts
    ends = [max(times[number] for times in marks) for number in range(5)]
    found = {
        name: ends[number + 1] - ends[number]
        for number, name in enumerate(("connect", "members", "checks", "meet"))
    }
    return found | {
        "steps_per_second": 10 / (max(asked) - ends[4]) * (1 + hosts // stopping._ASKING)
    }


def order() -> tuple[float, float]:
    """Returns how many seconds the order of an epoch takes, and how many megabytes it is."""
    from jaxdp.data import pipeline

    begun = time.perf_counter()
    numbers = pipeline._permutation(IMAGES, 0, 1)
    return time.perf_counter() - begun, numbers.nbytes / 1e6


def slowest(hosts: int) -> float:
    """Returns the mean of the longest of so many steps, which all hosts wait for."""
    rng = np.random.default_rng(0)
    return 1 + JITTER * float(np.mean([rng.normal(size=hosts).max() for _ in range(2000)]))


def young(save_seconds: float, failure_seconds: float) -> float:
    """Returns after how many seconds to save, so that saves and repeated steps together take least.

    Source: Young 1974, A First Order Approximation to the Optimum Checkpoint Interval.
    """
    return math.sqrt(2 * save_seconds * failure_seconds)


if __name__ == "__main__":
    main()
