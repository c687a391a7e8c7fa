"""Trains MNIST with one, two and four processes, synchronously.

How long does it take, and do they agree?

The same global batch each time, and batch norm over groups of 32 examples, so that nothing but
rounding can differ. Rounding grows while a model trains; what two runs of the same mathematics must
share is their beginning.
"""

from typing import Any

import lab

COUNTS = (1, 2, 4)
EARLY = 10
FLOOR = 1e-9  # of what a logarithmic axis shows
WINDOW = 20


def measure(experiment: lab.Experiment) -> Any:
    flags = [
        "--model",
        "cnn",
        "--batch-norm",
        "group:32",
        "--global-batch-size",
        "128",
        "--log-every",
        "1",
    ]
    flags += (
        ["--dataset", "digits", "--steps", "22"]
        if experiment.tiny
        else ["--dataset", "mnist", *experiment.data, "--epochs", "2"]
    )
    results = []
    for count in COUNTS:
        run = experiment.train(f"{count}-processes", flags, processes=count)
        results.append({"processes": count, **run.outcome()})
    return results


def show(results: Any) -> tuple[list[str], Any]:
    one = results[0]
    figure, (left, right) = lab.create_figure(
        2,
        title="CNN on MNIST, the same training on several processes",
        subtitle=f"one device each: {one['where']}",
    )
    table = [
        "| processes | time | images/s | test accuracy | largest difference of the loss, first 10"
        " steps | all steps |"
    ]
    table.append("|---" * 6 + "|")
    for number, found in enumerate(results):
        count = found["processes"]
        differences = [
            abs(ours - theirs) for ours, theirs in zip(found["loss"], one["loss"], strict=True)
        ]
        shown = f"{max(differences[:EARLY]):.1e} | {max(differences):.1e}" if number else " | "
        rate, accuracy = found["examples_per_second"], found["test"]["accuracy"]
        table.append(
            f"| {count} | {found['seconds']:.1f} s | {rate:,.0f} | {accuracy:.2%} | {shown} |"
        )
        steps = range(1, len(differences) + 1)
        look = {
            "color": lab.COLORS[number],
            "linestyle": ("-", "--", ":")[number],
            "linewidth": 1.8,
        }
        label = f"{count} process" + "es" * (count > 1)
        left.plot(steps, smoothed(found["loss"]), label=label, **look)
        if number:
            right.plot(steps, [max(value, FLOOR) for value in differences], label=label, **look)
    left.set(xlabel="step", ylabel=f"training loss, mean of {WINDOW} steps", yscale="log")
    right.set(xlabel="step", ylabel="loss off that of one process", xscale="log", yscale="log")
    left.legend(frameon=False)
    right.legend(frameon=False, loc="upper left")
    return table, figure


def smoothed(values: list[float]) -> list[float]:
    """Returns the mean of each value and those before it in the window."""
    windows = [values[max(index - WINDOW + 1, 0) : index + 1] for index in range(len(values))]
    return [sum(window) / len(window) for window in windows]


if __name__ == "__main__":
    lab.run("processes", __doc__, measure, show)
