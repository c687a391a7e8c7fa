"""What does summary.json say of a run?"""

import sys
import time
from importlib import metadata
from typing import Any

import jax

from jaxdp.runtime import platform
from jaxdp.step import metrics
from jaxdp.training.counters import Counters
from jaxdp.training.setup import Setup

_VERSIONS = ("jaxdp", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy")


def summarize(
    setup: Setup, counters: Counters, *, status: str, step: int, parameters: int, test: dict[str, float] | None,
    best: tuple[int, dict[str, float]] | None, started: float,
) -> dict[str, Any]:  # fmt: skip
    """Returns what summary.json holds; rates and times are of this process, a run continued has more.

    Args:
        started: when the process began, by `time.perf_counter`.
    """
    config, strategy = setup.config, setup.strategy
    task = setup.recipe.task
    splits = {"train": metrics.figures(task, counters.epoch) if counters.epoch.get("examples") else None, "test": test}
    return {
        "model": config.model,
        "dataset": config.dataset,
        "task": task.name,
        "strategy": config.strategy,
        "devices": strategy.num_devices,
        "device_kind": strategy.devices[0].device_kind,
        "processes": jax.process_count(),
        "parameters": parameters,
        "steps": step,
        "epochs": round(step / setup.plan.steps_per_epoch, 3),
        "global_batch_size": setup.global_batch_size,
        "batch_norm": config.batch_norm,
        "data_placement": config.data_placement,
        "skipped_examples": {split: len(reasons) for split, reasons in setup.skipped().items()},
        "skipped_updates": counters.skipped_updates,
        "rollbacks": counters.rollbacks,
        "metrics": {split: values for split, values in splits.items() if values is not None},
        "best": {"step": best[0], **best[1]} if best else None,
        "best_metric": dict(zip(("name", "larger_is_better"), task.best_metric, strict=True)),
        "seconds": {
            "total": round(time.perf_counter() - started, 3),
            "first_step": round(counters.first_step_done - started, 3) if counters.first_step_done else None,
            "train": round(counters.train_seconds, 3),
        },
        "examples_per_second": round(counters.train_examples / counters.train_seconds, 1) if counters.train_seconds else None,
        "xla_flags": platform.xla_flags(),
        "versions": versions(),
        "status": status,
    }


def title(setup: Setup) -> str:
    """Returns what stands above the pictures of a run."""
    config, count = setup.config, setup.strategy.num_devices
    devices = f"{count} device{'s' if count > 1 else ''}"
    return f"{config.model} on {config.dataset}, {devices}, {config.strategy}, batch norm {config.batch_norm}"


def versions() -> dict[str, str]:
    return {"python": sys.version.split()[0]} | {name: metadata.version(name) for name in _VERSIONS}
