"""Makes a function of images from a checkpoint of a run.

Neither the run's dataset nor its devices need be there.
"""

import functools
import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Float, Float32
from PIL import Image

from jaxdp.checkpoint.restore import SavedCheckpoints
from jaxdp.components import create_model, create_task
from jaxdp.config import TrainConfig
from jaxdp.data import augment
from jaxdp.data.dataset import Size
from jaxdp.data.resize import Resize, resize_to
from jaxdp.data.sources import Description
from jaxdp.data.split import NOT_FINITE
from jaxdp.inference import reach
from jaxdp.inference.apply import create_predictor
from jaxdp.inference.batches import Batches, Pixels, Waiting
from jaxdp.inference.description import read_description as read_description
from jaxdp.inference.tiles import BATCH, Tiles, join
from jaxdp.registry import ConfigError
from jaxdp.rundir.layout import RunDirectory
from jaxdp.runtime import platform
from jaxdp.step.state import TrainState, create_train_state
from jaxdp.tasks import Task

TILE = 512  # pixels
_OVERLAP = 64  # pixels, where no overlap would make the tiles agree with the whole image
_MOST = 64  # images that a device is given at a time, of a classifier always
_PIXELS = BATCH * TILE**2  # about as many of other images: as of the tiles of a large one
Advance = Callable[[float], None]
# Where each image is normalized by its own mean and deviation, that comes before tiling: a tile's
# own are not its neighbours'.
_normalize = jax.jit(augment.Preprocess((), (), per_image=True).normalize)


def fit_of(config: TrainConfig, description: Description) -> Resize:
    """Returns how images are made the size at which the model was trained."""
    height, width, _ = description.image_shape
    text = config.image_size
    fit = Resize.parse(text) if text else None
    return fit if fit is not None and fit.size == (height, width) else Resize((height, width))


class Predictor:
    """A trained model for images of any size, on all devices of this process.

    A classifier's images are resized to the size that it was trained at. So are the others' where
    `--image-size` resized the dataset, and their answers back; otherwise scale means something, and
    images stay as they are, in tiles where they are large.

    Args:
        state: of the trained model.
        config: settings of its run.
        task: says how outputs become probabilities.
        tile: side of the tiles of large images, in pixels.
        overlap: what neighbours share; None for as much as makes their answer that of the whole
            image, for which tiles grow.
        devices: how many to use; None for all. The answers do not depend on it, but for rounding.

    Attributes:
        description: of the dataset that the model was trained on.
        resized: whether images are resized to the size that it was trained at.
    """

    def __init__(
        self,
        state: TrainState,
        config: TrainConfig,
        description: Description,
        task: Task,
        *,
        tile: int = TILE,
        overlap: int | None = None,
        devices: int | None = None,
    ) -> None:
        platform.check_precision(config.precision)
        self.description = description
        self.resized = is_resized(config, self.description)
        height, width, channels = self.description.image_shape
        self._trained: Size = (height, width)
        self._fit = fit_of(config, description)
        self._preprocess = augment.Preprocess(
            description.mean,
            description.std,
            per_image=config.normalize == "image",
            pixel_range=description.pixel_range,
        )
        self._normalize_first = (
            config.normalize == "image" and self.description.answer != "classification"
        )
        nothing = augment.Preprocess((0.0,) * channels, (1.0,) * channels)
        self._network = create_predictor(
            state, nothing if self._normalize_first else self._preprocess
        )
        self._probabilities = jax.jit(getattr(task, "probabilities", jax.nn.softmax))
        count = len(platform.select_devices(devices))
        self._batches = Batches(self._compute, count, self._limit)
        self._overlap = overlap
        self._tiles_of = functools.partial(
            Tiles, self._output_side, exact=self._trained, batch=BATCH * count
        )
        self._plain = self._tiles_of(tile=tile, overlap=_OVERLAP if overlap is None else overlap)

    @classmethod
    def of_run(
        cls,
        run_dir: str | pathlib.Path,
        *,
        step: int | None = None,
        tile: int = TILE,
        overlap: int | None = None,
        plugins: Sequence[str] = (),
        devices: int | None = None,
    ) -> "Predictor":
        """Returns the predictor of a run.

        Args:
            run_dir: folder of the run.
            step: which checkpoint; None for the best by validation data, or the newest where there
                are none.
            plugins: files or modules that the run was trained with.
            devices: as for the constructor.

        Raises:
            ConfigError: if there is no run or no such checkpoint.
        """
        run = RunDirectory(pathlib.Path(run_dir))
        config = run.load_trusted_config(plugins)
        description = read_description(run)
        _, state = restore(run, config, description, step)
        return cls(
            state,
            config,
            description,
            create_task(config, description),
            tile=tile,
            overlap=overlap,
            devices=devices,
        )

    def __call__(
        self, images: Iterable[np.ndarray], advance: Advance = lambda share: None
    ) -> Iterator[tuple[Pixels, Float32[np.ndarray, "..."]]]:
        """Yields each image and the answer to it, in order.

        Images are read ahead, and those of one size computed together.

        For classification the probabilities of the classes (classes,); for segmentation those of
        each pixel (height, width, classes); for regression pixels (height, width, channels), about
        from 0 to 1.

        Args:
            images: (height, width, channels), with the dtype and the channels and on the scale of
                the run's dataset.
            advance: is told how many more images are done; a large one counts by its tiles.

        Raises:
            ConfigError: for an array that is no such image.
        """
        if self.description.answer == "classification":
            yield from self._classify(map(self._checked, images), advance)
        else:
            for image, strips in self.strips(images, advance):
                yield image, join(strips, image.shape[:2])

    def strips(
        self, images: Iterable[np.ndarray], advance: Advance = lambda share: None
    ) -> Iterator[tuple[Pixels, Iterator[Float32[np.ndarray, "rows width outputs"]]]]:
        """Yields each image and the answer for each of its pixels, from top to bottom.

        Arguments as those of a call.

        What is held of the answer to a large image is a row of tiles, however large it is; where
        images are resized, all of it.
        """

        def prepared() -> Iterator[tuple[tuple[Pixels, np.ndarray], np.ndarray | None]]:
            for image in map(self._checked, images):
                pixels = self._prepared(image)
                yield (image, pixels), self._tiles(pixels.shape).only_tile(pixels)

        for each in self._batches.in_order(
            prepared(), lambda item: item[1].size / item[1].shape[-1] / _PIXELS
        ):
            image, pixels = each.item
            strips = self._strips(each, pixels, advance)
            if pixels.shape[:2] != image.shape[:2]:
                strips = iter([_resize_answer(join(strips, pixels.shape[:2]), image.shape[:2])])
            yield image, strips

    def _strips(self, each: Waiting, pixels: np.ndarray, advance: Advance) -> Iterator[np.ndarray]:
        answer = each.answer()
        if answer is None:
            yield from self._tiles(pixels.shape).strips(self._network_of_tiles, pixels, advance)
        else:
            advance(1.0)
            yield answer[: pixels.shape[0], : pixels.shape[1]]

    def _checked(self, image: np.ndarray) -> Pixels:
        channels, dtype = self.description.image_shape[-1], self.description.dtype
        if image.dtype != dtype or image.ndim != 3 or image.shape[-1] != channels or not image.size:
            remedy = (
                f"an image is {image.dtype} {image.shape}; give {dtype} (height, width, {channels})"
            )
            raise ConfigError("", image.shape, remedy)
        if image.dtype.kind == "f" and not np.isfinite(image).all():
            raise ConfigError("", image.shape, f"an image {NOT_FINITE}")
        return image

    def _classify(
        self, images: Iterator[Pixels], advance: Advance
    ) -> Iterator[tuple[Pixels, np.ndarray]]:
        resized = ((image, self._fit.apply(image)) for image in images)
        for each in self._batches.in_order(resized, lambda image: 0.0):
            answer = each.answer()
            advance(1.0)
            yield each.item, answer

    def _compute(self, images: np.ndarray, shards: int) -> Any:
        """Gives a batch to the devices."""
        outputs = self._network(images, shards)
        return outputs if self.description.answer == "regression" else self._probabilities(outputs)

    def _limit(self, shape: tuple[int, ...]) -> int:
        """Returns how many images of this shape a device is given at a time."""
        if self.description.answer == "classification":
            return _MOST
        fitting = max(_PIXELS // (shape[0] * shape[1]), 1)
        return min(1 << (fitting.bit_length() - 1), _MOST)

    def _tiles(self, shape: tuple[int, ...]) -> Tiles:
        """Returns what cuts an image of this shape."""
        return (
            self._plain
            if self._overlap is not None or max(shape[:2]) <= self._plain.tile
            else self._seamless
        )

    @functools.cached_property
    def _reach(self) -> int | None:
        described = self.description
        # With a range of stored values, mean and deviation are in units of 0 to 255.
        low, high = described.pixel_range or (0.0, 255.0)
        mean = (low + (high - low) / 255 * np.array(described.mean)).tolist()
        std = ((high - low) / 255 * np.array(described.std)).tolist()
        if self._normalize_first:
            mean, std = [0.0] * len(mean), [1.0] * len(std)
        return reach.measure(self._network, self._plain.fit, tuple(mean), tuple(std))

    @functools.cached_property
    def _seamless(self) -> Tiles:
        """What cuts images so that the answer is that of the whole image, if the network lets
        it.
        """
        if self._reach is None:
            return self._plain
        return self._tiles_of(tile=self._plain.tile, overlap=0, reach=self._reach)

    def note_on_tiles(self, sizes: Iterable[Size]) -> str | None:
        """Returns what there is to say of the tiles in which images of these sizes are
        predicted.
        """
        large = any(max(size) > self._plain.tile for size in sizes)
        if self.resized or not large or self._overlap is not None:
            return None
        if self._reach is None:
            seen = (
                "what the model says of a pixel depends on the size of the image, or on pixels more"
                " than 1024 away"
            )
            return (
                f"{seen}: tiles do not quite give what the whole image would; larger ones (--tile)"
                " come nearer"
            )
        asked, used = self._plain.tile, self._seamless.tile
        if used == asked:
            return None
        seen = f"the model sees {self._reach} pixels far"
        return (
            f"tiles have {used} pixels a side, not {asked}, to meet without a seam: {seen}; with"
            " --overlap N they stay small"
        )

    def _network_of_tiles(self, tiles: np.ndarray) -> np.ndarray:
        return np.asarray(self._batches.compute(list(tiles)))

    def _prepared(self, image: Pixels) -> np.ndarray:
        """Returns an image as it is cut into tiles."""
        pixels: np.ndarray = resize_to(image, self._trained) if self.resized else image
        if self._normalize_first:
            pixels = np.asarray(
                _normalize(self._preprocess.scale(jnp.asarray(pixels[None], jnp.float32)))
            )[0]
        return pixels

    def _output_side(self, side: int) -> int:
        shape = (1, side, side, self.description.image_shape[-1])
        return jax.eval_shape(
            self._network, jax.ShapeDtypeStruct(shape, jnp.dtype(self.description.dtype))
        ).shape[1]


def is_resized(config: TrainConfig, description: Description) -> bool:
    """Tells whether images are resized to the size at which the model was trained."""
    return description.answer == "classification" or config.image_size is not None


def restore(
    run: RunDirectory,
    config: TrainConfig,
    description: Description,
    step: int | None,
    model: nnx.Module | None = None,
) -> tuple[int, TrainState]:
    """Returns the step of a checkpoint, and what evaluates of the state in it as NumPy arrays,
    without the optimizer's state.

    Args:
        step: which; None for the best by validation data, or the newest where there are none.
        model: of the same structure as the one that was trained, where that was an object.

    Raises:
        ConfigError: if there is no such checkpoint, or the model does not fit it.
    """
    if not run.checkpoints.is_dir():
        raise ConfigError("run_dir", run.path, "holds no checkpoint")
    best_metric = (
        create_task(config, description).best_metric if description.has_validation else None
    )
    checkpoints = SavedCheckpoints(run.checkpoints, best_metric=best_metric)
    expected = _expected_state(config, description, model)
    found = checkpoints.read_chosen(
        step, lambda chosen: checkpoints.restore_model(chosen, expected)
    )
    if found is None:
        raise ConfigError("run_dir", run.path, "holds no checkpoint")
    return found


def _expected_state(config: TrainConfig, description: Description, model: nnx.Module | None) -> Any:
    """Returns the shapes of a state without an optimizer's; nothing is computed."""

    def create() -> TrainState:
        dtype = jnp.dtype(config.precision)
        copy = (
            create_model(config, description, rngs=nnx.Rngs(0), dtype=dtype)
            if model is None
            else nnx.clone(model)
        )
        return create_train_state(copy, optax.identity(), with_ema=config.ema_decay > 0)

    return jax.eval_shape(create)


def _resize_answer(
    answer: Float[np.ndarray, "h w outputs"], size: tuple[int, ...]
) -> Float[np.ndarray, "height width outputs"]:
    if answer.shape[:2] == size:
        return answer
    layers = [
        Image.fromarray(np.ascontiguousarray(answer[..., output]))
        for output in range(answer.shape[-1])
    ]
    return np.stack(
        [
            np.asarray(layer.resize((size[1], size[0]), Image.Resampling.BILINEAR))
            for layer in layers
        ],
        axis=-1,
    )
