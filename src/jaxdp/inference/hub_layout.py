"""Writes a trained model as a repository of the Hugging Face hub holds it: weights, settings and a
model card.
"""

import dataclasses
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import yaml

from jaxdp.config import OBJECT, TrainConfig
from jaxdp.data.dataset import Description
from jaxdp.errors import ConfigError, flag
from jaxdp.inference.weights import to_safetensors
from jaxdp.rundir.write import check_folder, write_output
from jaxdp.step.state import TrainState

CONFIG, WEIGHTS = "config.json", "model.safetensors"
LIBRARY = "jaxdp"  # `library_name` of config.json
# Settings that prediction requires.
_SETTINGS = (
    *("model", "model_kwargs", "task", "task_kwargs", "normalize", "image_size"),
    *("channels", "tiff", "mask_values", "instances", "precision", "test_time_augmentation"),
)
# The hub's names of tasks.
_PIPELINES = {
    "classification": "image-classification",
    "segmentation": "image-segmentation",
    "regression": "image-to-image",
}
_PATHS = ("folder", "npz")  # datasets whose argument is a path on this machine
_BEGIN_PATHS = (".", "~", "/")
_CARD = """\
---
{header}---

# {title}

{what}

{metrics}

## Use

```python
import jaxdp

result = jaxdp.load("hf://ORGANIZATION/NAME")
prediction = result.predict("image.png")
```

`python -m jaxdp.train --init-from hf://ORGANIZATION/NAME` starts another training from the weights.

## Training

`python -m jaxdp.train --config settings.yaml` with these settings:

```yaml
{settings}```

Versions: {versions}.
"""


def check(folder: pathlib.Path, config: TrainConfig, description: Description) -> None:
    """Raises ConfigError if the folder cannot be written, or holds something, or if the model
    cannot be made again by names.
    """
    if OBJECT in (config.model, config.task) or description.own_task:
        remedy = "the model or the task is an object, which its name does not make again"
        raise ConfigError("hub_layout", folder, f"{remedy}; give {flag('output')}")
    check_folder("hub_layout", folder)
    if any(folder.iterdir()):
        raise ConfigError("hub_layout", folder, "is not empty; give another folder")


def write(
    state: TrainState,
    config: TrainConfig,
    description: Description,
    summary: Mapping[str, Any],
    folder: pathlib.Path,
) -> str:
    """Writes `model.safetensors`, `config.json` and the model card `README.md`.

    Returns:
        What was written, for people.
    """
    content = to_safetensors(state, config, description)
    plain = config.plain()
    facts = {
        "library_name": LIBRARY,
        "architecture": config.model,
        "num_classes": description.num_classes,
        "settings": {name: plain[name] for name in _SETTINGS if plain[name] is not None},
        "description": dataclasses.asdict(description),
        "metrics": summary.get("metrics", {}),
    }
    write_output("hub_layout", folder / WEIGHTS, content)
    write_output("hub_layout", folder / CONFIG, json.dumps(facts, indent=2) + "\n")
    write_output("hub_layout", folder / "README.md", _card(config, description, summary))
    return f"{len(content):,} bytes of weights, config.json, and README.md to complete"


def _card(config: TrainConfig, description: Description, summary: Mapping[str, Any]) -> str:
    dataset = _public(config.dataset or "")
    name = dataset.partition(":")[0]
    pipeline = _PIPELINES[description.answer]
    metrics = summary.get("metrics", {})
    tested = metrics.get(description.final_split, {})
    title = f"{config.model} on {dataset}"
    header: dict[str, Any] = {
        "library_name": LIBRARY,
        "pipeline_tag": pipeline,
        "tags": [LIBRARY, "flax", config.model],
    }
    if tested:
        header["model-index"] = [
            {
                "name": title,
                "results": [
                    {
                        "task": {"type": pipeline},
                        "dataset": {
                            "name": dataset,
                            "type": name,
                            "split": description.final_split,
                        },
                        "metrics": [
                            {"type": metric, "value": value} for metric, value in tested.items()
                        ],
                    }
                ],
            }
        ]
    given = {
        key: value
        for key, value in config.as_given().changed().items()
        if key not in ("run_dir", "data_dir", "init_from", "plugins", "callbacks")
    }
    if config.image_size is not None:  # also if weights decided it
        given["image_size"] = config.image_size
    examples = ", ".join(f"{count:,} for {split}" for split, count in description.examples.items())
    classes = ""
    if description.names:
        classes = f" Classes: {', '.join(description.names)}."
    return _CARD.format(
        header=yaml.safe_dump(header, sort_keys=False, allow_unicode=True),
        title=title,
        what=f"Trained for {summary.get('steps', 0):,} steps. Examples: {examples}.{classes}",
        metrics=_table(metrics) or "It was not evaluated.",
        settings=yaml.safe_dump(given | {"dataset": dataset}, allow_unicode=True),
        versions=", ".join(f"{key} {value}" for key, value in summary.get("versions", {}).items()),
    )


def _public(dataset: str) -> str:
    """Returns the name of a dataset without the folders above it, which may name a person."""
    name, colon, argument = dataset.partition(":")
    if not colon:
        name, argument = "", name
    is_path = name in _PATHS or argument.startswith(_BEGIN_PATHS) or os.path.isdir(argument)
    last = os.path.basename(argument.rstrip("/")) if is_path else argument
    return f"{name}{colon}{last}"


def _table(metrics: Mapping[str, Mapping[str, float]]) -> str:
    """Returns a table with a line for each metric and a column for each split."""
    splits = [split for split in metrics if metrics[split]]
    names = dict.fromkeys(name for split in splits for name in metrics[split])
    rows = [
        [
            name,
            *(f"{metrics[split][name]:.4g}" if name in metrics[split] else "" for split in splits),
        ]
        for name in names
    ]
    if not rows:
        return ""
    lines = [["metric", *splits], ["---"] * (len(splits) + 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
