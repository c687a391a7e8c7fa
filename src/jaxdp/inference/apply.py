"""Applies a trained model to new images, in the same way for `predict`, exported programs and the
pictures of a run.
"""

import functools
from collections.abc import Callable
from typing import Any

from jaxtyping import Array, Float, Shaped

from jaxdp.config import TrainConfig
from jaxdp.data.augment import Augmentation, Preprocess
from jaxdp.data.sources import Dataset, Description
from jaxdp.step.state import TrainState, call_model
from jaxdp.step.step import Batch, evaluation_model

Evaluate = Callable[[Callable[[Batch], Any], Batch], Any]
Apply = Callable[[Any, Shaped[Array, "batch height width channels"]], Float[Array, "batch ..."]]


def _once(call: Callable[[Batch], Any], batch: Batch) -> Any:
    return call(batch)


def create_preprocess(
    config: TrainConfig,
    dataset: Dataset | Description,
    augmentations: tuple[Augmentation, ...] = (),
) -> Preprocess:
    """Returns the preprocessing of images for a run's model; in training with augmentations."""
    return Preprocess(
        dataset.mean,
        dataset.std,
        augmentations,
        per_image=config.normalize == "image",
        pixel_range=dataset.pixel_range,
    )


def create_apply(preprocess: Preprocess, evaluate: Evaluate = _once) -> Apply:
    """Returns a pure function of a state and stored pixels that returns the model's outputs in
    evaluation.

    The outputs are logits for classification and segmentation, and pixels in [0, 1] for regression.

    Args:
        evaluate: of a model and a batch, returns the outputs; by default those of one call.
    """

    def apply(state: TrainState, images: Array) -> Any:
        call = functools.partial(call_model, evaluation_model(state))
        return evaluate(call, preprocess({"images": images}, None))

    return apply
