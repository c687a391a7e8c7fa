"""Test-time augmentation: a model's outputs are the mean over flips and rotations of an image.

Sources: Krizhevsky et al., ImageNet classification with deep convolutional neural networks, 2012,
section 4.1, which averages over mirror images; Ronneberger et al., U-Net, 2015, section 4, which
averages over rotations. Here outputs are averaged before probabilities are made of them.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxdp.errors import ConfigError
from jaxdp.tasks import Task

# Quarter turns of each view, and whether it is mirrored then.
VIEWS: Mapping[str | None, tuple[tuple[int, bool], ...]] = {
    None: ((0, False),),
    "flip": ((0, False), (0, True)),
    "dihedral": tuple((turns, mirrored) for turns in range(4) for mirrored in (False, True)),
}


def check(name: str | None, task: Task, size: tuple[int, int]) -> None:
    """Raises ConfigError if a classifier would get images with height and width exchanged."""
    if name == "dihedral" and task.kind == "classification" and size[0] != size[1]:
        remedy = f"turns images, and the model takes {size[0]}x{size[1]} pixels; use flip"
        raise ConfigError("test_time_augmentation", name, remedy)


def mean_over_views(
    call: Callable[[Mapping[str, Any]], Any],
    batch: Mapping[str, Any],
    name: str | None,
    task: Task,
) -> Any:
    """Returns the mean of the outputs for the views of each image.

    Args:
        call: returns the outputs of a model for a batch.
        batch: `images` (batch, height, width, channels), normalized, and other fields, which are
            the same for each view.
        name: of the views.
        task: says what becomes of outputs when an image is turned.
    """
    if name is None:
        return call(batch)
    images, total = batch["images"], None
    # Views of one size are computed together, as one larger batch: a program with a network for
    # each view would take as many times longer to compile.
    groups = [[view for view in VIEWS[name] if view[0] % 2 == odd] for odd in (0, 1)]
    if images.shape[1] == images.shape[2]:
        groups = [VIEWS[name]]
    for views in filter(None, groups):
        fields = {key: jnp.concatenate([value] * len(views)) for key, value in batch.items()}
        fields["images"] = jnp.concatenate([_moved(images, *view) for view in views])
        outputs = call(fields)
        for index, view in enumerate(views):
            part = slice(index * len(images), (index + 1) * len(images))
            answer = task.moved_back(jax.tree.map(lambda leaf, own=part: leaf[own], outputs), *view)
            total = answer if total is None else jax.tree.map(jnp.add, total, answer)
    return jax.tree.map(lambda leaf: leaf / len(VIEWS[name]), total)


def _moved(images: Any, turns: int, mirrored: bool) -> Any:
    turned = jnp.rot90(images, turns, (1, 2))
    return turned[:, :, ::-1] if mirrored else turned
