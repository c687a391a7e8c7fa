"""Training starts from the weights of a run or a file, and keeps frozen parameters bit for bit."""

import itertools
import pathlib
from typing import Any

import jax
import numpy as np
import pytest
import safetensors.numpy
from example_files import noise, write
from flax import nnx
from shared_run import copy_here, make_once

import jaxdp
from jaxdp import convert, data, models
from jaxdp.build.setup import create_setup
from jaxdp.data.sources import digits
from jaxdp.errors import ConfigError
from jaxdp.models.reference_weights import reference_names
from jaxdp.rundir.read import read_lines
from jaxdp.step.state import array_name
from jaxdp.text.flags import for_command

pytestmark = pytest.mark.usefixtures("no_pictures")
SMALL: dict[str, Any] = {"model_kwargs": {"width": 2, "hidden": 8}, "devices": 2, "progress": False}
FLAGS = "--model cnn --model-kwargs width=2 hidden=8 --devices 2 --global-batch-size 32"


def some_digits(first: int, last: int, count: int = 30, **more: Any) -> data.Dataset:
    """`count` images of each of the digits from `first` to `last`."""
    images, labels = digits.read()
    chosen = np.concatenate(
        [np.flatnonzero(labels == label)[:count] for label in range(first, last + 1)]
    )
    images, labels = images[chosen], labels[chosen] - first
    return data.from_arrays(images, labels, test=(images[::5], labels[::5]), **more)


def by_name(tree: Any) -> dict[str, np.ndarray]:
    return {
        array_name(path): np.asarray(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def save_as_pytorch(model: nnx.Module, file: str, prefix: str = "") -> dict[str, np.ndarray]:
    """Writes a state dict as PyTorch names it, and returns the arrays by our names."""
    arrays = by_name(nnx.to_pure_dict(nnx.state(model, (nnx.Param, nnx.BatchStat))))
    state = {f"{prefix}bn1.num_batches_tracked": np.array(5)}
    for key, place in reference_names(model).items():
        array = arrays["/".join(map(str, place.path))]
        state[prefix + key] = np.ascontiguousarray(np.transpose(array, np.argsort(place.axes)))
    safetensors.numpy.save_file(state, file)
    return arrays


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[pathlib.Path, Any]:
    trainer = jaxdp.Trainer("cnn", some_digits(0, 6), run_dir="first", **SMALL)
    return make_once(tmp_path_factory, lambda: trainer.fit(steps=3))


@pytest.fixture
def first(made: tuple[pathlib.Path, Any]) -> Any:
    """A run on the digits 0 to 6, in the folder `first`."""
    copy_here(made[0])
    return made[1]


def test_a_head_for_other_classes_is_fresh_and_all_else_is_the_runs(
    first: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = jaxdp.Trainer(
        "cnn",
        some_digits(7, 9),
        init_from="first",
        run_dir="second",
        **SMALL | {"progress": True},
    )
    before = trainer.setup.create_state()
    without = jaxdp.Trainer("cnn", some_digits(7, 9), **SMALL).setup.create_state()
    theirs = by_name(first.state.params) | by_name(first.state.batch_stats)
    fresh = by_name(without.params)
    for name, array in (by_name(before.params) | by_name(before.batch_stats)).items():
        np.testing.assert_array_equal(
            array, fresh[name] if name.startswith("head/") else theirs[name], err_msg=name
        )
    trainer.fit(steps=2)
    lines = capsys.readouterr().err.splitlines()
    count = sum(
        theirs[name].size for name in by_name(first.state.params) if not name.startswith("head/")
    )
    assert lines[0] == f"loaded {count:,} parameters (17 arrays) from step 3 of first"
    assert lines[1] == "skipped (there, not in the model): nothing"
    assert lines[2] == "fresh (in the model, not from there): head/bias, head/kernel"
    started = read_lines(pathlib.Path("second", "history.jsonl"))[0]
    assert started["initial_weights"]["fresh"] == ["head/bias", "head/kernel"]
    assert "init_from: first" in pathlib.Path("second", "config.yaml").read_text()


def test_a_run_decides_model_and_images(first: Any, capsys: pytest.CaptureFixture[str]) -> None:
    dataset, kwargs = some_digits(7, 9), SMALL["model_kwargs"]
    command: dict[str, Any] = {"data": dataset, "devices": 2, "steps": 1, "progress": False}
    second = jaxdp.Trainer(**command, init_from="first", normalize="image", run_dir="second")
    assert (second.config.model, second.config.model_kwargs) == ("cnn", kwargs)
    assert 'note: first: model="cnn" model_kwargs=width=2 hidden=8\n' in capsys.readouterr().err
    second.fit()
    third = jaxdp.Trainer(**command, init_from="second", model_kwargs={"dropout": 0.5})
    assert third.config.normalize == "image"
    assert third.config.model_kwargs == kwargs | {"dropout": 0.5}
    # The same command continues, although the first folder now holds a run of another model.
    pathlib.Path("first").rename("elsewhere")
    other = {"model": "resnet", "model_kwargs": {"depth": 8, "width": 2}}
    jaxdp.Trainer(**command, **other, run_dir="first").fit()
    again = jaxdp.Trainer(**command, init_from="first", run_dir="second")
    assert (again.config.model, again.config.normalize) == ("cnn", "image")


def test_a_unet_that_saw_crops_sees_crops_again(capsys: pytest.CaptureFixture[str]) -> None:
    images, masks = noise(0, 8, 160, 160, 1), noise(1, 8, 160, 160, 1)[..., 0] % 2
    dataset = data.from_arrays(images, masks)
    settings: dict[str, Any] = {"devices": 1, "steps": 1, "progress": False}
    kwargs = {"base_channels": 2, "levels": 2}
    whole = jaxdp.Trainer("unet", dataset, model_kwargs=kwargs, **settings).setup.config
    words = ("crop:32", "flip")
    jaxdp.Trainer("unet", dataset, model_kwargs=kwargs, augment=words, **settings).fit().save("run")
    found = jaxdp.Trainer(data=dataset, init_from="run", **settings).config
    assert (found.model, found.model_kwargs, found.augment) == ("unet", kwargs, words)
    flips = data.from_arrays(images, masks, augment=["flip"])
    assert jaxdp.Trainer(data=flips, init_from="run", **settings).config.augment == ("flip",)
    given = jaxdp.Trainer(data=dataset, init_from="run", augment=["none"], **settings).config
    assert given.augment == ("none",)
    assert not any(word.startswith("crop") for word in whole.augment or ())


def test_named_classes_that_are_others_get_a_fresh_head(first: Any) -> None:
    names = ["a", "b", "c"]
    jaxdp.Trainer("cnn", some_digits(0, 2, class_names=names), run_dir="named", **SMALL).fit(
        steps=1
    )

    def fresh(**more: Any) -> Any:
        weights = jaxdp.Trainer(
            "cnn", some_digits(0, 2, **more), init_from="named", **SMALL
        ).setup.initial.weights
        return weights.note[6:14], *weights.fresh

    assert fresh(class_names=names) == ("",)
    assert fresh() == ("the head",)
    assert fresh(class_names=names[::-1]) == ("", "head/bias", "head/kernel")


@pytest.mark.slow
def test_a_run_that_resumes_needs_its_start_no_more(
    first: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = some_digits(7, 9)
    whole = jaxdp.Trainer("cnn", dataset, init_from="first", **SMALL).fit(steps=6)
    command = {
        "init_from": "first",
        "run_dir": "second",
        "learning_rate": 0.1,
        "schedule": "constant",
    } | SMALL
    jaxdp.Trainer("cnn", dataset, **command).fit(steps=4)
    pathlib.Path("first").rename("elsewhere")
    capsys.readouterr()
    again = jaxdp.Trainer("cnn", dataset, **command | {"progress": True}).fit(steps=6)
    assert "loaded" not in capsys.readouterr().err
    assert again.step == whole.step == 6
    with pytest.raises(ConfigError, match=r"^init_from=first: there is no such file$"):
        jaxdp.Trainer("cnn", dataset, init_from="first", **SMALL)


def test_exported_weights_and_averages_are_where_training_starts() -> None:
    result = jaxdp.Trainer(
        "cnn", some_digits(0, 6), run_dir="averaged", ema_decay=0.5, **SMALL
    ).fit(steps=3)
    assert convert.main(["export", "averaged", "--output", "weights.safetensors"]) == 0
    averages = by_name(result.state.ema[0]) | by_name(result.state.ema[1])
    for source in ("averaged", "weights.safetensors"):
        state = jaxdp.Trainer(
            "cnn", some_digits(0, 6), init_from=source, **SMALL
        ).setup.create_state()
        found = by_name(state.params) | by_name(state.batch_stats)
        assert found.keys() == averages.keys()
        for name, array in found.items():
            np.testing.assert_array_equal(array, averages[name], err_msg=name)


@pytest.mark.parametrize(
    ("name", "kwargs", "theirs", "head"),
    [
        ("resnet", {"depth": 18, "width": 2}, {}, "fc"),
        ("vgg", {"depth": 11, "width": 1}, {"head": "imagenet"}, "classifier"),
        ("pyramidnet", {"depth": 8, "alpha": 6}, {}, "fc"),
    ],
)
def test_pytorch_names_of_a_model_for_other_classes(
    name: str, kwargs: dict, theirs: dict, head: str
) -> None:
    """The file is a state dict as PyTorch names it, for 1,000 classes and, of VGG, with the
    ImageNet head.
    """
    other = models.create(
        name, num_classes=1000, in_channels=1, rngs=nnx.Rngs(7), **kwargs, **theirs
    )
    arrays = save_as_pytorch(other, "theirs.safetensors", "module.")
    trainer = jaxdp.Trainer(
        name,
        some_digits(7, 9),
        init_from="theirs.safetensors",
        model_kwargs=kwargs,
        devices=1,
        progress=False,
    )
    found = trainer.setup.initial.weights
    assert found is not None
    assert {each.partition("/")[0] for each in found.fresh} == {"head"}
    assert len(found.fresh) == 2
    assert {each.partition(".")[0] for each in found.skipped} == ({head} if theirs else set())
    made = trainer.setup.create_state()
    for key, array in (by_name(made.params) | by_name(made.batch_stats)).items():
        if not key.startswith("head"):
            np.testing.assert_array_equal(array, arrays[key], err_msg=key)


def test_weights_for_imagenet_want_its_normalization() -> None:
    images = np.random.default_rng(0).integers(0, 256, (40, 32, 32, 3), np.uint8)
    colour = data.from_arrays(images, np.arange(40) % 2, test=(images[:4], np.arange(4) % 2))
    other = models.create(
        "resnet", num_classes=1000, in_channels=3, rngs=nnx.Rngs(7), depth=18, width=2
    )
    save_as_pytorch(other, "resnet18.safetensors")

    def trainer(
        dataset: data.Dataset = colour, model: str = "resnet", **settings: Any
    ) -> jaxdp.Trainer:
        kwargs = {"depth": 18, "width": 2} if model == "resnet" else {"width": 2, "hidden": 8}
        return jaxdp.Trainer(
            model, dataset, model_kwargs=kwargs, devices=1, progress=False, **settings
        )

    assert trainer(init_from="resnet18.safetensors").setup.initial.weights.note.startswith(
        "note: torchvision's weights"
    )
    setup = trainer(init_from="resnet18.safetensors", normalize="imagenet").setup
    assert setup.initial.weights.note == ""
    given = setup.step_config.preprocess({"images": jax.numpy.asarray(images[:2])}, None)["images"]
    # Torchvision's.
    expected = (images[:2] / 255 - np.array([0.485, 0.456, 0.406])) / np.array(
        [0.229, 0.224, 0.225]
    )
    np.testing.assert_allclose(given, expected, atol=1e-5)
    result = trainer(model="cnn", normalize="imagenet").fit(steps=1)
    result.save("run")
    assert jaxdp.load("run").description.mean == (123.675, 116.28, 103.53)
    with pytest.raises(
        ConfigError,
        match=r"^normalize=imagenet: is of red, green and blue, and the images have 1 ch",
    ):
        _ = trainer(some_digits(7, 9), normalize="imagenet").setup


@pytest.mark.parametrize(
    ("source", "before", "now"),
    [
        ("run", 3, 1),
        ("ours.safetensors", 1, 3),
        ("theirs.safetensors", 3, 1),
        ("theirs.safetensors", 4, 1),
        ("theirs.safetensors", 3, 4),
    ],
)
def test_weights_for_other_channels_name_what_mends_it(source: str, before: int, now: int) -> None:
    pixels, labels = noise(0, 12, 32, 32, now), np.arange(12) % 2
    write({f"{number % 2}/{number}.png": pixels[number].squeeze() for number in range(12)})
    kwargs: dict[str, Any] = {"depth": 8, "alpha": 4}
    settings: dict[str, Any] = {"model_kwargs": kwargs, "devices": 1, "progress": False}
    if source == "theirs.safetensors":
        kwargs = kwargs | {"num_classes": 9, "in_channels": before, "rngs": nnx.Rngs(7)}
        save_as_pytorch(models.create("pyramidnet", **kwargs), source)
    else:
        dataset = data.from_arrays(noise(1, 12, 32, 32, before), np.arange(12) % 3)
        jaxdp.Trainer("pyramidnet", dataset, **settings).fit(steps=1).save("run")
        if source != "run":
            assert convert.main(["export", "run", "--output", source]) == 0
    held = f"; it is for images with {before} channels, and these have {now}: "
    with pytest.raises(ConfigError) as caught:
        jaxdp.Trainer("pyramidnet", "folder:set", init_from=source, channels=now, **settings)
    assert str(caught.value).endswith(f"{held}open the folder with channels={before}")
    assert for_command(caught.value).endswith(f"{held}open the folder with --channels {before}")
    # The remedy works, in a trainer and where a dataset is made.
    jaxdp.Trainer("pyramidnet", "folder:set", init_from=source, channels=before, **settings)
    dataset = data.from_folder("set", channels=before)
    jaxdp.Trainer("pyramidnet", dataset, init_from=source, **settings)
    # Arrays and files of arrays are converted by whoever makes them.
    np.savez("x.npz", images=pixels, labels=labels)
    for dataset in ("npz:x.npz", data.from_arrays(pixels, labels)):
        with pytest.raises(ConfigError, match=rf"these have {now}: convert them$"):
            jaxdp.Trainer("pyramidnet", dataset, init_from=source, **settings)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"model_kwargs": {"width": 3, "hidden": 8}},
            "does not fit cnn, head aside; 16 of another shape: convs/0/kernel 3x3x1x2, expected",
        ),
        (
            {"model": "resnet", "model_kwargs": {"depth": 8, "width": 2}},
            "init_from=first: none of its 19 arrays fits resnet",
        ),
        ({"init_from": "nowhere"}, "init_from=nowhere: there is no such file"),
        ({"init_from": "."}, "init_from=.: holds no run"),
        ({"init_from": "other.safetensors"}, "no reference weights are known for CNN"),
        (
            {"init_from": "part.safetensors"},
            "does not fit cnn, head aside; 13 missing: hidden/bias",
        ),
        ({"init_from": "nan.safetensors"}, "1 not finite numbers: convs/0/kernel"),
        (
            {"freeze": "convz"},
            "freeze=convz: no parameter's name begins with a match; names begin with ",
        ),
        (
            {"freeze": "("},
            "freeze=(: is no regular expression: missing ), unterminated subpattern",
        ),
        ({"freeze": ""}, "matches every parameter, and leaves none to train"),
    ],
)
def test_what_does_not_fit_is_one_line(first: Any, change: dict, message: str) -> None:
    assert convert.main(["export", "first", "--output", "whole.safetensors"]) == 0
    from safetensors import safe_open

    with safe_open("whole.safetensors", framework="numpy") as file:
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dict
    safetensors.numpy.save_file({"some.weight": np.zeros(3, np.float32)}, "other.safetensors")
    safetensors.numpy.save_file(
        {name: array for name, array in arrays.items() if "kernel" in name}, "part.safetensors"
    )
    safetensors.numpy.save_file(
        arrays | {"convs.0.kernel": arrays["convs.0.kernel"] * np.nan}, "nan.safetensors"
    )
    with pytest.raises(ConfigError) as caught:
        jaxdp.Trainer(
            change.pop("model", "cnn"),
            some_digits(7, 9),
            **(SMALL | {"init_from": "first", "run_dir": "new"} | change),
        )
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not pathlib.Path("new").exists()


@pytest.mark.parametrize(
    ("strategy", "settings"),
    [
        ("pmap", {}),
        ("shard_map", {"accumulate_steps": 2}),
        ("sharded", {"shard_params": True}),
        ("central", {}),
        ("pmap", {"optimizer": "lamb", "weight_decay": 0.1, "clip_norm": 1.0}),
    ],
)
def test_frozen_parameters_keep_every_bit(strategy: str, settings: dict) -> None:
    common = {
        "strategy": strategy,
        "ema_decay": 0.9,
        "steps": 3,
        "learning_rate": 0.1,
        "global_batch_size": 16,
        **settings,
    }
    made = {"model_kwargs": {"width": 8, "hidden": 16}, "progress": False} | common
    free, setup, alone = (
        jaxdp.Trainer(
            "cnn", some_digits(0, 6), freeze=freeze, **(made | {"devices": devices} | more)
        ).setup
        for devices, freeze, more in (
            (4, None, {}),
            (4, "convs|norms/0", {}),
            (1, "convs|norms/0", {"strategy": "single", "shard_params": False}),
        )
    )
    assert setup.step_config.frozen == {f"convs/{number}/kernel" for number in range(3)} | {
        "norms/0/bias",
        "norms/0/scale",
    }
    # As a plan does.
    assert (
        create_setup(setup.config, setup.inputs, training=False).step_config.frozen
        == setup.step_config.frozen
    )

    def after(setup: Any) -> tuple[dict, dict, dict, dict]:
        state = setup.strategy.init(setup.create_state)
        for batch in itertools.islice(setup.batches.placed(0), 3):
            state, _ = setup.strategy.train_step(state, batch, setup.constants)
        state = setup.strategy.gather(state)
        return (
            by_name(state.params),
            by_name(state.ema[0]),
            by_name(state.batch_stats),
            by_name(state.opt_state),
        )

    before = by_name(setup.create_state().params)
    params, averages, statistics, _ = after(setup)
    for name, array in before.items():
        same = np.array_equal(array, params[name]) and np.array_equal(array, averages[name])
        assert same == (name in setup.step_config.frozen), name
    assert not np.allclose(statistics["norms/0/mean"], 0)  # as in PyTorch, running statistics move
    others = after(free)[0]
    # The mutant: without --freeze.
    assert all(not np.array_equal(others[name], before[name]) for name in setup.step_config.frozen)
    for name, array in after(alone)[0].items():
        np.testing.assert_allclose(params[name], array, atol=2e-5, err_msg=name)
