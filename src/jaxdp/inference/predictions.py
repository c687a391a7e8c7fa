"""Predicts images in the forms that a program has: arrays, Pillow images, files and folders."""

import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from PIL import Image

from jaxdp.data.image_file import pixel_size
from jaxdp.data.layout import as_array, is_tensor
from jaxdp.data.source import BadExample
from jaxdp.inference import files
from jaxdp.inference.files import SurveyedImage
from jaxdp.inference.predictor import Predictor


def predict(predictor: Predictor, images: Any, *, probabilities: bool = False) -> Any:
    """Returns the predictions for images. `Result.predict` describes arguments, results and
    errors.
    """
    description = predictor.description
    is_one = _is_one(images, description.image_shape[-1])
    is_path = isinstance(images, str | pathlib.Path)
    known, answers = list[SurveyedImage](), list[np.ndarray]()
    for (pixels, size), answer in predictor(
        read_given([images] if is_one or is_path else images, predictor)
    ):
        known.append(SurveyedImage.of(f"images[{len(known)}]", pixels, pixel_size=size))
        answers.append(answer)
    files.say_notes(known, predictor)
    if description.answer == "segmentation" and not probabilities:
        answers = [predictor.task.label(answer) for answer in answers]
    if is_one and len(answers) == 1:  # a TIFF file may hold several
        return answers[0]
    is_list = is_path or isinstance(images, Sequence)
    if is_list and description.answer != "classification":
        return answers
    return np.stack(answers) if answers else answers


def _is_one(images: Any, channels: int) -> bool:
    if isinstance(images, str | pathlib.Path):
        return not pathlib.Path(images).is_dir()
    if isinstance(images, Sequence):
        return False
    shape, axis = np.shape(images), 0 if is_tensor(images) else -1
    is_one = len(shape) < 3 or (len(shape) == 3 and shape[axis] == channels)
    return is_one or isinstance(images, Image.Image)


def _read(picture: Any, predictor: Predictor) -> np.ndarray:
    try:
        return predictor.read(picture)[0]
    except BadExample as error:  # nothing is left out here
        raise BadExample(error.where, error.problem, "fix or remove it") from error


def read_given(
    images: Iterable[Any], predictor: Predictor
) -> Iterator[tuple[np.ndarray, Sequence[float] | None]]:
    """Yields the pixels (height, width, channels) of images that a program passes, and the pixel
    size of each file, which is empty if the file has none.

    Args:
        images: files, folders, Pillow's images, arrays (height, width, channels) or (height,
            width), tensors of PyTorch (channels, height, width).

    Raises:
        ConfigError: for a path that does not exist, or an image that cannot be used.
    """
    for image in images:
        if isinstance(image, str | pathlib.Path):
            for file in files.find([image], tiff=predictor.config.tiff):
                yield _read(file.picture, predictor), pixel_size(file.picture)
        elif isinstance(image, Image.Image):
            yield _read(image, predictor), None
        else:
            array, channels = as_array(image), predictor.description.image_shape[-1]
            if array.ndim == 3 and is_tensor(image) and len(array) == channels:
                array = np.moveaxis(array, 0, -1)
            yield array[..., None] if array.ndim == 2 else array, None
