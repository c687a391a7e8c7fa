"""Checks and times jaxdp on this GPU. Prints tables in under ten minutes.

    python benchmarks/gpu_check.py [--minutes N] [--parts NAME ...] [--models NAME ...]
        [--output DIR] [--tiny]

agreement    three training steps of small models on the GPU and on the CPU, in float32
throughput   training steps in bfloat16 and the same in PyTorch (compiled, channels last), at
             batches that double until memory is out; the roofline's bound on jaxdp's program;
             planned bytes and the allocator's peak
trainer      what a run of PyramidNet 110 waits for, with the data on the GPU and on the host,
             and 1 and 10 steps per execution
resume       a run with --deterministic, stopped and resumed or not: bitwise the same
bits         --strategy exact with --deterministic: slices of 1, 2, 4 and 8 owners, computed one
             after the other in two processes: one SHA-256
prediction   the memory that `jaxdp.plan --target` plans for a step without this GPU and the
             roofline's bound on that program, and what was measured

Each measurement is a process of its own: out of memory or a crash is a result, printed at once,
and the next measurement starts. Each part has its share of the minutes and starts nothing that
would take longer. `--parts` and `--models` give all minutes to some. experiments/gpu_check.sh
starts this file.
"""

import argparse
import json
import pathlib
import sys
import tempfile
import time
from typing import Any

import tables
import versus_torch
from gpu import runs
from gpu.processes import Clock, Record

# And their share of the minutes.
PARTS = {
    "agreement": 1.5, "throughput": 4.0, "trainer": 2.5, "resume": 1.0, "bits": 0.5,
    "prediction": 1.0,
}  # fmt: skip
SMALL = {  # of the agreement
    "cnn": ({}, 16), "pyramidnet": ({"depth": 8, "alpha": 6}, 16), "resnet": ({"depth": 8}, 16),
    "unet": ({"base_channels": 4, "levels": 2}, 16),
}  # fmt: skip
# Title, keywords, size of the images, first batch
MODELS: dict[str, tuple[str, Record, int, int]] = {
    "pyramidnet": ("PyramidNet 110 α48, 32x32", {"depth": 110, "alpha": 48}, 32, 512),
    "resnet": ("ResNet-50, 224x224", {"depth": 50}, 224, 64),
    "unet": ("U-Net base 64, 256x256", {"base_channels": 64}, 256, 16),
}
TINY: dict[str, tuple[str, Record, int, int]] = {
    "pyramidnet": ("PyramidNet 8 α6, 16x16", {"depth": 8, "alpha": 6}, 16, 8),
    "resnet": ("ResNet-50 width 4, 32x32", {"depth": 50, "width": 4}, 32, 4),
    "unet": ("U-Net base 4, 32x32", {"base_channels": 4}, 32, 2),
}
TOLERANCE = 1e-5
MOST_DOUBLINGS, TINY_DOUBLINGS = 12, 1
PRECISION = "bfloat16"


class Check:
    """The state that the parts share.

    Attributes:
        device: as gpu.cells.device has it.
        measured: jaxdp's steps by model and batch.
        wrong: whether something here is not as it must be.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments, self.clock = arguments, Clock(time.monotonic() + 60 * arguments.minutes)
        self.models = {
            name: each
            for name, each in (TINY if arguments.tiny else MODELS).items()
            if name in arguments.models
        }
        self.device: Record = {}
        self.measured: dict[tuple[str, int], Record] = {}
        self.wrong = False

    def keep(self, part: str, record: Record) -> None:
        """Adds a line to DIR/gpu_check.jsonl."""
        if self.arguments.output is not None:
            self.arguments.output.mkdir(parents=True, exist_ok=True)
            with (self.arguments.output / "gpu_check.jsonl").open("a") as file:
                print(json.dumps({"part": part} | record), file=file)

    def step_of(self, side: str, name: str, batch: int) -> Record:
        """Measures training steps of a model, once."""
        _, kwargs, size, _ = self.models[name]
        what = {
            "name": name,
            "kwargs": kwargs,
            "size": size,
            "batch": batch,
            "precision": PRECISION,
        }
        if side == "torch":
            found = self.clock.cell("torch", what=name, **what)
        else:
            found = self.clock.cell("jaxdp", what=name, **what, target=self.device["target"])
            self.measured[name, batch] = found
            self.wrong |= found["status"] == "failed"
        self.keep(
            "throughput",
            {"side": side, "model": name, "batch": batch, "precision": PRECISION} | found,
        )
        return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--minutes", type=float, default=9.5, help="nothing runs longer (default: %(default)s)"
    )
    parser.add_argument(
        "--parts",
        nargs="+",
        choices=PARTS,
        default=list(PARTS),
        metavar="NAME",
        help="some of the above",
    )
    parser.add_argument(
        "--models",
        nargs="+",
        choices=MODELS,
        default=list(MODELS),
        metavar="NAME",
        help=", ".join(MODELS),
    )
    parser.add_argument(
        "--first-batch", type=int, help="of the throughput, instead of each model's own"
    )
    parser.add_argument(
        "--output", type=pathlib.Path, metavar="DIR", help="folder for gpu_check.jsonl, which grows"
    )
    parser.add_argument(
        "--target", metavar="cuda:CHIP:1", help="for predictions (default: by the name of the GPU)"
    )
    parser.add_argument(
        "--tiny", action="store_true", help="small models, to try the check itself on any machine"
    )
    check = Check(arguments := parser.parse_args())
    if arguments.minutes <= 0 or (arguments.first_batch or 1) < 1:
        parser.error("--minutes and --first-batch must be above 0")
    check.device = check.clock.cell("device")
    if check.device["status"] != "ok":
        print(f"JAX finds no device: {check.device['reason']}", file=sys.stderr)
        return 1
    if check.device["platform"] == "cpu" and not arguments.tiny:
        parser.error("JAX finds no GPU here; --tiny tries the check on a CPU")
    check.device["target"] = arguments.target or check.device["target"]
    machine = tables.machine("jax", "flax", *(["torch"] if versus_torch.has_torch() else []))
    check.keep("device", check.device | {"machine": machine})
    print(f"{check.device['kind']}, {machine}", flush=True)
    run_part = {
        "agreement": agreement,
        "throughput": throughput,
        "trainer": trainer,
        "resume": resume,
        "bits": bits,
        "prediction": prediction,
    }
    parts = [part for part in PARTS if part in arguments.parts]
    for number, part in enumerate(parts):
        check.clock.start_part(PARTS[part] / sum(PARTS[each] for each in parts[number:]))
        print(f"\n{part}\n", flush=True)
        try:
            run_part[part](check)
        except Exception as error:  # the parts after it are worth having
            check.wrong = True
            print(f"{part} failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    return int(check.wrong)


def table(*names: str) -> None:
    print("| " + " | ".join(names) + " |\n" + "|---" * len(names) + "|", flush=True)


def row(*values: Any) -> None:
    print("| " + " | ".join(map(str, values)) + " |", flush=True)


def number(record: Record, field: str, form: str = ",.0f", scale: float = 1.0) -> str:
    """Returns a figure as text, what went wrong if that did, or a dash where there is none."""
    value = record.get(field)
    if value is None and record["status"] != "ok":
        return {"oom": "OOM", "late": "no time"}.get(record["status"], "failed")
    return "–" if value is None else format(scale * value, form)


def quotient(first: Record, second: Record, field: str, other: str | None = None) -> str:
    above, below = first.get(field), second.get(other or field)
    return f"{above / below:.2f}" if above and below else "–"


def agreement(check: Check) -> None:
    table(
        "three steps, GPU and CPU",
        "largest difference / largest weight",
        "all differences / all updates",
        f"below {TOLERANCE:.0e}",
    )
    for name, (kwargs, size) in SMALL.items():
        found = check.clock.cell("agreement", name=name, kwargs=kwargs, size=size)
        good = found["status"] == "ok" and found["of_weights"] <= TOLERANCE
        check.wrong |= not good
        check.keep("agreement", {"model": name, "agrees": good} | found)
        verdict = ("yes" if good else "NO") if found["status"] == "ok" else "–"
        row(name, number(found, "of_weights", ".1e"), number(found, "of_updates", ".1e"), verdict)
        say_why(found)


def throughput(check: Check) -> None:
    sides = ["jaxdp", "torch"] if versus_torch.has_torch() else ["jaxdp"]
    speeds = [f"{side}, images/s" for side in sides]
    table(
        f"step in {PRECISION}",
        "batch",
        *speeds,
        "ratio",
        "ms",
        "roofline's bound, ms",
        "bound / measured",
        "planned, GB",
        "allocator's peak, GB",
    )
    going = {name: list(sides) for name in check.models}  # sides that have not failed
    for doubling in range(1 + (TINY_DOUBLINGS if check.arguments.tiny else MOST_DOUBLINGS)):
        for name in [name for name in going if going[name]]:
            title, _, _, first = check.models[name]
            batch = (check.arguments.first_batch or first) * 2**doubling
            if not check.clock.may_start(name, len(going[name])):
                row(title, f"{batch:,}", *["no time"] * len(sides), *["–"] * 6)
                going[name] = []
                continue
            found = {side: check.step_of(side, name, batch) for side in going[name]}
            going[name] = [side for side, each in found.items() if each["status"] == "ok"]
            nothing: Record = {"status": "ok"}
            ours, theirs = found.get("jaxdp", nothing), found.get("torch", nothing)
            speeds = [number(found.get(side, nothing), "images_per_second") for side in sides]
            planned, peak = (
                number(ours, f"{which}_bytes", ",.2f", 1e-9) for which in ("planned", "peak")
            )
            if ours.get("peak_bytes") and ours["peak_bytes"] == ours["compiling_peak_bytes"]:
                peak += " while compiling"
            bound = f"{number(ours, 'predicted_ms', ',.2f')} {ours.get('bound', '')}".strip()
            row(
                title,
                f"{batch:,}",
                *speeds,
                quotient(ours, theirs, "images_per_second"),
                number(ours, "ms", ",.2f"),
                bound,
                quotient(ours, ours, "predicted_ms", "ms"),
                planned,
                peak,
            )
            for each in found.values():
                say_why(each)


def trainer(check: Check) -> None:
    title = (TINY if check.arguments.tiny else MODELS)["pyramidnet"][0]
    table(f"trainer, {title}, {PRECISION}", "batch", "images/s", "share of time waiting for input")
    with tempfile.TemporaryDirectory() as folder:
        for found in runs.trainer(check.clock, pathlib.Path(folder), tiny=check.arguments.tiny):
            check.keep("trainer", found)
            check.wrong |= found["status"] == "failed"
            wait = number(found, "input_wait_fraction", ".1%")
            row(found["way"], found.get("batch", "–"), number(found, "examples_per_second"), wait)
            say_why(found)


def resume(check: Check) -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = runs.resume(check.clock, pathlib.Path(folder), tiny=check.arguments.tiny)
    check.keep("resume", found)
    check.wrong |= found["status"] != "ok" or bool(found["differ"])
    if found["status"] == "ok":
        differ = (
            f"{len(found['differ'])} of {found['arrays']} arrays differ"
            if found["differ"]
            else "the same bits"
        )
        print(
            f"--deterministic, stopped after step {found['stopped_at']} of {found['steps']} and"
            f" resumed: {differ}",
            flush=True,
        )
    else:
        print(f"--deterministic, stopped and resumed: {number(found, '')}", flush=True)
        say_why(found)


def bits(check: Check) -> None:
    found = [check.clock.cell("bits", steps=20) for _ in range(2)]
    digests = {digest for each in found for digest in each.get("digests", {}).values()}
    good = all(each["status"] == "ok" for each in found)
    for each in found:
        check.keep("bits", each)
    check.wrong |= good and len(digests) > 1
    if good:
        owners = ", ".join(found[0]["digests"])
        what = f"one SHA-256, {min(digests)}" if len(digests) == 1 else f"{len(digests)} SHA-256"
        print(f"exact --deterministic, {owners} owners of slices, 2 processes: {what}", flush=True)
    else:
        check.wrong |= any(each["status"] == "failed" for each in found)
        print(f"exact --deterministic: {number(found[0], '')}", flush=True)
        for each in found:
            say_why(each)


def prediction(check: Check) -> None:
    if check.device["target"] is None:
        print(f"There is no target for {check.device['kind']}.")
        return
    table(
        f"step for {check.device['target']}, {PRECISION}",
        "batch",
        "predicted, ms",
        "measured, ms",
        "predicted / measured",
        "predicted, GB",
        "allocator's peak, GB",
    )
    for name, (title, kwargs, size, first) in check.models.items():
        batch = check.arguments.first_batch or first
        if not check.clock.may_start("predict"):
            row(title, batch, *["no time"] * 5)
            continue
        measured = check.measured.get((name, batch)) or check.step_of("jaxdp", name, batch)
        what = {
            "name": name,
            "kwargs": kwargs,
            "size": size,
            "batch": batch,
            "precision": PRECISION,
        }
        found = check.clock.cell("predict", **what, target=check.device["target"])
        check.wrong |= found["status"] == "failed"
        check.keep(
            "prediction", {"model": name, "batch": batch, "measured_ms": measured.get("ms")} | found
        )
        bound = f"{number(found, 'predicted_ms', ',.2f')} {found.get('bound', '')}".strip()
        row(
            title,
            batch,
            bound,
            number(measured, "ms", ",.2f"),
            quotient(found, measured, "predicted_ms", "ms"),
            number(found, "predicted_bytes", ",.2f", 1e-9),
            number(measured, "peak_bytes", ",.2f", 1e-9),
        )
        say_why(found)


def say_why(found: Record) -> None:
    if found.get("reason"):
        print(f"  {found['reason']}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
