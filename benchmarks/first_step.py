"""Measures the time to the first step, and divides it into parts.

    python benchmarks/first_step.py [--rounds N] [--write FILE] [--place NAME]

Each run is a process of its own: the first one with an empty cache, the others with the programs
that it left there. `--train ARGUMENTS...` is what such a process does: `jaxdp.train` with a
stopwatch at its parts.
"""

import argparse
import functools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import tables

ROWS = {
    "PyramidNet 20 α24": ["depth=20", "alpha=24"],
    "PyramidNet 110 α48": ["depth=110", "alpha=48"],
}
COMMON = [
    "--model",
    "pyramidnet",
    "--steps",
    "1",
    "--image-size",
    "32",
    "--global-batch-size",
    "32",
]
PARTS = (
    "imports", "settings and data", "model check", "weights", "trace and lower", "compile or load",
    "first execution", "rest",
)  # fmt: skip


class Stopwatch:
    """Gives each second to the innermost part that it passes in.

    Attributes:
        seconds: of each part.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._parts, self._last = ["rest"], time.perf_counter()

    def enter(self, part: str) -> None:
        self._charge()
        self._parts.append(part)

    def leave(self) -> None:
        self._charge()
        self._parts.pop()

    def move(self, seconds: float, part: str) -> None:
        """Gives seconds that have just passed to another part."""
        self._charge()
        self.seconds[self._parts[-1]] -= seconds
        self.seconds[part] += seconds

    def _charge(self) -> None:
        now = time.perf_counter()
        self.seconds[self._parts[-1]] += now - self._last
        self._last = now

    def at(self, place: Any, name: str, part: str) -> None:
        """Wraps a function so that its time counts for a part."""
        function: Callable[..., Any] = getattr(place, name)

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if threading.current_thread() is not threading.main_thread():
                return function(*args, **kwargs)
            self.enter(part)
            try:
                return function(*args, **kwargs)
            finally:
                self.leave()

        setattr(place, name, timed)


def train(arguments: list[str]) -> int:
    """Trains as `jaxdp.train` does, and writes the seconds of each part until the first step into
    the run directory.
    """
    watch = Stopwatch()
    watch.enter("imports")
    from jaxdp import train as command
    from jaxdp.runtime import platform

    platform.configure(None)
    import jax

    import jaxdp.training.run  # noqa: F401 - what the command imports next
    from jaxdp.build import examples, initial_state
    from jaxdp.build import setup as setup_lib
    from jaxdp.training import loop, reader

    watch.leave()
    for place, name, part in (
        (setup_lib, "create_setup", "settings and data"),
        (examples.placement, "read_all", "settings and data"),
        (setup_lib, "check_model", "model check"),
        (initial_state.InitialState, "_create", "weights"),
        (loop, "compile_then_barrier", "first execution"),
        (reader.Reader, "_read", "first execution"),
    ):
        watch.at(place, name, part)

    def compiled(event: str, duration_secs: float, **_: object) -> None:
        if (
            event.endswith("backend_compile_duration")
            and threading.current_thread() is threading.main_thread()
        ):
            watch.move(duration_secs, "compile or load")

    jax.monitoring.register_event_duration_secs_listener(compiled)
    call = loop.compile_then_barrier

    def call_in_parts(function: Any, *args: Any) -> Any:
        watch.enter("trace and lower")
        lowered = function.lower(*args)
        watch.leave()
        watch.enter("compile or load")
        lowered.compile()  # the call finds it
        watch.leave()
        return call(function, *args)

    loop.compile_then_barrier = call_in_parts
    read, parts = reader.Reader._read, dict[str, float]()

    def read_first(self: Any) -> None:
        read(self)
        parts.update(parts or watch.seconds)

    reader.Reader._read = read_first
    code = command.main(arguments)
    pathlib.Path(arguments[arguments.index("--run-dir") + 1], "parts.json").write_text(
        json.dumps(parts)
    )
    return code


def measure(
    folder: pathlib.Path, number: int, kwargs: list[str], variables: dict[str, str]
) -> dict[str, float]:
    """Returns the seconds of each part of a process, and of all until its first step, as its
    summary holds it.
    """
    run = folder / str(number)
    command = [
        sys.executable,
        __file__,
        "--train",
        *COMMON,
        "--model-kwargs",
        *kwargs,
        "--run-dir",
        str(run),
    ]
    variables = variables | {"XDG_CACHE_HOME": str(folder / "cache")}
    subprocess.run(
        command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=variables
    )
    parts = json.loads((run / "parts.json").read_text())
    return parts | {"all": json.loads((run / "summary.json").read_text())["seconds"]["first_step"]}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=3,
        help="how often each is measured with what earlier runs left",
    )
    parser.add_argument(
        "--write", type=pathlib.Path, help="Markdown file with a place for the table"
    )
    parser.add_argument("--place", default="first_step", help="name of that place")
    arguments = parser.parse_args()
    variables = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("JAX_COMPILATION_CACHE")
    }
    # Where that is set each process compiles JAX's source again.
    variables["PYTHONDONTWRITEBYTECODE"] = ""
    started = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "jaxdp.train", "--help"],
        check=True,
        stdout=subprocess.DEVNULL,
        env=variables,
    )
    seconds = {"`--help`": {"all": time.perf_counter() - started}}
    for name, kwargs in ROWS.items():
        with tempfile.TemporaryDirectory() as folder:
            found = [
                measure(pathlib.Path(folder), number, kwargs, variables)
                for number in range(1 + arguments.rounds)
            ]
        seconds[f"{name}, cold"] = found[0]
        seconds[f"{name}, known"] = {
            part: statistics.median(each.get(part, 0.0) for each in found[1:])
            for part in ("all", *PARTS)
        }
        print(
            name, seconds[f"{name}, cold"]["all"], seconds[f"{name}, known"]["all"], file=sys.stderr
        )
    lines = [f"| 32x32, batch 32 | all | {' | '.join(PARTS)} |", "|---" * (2 + len(PARTS)) + "|"]
    for name, parts in seconds.items():
        cells = [f"{parts[part]:.1f}" if parts.get(part, 0.0) >= 0.05 else "" for part in PARTS]
        lines.append(f"| {name} | {parts['all']:.1f} s | {' | '.join(cells)} |")
    text = "\n".join(
        [
            f"Seconds, written by `nox -s bench -- first_step`. {tables.machine('jax', 'flax')}",
            "",
            *lines,
        ]
    )
    print(text)
    if arguments.write:
        tables.write(arguments.write, arguments.place, text)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--train"]:
        sys.exit(train(sys.argv[2:]))
    main()
