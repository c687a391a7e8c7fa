"""A cell of a bench: what is known of it before it runs, and the process that measures it."""

import datetime
import json
from collections.abc import Mapping
from typing import Any

from jaxdp.config import TrainConfig
from jaxdp.registry import ConfigError
from jaxdp.runtime import platform
from jaxdp.runtime.trial import Record, failure


def describe(config: TrainConfig) -> Record:
    """Returns what is known of a cell before it runs."""
    named = ("model", "strategy", "devices", "global_batch_size", "precision", "dataset", "steps")
    defaults = TrainConfig().plain()
    settings = {
        name: value
        for name, value in config.plain().items()
        if name not in named and value != defaults[name]
    }
    return {
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "model": config.model,
        "dataset": config.dataset,
        "strategy": config.strategy,
        "devices": config.devices,
        "global_batch_size": config.global_batch_size,
        "precision": config.precision,
        "settings": settings,
        "cores": platform.cores(),
    }


def answer(request: Mapping[str, Any]) -> None:
    """The other end of `trial.run`: prints a line about the machine, and when it is done one with
    the result.
    """
    try:
        config = TrainConfig.of(**request["config"])
        platform.configure(
            config.devices,
            deterministic=config.deterministic,
            precision=config.precision,
        )
        from jaxdp.tools import throughput
        from jaxdp.training import summary
        from jaxdp.training.setup import create_setup

        device = platform.select_devices(config.devices)[0]
        machine = {
            "platform": device.platform,
            "device_kind": device.device_kind,
            "versions": summary.versions(),
        }
        print(json.dumps(machine), flush=True)
        found = throughput.benchmark_training(
            create_setup(config), steps=request["steps"], repeats=request["repeats"]
        )
        print(json.dumps({"status": "ok", "reason": None} | found), flush=True)
    except ConfigError as error:
        print(json.dumps({"status": "refused", "reason": str(error)}), flush=True)
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        print(json.dumps(failure(said, said)), flush=True)
