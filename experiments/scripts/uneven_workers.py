"""Compares all-reduce and exact on MNIST with three workers, one of which is four times slower.

Workers that sleep stand for machines: each takes at least so many seconds for an image
(JAXDP_WORKER_SECONDS), which is more than a core takes. The ideal is all-reduce on machines that
together are as fast and never wait. Time is training time, without evaluation. It needs Ray:
pip install '.[ray]'.
"""

import itertools
import os
import sys
from typing import Any

import lab

from jaxdp.errors import ConfigError
from jaxdp.runtime import ray_connection
from jaxdp.workers.worker import SLOWED

WORKERS = 3
# Images per second of a fast worker, and how many times slower the last one is.
SPEED, SLOWER = 750, 4
IDEAL = SPEED * (WORKERS - 1 + 1 / SLOWER)
STEPS, EVALUATIONS = 210, 7
EXACT_SLICES, ROWS_EVERY = 18, 10
GOAL = 0.97
NAMES = {
    "allreduce": "all-reduce, equal shares",
    "exact": "exact",
}


def measure(experiment: lab.Experiment) -> Any:
    try:
        ray_connection.require()
    except ConfigError as error:
        print(f"experiments/scripts/uneven_workers.py: {error.remedy}", file=sys.stderr)
        sys.exit(2)
    # Images that a worker computes in a step, if all compute as many; a multiple of the number that
    # batch norm and the slices need.
    share, steps = (24, 20) if experiment.tiny else (96, STEPS)
    batch = WORKERS * share
    data = ["--dataset", "digits"] if experiment.tiny else ["--dataset", "mnist", *experiment.data]
    common = ["--model", "cnn", "--batch-norm", f"group:{share // 6}", *data]
    plugin = ["--plugins", str(lab.SCRIPTS / "slowed.py"), "--callbacks", "slowed"]
    workers = ["--workers", str(WORKERS)]
    # its flags, images of a step, and of what a worker computes at once
    cases = {
        "allreduce": (plugin, batch, share),
        "exact": (
            [*workers, "--slices", str(EXACT_SLICES)],
            batch,
            batch // EXACT_SLICES,
        ),
    }
    results = {}
    for name, (flags, size, at_once) in cases.items():
        count, rows = steps * batch // size, steps // ROWS_EVERY
        every = count // (2 if experiment.tiny else EVALUATIONS)
        length = f"--global-batch-size {size} --steps {count} --log-every {count // rows}".split()
        length += f"--eval-every {every} --checkpoint-every {count}".split()
        seconds = [at_once / SPEED] * (WORKERS - 1) + [at_once / SPEED * SLOWER]
        os.environ[SLOWED] = ",".join(f"{each:.4f}" for each in seconds)
        strategy = "pmap" if name == "allreduce" else name
        own = [*common, *length, "--strategy", strategy, *flags]
        run = experiment.train(name, own, processes=WORKERS if name == "allreduce" else 1)
        results[name] = outcome(run, size)
    return results


def outcome(run: lab.Run, size: int) -> dict[str, Any]:
    """Returns times, losses and evaluations of a run, and which share of the work the slow worker
    did.

    Args:
        size: images of a step.
    """
    rows = [row for row in run.rows if row["split"] == "train"]
    tests = [row for row in run.rows if row["split"] == "test"]
    rates = [row["examples_per_second"] for row in rows]
    rates[0] = rates[1]  # the first row waited for the first step
    lengths = [
        after - before for before, after in itertools.pairwise([0, *(row["step"] for row in rows)])
    ]
    times = list(
        itertools.accumulate(
            steps * size / rate for steps, rate in zip(lengths, rates, strict=True)
        )
    )
    at = dict(zip((row["step"] for row in rows), times, strict=True))
    done = (
        [sum(each) for each in zip(*(row["worker_slices"] for row in rows), strict=True)]
        if "worker_slices" in rows[0]
        else []
    )
    return {
        "images": [row["step"] * size for row in rows],
        "seconds": times,
        "loss": [row["loss"] for row in rows],
        "test_images": [row["step"] * size for row in tests],
        "test_seconds": [at[row["step"]] for row in tests],
        "accuracy": [row["accuracy"] for row in tests],
        "test_loss": [row["loss"] for row in tests],
        "slow_share": done[-1] / sum(done) if done else 1 / WORKERS,
    }


def show(results: Any) -> tuple[list[str], Any]:
    figure, (left, right) = lab.create_figure(
        2,
        title="MNIST: three workers, one of them four times slower",
        subtitle=(
            f"workers that sleep stand for machines of {SPEED}, {SPEED} and {SPEED / SLOWER:.0f}"
            " images/s"
        ),
    )
    columns = (
        f"strategy | time | images/s | of the ideal | {GOAL:.0%} after | test accuracy | test loss"
        " | done by the slow worker"
    )
    table = [f"| {columns} |", "|---" * len(columns.split("|")) + "|"]
    reference = results["allreduce"]
    scaled = {"seconds": "images", "test_seconds": "test_images"}
    ideal = reference | {
        name: [each / IDEAL for each in reference[images]] for name, images in scaled.items()
    }
    for number, (name, found) in enumerate([*results.items(), ("ideal", ideal)]):
        style = {
            "color": lab.COLORS[number],
            "label": NAMES.get(name, "ideal: as fast as all together"),
            "linewidth": 1.8,
        }
        if name == "ideal":
            style |= {"color": "0.45", "linestyle": "--", "zorder": 1.5}
        percent = [100 * each for each in found["accuracy"]]
        left.plot(
            found["test_seconds"],
            percent,
            marker="" if name == "ideal" else "o",
            markersize=4,
            **style,
        )
        right.plot(found["seconds"], found["loss"], **style)
        rate = found["images"][-1] / found["seconds"][-1]
        reached = next(
            (
                time
                for time, each in zip(found["test_seconds"], found["accuracy"], strict=True)
                if each >= GOAL
            ),
            None,
        )
        cells = [
            f"{found['seconds'][-1]:.0f} s",
            f"{rate:,.0f}",
            f"{rate / IDEAL:.0%}",
            f"{reached:.0f} s" if reached else "not",
        ]
        cells += [
            f"{found['accuracy'][-1]:.2%}",
            f"{found['test_loss'][-1]:.4f}",
            f"{found['slow_share']:.0%}",
        ]
        if name == "ideal":
            cells[4:] = ["", "", f"{1 / (1 + SLOWER * (WORKERS - 1)):.0%}"]
        table.append(f"| {f'`{name}`' if name in NAMES else name} | " + " | ".join(cells) + " |")
    learned = all(each["accuracy"][-1] > 0.95 for each in results.values())
    left.set(
        xlabel="seconds of training", ylabel="test accuracy, %", ylim=(90 if learned else 0, 100)
    )
    right.set(xlabel="seconds of training", ylabel="training loss", yscale="log")
    left.legend(frameon=False, loc="lower right")
    return table, figure


if __name__ == "__main__":
    lab.run("uneven_workers", __doc__, measure, show)
