"""Writes a ResNet 18 of random weights as timm writes it for the hub."""

import json

import jax
import numpy as np
import safetensors.numpy
from flax import nnx

from jaxdp import models
from jaxdp.models.reference_weights import reference_names
from jaxdp.step.state import array_name

IMAGENET = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
PREPARED = {"input_size": [3, 224, 224], "interpolation": "bicubic", "crop_pct": 0.95, **IMAGENET}
CLASSES = 5


def resnet18() -> nnx.Module:
    return models.create("resnet", num_classes=CLASSES, in_channels=3, rngs=nnx.Rngs(1), depth=18)


def random_arrays() -> dict[str, np.ndarray]:
    """Returns parameters and statistics by our names."""
    tree = nnx.to_pure_dict(nnx.state(resnet18(), (nnx.Param, nnx.BatchStat)))
    random = np.random.default_rng(0)
    return {
        array_name(path): random.uniform(0.5, 1.5, leaf.shape).astype(np.float32)
        * (np.asarray(leaf) if leaf.ndim > 1 else 1)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def files(arrays: dict[str, np.ndarray]) -> dict[str, bytes]:
    """Returns the files of the repository, by name."""
    theirs = {
        name: np.transpose(arrays["/".join(map(str, place.path))], np.argsort(place.axes)).copy()
        for name, place in reference_names(nnx.eval_shape(resnet18)).items()
    }
    content = {"architecture": "resnet18", "num_classes": CLASSES, "pretrained_cfg": PREPARED}
    return {
        "config.json": json.dumps(content).encode(),
        "model.safetensors": safetensors.numpy.save(theirs),
    }
