"""Compares the first command on one device and on eight devices: the difference of the losses, and
the time.

Batch norm takes the statistics of every 32 consecutive examples wherever they lie, so that every
step is the same to rounding. Rounding grows while a model trains; batch norm per replica, as
DistributedDataParallel has it, is another training from the first step on. With `--strategy exact`
nothing differs, with any seed.
"""

from typing import Any

import lab

CASES = {
    "1 device": (1, "group:32"),
    "8 devices": (8, "group:32"),
    "1 device, replica": (1, "replica"),
    "8 devices, replica": (8, "replica"),
}
SEEDS, SEEDS_OF_TINY = 5, 2
EARLY = 10
FLOOR = 1e-9  # of what a logarithmic axis shows


def measure(experiment: lab.Experiment) -> Any:
    flags = ["--model", "pyramidnet", "--log-every", "1"]
    flags += ["--model-kwargs", "depth=8", "alpha=6", "--steps", "22"] if experiment.tiny else []
    results = {}
    for name, (devices, batch_norm) in CASES.items():
        run = experiment.train(
            name.replace(" ", "-").replace(",", ""),
            [*flags, "--batch-norm", batch_norm],
            devices=devices,
        )
        results[name] = run.outcome()
    seeds = []
    for seed in range(SEEDS_OF_TINY if experiment.tiny else SEEDS):
        for strategy in ("pmap", "exact"):
            runs = [
                experiment.train(
                    f"{strategy}-{devices}-seed-{seed}",
                    [*flags, "--strategy", strategy, "--seed", str(seed)],
                    devices=devices,
                )
                for devices in (1, 8)
            ]
            outcomes = [run.outcome() for run in runs]
            seeds.append(
                {
                    "seed": seed,
                    "strategy": strategy,
                    "accuracies": [found["test"]["accuracy"] for found in outcomes],
                    "difference": _largest_difference(*(found["loss"] for found in outcomes)),
                    "digests": [run.summary["arrays_sha256"] for run in runs],
                }
            )
    return {"runs": results, "seeds": seeds}


def _largest_difference(one: list[float], other: list[float]) -> float:
    return max(abs(first - second) for first, second in zip(one, other, strict=True))


def show(kept: Any) -> tuple[list[str], Any]:
    results = kept["runs"]
    one = results["1 device"]
    figure, (left, right) = lab.create_figure(
        2, title="PyramidNet on the digits, on one and on eight devices", subtitle=one["where"]
    )
    table = [
        "| devices, batch norm | time | images/s | test accuracy | loss off that of one device,"
        " first 10 steps | all steps |"
    ]
    table.append("|---" * 6 + "|")
    for number, (name, found) in enumerate(results.items()):
        batch_norm = CASES[name][1]
        base = results["1 device, replica"] if batch_norm == "replica" else one
        differences = [
            abs(ours - theirs) for ours, theirs in zip(found["loss"], base["loss"], strict=True)
        ]
        shown = (
            f"{max(differences[:EARLY]):.1e} | {max(differences):.1e}"
            if CASES[name][0] > 1
            else " | "
        )
        rate, accuracy = found["examples_per_second"], found["test"]["accuracy"]
        table.append(
            f"| {CASES[name][0]}, {batch_norm} | {found['seconds']:.1f} s | {rate:,.0f} |"
            f" {accuracy:.2%} | {shown} |"
        )
        if CASES[name][0] == 1 and batch_norm == "replica":
            continue
        steps = range(1, len(differences) + 1)
        look = {
            "color": lab.COLORS[number],
            "linewidth": 1.8,
            "linestyle": ("-", "--", ":", ":")[number],
        }
        left.plot(
            steps,
            found["loss"],
            label=f"{CASES[name][0]} device{'s' * (CASES[name][0] > 1)}, {batch_norm}",
            **look,
        )
        if CASES[name][0] > 1:
            right.plot(
                steps,
                [max(value, FLOOR) for value in differences],
                label=f"8 devices against 1, {batch_norm}",
                **look,
            )
    table += [
        "",
        "| seed | strategy | test accuracy on 1 and on 8 devices | largest difference of the loss |"
        " SHA-256 of the last state on 1 and on 8 devices |",
        "|---" * 5 + "|",
    ]
    for row in kept["seeds"]:
        accuracies = " and ".join(f"{accuracy:.2%}" for accuracy in row["accuracies"])
        digests = " and ".join(f"`{digest[:12]}…`" for digest in row["digests"])
        table.append(
            f"| {row['seed']} | `{row['strategy']}` | {accuracies} | {row['difference']:.1e} |"
            f" {digests} |"
        )
    left.set(xlabel="step", ylabel="training loss", yscale="log")
    right.set(xlabel="step", ylabel="difference of the loss", yscale="log")
    left.legend(frameon=False)
    right.legend(frameon=False)
    return table, figure


if __name__ == "__main__":
    lab.run("devices", __doc__, measure, show)
