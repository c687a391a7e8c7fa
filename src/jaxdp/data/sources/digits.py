"""Provides the 1,797 handwritten digits of 8x8 pixels that come with scikit-learn, so that a first
run requires no download.

Source: Alpaydin and Kaynak, Optical Recognition of Handwritten Digits (UCI), its test part.
"""

import importlib.metadata
from typing import Any

import numpy as np
import PIL.Image

from jaxdp.data import sources
from jaxdp.data.split_selection import stratified

_TEST_EXAMPLES = 360
_NOISE = 60  # standard deviation for pixels up to 255


@sources.register("digits")
def digits(request: sources.Request) -> sources.Dataset:
    """Returns 1,437 training and 360 test images. The test images are always the same fifth of each
    class, evenly spaced.

    The file is sorted by writer, so each writer has digits in both splits.
    """
    images, labels = read()
    return _split(
        request,
        images,
        labels,
        labels,
        task="classification",
        num_classes=10,
        mean=(4.88,),  # for the pixels 0 to 16, over the training split
        std=(6.02,),
        augment=("affine:0.07",),
    )


@sources.register("digits-denoise")
def digits_denoise(request: sources.Request) -> sources.Dataset:
    """Returns the same split at 16 x 16 pixels with noise. The targets are the digits without
    noise.

    The noise of each image is drawn once from its number, so that all runs use the same pictures.
    Without a model, the noise gives a mean squared error of 0.036.
    """
    images, labels = read()
    pictures = (PIL.Image.fromarray(image[..., 0] * 15) for image in images)
    resized = (each.resize((16, 16), PIL.Image.Resampling.BICUBIC) for each in pictures)
    clean = np.stack([*map(np.asarray, resized)])[..., None]
    noise = [
        np.random.default_rng(number).normal(0, _NOISE, clean.shape[1:])
        for number in range(len(clean))
    ]
    noisy = np.clip(clean + noise, 0, 255).astype(np.uint8)
    return _split(
        request,
        noisy,
        clean,
        labels,
        task="regression",
        num_classes=1,
        mean=(84.1,),
        std=(84.1,),
        augment=("none",),
        defaults={"model_kwargs": {"unet": {"base_channels": 16, "levels": 2}}},
    )


def _split(
    request: sources.Request,
    images: np.ndarray,
    targets: np.ndarray,
    labels: np.ndarray,
    **facts: Any,
) -> sources.Dataset:
    """Returns a dataset of images, with a part of each label as test data."""
    request.choose(facts["task"])
    request.refuse(
        "train_split", "test_split", "num_classes", "channels", "tiff", "columns", "mask_values"
    )
    test, field = stratified(labels, _TEST_EXAMPLES), sources.TARGET_FIELDS[facts["task"]]
    facts["defaults"] = {"optimizer": "nesterov"} | facts.get("defaults", {})
    return sources.Dataset(
        train=sources.ArraySource(images[~test], targets[~test], field),
        test=sources.ArraySource(images[test], targets[test], field),
        image_shape=images.shape[1:],
        **facts,
    )


def read() -> tuple[np.ndarray, np.ndarray]:
    """Returns images uint8 (1797, 8, 8, 1) with values 0 to 16, and labels int32 (1797,)."""
    # Reading the file directly saves the 2 s that importing sklearn.datasets takes.
    package = importlib.metadata.distribution("scikit-learn")
    table = str(package.locate_file("sklearn/datasets/data/digits.csv.gz"))
    rows = np.loadtxt(table, delimiter=",", dtype=np.uint8)
    return rows[:, :-1].reshape(-1, 8, 8, 1), rows[:, -1].astype(np.int32)
