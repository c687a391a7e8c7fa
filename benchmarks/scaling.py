"""Measures the scaling of every strategy, weak and strong, and of several processes, compared with
ideal scaling.

*Strong*: the same global batch on more devices. *Weak*: the same batch for each device. Simulated
devices share the cores, so that the ideal is no speed-up at all: a line that stays at 1 lost
nothing to dividing the work.
"""

from typing import Any

import jax
from experiment import COLORS, Experiment, create_figure, run

STRATEGIES = ("central", "pmap", "shard_map", "sharded")


def measure(experiment: Experiment) -> Any:
    simulated = jax.default_backend() == "cpu"
    most = 4 if simulated else jax.device_count()
    counts = [count for count in (1, 2, 4, 8, 16) if count <= most]
    each, flags = 64, ["--model", "pyramidnet"]
    if not simulated:
        each, flags = (
            128,
            [
                *flags,
                "--dataset",
                "cifar10",
                "--model-kwargs",
                "depth=110",
                "alpha=48",
                *experiment.data,
            ],
        )
    if experiment.tiny:
        counts, each, flags = [1, 2], 16, [*flags, "--model-kwargs", "depth=8", "alpha=6"]
    quick = ["--steps", "2", "--repeats", "2"] if experiment.tiny else []
    grids = {
        "strong": [(count, each * counts[-1]) for count in counts],
        "weak": [(count, each * count) for count in counts],
    }
    speeds: dict[str, dict[str, dict[int, float]]] = {kind: {} for kind in grids}
    for count, batch in sorted({cell for cells in grids.values() for cell in cells}):
        grid = [
            "--strategies",
            ",".join(STRATEGIES),
            "--devices",
            str(count),
            "--batch-sizes",
            str(batch),
        ]
        records = experiment.grid(f"{count}-{batch}", *flags, *quick, *grid)
        found = {
            each["strategy"]: each["images_per_second"]["median"]
            for each in records
            if each["status"] == "ok"
        }
        if simulated:
            found["pmap, a process each"] = by_processes(experiment, count, batch, flags)
        for kind in [kind for kind, cells in grids.items() if (count, batch) in cells]:
            for strategy, rate in found.items():
                speeds[kind].setdefault(strategy, {})[count] = rate
    device = (
        "simulated devices, which share the cores of one CPU"
        if simulated
        else jax.devices()[0].device_kind
    )
    return {
        "speeds": speeds,
        "simulated": simulated,
        "device": device,
        "examples_per_device": each,
        "devices": counts,
    }


def show(results: Any) -> tuple[list[str], Any]:
    counts, each = results["devices"], results["examples_per_device"]
    figure, panels = create_figure(
        2, title="PyramidNet: does it scale?", subtitle=results["device"]
    )
    table = [
        "| scaling | strategy | "
        + " | ".join(f"{count} device{'s' * (count > 1)}" for count in counts)
        + " |"
    ]
    table.append("|---" * (2 + len(counts)) + "|")
    for axes, (kind, found) in zip(panels, results["speeds"].items(), strict=True):
        axes.plot(
            counts, counts, color="0.6", linestyle=":", label="ideal, a processor for each device"
        )
        if results["simulated"]:
            axes.plot(
                counts, [1] * len(counts), color="0.6", linestyle="--", label="ideal, shared cores"
            )
        for number, (strategy, rates) in enumerate(found.items()):
            known = {
                count: rates[str(count)] for count in counts if str(count) in rates and "1" in rates
            }
            ratios = {count: rate / rates["1"] for count, rate in known.items()}
            axes.plot(
                list(ratios),
                list(ratios.values()),
                marker="o",
                color=COLORS[number],
                label=strategy,
            )
            cells = [
                f"{known[count]:,.0f} ({ratios[count]:.2f})" if count in known else "–"
                for count in counts
            ]
            table.append(f"| {kind} | {strategy} | " + " | ".join(cells) + " |")
        same = (
            f"global batch {each * counts[-1]}" if kind == "strong" else f"{each} images a device"
        )
        axes.set(
            title=f"{kind}: {same}",
            xlabel="devices",
            ylabel="times as fast",
            xscale="log",
            ylim=(0, None),
        )
        axes.set_xticks(counts, [str(count) for count in counts])
        axes.minorticks_off()
    figure.legend(*panels[0].get_legend_handles_labels(), frameon=False, loc="outside right center")
    return [*table, "", "Images per second, in brackets times those of one device."], figure


def by_processes(experiment: Experiment, count: int, batch: int, flags: list[str]) -> float:
    """Returns images per second of training on so many processes of one device."""
    steps = "6" if experiment.tiny else "40"
    own = [*flags, "--global-batch-size", str(batch), "--steps", steps, "--eval-every", steps]
    return experiment.train(f"processes-{count}-{batch}", own, processes=count).summary[
        "examples_per_second"
    ]


if __name__ == "__main__":
    run("scaling", __doc__, measure, show)
