"""Sums a run up, as in summary.json."""

import dataclasses
import math
import sys
import time
from importlib import metadata
from typing import Any

import jax

import jaxdp
from jaxdp.data.dataset import by_reason
from jaxdp.inference import instances
from jaxdp.inference.predictor import Predictor
from jaxdp.rundir.read import warn
from jaxdp.runtime import platform
from jaxdp.step import metrics
from jaxdp.step.state import TrainState
from jaxdp.training.counters import Counters
from jaxdp.training.setup import Setup

_VERSIONS = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy")


@dataclasses.dataclass(frozen=True)
class End:
    """How a run ended.

    Attributes:
        status: `done`, `stopped` or `diverged`.
        early: why a callback ended it before its last step, if one did.
        result_step: of the state which is the result: the best by validation data, or else the
            last.
    """

    status: str
    step: int
    early: str
    result_step: int


def summarize(
    setup: Setup,
    counters: Counters,
    end: End,
    evaluated: dict[str, dict[str, float]],
    *,
    best: tuple[int, dict[str, float]] | None,
    started: float,
) -> dict[str, Any]:
    """Returns what summary.json holds.

    Rates and times are of this process only: a run that was resumed took longer.

    Args:
        evaluated: metrics of the result by split.
        best: step and metrics of the best checkpoint, if there are validation data.
        started: when the process began, by `time.perf_counter`.
    """
    config, strategy = setup.config, setup.strategy
    task = setup.recipe.task
    train = metrics.compute(task, counters.epoch) if counters.epoch.get("examples") else None
    return {
        "model": config.model,
        "dataset": config.dataset,
        "task": task.name,
        "strategy": config.strategy,
        "devices": strategy.num_devices,
        **worker_facts(setup),
        "device_kind": strategy.devices[0].device_kind,
        "processes": jax.process_count(),
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(setup.shapes.params)),
        "steps": end.step,
        "epochs": round(end.step / setup.intervals.steps_per_epoch, 3),
        "global_batch_size": setup.global_batch_size,
        "batch_norm": str(config.batch_norm),
        "data_placement": config.data_placement,
        **_skipped(setup, counters),
        "metrics": ({"train": train} if train is not None else {}) | evaluated,
        "result": {
            "state": "best" if best and best[0] == end.result_step else "last",
            "step": end.result_step,
        },
        "best": {"step": best[0], **best[1]} if best else None,
        "best_metric": dict(zip(("name", "larger_is_better"), task.best_metric, strict=True)),
        **_speed(counters, started),
        "xla_flags": platform.xla_flags(),
        "versions": versions(),
        "status": end.status,
        **_early(setup, end),
        **_sizes(setup),
    }


def _skipped(setup: Setup, counters: Counters) -> dict[str, Any]:
    skipped = setup.skipped()
    return {
        "skipped_examples": {split: len(errors) for split, errors in skipped.items()},
        "skipped_reasons": {split: by_reason(errors) for split, errors in skipped.items()},
        "skipped_updates": counters.skipped_updates,
    }


def _speed(counters: Counters, started: float) -> dict[str, Any]:
    first, seconds = counters.first_step_done, counters.train_seconds
    return {
        "seconds": {
            "total": round(time.perf_counter() - started, 3),
            "first_step": round(first - started, 3) if first else None,
            "train": round(seconds, 3),
        },
        "examples_per_second": round(counters.train_examples / seconds, 1) if seconds else None,
    }


def _early(setup: Setup, end: End) -> dict[str, Any]:
    if not end.early:
        return {}
    return {"ended_early": {"reason": end.early, "total_steps": setup.intervals.total_steps}}


def _sizes(setup: Setup) -> dict[str, int]:
    sizes = setup.strategy.state_bytes(setup.shapes)
    if not sizes:
        return {}
    return {"state_bytes": sizes["replicated"], "state_bytes_per_device": sizes["per_device"]}


def worker_facts(setup: Setup) -> dict[str, int]:
    """Returns the number of workers, nothing for a run without."""
    has_workers = "workers" in setup.strategy.settings
    return {"workers": setup.config.worker_count} if has_workers else {}


def split_metrics(
    setup: Setup, split: str, sums: metrics.Sums, state: TrainState | None
) -> dict[str, float]:
    """Returns the metrics of a split, with the metrics of objects for instance segmentation.

    Args:
        sums: of its evaluation.
        state: that was evaluated, on the host.
    """
    if setup.dataset.instances and state is not None:
        predictor = Predictor(state, setup.config, setup.dataset.describe(), setup.recipe.task)
        sums = metrics.add(sums, *instances.count(predictor, setup.source(split)))
    found = metrics.compute(setup.recipe.task, sums)
    if not math.isfinite(found["loss"]) and jax.process_index() == 0:
        warn(f"the {split} loss of the result is {found['loss']}")
    return found


def title(setup: Setup) -> str:
    """Returns what stands above the metrics of a run."""
    config = setup.config
    kind, count = "device", setup.strategy.num_devices
    for workers in worker_facts(setup).values():
        kind, count = "worker", workers
    return (
        f"{config.model} on {config.dataset}, {count} {kind}{'s' if count > 1 else ''},"
        f" {config.strategy}, batch norm {config.batch_norm}"
    )


def versions() -> dict[str, str]:
    """Returns the versions of what a run computes with."""
    return {"python": sys.version.split()[0], "jaxdp": jaxdp.__version__} | {
        name: metadata.version(name) for name in _VERSIONS
    }
