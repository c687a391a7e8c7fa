"""Prints images per second of the input pipelines of jaxdp, torchvision, Grain and tf.data.

    python benchmarks/input.py [--rounds N] [--workers N] [--rows NAME ...] [--data-dir DIR]
        [--write FILE]

Three sets, with their files in the page cache: small PNG images, photographs as JPEG, and grey PNG
images with masks. Each row is read twice: *decoded*, up to a batch of pixels, and *augmented*, up
to cropped, flipped and normalized float32. All pipelines stay alive and take turns, for a few
seconds each. The table shows CPU time, including worker processes: images per second of one core
that does nothing else. A library that is not installed is left out.

Then jaxdp feeds steps of a given length, in which the host has nothing to do, as with an
accelerator. The table shows the share of the time that the steps waited for a batch.

`--data-dir` holds CIFAR-10 as TensorFlow Datasets writes it; without it the small images are
random. All pipelines but jaxdp's read them as files.
"""

import argparse
import importlib
import importlib.util
import io
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import input_sides
import numpy as np
import tables
from PIL import Image

PACKAGES = {"jaxdp": "jax", "torchvision": "torchvision", "Grain": "grain", "tf.data": "tensorflow"}
STEP_SECONDS = {"small": 0.05, "photos": 0.15, "slides": 0.1}
BATCH_SIZE = {"small": 128, "photos": 64, "slides": 16}
NAMES = {
    "small": "32x32 PNG, batch 128: crop of the padded image, flip",
    "photos": "500x375 JPEG, batch 64: random resized crop to 224x224, flip",
    "slides": "512x512 grey PNG with masks, batch 16: two flips",
}
AUGMENT = {
    "small": "pad_crop:4 flip",
    "photos": "random_resized_crop:224 flip",
    "slides": "flip flip_vertical",
}
COUNT = {"small": 4000, "photos": 200, "slides": 64}
WARM_UP, SECONDS = 0.7, 2.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured")
    parser.add_argument(
        "--workers",
        type=int,
        default=os.cpu_count(),
        help="threads or processes that read (default: cores)",
    )
    parser.add_argument(
        "--rows", nargs="*", default=list(NAMES), choices=list(NAMES), help="sets to measure"
    )
    parser.add_argument(
        "--sides", nargs="*", default=list(PACKAGES), choices=list(PACKAGES), help="whom to measure"
    )
    parser.add_argument("--data-dir", help="where CIFAR-10 lies as TensorFlow Datasets write it")
    parser.add_argument(
        "--write", type=pathlib.Path, help="Markdown file with a place for the table"
    )
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        serve(json.loads(arguments.one))
        return
    sides = [
        side for side in arguments.sides if importlib.util.find_spec(PACKAGES[side]) is not None
    ]
    lines = [
        "| set | until | " + " | ".join(sides) + " | jaxdp / best |",
        "|---" * (len(sides) + 3) + "|",
    ]
    waits = ["| set | length of a step | jaxdp waited for input |", "|---" * 3 + "|"]
    with tempfile.TemporaryDirectory() as folder:
        for kind in arguments.rows:
            place = pathlib.Path(folder, kind)
            read = {"kind": kind, "folder": str(place), "workers": arguments.workers}
            read["settings"] = make(kind, place, arguments.data_dir)
            for until in ("decoded", "augmented"):
                found = in_turns(
                    read | {"augmented": until == "augmented"}, sides, arguments.rounds
                )
                lines.append(
                    f"| {NAMES[kind] if until == 'decoded' else ''} | {until} |"
                    f" {' | '.join(cells(found))} |"
                )
                if "jaxdp" in found and until == "decoded":
                    share = 100 * middle(found["jaxdp"], "waited")
                    waits.append(
                        f"| {NAMES[kind].split(':')[0]} | {1000 * STEP_SECONDS[kind]:.0f} ms |"
                        f" {share:.1f}% |"
                    )
    text = "\n".join([heading(sides, arguments), "", *lines, "", *waits])
    print(text)
    if arguments.write:
        tables.write(arguments.write, "input", text)


def heading(sides: list[str], arguments: argparse.Namespace) -> str:
    packages = [
        "tensorflow-cpu" if PACKAGES[side] == "tensorflow" else PACKAGES[side] for side in sides
    ]
    what = (
        f"Images per second of one core, and in brackets of the machine with {arguments.workers}"
        " workers"
    )
    rounds = f"medians of {arguments.rounds} rounds" if arguments.rounds > 1 else "one round"
    machine = tables.machine(*packages, "pillow")
    return f"{what}, {rounds}, written by `nox -s bench -- input`. {machine}"


def cells(found: dict[str, list[dict[str, float]]]) -> list[str]:
    """Returns what each side reached, and the ratio of jaxdp to the best other one, by images per
    second of one core.
    """
    shown = [
        f"{middle(each, 'per_core'):,.0f} ({middle(each, 'per_second'):,.0f})"
        for each in found.values()
    ]
    others = [each for side, each in found.items() if side != "jaxdp"]
    if not others or "jaxdp" not in found:
        return [*shown, ""]
    rounds = zip(found["jaxdp"], *others, strict=True)
    ratios = [
        ours["per_core"] / max(their["per_core"] for their in theirs) for ours, *theirs in rounds
    ]
    return [*shown, f"**{statistics.median(ratios):.2f}**"]


def middle(found: list[dict[str, float]], name: str) -> float:
    return statistics.median(each[name] for each in found)


def in_turns(
    read: dict[str, Any], sides: list[str], rounds: int
) -> dict[str, list[dict[str, float]]]:
    """Returns what each side said in each round.

    All of them are alive until the end, and one at a time reads.
    """
    command = [sys.executable, __file__, "--one"]
    quiet = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    running = {
        side: subprocess.Popen(
            [*command, json.dumps({"side": side, **read})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=quiet,
        )
        for side in sides
    }
    found: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    for side, process in running.items():
        answer(process, side)  # it has read its first batch
    for number in range(rounds):
        for side in sides if number % 2 == 0 else sides[::-1]:
            assert running[side].stdin is not None
            print("read", file=running[side].stdin, flush=True)
            found[side].append(answer(running[side], side))
            print(
                f"round {number + 1}: {read['kind']}, augmented {read['augmented']}, {side}:"
                f" {found[side][-1]}",
                file=sys.stderr,
            )
    for process in running.values():
        process.communicate()
    return found


def answer(process: subprocess.Popen[str], side: str) -> Any:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"{side} ended with {process.wait()}")
    return json.loads(line)


def serve(job: dict[str, Any]) -> None:
    """Measures once for each line of standard input."""
    kind, side = job["kind"], job.pop("side")
    job["folder"] = pathlib.Path(job["folder"])
    read = input_sides.Read(**job, batch_size=BATCH_SIZE[kind])
    batches = input_sides.SIDES[side](read)
    check(next(batches), read)
    print("{}", flush=True)
    for _ in sys.stdin:
        found = rate(batches, read.batch_size)
        if side == "jaxdp" and not read.augmented:
            found["waited"] = waited(batches, STEP_SECONDS[kind])
        print(json.dumps(found), flush=True)
    os._exit(0)  # workers need no farewell


def check(batch: Any, read: input_sides.Read) -> None:
    """Checks that a batch is what was asked for: all sides do the same work."""
    pixels = np.asarray(batch["images"] if isinstance(batch, dict) else batch[0])
    side = {
        "small": (32, 32),
        "photos": (224, 224) if read.augmented else (375, 500),
        "slides": (512, 512),
    }[read.kind]
    values = read.batch_size * side[0] * side[1] * (1 if read.kind == "slides" else 3)
    assert pixels.size == values, (pixels.shape, values)
    assert pixels.dtype == (np.float32 if read.augmented else np.uint8), pixels.dtype
    if read.augmented:
        assert abs(pixels.mean()) < 1, pixels.mean()
        assert 0.3 < pixels.std() < 3, pixels.std()


def rate(batches: Iterator[Any], batch_size: int) -> dict[str, float]:
    """Returns images per second, and per second of CPU time.

    Images that were read ahead before do not count.
    """
    begin = time.perf_counter()
    while time.perf_counter() - begin < WARM_UP:
        next(batches)
    begin, busy, count = time.perf_counter(), cpu_seconds(), 0
    while time.perf_counter() - begin < SECONDS:
        next(batches)
        count += batch_size
    seconds, busy = time.perf_counter() - begin, cpu_seconds() - busy
    return {"per_second": count / seconds, "per_core": count / busy}


def waited(batches: Iterator[Any], step_seconds: float) -> float:
    """Returns the share of the time in which steps of this length waited for a batch."""
    begin, waiting = time.perf_counter(), 0.0
    while time.perf_counter() - begin < SECONDS:
        before = time.perf_counter()
        next(batches)
        waiting += time.perf_counter() - before
        time.sleep(step_seconds)
    return waiting / (time.perf_counter() - begin)


def cpu_seconds() -> float:
    """Returns the CPU time of this process and of all that it started."""
    parents, ticks = {}, {}
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        number = int(path.parent.name)
        parents[number], ticks[number] = int(fields[1]), int(fields[11]) + int(fields[12])
    mine, total = {os.getpid()}, 0
    for number in sorted(parents):  # children have higher numbers, unless these began anew
        if number in mine or parents[number] in mine:
            mine.add(number)
            total += ticks[number]
    return total / os.sysconf("SC_CLK_TCK")


def make(kind: str, folder: pathlib.Path, data_dir: str | None) -> dict[str, Any]:
    """Writes a set, and returns the settings by which jaxdp reads it."""
    settings: dict[str, Any] = {
        "model": "unet" if kind == "slides" else "cnn",
        "augment": AUGMENT[kind].split(),
    }
    if kind == "small" and data_dir:
        tensorflow_datasets: Any = importlib.import_module("tensorflow_datasets")
        split = f"train[:{COUNT[kind]}]"
        decoders = {"image": tensorflow_datasets.decode.SkipDecoding()}
        source = tensorflow_datasets.builder("cifar10", data_dir=data_dir).as_data_source(
            split, decoders=decoders
        )
        for number, example in enumerate(source):
            save(folder / str(example["label"]) / f"{number:05}.png", example["image"])
        return settings | {
            "dataset": "cifar10",
            "data_dir": data_dir,
            "train_split": split,
            "test_split": "test[:256]",
        }
    for number in range(COUNT[kind]):
        random = np.random.default_rng(number)
        if kind == "small":
            save(
                folder / str(number % 10) / f"{number:05}.png",
                encoded(photograph(32, 32, 3, random), "PNG"),
            )
        elif kind == "photos":
            save(
                folder / str(number % 10) / f"{number:05}.jpg",
                encoded(photograph(375, 500, 3, random), "JPEG", quality=90),
            )
        else:
            pixels = photograph(512, 512, 1, random)[..., 0]
            save(folder / "images" / f"{number:05}.png", encoded(pixels, "PNG"))
            save(
                folder / "masks" / f"{number:05}.png",
                encoded((pixels > 150).astype(np.uint8), "PNG"),
            )
    return settings | {"dataset": f"folder:{folder}"}


def photograph(height: int, width: int, channels: int, random: np.random.Generator) -> np.ndarray:
    """Returns an image with the spectrum of photographs, which falls in inverse proportion to the
    frequency.
    """
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None])
    frequency[0, 0] = np.inf
    phases = np.exp(2j * np.pi * random.random((channels + 1, *frequency.shape)))
    shared, *own = random.normal(size=phases.shape) * phases
    planes = [np.fft.irfft2((shared + 0.3 * each) / frequency, (height, width)) for each in own]
    pixels = np.stack([plane / plane.std() for plane in planes], -1)
    return np.clip(pixels * input_sides.STD + input_sides.MEAN, 0, 255).astype(np.uint8)


def encoded(pixels: np.ndarray, form: str, **options: Any) -> bytes:
    written = io.BytesIO()
    Image.fromarray(pixels).save(written, form, **options)
    return written.getvalue()


def save(path: pathlib.Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


if __name__ == "__main__":
    sys.exit(main())
