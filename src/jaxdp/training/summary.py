"""Summarizes a run, for summary.json and for people."""

import functools
import math
import sys
import time
from collections.abc import Callable
from importlib import metadata
from typing import Any

import jax

from jaxdp.build.setup import Setup
from jaxdp.config import OBJECT
from jaxdp.data.source import by_reason
from jaxdp.inference import instances
from jaxdp.inference.predictor import Predictor
from jaxdp.runtime import platform
from jaxdp.step import metrics
from jaxdp.tasks import Task
from jaxdp.text.console import warn
from jaxdp.text.version import version
from jaxdp.training.counters import Counters
from jaxdp.training.outcome import RunOutcome

_VERSIONS = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy")


def summarize(
    setup: Setup,
    counters: Counters,
    outcome: RunOutcome,
    *,
    result_step: int,
    evaluated: dict[str, dict[str, float]],
    best: tuple[int, dict[str, float]] | None,
    arrays_sha256: str | None,
    start_time: float,
) -> dict[str, Any]:
    """Returns the content of summary.json.

    Rates and times are from this process only. A resumed run took longer.

    Args:
        result_step: the step of the state that is the result, the best by validation data or the
            last.
        evaluated: metrics of the result by split.
        arrays_sha256: of the state after the last step.
        best: step and metrics of the best checkpoint, if there are validation data.
        start_time: when the process began, by `time.perf_counter`.
    """
    config, strategy = setup.config, setup.strategy
    task, skipped = setup.step_config.task, setup.examples.skipped()
    result_kind = "best" if best and best[0] == result_step else "last"
    epoch = counters.epoch
    trained = {"train": metrics.compute(task, epoch)} if epoch.get("examples") else {}
    summary = {
        "model": config.model,
        "dataset": config.dataset,
        "task": task.name,
        "strategy": config.strategy,
        "devices": strategy.num_devices,
        **worker_facts(setup),
        "device_kind": strategy.devices[0].device_kind,
        "processes": jax.process_count(),
        "parameters": parameter_count(setup),
        "steps": outcome.step,
        "epochs": round(outcome.step / setup.intervals.steps_per_epoch, 3),
        "global_batch_size": setup.batches.global_batch_size,
        "optimizer": config.optimizer,
        "learning_rate": config.learning_rate,
        "batch_norm": str(config.batch_norm),
        "data_placement": config.data_placement,
        "skipped_examples": {split: len(errors) for split, errors in skipped.items()},
        "skipped_reasons": {split: by_reason(errors) for split, errors in skipped.items()},
        "skipped_updates": counters.skipped_updates,
        "metrics": trained | evaluated,
        "result": {"state": result_kind, "step": result_step},
        "best": {"step": best[0], **best[1]} if best else None,
        "best_metric": dict(zip(("name", "larger_is_better"), task.best_metric, strict=True)),
        "arrays_sha256": arrays_sha256,
        **_speed(counters, start_time),
        "xla_flags": platform.xla_flags(),
        "versions": versions(),
        "status": outcome.status,
    }
    if outcome.ended_early:
        total_steps = setup.intervals.total_steps
        summary["ended_early"] = {"reason": outcome.ended_early, "total_steps": total_steps}
    if not strategy.divided_by_devices:
        summary["same_bits_with"] = platform.rounding_facts(strategy.devices[0])
    if sizes := strategy.state_bytes(setup.shapes):
        summary["state_bytes"] = sizes["replicated"]
        summary["state_bytes_per_device"] = sizes["per_device"]
    return summary


def _speed(counters: Counters, start_time: float) -> dict[str, Any]:
    first, seconds = counters.first_step_done, counters.train_seconds
    return {
        "seconds": {
            "total": round(time.perf_counter() - start_time, 3),
            "first_step": round(first - start_time, 3) if first else None,
            "train": round(seconds, 3),
        },
        "examples_per_second": round(counters.train_examples / seconds, 1) if seconds else None,
    }


def worker_facts(setup: Setup) -> dict[str, Any]:
    """Returns the number of workers, or an empty dict for a run without workers."""
    return {} if setup.config.workers is None else {"workers": setup.config.workers}


def result_metrics(
    setup: Setup, outcome: RunOutcome, predictor: Predictor, interrupt: Callable[[], None]
) -> dict[str, dict[str, float]]:
    """Returns the metrics of the evaluated split, and of the test split if another split chose the
    result.

    Args:
        outcome: with the result and the metric sums of its evaluation.
        predictor: of the result.
        interrupt: is called often, and may raise an exception.
    """
    state, sums, split = outcome.state, outcome.sums, setup.evaluator.split or "test"
    assert state is not None
    assert sums is not None
    task = setup.step_config.task
    measure = functools.partial(_split_metrics, setup, predictor, interrupt)
    if task.finds_instances and outcome.status == "done" and split != "test":
        task = instances.choose(predictor, setup.examples.source(split), task, interrupt)
    values = {split: measure(task, split, sums)}
    if outcome.status == "done" and split != "test":
        if (chosen := task.calibrated(values[split])) is not task:
            task, values = chosen, {split: measure(chosen, split, sums)}
        if setup.dataset.test is not None:
            tested = setup.evaluator.evaluate(state, interrupt, split="test")
            values["test"] = measure(task, "test", tested)
    return values


def _split_metrics(
    setup: Setup,
    predictor: Predictor,
    interrupt: Callable[[], None],
    task: Task,
    split: str,
    sums: metrics.Sums,
) -> dict[str, float]:
    """Returns the metrics of a split, for instance segmentation also of its instances.

    Args:
        predictor: of the state that was evaluated.
        interrupt: as for `result_metrics`.
        task: with what validation data have chosen.
        sums: of its evaluation.
    """
    if task.finds_instances:
        counts = list[metrics.Sums]()
        for counted in instances.count(predictor, setup.examples.source(split), task):
            counts += counted
            interrupt()
        sums = {**sums, **metrics.add(*counts)}
    values = metrics.compute(task, sums)
    if not math.isfinite(values["loss"]) and jax.process_index() == 0:
        warn(f"the {split} loss of the result is {values['loss']}")
    return values


def title(setup: Setup) -> str:
    """Returns the title above the metrics of a run."""
    config, workers = setup.config, worker_facts(setup)
    count = workers.get("workers", setup.strategy.num_devices)
    kind = ("worker" if workers else "device") + "s" * (count > 1)
    return (
        f"{config.model} on {config.dataset}, {count} {kind}, {config.strategy}, batch norm"
        f" {config.batch_norm}"
    )


def parameter_count(setup: Setup) -> int:
    """Returns the number of parameters of the model."""
    return sum(leaf.size for leaf in jax.tree.leaves(setup.shapes.params))


def description(setup: Setup) -> str:
    """Returns a line with model, data, optimizer and number of steps."""
    config, dataset = setup.config, setup.dataset
    sizes = ", ".join(f"{len(source):,} {split}" for split, source in dataset.splits().items())
    height, width, channels = dataset.image_shape
    rate = "" if config.optimizer == OBJECT else f", learning rate {setup.learning_rates.max():.3g}"
    return (
        f"{config.model} ({parameter_count(setup):,} parameters) on {config.dataset} ({sizes}"
        f" images of {height}x{width}x{channels} {dataset.dtype}); {config.optimizer}{rate},"
        f" {setup.intervals.total_steps:,} steps of {setup.batches.global_batch_size} examples"
    )


def versions() -> dict[str, str]:
    """Returns the versions of Python, jaxdp and the libraries that a run computes with."""
    own = {"python": sys.version.split()[0], "jaxdp": version()}
    return own | {name: metadata.version(name) for name in _VERSIONS}
