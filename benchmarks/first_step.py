"""How long until the first step is done? Prints seconds from the start of the process, and where they went.

    python benchmarks/first_step.py [--rounds N]

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

ROWS = {"PyramidNet 20 α24": ["depth=20", "alpha=24"], "PyramidNet 110 α48": ["depth=110", "alpha=48"]}
COMMON = ["--model", "pyramidnet", "--steps", "1", "--image-size", "32", "--global-batch-size", "32"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured with compiled programs at hand")
    rounds = parser.parse_args().rounds
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_COMPILATION_CACHE")}
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "jaxdp.train", "--help"], check=True, stdout=subprocess.DEVNULL, env=environment)
    print(f"--help: {time.perf_counter() - started:.2f} s")
    print("| model, 32x32, batch 32 | cold, s | warm, s |\n|---|---|---|")
    for name, kwargs in ROWS.items():
        with tempfile.TemporaryDirectory() as folder:
            own = environment | {"XDG_CACHE_HOME": str(pathlib.Path(folder, "cache"))}
            seconds = []
            for number in range(1 + rounds):
                run = pathlib.Path(folder, str(number))
                command = [sys.executable, "-m", "jaxdp.train", *COMMON, "--model-kwargs", *kwargs, "--run-dir", str(run)]
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=own)
                seconds.append(json.loads((run / "summary.json").read_text())["seconds"]["first_step"])
        print(f"| {name} | {seconds[0]:.1f} | {statistics.median(seconds[1:]):.1f} |", flush=True)


if __name__ == "__main__":
    main()
