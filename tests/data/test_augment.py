"""What an image becomes depends on its own key alone, and its masks and dense targets go with
it.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdp.data import augment
from jaxdp.data.augment import Example, Mixing, Preprocess, create, create_augmentations
from jaxdp.errors import ConfigError

NUMBERED = {
    "crop": "crop:7",
    "crop_foreground": "crop_foreground:7",
    "cutout": "cutout:4",
    "random_resized_crop": "random_resized_crop:12",
}
WORDS = {name: NUMBERED.get(name, name) for name in augment.names()}
MIXING = {name for name, word in WORDS.items() if isinstance(create(word), Mixing)}
OF_CLASSES = {*MIXING, "random_resized_crop"}  # not for dense targets
IN_PLACE = {"brightness", "contrast", "cutout"}  # change no geometry
SIDE = 12


def keys_of(indices: Any) -> Any:
    return jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(5), indices)


def create_batch(examples: int, *fields: str, partners: bool = False) -> dict[str, jax.Array]:
    rng, shape = np.random.default_rng(0), (examples, SIDE, SIDE)
    batch = {
        "images": rng.integers(1, 256, (*shape, 3)).astype(np.uint8),
        "indices": np.arange(examples, dtype=np.int32) * 7,
        "masks": np.asarray([0, 3, 255], np.uint8)[rng.integers(0, 3, shape)],
        "targets": rng.integers(0, 256, (*shape, 2)).astype(np.uint8),
    }
    out = {name: jnp.asarray(batch[name]) for name in ("images", "indices", *fields)}
    if partners:
        out |= {f"partner_{name}": jnp.roll(out[name], 1, 0) for name in ("images", "indices")}
        out |= {
            "partner_labels": jnp.zeros(examples, jnp.int32),
            "partner_weights": jnp.ones(examples),
        }
    return out


def preprocess_of(words: str, *, dense: bool = False) -> Preprocess:
    augmentations = create_augmentations(words.split(), dense=dense)
    return Preprocess((0.0,) * 3, (1.0,) * 3, augmentations)


@pytest.mark.parametrize("fields", [(), ("masks", "targets")], ids=["alone", "dense"])
@pytest.mark.parametrize("name", sorted(WORDS))
def test_every_augmentation_changes_images_and_keeps_their_kind(
    name: str, fields: tuple[str, ...]
) -> None:
    if name in OF_CLASSES and fields:
        with pytest.raises(ConfigError, match='task="classification" only'):
            preprocess_of(WORDS[name], dense=True)
        return
    preprocess = preprocess_of(WORDS[name], dense=bool(fields))
    batch = create_batch(6, *fields, partners=name in MIXING)
    if name == "crop_foreground" and not fields:
        with pytest.raises(ConfigError, match="needs masks; use crop"):
            preprocess(batch, keys_of)
        return
    out = jax.jit(lambda batch: preprocess(batch, keys_of))(batch)
    height, width, channels = augment.output_shape(preprocess.augmentations, (SIDE, SIDE, 3))
    assert (height, width) == ((7, 7) if name.startswith("crop") else (SIDE, SIDE))
    images = np.asarray(out["images"])
    assert (images.shape, images.dtype) == ((6, height, width, channels), np.float32)
    assert np.isfinite(images).all()
    assert images.min() >= 0
    assert images.max() > 1
    assert images.shape != batch["images"].shape or not np.array_equal(images, batch["images"])
    assert len(np.unique(images.sum((1, 2, 3)))) == 6
    if fields:
        masks = np.asarray(out["masks"])
        assert (masks.shape, masks.dtype) == ((6, height, width), np.int32)
        assert set(np.unique(masks)) <= {0, 3, 255}
        assert np.array_equal(masks, batch["masks"]) == (name in IN_PLACE)
        targets = np.asarray(out["targets"])
        assert (targets.shape, targets.dtype) == ((6, height, width, 2), np.float32)
        assert targets.min() >= 0
        assert 0.5 < targets.max() <= 1
        unmoved = targets.shape == batch["targets"].shape and np.allclose(
            targets, np.asarray(batch["targets"]) / 255
        )
        assert unmoved == (name in IN_PLACE)


@pytest.mark.parametrize("name", sorted(set(WORDS) - OF_CLASSES - IN_PLACE))
def test_masks_and_targets_move_with_their_image(name: str) -> None:
    rows, columns = np.mgrid[:32, :32]
    mask = ((rows - 9) ** 2 + (columns - 18) ** 2 < 60).astype(np.int32)
    picture = jnp.asarray(mask[..., None], jnp.float32)
    augmentation = create(
        {"crop": "crop:24", "crop_foreground": "crop_foreground:24", "elastic": "elastic:3"}.get(
            name, name
        )
    )
    example = {"images": picture, "masks": mask, "targets": picture}
    moved = jax.jit(jax.vmap(augmentation, (None, 0)))(
        example, jax.random.split(jax.random.key(0), 16)
    )
    np.testing.assert_array_equal(moved["images"], moved["targets"])
    disagree = (moved["images"][..., 0] > 0.5) != moved["masks"]
    # Interpolated edges are a pixel wide: the threshold and the nearest pixel may differ on them,
    # and nowhere else.
    edge = (moved["images"][..., 0] > 0.01) & (moved["images"][..., 0] < 0.99)
    assert not np.any(disagree & ~edge)
    assert np.mean(disagree) < (0.02 if name in ("shift", "rotate", "affine", "elastic") else 1e-9)


def test_pixels_do_not_depend_on_the_rest_of_the_batch() -> None:
    # One of each kind of operation: windows, reversals, gathers, means over pixels, tables.
    preprocess = preprocess_of("pad_crop:1 flip elastic:1 contrast cutmix")
    batch = create_batch(8, partners=True)

    @jax.jit
    def images_of(batch: Mapping[str, Any]) -> Any:
        return preprocess(batch, keys_of)["images"]

    expected = np.asarray(images_of(batch))
    others = {name: value.at[2:5].set(value[5]) for name, value in batch.items()}
    moved = np.roll(
        images_of({name: np.roll(value, 3, 0) for name, value in others.items()}), -3, 0
    )
    np.testing.assert_array_equal(moved, expected[[0, 1, 5, 5, 5, 5, 6, 7]])
    assert len(np.unique(expected.sum((1, 2, 3)))) == 8


@pytest.mark.parametrize("word", ["pad_crop", "rotate", "elastic"])
def test_geometry_does_not_depend_on_batch_size_bit_for_bit(word: str) -> None:
    batch = create_batch(5, "masks", "targets")
    preprocess = preprocess_of(word, dense=True)
    moved, alone = (
        jax.jit(lambda batch: preprocess(batch, keys_of))(part)
        for part in (batch, {name: value[:1] for name, value in batch.items()})
    )
    for name in ("images", "masks", "targets"):
        np.testing.assert_array_equal(moved[name][:1], alone[name])


def test_the_same_augmentation_twice_draws_twice() -> None:
    batch = create_batch(16)
    images = preprocess_of("flip flip")(batch, keys_of)["images"]
    changed = np.any(images != batch["images"], (1, 2, 3))
    assert 0 < changed.sum() < 16


@dataclasses.dataclass(frozen=True)
class Exchange(Mixing):
    """Takes the partner wholly."""

    def mix(self, example: Example, partner: Example, key: Any) -> Any:
        return partner["images"], jnp.ones(())


def test_partners_look_as_they_do_in_their_own_place() -> None:
    batch = create_batch(4, partners=True)
    alone = preprocess_of("flip brightness")
    mixed = dataclasses.replace(alone, augmentations=(*alone.augmentations, Exchange()))(
        batch, keys_of
    )
    np.testing.assert_allclose(
        mixed["images"], jnp.roll(alone(batch, keys_of)["images"], 1, 0), rtol=1e-6
    )
    np.testing.assert_array_equal(mixed["partner_share"], 1)


def test_partners_without_weight_are_left_out() -> None:
    batch = create_batch(4, partners=True) | {"partner_weights": jnp.asarray([1.0, 0.0, 1.0, 0.0])}
    out = preprocess_of("mixup:1")(batch, keys_of)
    np.testing.assert_array_equal(np.asarray(out["partner_share"]) > 0, [True, False, True, False])
    np.testing.assert_array_equal(
        np.all(out["images"] == batch["images"], (1, 2, 3)), [False, True, False, True]
    )


def test_of_several_mixings_each_example_draws_one() -> None:
    batch = create_batch(16, partners=True)
    out = preprocess_of("mixup:1 cutmix:1")(batch, keys_of)
    share = np.asarray(out["partner_share"])[:, None, None, None]
    own, partner, images = (
        np.asarray(values, np.float32)
        for values in (batch["images"], batch["partner_images"], out["images"])
    )
    averaged = np.all(np.abs((1 - share) * own + share * partner - images) < 1e-3, (1, 2, 3))
    pasted = np.all((images == own) | (images == partner), (1, 2, 3))
    pasted &= np.isclose(np.any(images != own, -1).mean((1, 2)), share[:, 0, 0, 0])
    assert np.all(averaged | pasted)
    assert 3 < pasted.sum() < 13


def test_evaluation_only_normalizes() -> None:
    batch = create_batch(2, "masks", "targets")
    flip = create_augmentations(["flip"], dense=True)
    preprocess = Preprocess((1.0, 2.0, 3.0), (2.0, 4.0, 8.0), flip)
    out = preprocess(batch, None)
    expected = (np.asarray(batch["images"]) - [1.0, 2.0, 3.0]) / [2.0, 4.0, 8.0]
    np.testing.assert_allclose(out["images"], expected, rtol=1e-6)
    np.testing.assert_array_equal(out["masks"], batch["masks"])
    np.testing.assert_allclose(out["targets"], np.asarray(batch["targets"]) / 255, rtol=1e-6)
    assert {name: out[name].dtype.name for name in ("images", "masks", "targets")} == {
        "images": "float32", "masks": "int32", "targets": "float32",
    }  # fmt: skip


def test_per_image_normalization() -> None:
    images = np.array(create_batch(3)["images"], np.float32)
    images[1] = 77  # one colour
    images[2] = 100
    images[2, 5, 5, 0] = 100.25  # nearly so, as a shift may leave it
    preprocess = Preprocess((0.0,) * 3, (1.0,) * 3, per_image=True)
    out = np.asarray(
        preprocess({"images": jnp.asarray(images), "indices": jnp.arange(3)}, None)["images"]
    )
    np.testing.assert_allclose([out[0].mean(), out[0].std()], [0, 1], atol=1e-5)
    np.testing.assert_array_equal(out[1], 0)
    # TensorFlow's per_image_standardization divides by max(deviation, 1 / sqrt(number of values)).
    np.testing.assert_allclose(
        out[2], (images[2] - images[2].mean()) * np.sqrt(images[2].size), rtol=1e-2, atol=1e-3
    )


UNUSABLE = """\
flipp | unknown augment; did you mean flip?
crop | needs a number, e.g. crop:64
flip:1 | takes no number; write flip or flip:alternating
mixup: | must be mixup:NUMBER
mixup:much | must be mixup:NUMBER
crop:0 | whole number of pixels
pad_crop:0 | whole number of pixels
cutout:nan | whole number of pixels
shift:0 | above 0
shift:inf | above 0
rotate:181 | above 0 and at most 180
affine:1.5 | above 0 and at most 1
brightness:-0.2 | above 0 and at most 1
elastic:0 | above 0
cutmix:inf | above 0
"""


@pytest.mark.parametrize("row", UNUSABLE.splitlines())
def test_a_word_that_cannot_be_used_is_one_line(row: str) -> None:
    word, message = row.split(" | ")
    with pytest.raises(ConfigError) as error:
        create(word)
    assert str(error.value).startswith(f"augment={word.rstrip(':') if word == 'mixup' else word}: ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_none_stands_alone() -> None:
    assert preprocess_of("none").augmentations == preprocess_of("").augmentations == ()
    with pytest.raises(ConfigError, match="excludes other augmentations"):
        preprocess_of("none flip")


MISFITS = """\
crop:13 | augment=crop:13: is larger than an image of 12 x 16 pixels; use a smaller crop
rotate90 | augment=rotate90: needs square images
crop:8 pad_crop:8 | augment=pad_crop:8: must be less than the 8 pixels
cutout:12 | augment=cutout:12: must be less than the 12 pixels
shift:12.5 | augment=shift:12.5: must be less than the 12 pixels
crop:1 elastic:1 | augment=elastic:1: needs images of at least 2 x 2 pixels
"""


@pytest.mark.parametrize("row", MISFITS.splitlines())
def test_what_does_not_fit_the_images_is_told_before_and_while_tracing(row: str) -> None:
    words, message = row.split(" | ")
    preprocess = preprocess_of(words)
    with pytest.raises(ConfigError, match=message):
        augment.output_shape(preprocess.augmentations, (12, 16, 3))
    with pytest.raises(ConfigError, match=message):
        preprocess(
            {"images": jnp.zeros((2, 12, 16, 3), jnp.uint8), "indices": jnp.arange(2)}, keys_of
        )


def test_most_tiles_of_crop_foreground_show_the_only_object() -> None:
    mask = np.zeros((200, 300), np.int32)
    mask[150:156, 20:30], mask[:, 290:] = 7, 255  # padding is no foreground
    example = {"images": jnp.zeros((200, 300, 1)), "masks": jnp.asarray(mask)}
    keys = jax.random.split(jax.random.key(0), 400)
    shares = []
    for word in ("crop_foreground:32", "crop:32"):
        tiles = np.asarray(jax.jit(jax.vmap(create(word), (None, 0)))(example, keys)["masks"])
        assert tiles.shape == (400, 32, 32)
        shares.append((tiles == 7).any((1, 2)).mean())
        places = [tuple(np.argwhere(tile == 7)[0]) for tile in tiles if (tile == 7).any()]
    assert 0.7 < shares[0] < 0.85
    assert shares[1] < 0.1
    assert len(set(places)) > 1
    empty = example | {"masks": jnp.zeros((200, 300), jnp.int32)}
    assert create("crop_foreground:32")(empty, keys[0])["masks"].shape == (32, 32)
    # A tile reaches every side of the image, whatever the place of the pixel.
    corner = example | {"masks": jnp.zeros((200, 300), jnp.int32).at[0, 299].set(1)}
    tiles = jax.vmap(create("crop_foreground:32"), (None, 0))(corner, keys)["masks"]
    assert 0.6 < float((tiles[:, 0, -1] == 1).mean()) < 0.9
