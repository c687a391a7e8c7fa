"""Test-time augmentation is the mean of a model's outputs for flipped and turned images."""

import json
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdp
from jaxdp import data, evaluate, predict, tasks
from jaxdp.errors import ConfigError
from jaxdp.step.views import VIEWS, mean_over_views
from jaxdp.tasks.instance_segmentation import directions

UNET: dict[str, Any] = {"base_channels": 2, "levels": 2}


def turned(array: np.ndarray, turns: int, mirrored: bool) -> np.ndarray:
    """Turns and mirrors arrays (batch, height, width, ...)."""
    array = np.rot90(array, turns, (1, 2))
    return np.ascontiguousarray(np.flip(array, 2) if mirrored else array)


def cells(height: int = 24, width: int = 20) -> tuple[np.ndarray, np.ndarray]:
    rng, masks = np.random.default_rng(0), np.zeros((8, height, width), np.int32)
    masks[:, 2:9, 3:12], masks[:, 9:20, 5:14], masks[:, 12:22, 15:19] = 1, 2, 3
    images = rng.integers(0, 100, (8, height, width, 1)) + 50 * (masks > 0)[..., None]
    return images.astype(np.uint8), masks


def trained(kind: str, height: int = 24, width: int = 20, **settings: Any) -> jaxdp.Result:
    images, masks = cells(height, width)
    targets = {
        "classification": np.arange(8) % 2,
        "segmentation": (masks > 0).astype(np.uint8),
        "instances": masks,
        "regression": images[::-1],
    }[kind]
    model: dict[str, Any] = {"model": "unet", "model_kwargs": UNET}
    if kind == "classification":
        model = {"model": "pyramidnet", "model_kwargs": {"depth": 8, "alpha": 6}}
    dataset = data.from_arrays(
        images, targets, test=(images, targets), instances=kind == "instances"
    )
    return jaxdp.Trainer(
        data=dataset, devices=1, steps=4, global_batch_size=4, progress=False, **model, **settings
    ).fit()


@pytest.fixture(scope="module")
def results() -> dict[str, jaxdp.Result]:
    kinds = ("classification", "segmentation", "instances", "regression")
    return {kind: trained(kind) for kind in kinds}


def test_a_classifier_gives_the_mean_of_its_logits(results: dict[str, jaxdp.Result]) -> None:
    result, images = results["classification"], cells()[0]
    once, mirrored = (jnp.log(result.predict(each)) for each in (images, turned(images, 0, True)))
    logits = [each - each.mean(-1, keepdims=True) for each in (once, mirrored)]
    found = result.predict(images, test_time_augmentation="flip")
    np.testing.assert_allclose(found, jax.nn.softmax(sum(logits) / 2), atol=1e-5)
    assert abs(found - result.predict(images)).max() > 1e-4


@pytest.mark.parametrize("kind", ["segmentation", "instances", "regression"])
@pytest.mark.parametrize("name", ["flip", "dihedral"])
def test_a_turned_image_has_a_turned_prediction(
    kind: str, name: str, results: dict[str, jaxdp.Result]
) -> None:
    result, images = results[kind], cells(64, 32)[0][:2]  # sizes that need no padding

    def ask(images: np.ndarray, name: str) -> np.ndarray:
        return result.predict(images, probabilities=True, test_time_augmentation=name)

    expected = ask(images, name)
    for turns, mirrored in VIEWS[name]:
        found = ask(turned(images, turns, mirrored), name)
        if kind == "instances":  # probability, and direction down and to the right
            cell, down, right = np.moveaxis(found, -1, 0)
            right = -right if mirrored else right
            for _ in range(turns):
                down, right = right, -down
            found = np.stack([cell, down, right], -1)
        back = turned(turned(found, 0, mirrored), -turns, False)
        np.testing.assert_allclose(back, expected, atol=1e-5)
    # Without the mean, it has not.
    last = VIEWS[name][-1]
    plain = turned(turned(ask(turned(images, *last), "none"), 0, last[1]), -last[0], False)
    assert abs(plain - ask(images, "none")).max() > 1e-3


def test_true_directions_are_moved_back() -> None:
    masks = cells()[1][:1]
    task = tasks.InstanceSegmentation(3)

    def outputs(masks: np.ndarray) -> Any:
        inside = (masks > 0)[..., None].astype(np.float32)
        return jnp.concatenate([inside, jax.vmap(directions)(masks)], -1)

    expected = outputs(masks)
    for turns, mirrored in VIEWS["dihedral"]:
        found = task.moved_back(outputs(turned(masks, turns, mirrored)), turns, mirrored)
        np.testing.assert_allclose(found, expected, atol=1e-6)
    unturned = tasks.Segmentation(3).moved_back(outputs(turned(masks, 1, False)), 1, False)
    assert abs(unturned - expected).max() > 0.5  # mutant: directions as if they were classes


def test_outputs_that_are_trees_and_further_fields_have_views() -> None:
    batch = {"images": jnp.asarray(cells()[0], jnp.float32), "ages": jnp.arange(8.0)}

    def call(batch: Any) -> Any:
        weights = jnp.arange(20.0)[: batch["images"].shape[2], None]
        return {"left": jnp.sum(batch["images"] * weights, (1, 2)), "age": 2 * batch["ages"]}

    found = mean_over_views(call, batch, "flip", tasks.Classification(2))
    np.testing.assert_allclose(found["age"], 2 * batch["ages"])
    halves = 9.5 * batch["images"].sum((1, 2))
    np.testing.assert_allclose(found["left"], halves, rtol=1e-5)


@pytest.mark.parametrize("kind", ["classification", "segmentation", "instances"])
def test_an_evaluation_scores_what_is_predicted(
    kind: str, results: dict[str, jaxdp.Result]
) -> None:
    result, (images, masks) = results[kind], cells()
    name = "flip" if kind == "classification" else "dihedral"
    scores = result.evaluate(split="test", test_time_augmentation=name)
    assert scores != result.evaluate(split="test")
    found = result.predict(images, test_time_augmentation=name)
    if kind == "classification":
        assert scores["accuracy"] == np.mean(found.argmax(-1) == np.arange(8) % 2)
    elif kind == "segmentation":
        assert scores["pixel_accuracy"] == pytest.approx(np.mean(found == (masks > 0)))
    else:
        count = sum(each.max() for each in found)
        assert scores["count_error"] == pytest.approx(count / (3 * 8) - 1)


def test_tiles_agree_with_the_whole_image() -> None:
    result = trained("segmentation")
    image = np.random.default_rng(0).integers(0, 256, (1, 150, 90, 1), np.uint8)
    whole, tiled = (
        next(iter(result.predictor(tile=tile, test_time_augmentation="dihedral")(image)))[1]
        for tile in (512, 64)
    )
    np.testing.assert_allclose(tiled, whole, atol=1e-5)


def test_a_run_keeps_its_views(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(tmp_path / "run")
    trained("segmentation", test_time_augmentation="dihedral", run_dir=run)
    result = jaxdp.load(run)
    images, masks = cells()
    np.savez(tmp_path / "test.npz", images=images, masks=(masks > 0).astype(np.uint8))
    scores = {}
    for name in ("", "none", "flip", "dihedral"):
        flags = ["--test-time-augmentation", name] if name else []
        capsys.readouterr()
        assert evaluate.main([run, "--dataset", f"npz:{tmp_path}/test.npz", "--json", *flags]) == 0
        scores[name] = json.loads(capsys.readouterr().out)["loss"]
    assert scores[""] == scores["dihedral"]
    assert len(set(scores.values())) == 3
    metrics = result.metrics["test"]
    assert metrics["loss"] == pytest.approx(scores["dihedral"], rel=1e-5)
    from PIL import Image

    Image.fromarray(images[0, ..., 0]).save(tmp_path / "a.png")
    for name in ("none", "dihedral"):
        flags = ["--test-time-augmentation", name, "--output-dir", str(tmp_path / name)]
        assert predict.main([run, str(tmp_path / "a.png"), *flags]) == 0
        found = np.array(Image.open(tmp_path / name / "a-mask.png"))
        expected = result.predict(images[0], test_time_augmentation=name)
        np.testing.assert_array_equal(found > 0, expected > 0)


def test_a_classifier_of_oblong_images_is_only_mirrored(
    results: dict[str, jaxdp.Result],
) -> None:
    said = "test_time_augmentation=dihedral: turns images, and the model takes 24x20 pixels"
    for ask in (
        lambda: trained("classification", test_time_augmentation="dihedral"),
        lambda: results["classification"].predict(cells()[0], test_time_augmentation="dihedral"),
        lambda: results["classification"].evaluate(test_time_augmentation="dihedral"),
    ):
        with pytest.raises(ConfigError, match=said):
            ask()
    result = trained("classification", 16, 16)
    assert result.predict(cells(16, 16)[0], test_time_augmentation="dihedral").shape == (8, 2)
