"""Makes a function of images from a trained model, on all devices."""

import collections
import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float32

from jaxdp.config import TrainConfig
from jaxdp.data import augment
from jaxdp.data.dataset import native, pixel_problem
from jaxdp.data.image_file import Data, Picture, planes_of, read_image
from jaxdp.data.resize import Resize, resize_to
from jaxdp.data.source import BadExample, Size
from jaxdp.data.sources import Description
from jaxdp.errors import ConfigError, flag
from jaxdp.inference import receptive_field as reach
from jaxdp.inference.apply import create_apply, create_preprocess
from jaxdp.inference.batches import Batches, Pixels
from jaxdp.inference.tiles import Tiles
from jaxdp.runtime import platform
from jaxdp.sharding import memory
from jaxdp.sharding.forward import Forward
from jaxdp.step import views
from jaxdp.step.state import TrainState
from jaxdp.tasks import Task

TILE = 512  # pixels
SAME_SCALE = 0.05  # relative difference of pixel sizes that a model does not notice
_MOST_SCALED = 4  # a larger factor is rather a mistake in a file
_LEAST_TILE = 64
_OVERLAP = 64  # pixels, if no overlap makes the tiles agree with the whole image
_MOST = 64  # images that a device computes at a time, always for a classifier
_TILES = 4  # about as many pixels as these tiles for other images
# If each image is normalized by its own mean and standard deviation, this precedes tiling, because
# these values differ between tiles.
_normalize = jax.jit(augment.Preprocess((), (), per_image=True).normalize)


class Predictor:
    """A trained model for images of any size, on all devices of this process.

    Images for a classifier are resized to its training size. Images for other models are also
    resized if `--image-size` resized the dataset, and the predictions are resized back. Otherwise
    scale is meaningful, so only images with another pixel size are resized in this way, and large
    images are cut into tiles. Tiles overlap. If the receptive field is limited, tiles also grow if
    required, so that they give the prediction of the whole image.

    Args:
        state: of the trained model.
        task: determines how outputs become probabilities.
        tile: side of the tiles of large images, in pixels.
        devices: how many to use; None for all. Predictions do not depend on it, except for
            rounding.

    Attributes:
        config: settings of the run.
        description: of the dataset that the model was trained on.
        task: which also says how predictions are written.
        resized: whether images are resized to the size that the model was trained at.

    Raises:
        ConfigError: for tiles that are too small.
    """

    def __init__(
        self,
        state: TrainState,
        config: TrainConfig,
        description: Description,
        task: Task,
        *,
        tile: int = TILE,
        devices: int | None = None,
    ) -> None:
        if tile < _LEAST_TILE:
            raise ConfigError("tile", tile, f"must be at least {_LEAST_TILE}")
        platform.check_precision(config.precision)
        self.config = config
        self.description = description
        self.task = task
        self._classifies = description.answer == "classification"
        self.resized = self._classifies or config.image_size is not None
        height, width, channels = description.image_shape
        self._trained: Size = (height, width)
        self._preprocess = create_preprocess(config, description)
        self._normalize_first = self._preprocess.per_image and not self._classifies
        nothing = augment.Preprocess((0.0,) * channels, (1.0,) * channels)
        preprocess = nothing if self._normalize_first else self._preprocess
        own = config.test_time_augmentation
        views.check(own, task, self._trained)
        mean = functools.partial(views.mean_over_views, name=own, task=task)
        apply = create_apply(preprocess, mean)
        self._network = Forward(
            (lambda *given: task.probabilities(apply(*given))) if task.free_outputs else apply,
            state,
        )
        self._is_final = task.free_outputs or description.answer == "regression"
        self._probabilities = jax.jit(task.probabilities)
        count = len(platform.select_devices(devices))
        self._batches = Batches(self._compute, count, self._limit)
        self._tiles_of = functools.partial(Tiles, self._output_side, exact=self._trained)
        self._plain = self._tiles_of(tile=tile, overlap=_OVERLAP)

    def replace_state(self, state: TrainState) -> None:
        """Replaces the state by another state of the same model."""
        self._network.replace_state(state)

    def read(self, picture: Data) -> tuple[Pixels, tuple[str, ...]]:
        """Returns an image of a file, read as in training, and its conversions."""
        planes = planes_of(picture) if isinstance(picture, Picture) else ()
        if self.config.channels is None and any(plane.unclear for plane in planes):
            raise BadExample(picture, "its last plane is tagged as opacity; save it without")
        channels, dtype = self.description.image_shape[-1], self.description.dtype
        # If pixels have predictions, images are resized from their full size.
        resize = Resize.of(self.config, "classification") if self._classifies else None
        return read_image(picture, picture, channels, dtype, resize)

    def __call__(
        self, images: Iterable[np.ndarray | tuple[np.ndarray, Sequence[float] | None]]
    ) -> Iterator[tuple[Any, Float32[np.ndarray, "..."]]]:
        """Yields what is given for each image, and its prediction, in order.

        Images are read ahead, and images of the same size are computed together.

        Predictions are the probabilities of the classes (classes,) for classification, the
        probabilities at each pixel (height, width, classes) for segmentation, and pixels (height,
        width, channels), about from 0 to 1, for regression.

        Args:
            images: (height, width, channels), with the dtype and the channels and on the scale of
                the run's dataset; or pairs of such an image and the pixel size of its file.

        Raises:
            ConfigError: for an array that is not such an image.
        """
        pending: collections.deque[Any] = collections.deque()

        def tiles() -> Iterator[np.ndarray]:
            for given in images:
                image, pixel_size = given if isinstance(given, tuple) else (given, None)
                image = self._checked(image)
                pixels = self._prepared(image, pixel_size)
                cutter = None if self._classifies else self._tiles(pixels.shape)
                pending.append((given, image.shape[:2], pixels.shape, cutter))
                yield from [pixels] if cutter is None else cutter.cut(pixels)

        answers = self._batches.in_order(tiles())
        remedy = (
            f"use a smaller {flag('tile')}, fewer {flag('devices', quote='')}, or smaller images"
        )
        with memory.explained("predicting images", lambda _: remedy):
            for answer in answers:
                given, size, shape, cutter = pending.popleft()
                if cutter is not None:
                    answer = cutter.blend(shape, itertools.chain([answer], answers))
                    answer = resize_to(answer, size)
                yield given, answer

    def _checked(self, image: np.ndarray) -> Pixels:
        channels, dtype = self.description.image_shape[-1], self.description.dtype
        image = native(image)
        if image.dtype != dtype or image.ndim != 3 or image.shape[-1] != channels or not image.size:
            remedy = (
                f"an image is {image.dtype} {image.shape}; give {dtype} (height, width, {channels})"
            )
            raise ConfigError("", image.shape, remedy)
        pixel_range = self.description.pixel_range
        if image.dtype.kind == "f" and pixel_range is not None:
            problem = pixel_problem(float(image.min()), float(image.max()), pixel_range)
            if problem:
                raise ConfigError("", image.shape, f"an image {problem}")
        return image

    def scale(self, pixel_size: Sequence[float] | None) -> np.ndarray:
        """Returns by how much an image is made taller and wider, to have the pixel size of the
        training images.

        Args:
            pixel_size: of its file; empty or None if unknown.
        """
        trained = self.description.pixel_size
        scale = np.divide(pixel_size, trained) if trained and pixel_size else np.ones(2)
        is_far = np.maximum(scale, 1 / scale).max() > _MOST_SCALED
        is_same = abs(scale - 1).max() <= SAME_SCALE
        return np.ones(2) if self.resized or is_far or is_same else scale

    def _prepared(self, image: Pixels, pixel_size: Sequence[float] | None) -> np.ndarray:
        """Returns an image as input of the network, or for cutting into tiles."""
        if self._classifies:
            return self._fit.apply(image)
        height, width = np.maximum(np.round(image.shape[:2] * self.scale(pixel_size)), 1)
        size = self._trained if self.resized else (int(height), int(width))
        pixels = resize_to(image, size, bicubic=self.resized and self._fit.bicubic)
        if self._normalize_first:
            scaled = self._preprocess.scale(jnp.asarray(pixels[None], jnp.float32))
            pixels = np.asarray(_normalize(scaled))[0]
        return pixels

    @functools.cached_property
    def _fit(self) -> Resize:
        """How images are resized to the training size, if they are."""
        fit = Resize.of(self.config, "classification")
        return fit if fit is not None and fit.size == self._trained else Resize(self._trained)

    def _compute(self, images: np.ndarray, shards: int) -> Any:
        """Dispatches a batch to the devices."""
        outputs = self._network(images, shards)
        return outputs if self._is_final else self._probabilities(outputs)

    def _limit(self, shape: tuple[int, ...]) -> int:
        """Returns how many images of this shape a device computes at a time."""
        count = len(views.VIEWS[self.config.test_time_augmentation])
        if self._classifies:
            return _MOST // count
        pixels = _TILES * min(self._plain.tile, TILE) ** 2 // count
        return min(memory.power_below(pixels // (shape[0] * shape[1])), _MOST)

    def _output_side(self, side: int) -> int:
        shape, dtype = (1, side, side, self.description.image_shape[-1]), self.description.dtype
        images = jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))
        return jax.eval_shape(self._network, images).shape[1]

    def needs_tiles(self, size: tuple[int, ...]) -> bool:
        """Returns whether an image of this size is predicted in several tiles."""
        return not self.resized and max(size) > self._plain.tile

    def _tiles(self, shape: tuple[int, ...]) -> Tiles:
        """Returns the tiling of an image."""
        is_large = max(shape[:2]) > self._plain.tile
        return self._seamless if is_large and self.reach is not None else self._plain

    @functools.cached_property
    def _seamless(self) -> Tiles:
        return self._tiles_of(tile=self._plain.tile, overlap=0, reach=self.reach or 0)

    @functools.cached_property
    def reach(self) -> int | None:
        """The receptive field in pixels on each side; None if no tile can replace the whole
        image.
        """
        mean, std = self.description.stored_moments()
        if self._normalize_first:
            mean, std = np.zeros_like(mean), np.ones_like(std)
        return reach.measure(self._network, self._plain.fit, mean.tolist(), std.tolist())
