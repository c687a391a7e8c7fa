"""Weights by name decide the model and the preparation of its images."""

import json
import pathlib
import signal
import sys
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest
import safetensors.numpy
from example_files import noise
from example_files import write as write_images
from flax import nnx
from hub_server import Hub, serving
from huggingface_hub import constants
from PIL import Image
from runs import assert_same_run

import jaxdp
from jaxdp import convert, models
from jaxdp.build import pretrained
from jaxdp.errors import ConfigError
from jaxdp.models.reference_weights import reference_names
from jaxdp.step.state import array_name

pytestmark = pytest.mark.usefixtures("no_pictures")
IMAGENET = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
PREPARED = {"input_size": [3, 24, 24], "interpolation": "bicubic", "crop_pct": 0.95, **IMAGENET}
CLASSES = 5


@pytest.fixture(autouse=True)
def small_architectures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the architectures small, so that a test takes no minute."""
    narrow = {"depth": 18, "width": 4}
    known = {
        "resnet18": pretrained.Architecture("resnet", narrow, 47),
        "vgg11_bn": pretrained.Architecture(
            "vgg", {"depth": 11, "head": "imagenet", "width": 4}, 531
        ),
    }
    monkeypatch.setattr(pretrained, "ARCHITECTURES", known)


def weights_of(architecture: str) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Returns random arrays by PyTorch's names, and the same arrays by ours."""
    known = pretrained.ARCHITECTURES[architecture]
    model = models.create(
        known.model, num_classes=CLASSES, in_channels=3, rngs=nnx.Rngs(0), **known.model_kwargs
    )
    tree = nnx.to_pure_dict(nnx.state(model, (nnx.Param, nnx.BatchStat)))
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    random = np.random.default_rng(0)
    ours = {
        array_name(path): np.abs(random.normal(size=leaf.shape)).astype(np.float32)
        for path, leaf in leaves
    }
    theirs: dict[str, np.ndarray] = {}
    for name, place in reference_names(model).items():
        array = ours["/".join(map(str, place.path))]
        if place.flattened:  # ours have positions first, PyTorch's channels
            array = array.reshape(49, -1, array.shape[-1]).swapaxes(0, 1).reshape(array.shape)
        theirs[name] = np.ascontiguousarray(np.transpose(array, np.argsort(place.axes)))
    return theirs, ours


def layout(architecture: str = "resnet18", **facts: Any) -> dict[str, bytes]:
    """Returns the files of a repository, as timm writes them."""
    theirs, _ = weights_of(architecture)
    prepared = {**PREPARED, **facts}
    content = {
        "architecture": architecture,
        "num_classes": CLASSES,
        "pretrained_cfg": {name: value for name, value in prepared.items() if value is not None},
    }
    return {
        "config.json": json.dumps(content).encode(),
        "model.safetensors": safetensors.numpy.save(theirs),
    }


def layout_with_classes(count: int) -> bytes:
    content = {"architecture": "resnet18", "num_classes": count, "pretrained_cfg": PREPARED}
    return json.dumps(content).encode()


def write(files: dict[str, bytes], folder: str = "weights") -> str:
    for name, content in files.items():
        path = pathlib.Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> Iterator[Hub]:
    """A hub with timm/resnet18.tiny, and an empty cache."""

    content = {("timm/resnet18.tiny", name): each for name, each in layout().items()}
    with serving(Hub(files=content)) as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.address)
        template = hub.address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        pretrained._of_hub.cache_clear()
        yield hub
    pretrained._of_hub.cache_clear()


class StopAt:
    """Sends this process the signal of a scheduler after a step."""

    every_process = True

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, run: Any, event: Any) -> None:
        if event.step == self.step:
            signal.raise_signal(signal.SIGTERM)


def photos(count: int = 12) -> Any:
    return jaxdp.data.from_arrays(
        noise(1, count, 30, 30, 3),
        np.arange(count) % 3,
        test=(noise(2, 3, 30, 30, 3), np.arange(3)),
    )


@pytest.mark.parametrize("architecture", ["resnet18", "vgg11_bn"])
def test_a_folder_decides_model_and_images(
    architecture: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(layout(architecture))
    trainer = jaxdp.Trainer(data=photos(), init_from=folder, steps=1, devices=1, progress=False)
    config, known = trainer.config, pretrained.ARCHITECTURES[architecture]
    assert (config.model, config.model_kwargs) == (known.model, known.model_kwargs)
    assert (config.normalize, config.image_size) == ("imagenet", "resize_crop:24/25:bicubic")
    assert "resize_crop:24/25:bicubic" in capsys.readouterr().err
    weights = trainer.setup.initial.weights
    assert weights is not None
    assert not weights.skipped
    assert all(name.startswith("head") for name in weights.fresh)  # three classes, not five
    ours = weights_of(architecture)[1]
    assert len(weights.arrays) + len(weights.fresh) == len(ours)
    for name, array in weights.arrays.items():
        np.testing.assert_array_equal(array, ours[name], err_msg=name)


@pytest.mark.parametrize("given", [None, ("flip",)])
def test_photos_are_augmented_as_without_weights(given: Any) -> None:
    sizes = [(30, 40), (28, 30), (40, 33)]
    photos = {
        f"photos/{label}/{number}.png": noise(number, *sizes[number % 3], 3)
        for label in "ab"
        for number in range(8)
    }
    files = write_images(photos)
    trainer = jaxdp.Trainer(
        data=f"folder:{files / 'photos'}",
        init_from=write(layout()),
        augment=given,
        steps=1,
        devices=1,
        progress=False,
    )
    assert trainer.config.augment == (given or ("flip", "random_resized_crop:24"))
    assert trainer.config.image_size == "resize_crop:24/25:bicubic"


SMALL: dict[str, Any] = {"devices": 1, "progress": False, "steps": 1}


def folder_of_photos(classes: str = "ab") -> str:
    sizes = [(30, 40), (28, 30), (40, 33)]
    names = [f"photos/{label}/{number}.png" for label in classes for number in range(8)]
    photos = {name: noise(seed, *sizes[seed % 3], 3) for seed, name in enumerate(names)}
    return str(write_images(photos) / "photos")


def test_another_fit_prepares_images_in_the_same_way() -> None:
    trainer = jaxdp.Trainer(data=f"folder:{folder_of_photos()}", init_from=write(layout()), **SMALL)
    first, second = trainer.fit(), trainer.fit(steps=2)
    assert first.config.image_size == second.config.image_size == "resize_crop:24/25:bicubic"
    second.save("run")
    fit = jaxdp.load("run").predictor(devices=1)._fit
    assert str(fit) == "resize_crop:24/25:bicubic"


def test_grey_photos_become_red_green_and_blue() -> None:
    photos = {
        f"photos/{label}/{number}.png": noise(number, 30, 30)
        for label in "ab"
        for number in range(8)
    }
    data, weights = f"folder:{write_images(photos) / 'photos'}", write(layout())
    trainer = jaxdp.Trainer(data=data, init_from=weights, **SMALL)
    assert trainer.config.channels == 3
    assert trainer.setup.dataset.image_shape[2] == 3
    with pytest.raises(ConfigError, match="red, green and blue, and the images have 1 channel"):
        _ = jaxdp.Trainer(data=data, init_from=weights, channels=1, **SMALL).setup


def test_an_object_of_photos_is_augmented_as_by_name() -> None:
    data = jaxdp.data.from_folder(folder_of_photos())
    trainer = jaxdp.Trainer(data=data, init_from=write(layout()), **SMALL)
    assert trainer.config.augment == ("flip", "random_resized_crop:24")


def test_a_loaded_model_starts_a_training() -> None:
    folder = write(layout())
    result = jaxdp.load(folder).trainer(data=photos(), **SMALL).fit()
    assert result.config.init_from == folder
    weights = result._setup.initial.weights  # pyright: ignore[reportOptionalMemberAccess]
    assert weights is not None
    assert not weights.skipped
    assert result.run_dir is None
    assert not pathlib.Path("None").exists()


def test_evaluation_and_continuing_need_no_weights() -> None:
    folder, data = write(layout()), f"folder:{folder_of_photos()}"
    jaxdp.Trainer(data=data, init_from=folder, run_dir="run", **SMALL).fit()
    expected = jaxdp.load("run").evaluate()
    pathlib.Path(folder).rename("elsewhere")
    assert jaxdp.load("run").evaluate() == expected
    longer = jaxdp.Trainer(
        data=data, init_from=folder, run_dir="run", **{**SMALL, "steps": 2}
    ).fit()
    assert (longer.status, longer.step) == ("done", 2)


def test_an_imported_model_can_be_trained() -> None:
    folder, data = write(layout()), f"folder:{folder_of_photos('abcde')}"
    assert convert.main(["import", folder, "--run-dir", "run", "--dataset", data]) == 0
    assert jaxdp.load("run").config.image_size == "resize_crop:24/25:bicubic"
    result = jaxdp.load("run").trainer(**SMALL).fit()
    assert (result.status, result.step) == ("done", 1)


@pytest.mark.parametrize("setting", [{"step": 3}, {"task": len}])
def test_weights_by_name_have_no_steps_and_no_tasks(setting: Any) -> None:
    with pytest.raises(ConfigError, match="is for a run, not for weights by name"):
        jaxdp.load(write(layout()), **setting)


def test_settings_that_are_given_stay() -> None:
    folder = write(layout())
    given: Any = {"image_size": "30", "model_kwargs": {"dropout": 0.5}, "normalize": "image"}
    trainer = jaxdp.Trainer(
        data=photos(), init_from=folder, steps=1, devices=1, progress=False, **given
    )
    assert (trainer.config.image_size, trainer.config.normalize) == ("30", "image")
    assert trainer.config.model_kwargs == {"depth": 18, "width": 4, "dropout": 0.5}


def test_images_are_prepared_as_pillow_does() -> None:
    """The resize and the crop of timm's evaluation: its transforms are Pillow's resize and a crop
    by integers.
    """
    folder = write(layout())
    result = jaxdp.load(folder)
    pixels = noise(3, 40, 57, 3)
    prepared = result.predictor(devices=1)._fit.apply(pixels)
    shorter = 25  # floor(24 / 0.95)
    size = (int(shorter * 57 / 40), shorter)
    resized = np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC))
    top, left = (round((have - 24) / 2) for have in resized.shape[:2])
    np.testing.assert_array_equal(prepared, resized[top : top + 24, left : left + 24])


def test_loaded_by_name_it_predicts_the_classes_of_the_weights() -> None:
    names = [f"n{number}" for number in range(CLASSES)]
    files = layout()
    content = json.loads(files["config.json"])
    content |= {"label_names": names, "label_descriptions": {"n2": "tabby cat"}}
    files["config.json"] = json.dumps(content).encode()
    result = jaxdp.load(write(files))
    assert result.description.class_names == ("n0", "n1", "tabby cat", "n3", "n4")
    answers = result.predict(noise(4, 2, 40, 57, 3))
    assert answers.shape == (2, CLASSES)
    np.testing.assert_allclose(answers.sum(-1), 1, rtol=1e-5)
    result.save("run")
    again = jaxdp.load("run").predict(noise(4, 2, 40, 57, 3))
    np.testing.assert_array_equal(again, answers)


@pytest.mark.parametrize(
    ("tag", "classes", "named"),
    [("a1_in1k", 1000, True), ("bamboo", 1000, False), ("a1_in1k", 5, False)],
)
def test_classes_of_imagenet_have_names(tag: str, classes: int, named: bool) -> None:
    files = layout(tag=tag)
    content = json.loads(files["config.json"]) | {"num_classes": classes}
    found = pretrained.find(write(files | {"config.json": json.dumps(content).encode()}))
    assert found is not None
    assert len(found.class_names) == (1000 if named else 0)
    if named:
        known = {
            0: "tench",
            281: "tabby",
            517: "crane",
            639: "maillot tank suit",
            999: "toilet tissue",
        }
        assert {number: found.class_names[number] for number in known} == known


@pytest.mark.parametrize(
    ("facts", "problem"),
    [
        ({"mean": [0.5, 0.5, 0.5]}, "which are not ImageNet's"),
        ({"mean": None}, "which are not ImageNet's"),
        ({"crop_mode": "squash"}, "prepared by squash"),
        ({"interpolation": "lanczos"}, "and lanczos; give image_size"),
        ({"input_size": [3, 24, 32]}, "24x32"),
        ({"input_size": None}, "config.json cannot be read"),
        ({"input_size": [3, float("inf"), 24]}, "config.json cannot be read"),
        ({"input_size": [3, 10**9, 10**9]}, "config.json cannot be read"),
        ({"crop_pct": float("nan")}, "config.json cannot be read"),
        ({"crop_pct": 1e-320}, "config.json cannot be read"),
        ({"crop_pct": -0.5}, "config.json cannot be read"),
    ],
)
def test_what_cannot_be_reproduced_is_refused(facts: dict[str, Any], problem: str) -> None:
    folder = write(layout(**facts))
    with pytest.raises(ConfigError, match=problem):
        jaxdp.Trainer(data=photos(), init_from=folder, steps=1, devices=1, progress=False)


@pytest.mark.parametrize(
    ("file", "content", "problem"),
    [
        ("config.json", b'{"architecture": "vit_base"}', "vit_base, which jaxdp does not have"),
        ("config.json", b'{"model_type": "resnet"}', "names no model of timm"),
        ("config.json", b"[1]", "config.json cannot be read"),
        ("config.json", b"{", "config.json cannot be read"),
        ("config.json", b"[" * 99_999, "config.json cannot be read"),
        ("config.json", layout_with_classes(10**12), "config.json cannot be read"),
        ("config.json", b'{"library_name": "jaxdp", "metrics": []}', "config.json cannot be read"),
        ("model.safetensors", layout.__doc__.encode(), "cannot be read"),  # pyright: ignore
    ],
)
def test_broken_files_give_one_line(file: str, content: bytes, problem: str) -> None:
    folder = write({**layout(), file: content})
    with pytest.raises(ConfigError, match=problem) as caught:
        jaxdp.Trainer(data=photos(), init_from=folder, steps=1, devices=1, progress=False)
    assert "\n" not in str(caught.value)


def test_weights_come_from_the_hub_once(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    found = pretrained.find("timm:resnet18.tiny")
    assert found is not None
    assert found.source == "timm:resnet18.tiny (revision aaaaaaaaaaaa)"
    assert found.weights.read_bytes() == layout()["model.safetensors"]
    pretrained._of_hub.cache_clear()
    before = len(hub.requests)
    again = pretrained.find("hf://timm/resnet18.tiny@main")
    assert again is not None
    assert again.weights == found.weights
    asked = [method for method, path, _ in hub.requests[before:] if "/resolve/" in path]
    assert asked == ["HEAD"]  # has it changed?
    assert "has changed" not in capsys.readouterr().err


def test_another_revision_is_said(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    pretrained.find("timm:resnet18.tiny")
    pretrained._of_hub.cache_clear()
    hub.commit = "b" * 40
    pretrained.find("timm:resnet18.tiny")
    said = capsys.readouterr().err
    assert f"its revision was {'a' * 40}, and is {'b' * 40}" in said


def test_a_broken_download_is_continued(hub: Hub) -> None:
    hub.cut.append(1000)
    found = pretrained.find("timm:resnet18.tiny")
    assert found is not None
    assert found.weights.read_bytes() == layout()["model.safetensors"]
    # The library may ask for other things first.
    fetched = [path for method, path, _ in hub.requests if method == "GET"]
    names = [path for path in fetched if "/resolve/" in path]
    assert [path.endswith("model.safetensors") for path in names] == [False, True, True]


def test_without_a_network_the_cache_serves(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "timm:resnet18.tiny"
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(
        ConfigError, match=r"hf download timm/resnet18.tiny config.json model.safetensors \(47 MB\)"
    ):
        pretrained.find(name)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    fetched = pretrained.find(name)
    pretrained._of_hub.cache_clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert pretrained.find(name) == fetched


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("timm:resnet18.none", "the hub has no timm/resnet18.none, or it is private"),
        ("hf://timm/resnet18.tiny@v2", "has no revision v2"),
        ("hf://timm", "must be timm:NAME"),
        ("timm:a/b/c", "must be timm:NAME"),
        ("hf://some/pickle", "has no model.safetensors; other files of weights can be pickles"),
        ("hf://some/gated", "asks for consent"),
    ],
)
def test_failures_of_the_hub_are_one_line(hub: Hub, name: str, problem: str) -> None:
    hub.files["some/pickle", "config.json"] = layout()["config.json"]
    hub.files["some/pickle", "pytorch_model.bin"] = b""
    hub.files["some/gated", "config.json"] = layout()["config.json"]
    hub.status["some/gated"], hub.errors["some/gated"] = 403, "GatedRepo"
    with pytest.raises(ConfigError, match=problem) as caught:
        pretrained.find(name)
    assert "\n" not in str(caught.value)


def test_without_the_library_one_line_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.setitem(sys.modules, "huggingface_hub.constants", None)
    pretrained._of_hub.cache_clear()
    with pytest.raises(ConfigError, match=r"timm:resnet18.none: needs huggingface_hub"):
        pretrained.find("timm:resnet18.none")
    with pytest.raises(ConfigError, match=r"run_dir=timm:resnet18.none: needs huggingface_hub"):
        jaxdp.load("timm:resnet18.none")


def test_a_run_continues_without_the_hub(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that stopped in the middle of an epoch ends with the bits of an undisturbed one."""
    settings: Any = {"init_from": "timm:resnet18.tiny", "devices": 1, "progress": False}
    settings |= {"data": photos(), "global_batch_size": 2, "epochs": 2}
    jaxdp.Trainer(run_dir="whole", **settings).fit()
    with pytest.raises(SystemExit):
        jaxdp.Trainer(run_dir="parts", **settings, callbacks=[StopAt(4)]).fit()
    hub.files.clear()
    pretrained._of_hub.cache_clear()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", "no cache")
    jaxdp.Trainer(run_dir="parts", **settings).fit()
    assert_same_run("whole", "parts", 12)
