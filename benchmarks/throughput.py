"""Measures the images per second of PyramidNet against the batch size, on one device, with a
central device, and distributed.

The comparison that this project began with: a single device, master-device data parallelism
(`central`, torch's DataParallel) and distributed data parallelism (`pmap` and its two modern
spellings). On a CPU the devices are simulated and the model is the small one of the digits; on
accelerators it is PyramidNet 110 α48 on CIFAR-10, and all devices there are.

    python benchmarks/throughput.py --model cnn --strategies single,pmap --batch-sizes 32,64
        --devices 1,2 --output DIR

measures a grid of your own instead, prints its table, and adds a line for each cell to
DIR/bench.jsonl. `--model cnn --help` lists its flags, and `--help-all` those of training, which
apply to all cells.
"""

import sys
from collections.abc import Sequence
from typing import Any

import grid
import jax
from experiment import COLORS, Experiment, create_figure, run

from jaxdp.cli.command_line import given_flags

# Flags of the committed figure. Any other flag belongs to a grid.
OF_THE_FIGURE = {"help", "tiny", "data_dir", "output", "redraw", "write"}

SIZES = (32, 64, 128, 256, 512, 1024)
DISTRIBUTED = ("central", "pmap", "shard_map", "sharded")
COLOR_OF = dict(zip(("single", *DISTRIBUTED), COLORS, strict=False))
MARKERS = dict(zip(COLOR_OF, "ovsD^", strict=True))


def main(words: Sequence[str]) -> int:
    """Measures the committed figure, or the grid of these flags."""
    if not given_flags(words) <= OF_THE_FIGURE:
        return grid.main(words)
    run("throughput", __doc__, measure, show)
    return 0


def measure(experiment: Experiment) -> Any:
    simulated = jax.default_backend() == "cpu"
    devices, sizes, flags = 4 if simulated else jax.device_count(), SIZES, ["--model", "pyramidnet"]
    if not simulated:
        flags += [
            "--dataset",
            "cifar10",
            "--model-kwargs",
            "depth=110",
            "alpha=48",
            *experiment.data,
        ]
    if experiment.tiny:
        devices, sizes = 2, SIZES[:2]
        flags += ["--model-kwargs", "depth=8", "alpha=6", "--steps", "2", "--repeats", "2"]
    flags += ["--batch-sizes", ",".join(map(str, sizes))]
    records = experiment.grid("one", *flags, "--strategies", "single", "--devices", "1")
    if devices > 1:
        records += experiment.grid(
            "several", *flags, "--strategies", ",".join(DISTRIBUTED), "--devices", str(devices)
        )
    return records


def show(records: Any) -> tuple[list[str], Any]:
    sizes = sorted({record["global_batch_size"] for record in records})
    figure, (axes,) = create_figure(
        1, title="PyramidNet: throughput against the batch", subtitle=grid.heading(records)
    )
    table = [
        "| strategy | devices | " + " | ".join(f"batch {size}" for size in sizes) + " |",
        "|---" * (2 + len(sizes)) + "|",
    ]
    for strategy in dict.fromkeys(record["strategy"] for record in records):
        here = {each["global_batch_size"]: each for each in records if each["strategy"] == strategy}
        count = next(iter(here.values()))["devices"]
        table.append(
            f"| `{strategy}` | {count} | "
            + " | ".join(cell(here.get(size)) for size in sizes)
            + " |"
        )
        rates = {
            size: each["images_per_second"] for size, each in here.items() if each["status"] == "ok"
        }
        label = f"{strategy}, {count} device" + "s" * (count > 1)
        look: Any = {
            "color": COLOR_OF[strategy],
            "marker": MARKERS[strategy],
            "linewidth": 2,
            "label": label,
        }
        axes.plot(list(rates), [rate["median"] for rate in rates.values()], **look)
        low, high = ([rate[which] for rate in rates.values()] for which in ("min", "max"))
        axes.fill_between(list(rates), low, high, color=COLOR_OF[strategy], alpha=0.16, linewidth=0)
        for size, each in here.items():
            if each["status"] == "oom":
                axes.annotate("OOM", (size, 0), color=COLOR_OF[strategy], ha="center", va="bottom")
    axes.set(xlabel="global batch size", ylabel="images / s", xscale="log", ylim=(0, None))
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    figure.legend(frameon=False, loc="outside right center")
    return table, figure


def cell(record: dict[str, Any] | None) -> str:
    if record is None or record["status"] != "ok":
        return "OOM" if record is not None and record["status"] == "oom" else "–"
    return f"{record['images_per_second']['median']:,.0f}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
