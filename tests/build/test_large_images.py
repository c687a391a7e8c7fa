"""Crops, channels and evaluation batches of images that are large."""

import pathlib
from typing import Any

import numpy as np
import pytest

import jaxdp
from jaxdp import data
from jaxdp.build import evaluator, resolve
from jaxdp.build.setup import create_setup
from jaxdp.config import TrainConfig

RNG = np.random.default_rng(0)
TINY: dict[str, Any] = {"base_channels": 1, "levels": 1}
CROPPED = {"base_channels": 16}


def images(height: int, width: int, count: int = 8, **settings: Any) -> data.Dataset:
    pixels = RNG.integers(0, 256, (count, height, width, 1), np.uint8)
    masks = RNG.integers(0, 2, (count, height, width), np.uint8)
    return data.from_arrays(pixels, masks, test=(pixels[:3], masks[:3]), **settings)


def saved(folder: pathlib.Path, height: int, width: int) -> str:
    dataset = images(height, width)
    train_set: Any = dataset.train
    pixels, masks = train_set.source.images, train_set.source.targets
    np.savez(folder / "set.npz", images=pixels, masks=masks)
    return f"npz:{folder / 'set.npz'}"


def config_of(dataset: data.Dataset, model: str = "unet", **settings: Any) -> TrainConfig:
    return jaxdp.Trainer(model, dataset, progress=False, devices=1, **settings).setup.config


@pytest.mark.parametrize(
    ("size", "own", "settings", "augment", "kwargs"),
    [
        ((130, 200), (), {}, ("crop:128",), CROPPED),
        ((40, 200), (), {}, ("crop:40",), CROPPED),
        ((128, 128), (), {}, (), {}),
        ((130, 200), ("flip",), {}, ("flip",), {}),
        ((130, 200), (), {"augment": ("none",)}, ("none",), {}),
        ((130, 200), (), {"model_kwargs": TINY}, (), TINY),
    ],
)
def test_large_images_are_cropped_unless_something_is_given(
    size: tuple[int, int], own: tuple[str, ...], settings: dict[str, Any], augment: Any, kwargs: Any
) -> None:
    config = config_of(images(*size, augment=own), **settings)
    assert (config.augment, config.model_kwargs) == (augment, kwargs)


def test_a_line_says_what_was_taken(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = saved(tmp_path, 160, 256)
    config = create_setup(TrainConfig.of(model="unet", dataset=dataset, devices=1)).config
    assert config.augment == ("crop:128", "flip", "flip_vertical", "rotate90")
    assert (
        f'note: {dataset}: images of 160x256: augment="crop:128 flip flip_vertical rotate90" and'
        " model_kwargs=base_channels=16 by default; an epoch sees 1/2 of each image"
    ).replace('"', "") in capsys.readouterr().err.replace('"', "")


def lengths(config: TrainConfig) -> tuple[Any, ...]:
    return config.global_batch_size, config.steps, config.epochs, config.eval_every


@pytest.mark.parametrize(
    ("count", "settings", "expected"),
    [
        (12, {}, (8, 2000, None, 200)),
        (12, {"augment": ("flip", "crop:10")}, (8, 2000, None, 200)),
        (5, {}, (5, 3200, None, 320)),
        (100, {}, (16, 1000, None, 100)),
        (100, {"per_device_batch_size": 5}, (5, 3200, None, 320)),
        (900, {}, (128, 141, None, 15)),  # 20 epochs
        (12, {"steps": 3}, (8, 3, None, 1)),
        (12, {"steps": 500}, (8, 500, None, 50)),  # an epoch is one step
        (12, {"epochs": 500}, (8, None, 500, 50)),
        (12, {"epochs": 3}, (8, None, 3, 1)),
        (12, {"global_batch_size": "auto"}, (1, 16000, None, 1600)),
        (12, {"global_batch_size": 4, "eval_every": 7}, (4, 4000, None, 7)),
        (12, {"augment": ("crop:12",)}, (2, None, 20, 6)),  # more than a quarter of an image
        (12, {"augment": ("flip",)}, (2, None, 20, 6)),
    ],
)
@pytest.mark.usefixtures("_small_crops")
def test_crops_of_large_images_make_long_runs(
    count: int, settings: dict[str, Any], expected: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolve, "CROP", 10)
    config = config_of(images(24, 20, count), **settings)
    assert lengths(config) == expected
    assert config.checkpoint_every >= 100


def test_photos_are_as_long_with_crops_as_without() -> None:
    photos = data.from_arrays(
        RNG.integers(0, 256, (12, 24, 24, 1), np.uint8), np.arange(12) % 2, validation=0.5
    )
    config = config_of(photos, "cnn", augment=("crop:8",))
    assert (config.steps, config.epochs) == (None, 20)


@pytest.mark.usefixtures("_small_crops")
def test_a_repeated_command_goes_on_as_far(tmp_path: pathlib.Path) -> None:
    run: dict[str, Any] = {"run_dir": str(tmp_path / "run"), "progress": False, "devices": 1}
    dataset = images(40, 36)
    first = jaxdp.Trainer("unet", dataset, **run, max_time="1s")
    assert first.fit().step < first.config.steps == 2000
    assert lengths(jaxdp.Trainer("unet", dataset, **run).config) == lengths(first.config)


def test_sets_with_defaults_of_their_own_keep_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolve, "CROP", 4)
    for dataset in ("cells", "digits-denoise"):
        config = create_setup(TrainConfig.of(model="unet", dataset=dataset, devices=1)).config
        assert "crop" not in " ".join(config.augment or ())


@pytest.fixture
def _small_crops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolve, "CROP", 16)
    monkeypatch.setattr(resolve, "BASE_CHANNELS", 1)


@pytest.mark.usefixtures("_small_crops")
def test_a_resumed_run_keeps_its_crop_and_its_channels(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run: dict[str, Any] = {"run_dir": str(tmp_path / "run"), "progress": False, "devices": 1}
    dataset = images(24, 20)
    jaxdp.Trainer("unet", dataset, **run, steps=1).fit()
    monkeypatch.setattr(resolve, "CROP", 10**6)  # as of another version
    trainer = jaxdp.Trainer("unet", dataset, **run, steps=2)
    assert trainer.config.augment == ("crop:16",)
    assert trainer.fit().step == 2
    # What is given goes before, and the channels stay.
    flipped: Any = ("flip",)
    for trainer in (
        jaxdp.Trainer("unet", dataset, augment=flipped, **run),
        jaxdp.Trainer("unet", images(24, 20, augment=flipped), **run),
    ):
        assert trainer.config.augment == flipped
        assert trainer.config.model_kwargs == {"base_channels": 1}


def test_a_resumed_run_of_whole_images_stays_one(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run: dict[str, Any] = {
        "run_dir": str(tmp_path / "run"),
        "progress": False,
        "devices": 1,
        "model": "unet",
    }
    run["model_kwargs"] = TINY
    jaxdp.Trainer(data=images(24, 20), steps=1, **run).fit()
    monkeypatch.setattr(resolve, "CROP", 16)
    run["model_kwargs"] = {}
    config = jaxdp.Trainer(data=images(24, 20), **run).config
    assert (config.augment, config.model_kwargs) == ((), TINY)


@pytest.mark.parametrize("devices", [1, 2])
def test_large_images_are_evaluated_in_small_batches(
    devices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = images(24, 20)
    trainer = jaxdp.Trainer(
        "unet", dataset, model_kwargs=TINY, steps=1, devices=devices, global_batch_size=8,
        progress=False,
    )  # fmt: skip
    result = trainer.fit()
    whole = result.evaluate(split="train")
    evaluates = trainer.setup.evaluator
    assert evaluates.batch_size("train") == 8
    for pixels, size in ((3 * 24 * 20, 3), (1, 1)):
        monkeypatch.setattr(evaluator, "_MOST_PIXELS", pixels)
        assert evaluates.batch_size("train") == -(-size // devices) * devices
        assert result.evaluate(split="train") == pytest.approx(whole, rel=1e-5)


def test_a_classifier_is_evaluated_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluator, "_MOST_PIXELS", 1)
    setup = create_setup(TrainConfig.of(model="cnn", dataset="digits", global_batch_size=32))
    assert setup.evaluator.batch_size("test") == 32
