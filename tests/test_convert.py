"""Weights go out and come in again without loss.

A program is the evaluation that it was made of.
"""

import json
import pathlib
import struct

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
import yaml
from flax import nnx
from reference_state import load_reference_weights
from runs import evaluated

import jaxdp
from jaxdp import convert, models, train
from jaxdp.checkpoint.restore import SavedCheckpoints
from jaxdp.data.sources import digits
from jaxdp.inference import hub_layout
from jaxdp.inference.weights import read_weights, to_safetensors
from jaxdp.models.reference_weights import reference_names
from jaxdp.step.state import model_arrays

pytestmark = pytest.mark.usefixtures("no_pictures")
FLAGS = (
    "--model-kwargs depth=8 alpha=6 --devices 2 --steps 4 --ema-decay 0.5 --normalize image".split()
)
SMALL = {"depth": 8, "alpha": 6}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp("trained") / "run")
    assert train.main([*FLAGS, "--run-dir", folder]) == 0
    return folder


@pytest.fixture(scope="module")
def exported(trained: str) -> pathlib.Path:
    file = pathlib.Path(trained).parent / "own.safetensors"
    run_convert(f"export {trained} --output {file}")
    return file


def run_convert(flags: str, code: int = 0) -> None:
    assert convert.main(flags.split()) == code


def reference_state(model: nnx.Module, seed: int = 0) -> dict[str, np.ndarray]:
    """What a PyTorch state dict of this network would hold, with random numbers."""
    rng, arrays = np.random.default_rng(seed), nnx.to_pure_dict(nnx.state(model))
    state = {}
    for name, place in reference_names(model).items():
        leaf = arrays
        for key in place.path:
            leaf = leaf[key]
        shape = tuple(np.take(leaf.shape, np.argsort(place.axes)).tolist())
        state[name] = rng.uniform(0.5, 1.5, shape).astype(np.float32)
    return state


def pyramidnet() -> nnx.Module:
    return models.create("pyramidnet", num_classes=10, in_channels=1, rngs=nnx.Rngs(0), **SMALL)


def error_line(capsys: pytest.CaptureFixture[str]) -> str:
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    return lines[0]


def test_exports_are_what_the_run_evaluates(
    trained: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Averaged weights and a normalization per image: both belong to what was trained."""
    step, figures = evaluated(trained, devices=2)
    run_convert(f"export {trained} --output out/weights.safetensors")
    run_convert(f"export {trained} --output program.stablehlo")
    printed = capsys.readouterr().out
    assert f"step {step} of {trained}" in printed
    assert f"written by JAX {jax.__version__}, it runs on this version and on" in printed

    flags = "--run-dir again --model-kwargs depth=8 alpha=6 --normalize image"
    run_convert(f"import out/weights.safetensors {flags}")
    imported_step, imported = evaluated("again", devices=2)
    assert imported_step == 0
    assert imported == pytest.approx(figures, rel=1e-6)
    # Training goes on from there, in another folder's settings.
    more = "--config again/config.yaml --run-dir again --resume must --steps 2 --devices 2"
    assert train.main(more.split()) == 0

    program = jax.export.deserialize(bytearray(pathlib.Path("program.stablehlo").read_bytes()))
    assert set(program.platforms) == {"cpu", "cuda", "tpu"}
    from jaxdp.data.sources import open_dataset

    test = open_dataset("digits").test
    correct = []
    for numbers in (range(100), range(100, 360)):  # any batch size
        examples = [test[number] for number in numbers]
        logits = program.call(np.stack([example["images"] for example in examples]))
        correct += list(np.asarray(logits).argmax(-1) == [each["labels"] for each in examples])
    assert np.mean(correct) == pytest.approx(figures["accuracy"])
    about = json.loads(pathlib.Path("program.stablehlo.json").read_text())
    with safetensors.safe_open("out/weights.safetensors", framework="numpy") as file:
        facts = {"step": step, "program": {"jax": jax.__version__, "outputs": "logits"}}
        assert json.loads(file.metadata()["about"]) | facts == about
    assert about["class_names"] == [str(digit) for digit in range(10)]
    assert (about["dtype"], about["image_shape"], about["normalize"]) == (
        "uint8",
        [8, 8, 1],
        "image",
    )
    described = json.loads((pathlib.Path(trained) / "dataset.json").read_text())
    assert (about["mean"], about["std"]) == (described["mean"], described["std"])


@pytest.mark.parametrize(
    ("name", "kwargs"),
    [
        ("cnn", {"width": 2, "hidden": 8}),
        pytest.param("vgg", {"depth": 11, "width": 1}, marks=pytest.mark.slow),
        ("vgg", {"depth": 11, "width": 1, "head": "imagenet"}),
        ("resnet", {"depth": 8, "width": 64}),
        ("pyramidnet", SMALL),
        *[
            ("unet", {"base_channels": 2, "levels": 1, "upsampling": each})
            for each in ("transposed", "bilinear", "resize")
        ],
    ],
)
def test_every_model_is_a_program_for_any_batch(name: str, kwargs: dict) -> None:
    model = models.create(name, num_classes=3, in_channels=1, rngs=nnx.Rngs(0), **kwargs)
    model.eval()
    shape = (*jax.export.symbolic_shape("batch"), 32, 32, 1)
    program = jax.export.export(jax.jit(lambda images: model(images)))(
        jax.ShapeDtypeStruct(shape, jnp.float32)
    )
    for batch in (1, 3):
        images = jnp.linspace(-1, 1, batch * 32 * 32).reshape(batch, 32, 32, 1)
        np.testing.assert_allclose(program.call(images), model(images), atol=1e-4)


def test_exported_weights_do_not_depend_on_how_arrays_lie_in_memory(
    trained: str, exported: pathlib.Path
) -> None:
    run = jaxdp.load(trained)
    turned = jax.tree.map(lambda leaf: np.asfortranarray(np.asarray(leaf)), run.state)
    written = safetensors.numpy.load(to_safetensors(turned, run.config, run.description))
    for name, array in safetensors.numpy.load_file(exported).items():
        np.testing.assert_array_equal(written[name], array)


@pytest.mark.parametrize("kind", ["safetensors", "npz"])
def test_a_state_dict_of_pytorch_becomes_a_run(kind: str) -> None:
    state = reference_state(pyramidnet())
    prefixed = {f"module.{name}": array for name, array in state.items()}
    if kind == "npz":
        np.savez("weights.npz", **prefixed)  # pyright: ignore[reportArgumentType]
    else:
        safetensors.numpy.save_file(prefixed, "weights.safetensors")
    run_convert(f"import weights.{kind} --run-dir run --model-kwargs depth=8 alpha=6")
    model = pyramidnet()
    load_reference_weights(model, state)
    images = jnp.asarray(np.random.default_rng(0).normal(size=(3, 8, 8, 1)), jnp.float32)
    model.eval()
    run_convert("export run --output back.safetensors")
    assert read_weights("back.safetensors")[1]
    run_convert("import back.safetensors --run-dir again --model-kwargs depth=8 alpha=6")
    for run in ("run", "again"):
        np.testing.assert_array_equal(jaxdp.load(run).model(images), model(images))


BAD = """\
import nothing.npz --run-dir run | --weights nothing.npz | no such file
import weights.txt --run-dir run | --weights weights.txt | .safetensors
import broken.npz --run-dir run | --weights broken.npz | cannot be read
import broken.safetensors --run-dir run | --weights broken.safetensors | cannot be read
import pickled.npz --run-dir run | --weights pickled.npz | cannot be read
import other.npz --run-dir run --model-kwargs depth=8 alpha=6 | --weights other.npz | none of its 1 arrays fits
import part.safetensors --run-dir run --model-kwargs depth=8 alpha=6 | --weights part.safetensors | missing
import more.safetensors --run-dir run --model-kwargs depth=8 alpha=6 | 1 unexpected: other
import float8.safetensors --run-dir run | --weights float8.safetensors | cannot be read
export nowhere --output a.safetensors | nowhere | holds no run
export nowhere --output a.onnx | --output a.onnx | .stablehlo
export nowhere --output folder.safetensors | --output folder.safetensors | is a folder; give a file
exprot | did you mean export?
"""


@pytest.mark.parametrize("row", BAD.splitlines())
def test_bad_input_is_one_line_and_code_2(row: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags, *named = row.split(" | ")
    for name in ("weights.txt", "broken.npz", "broken.safetensors"):
        pathlib.Path(name).write_text("no arrays")
    np.savez("pickled.npz", a=np.array([{}], dtype=object))
    np.savez("other.npz", a=np.zeros(3))
    state = reference_state(pyramidnet())
    other = {"other": np.zeros(3, np.float32)}
    safetensors.numpy.save_file(state | other, "more.safetensors")
    del state["conv1.weight"]
    safetensors.numpy.save_file(state, "part.safetensors")
    header = json.dumps({"fc.bias": {"dtype": "F8_E5M2", "shape": [3], "data_offsets": [0, 3]}})
    content = struct.pack("<Q", len(header)) + header.encode() + bytes(3)
    pathlib.Path("float8.safetensors").write_bytes(content)
    pathlib.Path("folder.safetensors").mkdir()
    run_convert(flags, 2)
    line = error_line(capsys)
    for text in named:
        assert text in line
    assert not pathlib.Path("run").exists()


IMPORT = "import {} --run-dir run --model-kwargs depth=8 alpha=6"
TRAIN = "--init-from {} --run-dir run --model-kwargs depth=8 alpha=6 --devices 1 --steps 1"
UNUSABLE = [
    (np.int32, 1, "1 of another dtype: {} int32, expected float32"),
    (np.bool_, 1, "1 of another dtype: {} bool, expected float32"),
    (np.float16, np.nan, "1 not finite numbers: {}"),
    (np.float64, 1e300, "1 not finite numbers: {}"),
]


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize(("dtype", "factor", "expected"), UNUSABLE)
def test_weights_are_finite_floats_or_one_line(
    dtype: type,
    factor: float,
    expected: str,
    own: bool,
    exported: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    state = safetensors.numpy.load_file(exported) if own else reference_state(pyramidnet())
    name = "head.bias" if own else "fc.bias"
    with np.errstate(all="ignore"):
        state[name] = ((state[name].astype(np.float64) + 1) * factor).astype(dtype)
    metadata = {"format": "jaxdp"} if own else None
    safetensors.numpy.save_file(state, "weights.safetensors", metadata=metadata)
    for main, flags in ((convert.main, IMPORT), (train.main, TRAIN)):
        assert main(flags.format("weights.safetensors").split()) == 2
        line = error_line(capsys)
        assert "weights.safetensors: " in line
        assert expected.format("head/bias") in line
        assert not pathlib.Path("run").exists()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_weights_of_another_precision_are_cast_and_trained(
    exported: pathlib.Path, dtype: str
) -> None:
    own = safetensors.numpy.load_file(exported)
    cast = {name: array.astype(jnp.dtype(dtype)) for name, array in own.items()}
    safetensors.numpy.save_file(cast, "cast.safetensors", metadata={"format": "jaxdp"})
    run_convert(IMPORT.format("cast.safetensors"))
    more = f"{IMPORT.partition('{} ')[2]} --resume must --devices 1 --steps 1"
    assert train.main(more.split()) == 0
    for step in (0, 1):
        arrays = SavedCheckpoints(pathlib.Path("run/checkpoints"), best_metric=None).arrays(step)
        floats = {array.dtype for array in arrays.values() if array.dtype != np.int32}
        assert floats == {np.dtype(np.float32)}
        if step == 0:
            kernel = arrays["params/head/kernel"]
            np.testing.assert_array_equal(kernel, cast["head.kernel"].astype(np.float32))


def test_a_repository_of_the_hub_holds_all_that_prediction_requires(
    trained: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run_convert(f"export {trained} --hub-layout repository")
    assert sorted(path.name for path in pathlib.Path("repository").iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
    ]
    images = digits.read()[0][:5]
    before, now = jaxdp.load(trained), jaxdp.load("repository")
    np.testing.assert_array_equal(now.predict(images), before.predict(images))
    assert now.description == before.description
    assert now.metrics == before.metrics
    card = pathlib.Path("repository", "README.md").read_text()
    _, header, text = card.split("---\n", 2)
    facts = yaml.safe_load(header)
    assert (facts["library_name"], facts["pipeline_tag"]) == ("jaxdp", "image-classification")
    (result,) = facts["model-index"][0]["results"]
    assert {each["type"]: each["value"] for each in result["metrics"]} == before.metrics["test"]
    settings = yaml.safe_load(text.split("```yaml\n")[1].split("```")[0])
    assert settings["model_kwargs"] == SMALL
    assert settings["normalize"] == "image"
    capsys.readouterr()
    run_convert(f"export {trained} --hub-layout repository", code=2)
    assert "is not empty; give another folder" in error_line(capsys)


def test_a_repository_starts_another_training(trained: str) -> None:
    run_convert(f"export {trained} --hub-layout repository")
    trainer = jaxdp.Trainer(init_from="repository", steps=1, devices=2, progress=False)
    assert trainer.config.model_kwargs == SMALL
    weights = trainer.setup.initial.weights
    assert weights is not None
    assert not weights.fresh
    ours = model_arrays(jaxdp.load(trained).state)
    for name, array in weights.arrays.items():
        np.testing.assert_array_equal(array, ours[name], err_msg=name)


def test_a_repository_decides_how_images_are_prepared(trained: str) -> None:
    run_convert(f"export {trained} --hub-layout repository")
    trainer = jaxdp.Trainer(init_from="repository", steps=1, devices=2, progress=False)
    assert trainer.config.normalize == "image"


@pytest.mark.parametrize(
    ("dataset", "public"),
    [
        ("folder:/home/person/photos/", "folder:photos"),
        ("hf:./person/set", "hf:set"),
        ("hf:owner/set", "hf:owner/set"),
        ("/home/person/weights", "weights"),
        ("cifar10", "cifar10"),
    ],
)
def test_model_cards_hold_no_paths(dataset: str, public: str) -> None:
    assert hub_layout._public(dataset) == public


@pytest.mark.parametrize("flags", ["", "--output a.safetensors --hub-layout b"])
def test_export_writes_one_thing(
    trained: str, flags: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run_convert(f"export {trained} {flags}", code=2)
    assert "--output" in error_line(capsys)
