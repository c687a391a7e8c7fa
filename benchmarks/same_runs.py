#!/usr/bin/env python3
"""Records the results of training, and compares two records, to check that a refactoring changes
nothing.

same_runs.py run CHECKOUT OUT.json, and same_runs.py compare BEFORE.json AFTER.json

Each configuration trains some steps with `PYTHONPATH=CHECKOUT/src python -m jaxdp.train ...` in a
folder of its own. The record has its exit code, the name of the run's default folder, and all rows,
events and facts without times. It also has the SHA-256, shape and dtype of each array of the last
checkpoint. `init-MODEL` trains one step with learning rate 0, so that its parameters are the
initial weights. The dependencies come from the Python that runs this file. `compare` exits with 0
if all is equal. 23 configurations take 4 minutes with compiled programs in JAX's cache.
"""

import argparse
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
from typing import Any

import yaml

FILE = pathlib.Path(__file__).with_suffix(".yaml")
CONFIGURATIONS: dict[str, str | list[str]] = yaml.safe_load(FILE.read_text())
# Fields that differ from run to run: times, memory, versions, the machine.
VARYING = re.compile(
    "seconds|per_second|wait|memory|idle|exchange_bytes|worker_|^worker$|recomputed|dropped|versions|xla_flags|^time$|utilization|hostname|^pid$|^jaxdp$|flops"
)


def steady(value: object) -> object:
    if isinstance(value, dict):
        return {name: steady(inner) for name, inner in value.items() if not VARYING.search(name)}
    return [steady(inner) for inner in value] if isinstance(value, list) else value


def lines(path: pathlib.Path) -> list[object]:
    text = path.read_text() if path.exists() else ""
    return [steady(json.loads(line)) for line in text.splitlines()]


def write_inputs(folder: pathlib.Path) -> None:
    """Writes photos of different sizes, cells with numbered objects, and an npz file."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    for split, count in (("train", 24), ("test", 6)):
        for label in ("cat", "dog", "eel"):
            for number in range(count if label != "eel" else count // 2):
                target = folder / "photos" / split / label / f"{number:02d}.png"
                target.parent.mkdir(parents=True, exist_ok=True)
                shape = (int(rng.integers(10, 20)), int(rng.integers(10, 20)), 3)
                Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8)).save(target)
        for number in range(count):
            masks = np.zeros((32, 32), np.uint8)
            for index in range(1, 5):
                top, left = rng.integers(0, 24, 2)
                masks[top : top + 6, left : left + 6] = index
            noise = rng.integers(0, 60, (32, 32), dtype=np.uint8)
            for kind, pixels in (("images", (masks > 0) * np.uint8(150) + noise), ("masks", masks)):
                target = folder / "cells" / split / kind / f"{number:02d}.png"
                target.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels).save(target)
    images = rng.integers(0, 256, (96, 8, 8, 1), dtype=np.uint8)
    labels = np.arange(96) % 4
    np.savez(
        folder / "set.npz",
        train_images=images[:80],
        train_labels=labels[:80],
        test_images=images[80:],
        test_labels=labels[80:],
    )


def read_checkpoint(run: pathlib.Path) -> dict[str, Any]:
    """Hashes the arrays of the last checkpoint, with Orbax alone."""
    import logging

    logging.disable(logging.ERROR)
    import numpy as np
    from orbax.checkpoint import v1

    steps = sorted(
        int(path.name) for path in (run / "checkpoints").glob("[0-9]*") if path.name.isdecimal()
    )
    if not steps:
        return {"steps": []}
    path = run / "checkpoints" / str(steps[-1])
    orbax: Any = v1
    about = orbax.metadata(path)
    wanted = {
        name: np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape)
        for name, leaf in about.metadata.items()
    }
    arrays = {}
    for name, array in orbax.load(path, wanted).items():
        array = np.ascontiguousarray(array)
        digest = hashlib.sha256(array.tobytes()).hexdigest()
        arrays[name] = f"{array.dtype}{list(array.shape)} {digest[:20]}"
    position = steady(dict(about.custom_metadata or {}))
    return {"steps": steps, "arrays": dict(sorted(arrays.items())), "position": position}


def environment(checkout: pathlib.Path) -> dict[str, str]:
    dropped = ("XLA_FLAGS", "JAX_PLATFORMS", "JAX_ENABLE_X64")
    mine = {name: value for name, value in os.environ.items() if name not in dropped}
    mine.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
    return mine | {
        "PYTHONPATH": str(checkout / "src"),
        "JAX_PLATFORMS": "cpu",
        "MPLBACKEND": "agg",
        "JAXDP_CACHE_DIR": "",
        "PYTHONDONTWRITEBYTECODE": "1",
        "RAY_memory_monitor_refresh_ms": "0",
    }


def train(
    python: str, checkout: pathlib.Path, folder: pathlib.Path, flags: str
) -> subprocess.CompletedProcess[str]:
    words = flags.split()
    command = ["jaxdp.launch", *words[1:]] if words[0] == "launch" else ["jaxdp.train", *words]
    return subprocess.run(
        [python, "-m", *command],
        cwd=folder,
        env=environment(checkout),
        text=True,
        capture_output=True,
        timeout=300,
    )


def record_one(
    python: str, checkout: pathlib.Path, inputs: pathlib.Path, name: str
) -> dict[str, Any]:
    given = CONFIGURATIONS[name]
    first, *others = [given] if isinstance(given, str) else given
    with tempfile.TemporaryDirectory(prefix="same-runs-") as temporary:
        folder = pathlib.Path(temporary)
        for item in inputs.iterdir():
            (folder / item.name).symlink_to(item)
        done = train(python, checkout, folder, first)
        for flags in others:
            if done.returncode == 2:
                done = train(python, checkout, folder, flags)
        runs = sorted((folder / "runs").glob("*")) if (folder / "runs").exists() else []
        found: dict[str, Any] = {"exit": done.returncode, "runs": [run.name for run in runs]}
        if done.returncode:
            found["error"] = (done.stderr.strip().splitlines() or [""])[-1]
        for run in runs[:1]:
            found |= read_run(run, python, environment(checkout))
            if name.startswith("init-") and isinstance(found["checkpoint"], dict):
                arrays = found["checkpoint"].get("arrays", {})
                initial = {key: value for key, value in arrays.items() if key.startswith("params/")}
                found = {"exit": found["exit"], "runs": found["runs"], "initial": initial}
        return found


def read_run(run: pathlib.Path, python: str, variables: dict[str, str]) -> dict[str, Any]:
    summary, dataset = run / "summary.json", run / "dataset.json"
    command = [python, __file__, "_checkpoint", str(run)]
    child = subprocess.run(command, env=variables, text=True, capture_output=True)
    checkpoint = json.loads(child.stdout) if child.returncode == 0 else child.stderr[-400:]
    return {
        "rows": lines(run / "metrics.jsonl"),
        "history": lines(run / "history.jsonl"),
        "summary": steady(json.loads(summary.read_text())) if summary.exists() else None,
        "files": sorted({path.name.partition(".out.")[0] for path in run.iterdir()}),
        "dataset": json.loads(dataset.read_text()) if dataset.exists() else None,
        "config": (run / "config.yaml").read_text().splitlines(),
        "checkpoint": checkpoint,
    }


def run(arguments: argparse.Namespace) -> int:
    checkout = arguments.checkout.resolve()
    names = arguments.only.split(",") if arguments.only else list(CONFIGURATIONS)
    records: dict[str, object] = {}
    if arguments.only and arguments.out.exists():  # others stay
        records = json.loads(arguments.out.read_text())
    with tempfile.TemporaryDirectory(prefix="gate-inputs-") as temporary:
        inputs = pathlib.Path(temporary)
        write_inputs(inputs)
        for name in names:
            began = time.monotonic()
            found = record_one(arguments.python, checkout, inputs, name)
            records[name] = found
            error = f"  {found['error']}" if "error" in found else ""
            print(
                f"{name}: exit {found['exit']}, {time.monotonic() - began:.0f} s{error}", flush=True
            )
            arguments.out.write_text(json.dumps(records, indent=1) + "\n")
    return 0


def flat(value: object, prefix: str = "") -> dict[str, object]:
    if prefix.endswith(".config") and isinstance(value, list):  # lines of YAML: by name
        value = "\n".join(value)
        pieces = re.split(r"\n(?=\w)", value)
        value = {piece.partition(":")[0]: piece.partition(":")[2].strip() for piece in pieces}
    if isinstance(value, dict) and value:
        parts = [flat(inner, f"{prefix}.{name}") for name, inner in value.items()]
    elif isinstance(value, list) and value:
        parts = [flat(inner, f"{prefix}[{number}]") for number, inner in enumerate(value)]
    else:
        return {prefix: value}
    return {name: inner for part in parts for name, inner in part.items()}


def compare(before: pathlib.Path, after: pathlib.Path) -> int:
    old, new = json.loads(before.read_text()), json.loads(after.read_text())
    differing = 0
    for name in new:
        if name not in old:
            print(f"{name}: not in {before}")
            continue
        left, right = flat(old[name]), flat(new[name])
        changed = [key for key in {**left, **right} if left.get(key, "-") != right.get(key, "-")]
        differing += bool(changed)
        print(f"{name}: {'equal' if not changed else f'{len(changed)} of {len(left)} differ'}")
        for key in changed[:12]:
            print(f"    {key.lstrip('.')}: {left.get(key, '-')} -> {right.get(key, '-')}")
        if len(changed) > 12:
            print(f"    and {len(changed) - 12} more")
    print(
        f"{len(new)} compared, {differing} differ; not run:"
        f" {', '.join(old.keys() - new.keys()) or 'none'}"
    )
    return int(differing > 0)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("checkout", type=pathlib.Path)
    running.add_argument("out", type=pathlib.Path)
    running.add_argument("--python", default=sys.executable)
    running.add_argument("--only")
    comparing = commands.add_parser("compare")
    comparing.add_argument("before", type=pathlib.Path)
    comparing.add_argument("after", type=pathlib.Path)
    reading = commands.add_parser("_checkpoint")
    reading.add_argument("run", type=pathlib.Path)
    arguments = parser.parse_args()
    if arguments.command == "_checkpoint":
        print(json.dumps(read_checkpoint(arguments.run)))
        return 0
    if arguments.command == "compare":
        return compare(arguments.before, arguments.after)
    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
