"""How long until the first step is done? Prints seconds from the start of the process, and where they went.

    python benchmarks/first_step.py [--rounds N] [--write FILE]

Each run is a process of its own: the first one with an empty cache of compiled programs, the others with what it left there.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import tables

ROWS = {"PyramidNet 20 α24": ["depth=20", "alpha=24"], "PyramidNet 110 α48": ["depth=110", "alpha=48"]}
COMMON = ["--model", "pyramidnet", "--steps", "1", "--image-size", "32", "--global-batch-size", "32"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured with compiled programs at hand")
    parser.add_argument("--write", type=pathlib.Path, help="Markdown file with a place for the table")
    arguments = parser.parse_args()
    rounds = arguments.rounds
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_COMPILATION_CACHE")}
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "jaxdp.train", "--help"], check=True, stdout=subprocess.DEVNULL, env=environment)
    lines = [
        "| model, 32x32, batch 32 | cold | programs kept |",
        "|---|---|---|",
        f"| `--help` | {time.perf_counter() - started:.1f} s | |",
    ]
    for name, kwargs in ROWS.items():
        with tempfile.TemporaryDirectory() as folder:
            own = environment | {"XDG_CACHE_HOME": str(pathlib.Path(folder, "cache"))}
            seconds = []
            for number in range(1 + rounds):
                run = pathlib.Path(folder, str(number))
                command = [sys.executable, "-m", "jaxdp.train", *COMMON, "--model-kwargs", *kwargs, "--run-dir", str(run)]
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=own)
                seconds.append(json.loads((run / "summary.json").read_text())["seconds"]["first_step"])
        lines.append(f"| {name} | {seconds[0]:.1f} s | {statistics.median(seconds[1:]):.1f} s |")
        print(lines[-1], file=sys.stderr)
    text = "\n".join([f"Written by `nox -s first_step`. {tables.machine('jax', 'flax')}", "", *lines])
    print(text)
    if arguments.write:
        tables.write(arguments.write, "first_step", text)


if __name__ == "__main__":
    main()
