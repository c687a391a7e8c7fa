"""Measures the cost of batch norm that does not depend on the number of devices, with three modes
on 1, 2, 4 and 8 devices.

`group:32` is the default: with a global batch of 128, devices of up to four hold whole groups and
exchange nothing; of eight, two share a group, and each batch norm gathers their moments. `replica`
exchanges nothing and is another training on each count.
"""

from typing import Any

import jax
import lab

MODES = ("replica", "group:32", "global")


def measure(experiment: lab.Experiment) -> Any:
    simulated = jax.default_backend() == "cpu"
    counts = [count for count in (1, 2, 4, 8) if simulated or count <= jax.device_count()]
    batch, flags = 128, ["--model", "pyramidnet", "--strategies", "pmap"]
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
        counts, flags = (
            [1, 8],
            [*flags, "--model-kwargs", "depth=8", "alpha=6", "--steps", "2", "--repeats", "2"],
        )
    speeds: dict[str, dict[int, float]] = {mode: {} for mode in MODES}
    # The modes of a row one after the other: what disturbs the machine disturbs all three.
    for count in counts:
        for mode in MODES:
            grid = ["--batch-sizes", str(batch), "--devices", str(count), "--batch-norm", mode]
            (record,) = experiment.grid(f"{count}-{mode.replace(':', '')}", *flags, *grid)
            speeds[mode][count] = record["images_per_second"]["median"]
    device = (
        "simulated devices, which share the cores of one CPU"
        if simulated
        else jax.devices()[0].device_kind
    )
    return {"speeds": speeds, "device": device, "devices": counts}


def show(results: Any) -> tuple[list[str], Any]:
    counts = [str(count) for count in results["devices"]]
    figure, (axes,) = lab.create_figure(
        1,
        title="PyramidNet: the cost of a batch norm that is invariant",
        subtitle=results["device"],
    )
    table = [
        "| batch norm | "
        + " | ".join(f"{count} device{'s' * (count != '1')}" for count in counts)
        + " |"
    ]
    table.append("|---" * (1 + len(counts)) + "|")
    width = 0.8 / len(MODES)
    for number, mode in enumerate(MODES):
        rates, base = (
            [results["speeds"][each][count] for count in counts] for each in (mode, "replica")
        )
        ratios = [rate / reference for rate, reference in zip(rates, base, strict=True)]
        places = [index + (number - 1) * width for index in range(len(counts))]
        axes.bar(places, rates, width, color=lab.COLORS[number], label=mode)
        cells = [f"{rate:,.0f} ({ratio:.2f})" for rate, ratio in zip(rates, ratios, strict=True)]
        table.append(f"| {mode} | " + " | ".join(cells) + " |")
    axes.set(xlabel="devices", ylabel="images per second")
    axes.set_xticks(range(len(counts)), counts)
    figure.legend(*axes.get_legend_handles_labels(), frameon=False, loc="outside right center")
    return [
        *table,
        "",
        "Images per second, in brackets times those of `replica` on as many devices.",
    ], figure


if __name__ == "__main__":
    lab.run("batch_norm", __doc__, measure, show)
