"""1,797 handwritten digits of 8x8 pixels that come with scikit-learn, so that a first run needs no
download.

Source: Alpaydin and Kaynak, Optical Recognition of Handwritten Digits (UCI), its test part.
"""

import importlib.util
import pathlib

import numpy as np
import PIL.Image

from jaxdp.data import sources
from jaxdp.data.splits import stratified

_TEST_EXAMPLES = 360
_NOISE = 60  # standard deviation, of pixels up to 255


@sources.register("digits")
def digits(request: sources.Request) -> sources.Dataset:
    """Returns 1,437 training and 360 test images, split once and for all: a fifth of each class,
    evenly spaced.

    The writers follow each other in the file, so that each has digits in both splits.
    """
    request.choose("classification")
    request.refuse("train_split", "test_split", "num_classes", "channels", "tiff", "mask_values")
    images, labels = read()
    test = stratified(labels, _TEST_EXAMPLES)
    return sources.Dataset(
        train=sources.ArraySource(images[~test], labels[~test]),
        test=sources.ArraySource(images[test], labels[test]),
        num_classes=10,
        image_shape=(8, 8, 1),
        mean=(4.88,),  # of the pixels 0 to 16, over the training split
        std=(6.02,),
        augment=("affine:0.07",),
    )


def read() -> tuple[np.ndarray, np.ndarray]:
    """Returns images uint8 (1797, 8, 8, 1) with values 0 to 16, and labels int32 (1797,)."""
    spec = importlib.util.find_spec("sklearn")
    folders = list(spec.submodule_search_locations or []) if spec else []
    for folder in folders:
        table = pathlib.Path(folder, "datasets", "data", "digits.csv.gz")
        # Reading it ourselves saves the 2 s that importing sklearn.datasets takes.
        if table.exists():
            rows = np.loadtxt(table, delimiter=",", dtype=np.uint8)
            return rows[:, :-1].reshape(-1, 8, 8, 1), rows[:, -1].astype(np.int32)
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images, labels = bunch.images, bunch.target  # pyright: ignore
    return images[..., None].astype(np.uint8), labels.astype(np.int32)


@sources.register("digits-denoise")
def digits_denoise(request: sources.Request) -> sources.Dataset:
    """Returns the same split at 16 x 16 pixels with noise, to be learned: the digits without it.

    Each image's noise is drawn once from its number, so that all runs see the same pictures. Left
    as it is, the noise gives a mean squared error of 0.036.
    """
    request.choose("regression")
    request.refuse("train_split", "test_split", "num_classes", "channels", "tiff", "mask_values")
    images, labels = read()
    enlarged = [
        PIL.Image.fromarray(image[..., 0] * 15).resize((16, 16), PIL.Image.Resampling.BICUBIC)
        for image in images
    ]
    clean = np.stack([np.asarray(image) for image in enlarged])[..., None]
    noise = np.stack(
        [
            np.random.default_rng(number).normal(0, _NOISE, clean.shape[1:])
            for number in range(len(clean))
        ]
    )
    noisy = np.clip(clean + noise, 0, 255).astype(np.uint8)
    test = stratified(labels, _TEST_EXAMPLES)
    return sources.Dataset(
        train=sources.ArraySource(noisy[~test], clean[~test], "targets"),
        test=sources.ArraySource(noisy[test], clean[test], "targets"),
        num_classes=1,
        image_shape=(16, 16, 1),
        mean=(84.1,),
        std=(84.1,),
        task="regression",
        augment=("none",),
        defaults={"model_kwargs": {"unet": {"base_channels": 16, "levels": 2}}},
    )
