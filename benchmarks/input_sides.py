"""Reads the datasets of benchmarks/input.py with jaxdp and other libraries. Each function returns
an endless iterator of batches.

Batches are in random order, made by `workers` threads or processes, as each one's own documentation
does it. `decoded` batches are uint8 pixels with labels or masks, on jaxdp's device or in the arrays
or tensors that the others hand over. `augmented` ones are float32, cropped, flipped and normalized:
by jaxdp in a compiled program on the device, by the others on the host.
"""

import contextlib
import dataclasses
import functools
import importlib
import itertools
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from PIL import Image

MEAN, STD = 120.0, 60.0
PIXELS = 224  # the side of what is cropped from photographs
PADDING = 4


@dataclasses.dataclass(frozen=True)
class Read:
    """A set to be read.

    Attributes:
        kind: `small` images, `photos` or `slides` with masks.
        settings: of jaxdp.
    """

    kind: str
    folder: pathlib.Path
    batch_size: int
    augmented: bool
    workers: int
    settings: dict[str, Any]

    def files(self) -> tuple[list[str], Any]:
        """Returns the files, and their labels or the files of their masks."""
        if self.kind == "slides":
            images = sorted(map(str, (self.folder / "images").iterdir()))
            return images, [
                str(self.folder / "masks" / pathlib.Path(image).name) for image in images
            ]
        files = sorted(self.folder.glob("*/*"))
        return list(map(str, files)), [int(file.parent.name) for file in files]


def jaxdp(read: Read) -> Iterator[Any]:
    import jax

    from jaxdp.build.setup import create_setup
    from jaxdp.config import TrainConfig
    from jaxdp.runtime import platform

    platform.configure(None)  # as its commands do
    config = TrainConfig.of(
        **read.settings,
        global_batch_size=read.batch_size,
        data_placement="host",
        data_workers=read.workers,
        strategy="single",
        steps=10**6,
    )
    setup = create_setup(config)
    batches = setup.batches.placed(0)
    if not read.augmented:
        return map(jax.block_until_ready, batches)

    def keys_of(indices: Any) -> Any:
        return jax.vmap(functools.partial(jax.random.fold_in, jax.random.key(0)))(indices)

    augment = jax.jit(lambda batch: setup.step_config.preprocess(batch, keys_of))
    return (jax.block_until_ready(augment(batch)) for batch in batches)


def torchvision(read: Read) -> Iterator[Any]:
    torch: Any = importlib.import_module("torch")
    datasets: Any = importlib.import_module("torchvision.datasets")
    tv_tensors: Any = importlib.import_module("torchvision.tv_tensors")
    v2: Any = importlib.import_module("torchvision.transforms.v2")
    torch.set_num_threads(1)  # its workers do the same
    crop = {
        "small": [v2.RandomCrop(32, padding=PADDING), v2.RandomHorizontalFlip()],
        "photos": [v2.RandomResizedCrop(PIXELS), v2.RandomHorizontalFlip()],
        "slides": [v2.RandomHorizontalFlip(), v2.RandomVerticalFlip()],
    }[read.kind]
    dtypes = {tv_tensors.Image: torch.float32, "others": None}
    scale = [v2.ToDtype(dtypes, scale=True), v2.Normalize([MEAN / 255], [STD / 255])]
    transform = v2.Compose(
        [*(crop if read.augmented else []), v2.ToImage(), *(scale if read.augmented else [])]
    )
    if read.kind == "slides":

        class Pairs:
            images, masks = read.files()

            def __len__(self) -> int:
                return len(self.images)

            def __getitem__(self, index: int) -> Any:
                mask = np.asarray(Image.open(self.masks[index]))
                return transform(
                    Image.open(self.images[index]), tv_tensors.Mask(torch.from_numpy(mask.copy()))
                )

        data: Any = Pairs()
    else:
        data = datasets.ImageFolder(str(read.folder), transform)
    loader = torch.utils.data.DataLoader(
        data,
        read.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=read.workers,
        persistent_workers=True,
    )
    return (batch for _ in itertools.count() for batch in loader)


def grain(read: Read) -> Iterator[Any]:
    import grain as library

    images, targets = read.files()

    def load(index: int, random: np.random.Generator) -> dict[str, np.ndarray]:
        with Image.open(images[index]) as image:
            if read.kind == "photos" and read.augmented:
                image = image.convert("RGB").resize(
                    (PIXELS, PIXELS), Image.Resampling.BILINEAR, _box(image.size, random)
                )
            pixels = np.asarray(image)
        with (
            Image.open(targets[index]) if read.kind == "slides" else contextlib.nullcontext()
        ) as mask:
            target = np.asarray(mask if mask is not None else targets[index])
        if not read.augmented:
            return {"images": pixels, "targets": target}
        if read.kind == "small":
            padded = np.pad(pixels, [(PADDING, PADDING)] * 2 + [(0, 0)])
            top, left = random.integers(0, 2 * PADDING + 1, 2)
            pixels = padded[top : top + 32, left : left + 32]
        if random.random() < 0.5:
            pixels, target = pixels[:, ::-1], target[:, ::-1] if read.kind == "slides" else target
        if read.kind == "slides" and random.random() < 0.5:
            pixels, target = pixels[::-1], target[::-1]
        return {
            "images": (pixels.astype(np.float32) - np.float32(MEAN)) / np.float32(STD),
            "targets": target,
        }

    data = library.MapDataset.range(len(images)).seed(0).shuffle().repeat().random_map(load)
    options = library.ReadOptions(num_threads=read.workers, prefetch_buffer_size=2 * read.workers)
    return iter(data.batch(read.batch_size, drop_remainder=True).to_iter_dataset(options))


def _box(size: tuple[int, int], random: np.random.Generator) -> tuple[int, int, int, int]:
    """Returns left, top, right and bottom of a random part, as torchvision's RandomResizedCrop
    draws it.
    """
    width, height = size
    for _ in range(10):
        area, ratio = (
            width * height * random.uniform(0.08, 1),
            np.exp(random.uniform(-np.log(4 / 3), np.log(4 / 3))),
        )
        across, down = round((area * ratio) ** 0.5), round((area / ratio) ** 0.5)
        if 0 < across <= width and 0 < down <= height:
            left, top = (
                random.integers(0, width - across + 1),
                random.integers(0, height - down + 1),
            )
            return left, top, left + across, top + down
    side = min(size)
    return (width - side) // 2, (height - side) // 2, (width + side) // 2, (height + side) // 2


def tfdata(read: Read) -> Iterator[Any]:
    tf: Any = importlib.import_module("tensorflow")
    channels = 1 if read.kind == "slides" else 3

    def load(image: Any, target: Any) -> Any:
        data = tf.io.read_file(image)
        if read.kind == "photos" and read.augmented:
            whole = tf.reshape(tf.constant([0.0, 0, 1, 1]), [1, 1, 4])
            start, size, _ = tf.image.sample_distorted_bounding_box(
                tf.image.extract_jpeg_shape(data),
                whole,
                area_range=(0.08, 1),
                aspect_ratio_range=(3 / 4, 4 / 3),
                min_object_covered=0.0,
                max_attempts=10,
                use_image_if_no_bounding_boxes=True,
            )
            box = tf.concat([start[:2], size[:2]], 0)
            pixels = tf.image.resize(
                tf.image.decode_and_crop_jpeg(data, box, channels=3),
                (PIXELS, PIXELS),
                antialias=True,
            )
        else:
            decode = tf.io.decode_jpeg if read.kind == "photos" else tf.io.decode_png
            pixels = decode(data, channels=channels)
        if read.kind == "slides":
            target = tf.io.decode_png(tf.io.read_file(target), channels=1)
        if not read.augmented:
            return pixels, target
        if read.kind == "small":
            pixels = tf.image.random_crop(
                tf.image.pad_to_bounding_box(pixels, PADDING, PADDING, 40, 40), (32, 32, 3)
            )
        across, down = tf.random.uniform(()) < 0.5, tf.random.uniform(()) < 0.5
        pixels = tf.cond(across, lambda: tf.reverse(pixels, [1]), lambda: pixels)
        if read.kind == "slides":
            target = tf.cond(across, lambda: tf.reverse(target, [1]), lambda: target)
            pixels, target = tf.cond(
                down,
                lambda: (tf.reverse(pixels, [0]), tf.reverse(target, [0])),
                lambda: (pixels, target),
            )
        return (tf.cast(pixels, tf.float32) - MEAN) / STD, target

    data = (
        tf.data.Dataset.from_tensor_slices(read.files())
        .shuffle(len(read.files()[0]), reshuffle_each_iteration=True)
        .repeat()
    )
    data = (
        data.map(load, num_parallel_calls=read.workers)
        .batch(read.batch_size, drop_remainder=True)
        .prefetch(2)
    )
    options = tf.data.Options()
    options.threading.private_threadpool_size = read.workers
    return data.with_options(options).as_numpy_iterator()


SIDES: dict[str, Callable[[Read], Iterator[Any]]] = {
    "jaxdp": jaxdp,
    "torchvision": torchvision,
    "Grain": grain,
    "tf.data": tfdata,
}
