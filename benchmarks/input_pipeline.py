"""Compares places of the input pipeline for VGG on CIFAR-10: one pipeline for all devices, one for
each device, or data on the devices.

Four devices each time. *One pipeline*: a process reads, decodes and places the batches of all
devices. *One each*: a process with its own pipeline for every device. *On the devices*: the
training set lies in their memory, and a step gathers its batch there.
"""

from typing import Any

from experiment import COLORS, Experiment, create_figure, run, where

DEVICES = 4


def measure(experiment: Experiment) -> Any:
    flags = ["--model", "vgg", "--model-kwargs", "depth=11", "--learning-rate", "0.01"]
    if experiment.tiny:
        flags += [
            "--dataset",
            "digits",
            "--image-size",
            "32",
            "--steps",
            "6",
            "--log-every",
            "2",
            "--global-batch-size",
            "16",
        ]
    else:
        flags += [
            "--dataset",
            "cifar10",
            *experiment.data,
            "--augment",
            "pad_crop:4",
            "flip",
            "--test-split",
            "test[:512]",
        ]
        flags += ["--steps", "40", "--log-every", "5"]
    forms = {
        "one pipeline": (1, DEVICES, "host"),
        "one each": (DEVICES, 1, "host"),
        "on the devices": (1, DEVICES, "device"),
    }
    results = {}
    for name, (processes, devices, placement) in forms.items():
        own = ["--data-placement", placement]
        training = experiment.train(
            name.replace(" ", "-"), [*flags, *own], processes=processes, devices=devices
        )
        rows = [row for row in training.rows if row["split"] == "train"]
        for row in rows:
            print(
                f"{name}: step {row['step']}, loss = {row['loss']:.2f}"
                f" ({row['examples_per_second']:.1f} examples/sec; {row['step_seconds']:.3f}"
                " sec/batch)"
            )
        results[name] = {
            "processes": processes,
            "examples_per_second": training.summary["examples_per_second"],
            "step_seconds": training.training("step_seconds"),
            "waited": training.training("input_wait_fraction"),
            "where": where(training),
        }
    return results


def show(results: Any) -> tuple[list[str], Any]:
    figure, (left, right) = create_figure(
        2,
        title="VGG-11: where the input pipeline lives",
        subtitle=f"{DEVICES} devices: {results['one pipeline']['where']}",
    )
    table = [
        "| pipeline | processes | examples/s | seconds per batch | waited for input |",
        "|---" * 5 + "|",
    ]
    for number, (name, found) in enumerate(results.items()):
        seconds, waited = (sum(found[key]) / len(found[key]) for key in ("step_seconds", "waited"))
        left.barh(
            number,
            seconds * (1 - waited),
            color=COLORS[0],
            label="computing" if not number else None,
        )
        left.barh(
            number,
            seconds * waited,
            left=seconds * (1 - waited),
            color=COLORS[1],
            label="waiting" if not number else None,
        )
        right.barh(number, found["examples_per_second"], color=COLORS[2])
        rate = f"{found['examples_per_second']:,.0f}"
        table.append(f"| {name} | {found['processes']} | {rate} | {seconds:.3f} | {waited:.1%} |")
    for axes, label in ((left, "seconds per batch"), (right, "examples / s")):
        axes.set(xlabel=label, yticks=range(len(results)))
        axes.set_yticklabels(list(results) if axes is left else [])
        axes.invert_yaxis()
    figure.legend(
        *left.get_legend_handles_labels(), frameon=False, loc="outside lower center", ncols=2
    )
    return table, figure


if __name__ == "__main__":
    run("input_pipeline", __doc__, measure, show)
