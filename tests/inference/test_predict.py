"""What a run's model says about files is what it says about arrays, and about the test set.

Whatever is wrong is one line.
"""

import csv
import dataclasses
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import yaml
from PIL import Image
from runs import answers, evaluated

import jaxdp
from jaxdp import predict, tasks, train
from jaxdp.build import saved_model
from jaxdp.data import augment
from jaxdp.data import image_file as source_images
from jaxdp.data.sources import open_dataset
from jaxdp.errors import ConfigError
from jaxdp.inference.apply import create_apply
from jaxdp.inference.predictor import Predictor
from jaxdp.inference.results import Results
from jaxdp.reporting import outcome, pictures, predictions
from jaxdp.reporting.progress import create_bar
from jaxdp.rundir.layout import RunDirectory
from jaxdp.sharding.forward import Forward

Runs = dict[str, pathlib.Path]
UNET = "--model unet --model-kwargs base_channels=4 levels=2"
# Few of the cells are needed, and drawing them all takes longer.
CELLS = "--dataset cells --data-placement host --global-batch-size 8"
COMMANDS = {
    "digits": (
        "--model-kwargs depth=8 alpha=6 --global-batch-size 64 --steps 12 --eval-every 6"
        " --checkpoint-every 6 --validation 0.1"
    ),
    "cells": f"{UNET} {CELLS} --steps 12",
    "valid": f"{UNET} padding=valid {CELLS} --steps 4",
    "denoise": f"{UNET} --global-batch-size 16 --dataset digits-denoise --steps 12",
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Folders of runs that have learned a little."""
    base = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outcome, "draw", lambda *_, **__: {})  # drawing takes longer than these steps
        for name, command in COMMANDS.items():
            assert train.main(f"{command} --strategy single --run-dir {base / name}".split()) == 0
    return {name: base / name for name in COMMANDS}


@pytest.fixture(autouse=True)
def _quiet_fixture(capsys: pytest.CaptureFixture[str], runs: Runs) -> None:
    capsys.readouterr()


def edited(run: pathlib.Path, **settings: object) -> str:
    """Returns a copy of a run, as if these settings had been given."""
    copy = shutil.copytree(run, pathlib.Path(f"{run.name}-edited"), dirs_exist_ok=True)
    file = RunDirectory(copy).file("config.yaml")
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | settings))
    return str(copy)


def save(name: str, pixels: np.ndarray) -> str:
    path = pathlib.Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.squeeze(-1) if pixels.shape[-1] == 1 else pixels).save(path)
    return name


def cells(count: int = 2) -> list[np.ndarray]:
    return [open_dataset("cells").test[number]["images"] for number in range(count)]


def network(run: pathlib.Path, *, per_image: bool = False) -> Callable[[np.ndarray], np.ndarray]:
    """Returns the run's model, as the pictures of a run are made with it."""
    directory = RunDirectory(run)
    description = saved_model.read_description(directory)
    _, state = saved_model.restore(directory, directory.load_config(), description, None)
    preprocess = augment.Preprocess(description.mean, description.std, per_image=per_image)
    compiled = Forward(create_apply(preprocess), state)
    return lambda images: np.asarray(compiled(images))


def softmax(logits: np.ndarray) -> np.ndarray:
    exponentials = np.exp(logits - logits.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def run_predict(run: object, flags: str, code: int = 0) -> None:
    assert predict.main([str(run), *flags.split()]) == code


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1, captured.err
    return captured.err


def test_classes_of_files_are_those_of_the_test_set(
    runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    test = open_dataset("digits").test
    for number in range(len(test)):
        save(f"digits/{number:03}.png", test[number]["images"])
    run_predict(runs["digits"], "digits --csv kept/predictions.csv --top-k 2")
    shown = capsys.readouterr()
    assert shown.err == ""
    rows = list(csv.reader(pathlib.Path("kept/predictions.csv").read_text().splitlines()))[1:]
    assert [row[0] for row in rows] == [f"digits/{number:03}.png" for number in range(len(test))]
    probabilities = np.array([row[3:] for row in rows], float)
    for row in rows:  # class names of digits are numbers
        assert (row[1], row[2]) == (str(np.argmax(row[3:])), max(row[3:]))
    first, second = np.argsort(-probabilities, 1)[:, :2].T
    labels = np.array([test[number]["labels"] for number in range(len(test))])
    _, figures = evaluated(runs["digits"], strategy="single", devices=1)
    assert np.mean(first == labels) == pytest.approx(figures["accuracy"])
    assert "digits/359.png" in shown.out
    assert re.search(r"^[\d,.]+ images/s, compilation included$", shown.out, re.MULTILINE)
    assert f"{first[-1]}: {probabilities[-1].max():.1%}" in shown.out
    assert re.search(
        rf"digits/359.png +│ {first[-1]}: [\d.]+% +│ {second[-1]}: [\d.]+% +│$",
        shown.out,
        re.MULTILINE,
    )
    assert not list(pathlib.Path("kept").glob("*.new"))

    again = answers(runs["digits"], ["digits/004.png", test[5]["images"]])
    assert [answer.shape for answer in again] == [(10,), (10,)]
    assert [answer.argmax() for answer in again] == list(first[4:6])
    assert again[0].max() == pytest.approx(probabilities[4].max(), abs=1e-5)
    assert again[0].sum() == pytest.approx(1, abs=1e-5)


def test_one_program_for_any_number_of_images_of_any_size(
    runs: Runs, count_compilations: Callable[[], int]
) -> None:
    model = jaxdp.load(runs["digits"]).predictor(devices=1)
    rng = np.random.default_rng(0)

    def some(count: int) -> Iterator[np.ndarray]:
        return (
            rng.integers(0, 17, (*rng.integers(1, 30, 2), 1)).astype(np.uint8) for _ in range(count)
        )

    assert len(list(model(some(70)))) == 70
    before = count_compilations()
    assert len(list(model(some(130)))) == 130
    assert count_compilations() == before


def test_few_programs_for_dense_answers(runs: Runs, count_compilations: Callable[[], int]) -> None:
    model = jaxdp.load(runs["cells"]).predictor(tile=64, devices=1)
    first, others = (
        [np.zeros((*size, 1), np.uint8) for size in sizes]
        for sizes in (((90, 500), (40, 64)), ((66, 200), (96, 300), (64, 33)))
    )
    list(model(first))
    before = count_compilations()
    assert [answer.shape for _, answer in model(others)] == [
        (*picture.shape[:2], 2) for picture in others
    ]
    assert count_compilations() == before


def noise(*sizes: tuple[int, int]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, (*size, 1)).astype(np.uint8) for size in sizes]


@pytest.mark.parametrize("name", ["digits", "cells", "valid", "denoise"])
def test_answers_depend_neither_on_devices_nor_on_the_other_images(runs: Runs, name: str) -> None:
    """Of sizes that share a program and of others, odd ones and one in tiles.

    The last batch of each is not full.
    """
    images = noise(
        (96, 96), (90, 70), (33, 65), (96, 96), (150, 300), (17, 5), (95, 70), (64, 96), (96, 96)
    )
    one, many = (jaxdp.load(runs[name]).predictor(tile=128, devices=count) for count in (1, 8))
    answers = {1: [answer for _, answer in one(images)], 8: []}
    for image, (same, answer) in zip(images, many(iter(images)), strict=True):
        assert same is image  # in their order
        answers[8].append(answer)
    for image, alone, spread in zip(images, answers[1], answers[8], strict=True):
        # XLA:CPU computes an image alone by other operations than two or more, and rounds
        # otherwise: 2e-5 of logits near 1.
        np.testing.assert_allclose(spread, alone, atol=1e-5)
        [(_, by_itself)] = one([image])
        np.testing.assert_allclose(by_itself, alone, atol=1e-5)


def test_images_of_one_size_are_computed_together_wherever_they_stand(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[int, ...]] = []
    compute = Predictor._compute

    def recorded(self: Predictor, images: np.ndarray, shards: int) -> object:
        given.append((*images.shape[:3], shards))
        return compute(self, images, shards)

    monkeypatch.setattr(Predictor, "_compute", recorded)
    images = noise(*[(96, 96), (64, 32)] * 4)
    assert len(list(jaxdp.load(runs["cells"]).predictor(devices=1)(images))) == 8
    assert given == [(4, 96, 96, 1), (4, 64, 32, 1)]
    given.clear()
    assert len(list(jaxdp.load(runs["cells"]).predictor(devices=3)(images))) == 8
    assert given == [(4, 96, 96, 2), (4, 64, 32, 2)]  # at least two for each device


def test_masks(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = cells()
    save("in/one.png", first), save("in/deep/two.two.png", second)
    run_predict(runs["cells"], "in --output-dir out --csv shares.csv")
    assert sorted(str(path) for path in pathlib.Path("out").rglob("*.*")) == [
        "out/deep/two.two-mask.png",
        "out/deep/two.two-overlay.png",
        "out/one-mask.png",
        "out/one-overlay.png",
    ]
    expected = network(runs["cells"])(np.stack([first, second]))
    masks = expected.argmax(-1)
    assert 0 < masks.mean() < 1
    for name, image, mask in (("one", first, masks[0]), ("deep/two.two", second, masks[1])):
        with Image.open(f"out/{name}-mask.png") as written:
            assert written.mode == "P"
            np.testing.assert_array_equal(
                np.asarray(written.convert("RGB")), pictures.class_colors(2)[mask]
            )
        np.testing.assert_array_equal(mask_of(name), mask)
        with Image.open(f"out/{name}-overlay.png") as written:
            assert written.mode == "RGB"
            np.testing.assert_array_equal(np.asarray(written), pictures.overlay(image, mask, 2))
    shares = masks.mean((1, 2))
    rows = list(csv.DictReader(pathlib.Path("shares.csv").read_text().splitlines()))
    assert [row["file"] for row in rows] == ["in/deep/two.two.png", "in/one.png"]
    assert [float(row["cell"]) for row in rows] == pytest.approx(list(shares[::-1]), abs=1e-6)
    assert float(rows[0]["background"]) == pytest.approx(1 - shares[1], abs=1e-6)
    shown = capsys.readouterr()
    assert shown.err == ""
    assert "96x96" in shown.out
    assert f"cell: {masks[0].mean():.1%}" in shown.out
    probabilities = answers(runs["cells"], [first, "in/deep/two.two.png"])
    np.testing.assert_allclose(np.stack(probabilities), softmax(expected), atol=1e-5)

    for _ in range(2):
        run_predict(runs["cells"], "in --output-dir in/out --json")
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    # And not the masks within.
    assert [line["file"] for line in lines] == ["in/deep/two.two.png", "in/one.png"] * 2
    assert lines[1]["size"] == [96, 96]
    assert lines[1]["shares"]["cell"] == pytest.approx(masks[0].mean(), abs=1e-6)
    assert pathlib.Path(lines[1]["mask"]).is_file()
    assert pathlib.Path(lines[1]["overlay"]).is_file()


def test_images(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    image = open_dataset("digits-denoise").test[3]["images"]
    save("noisy.png", image)
    run_predict(runs["denoise"], "noisy.png --output-dir out")
    expected = (network(runs["denoise"])(image[None])[0].clip(0, 1) * 255).round()
    with Image.open("out/noisy-prediction.png") as written:
        assert written.mode == "L"
        np.testing.assert_array_equal(np.asarray(written), expected[..., 0])
    assert f"{expected.mean():.1f}" in capsys.readouterr().out
    (answer,) = answers(runs["denoise"], [image])
    np.testing.assert_array_equal((answer.clip(0, 1) * 255).round(), expected)


def large_cells() -> np.ndarray:
    return np.concatenate([np.concatenate(cells(8)[row : row + 4], 1) for row in (0, 4)], 0)[
        :160, :352
    ]


def mask_of(name: str) -> np.ndarray:
    return source_images.decode_mask(pathlib.Path(f"out/{name}-mask.png"), "")


def test_tiles_of_a_network_agree_with_the_whole(
    runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    image = large_cells()
    (whole,) = answers(runs["cells"], [image])
    np.testing.assert_allclose(whole, softmax(network(runs["cells"])(image[None]))[0], atol=1e-5)
    save("large.png", image)
    run_predict(runs["cells"], "large.png --output-dir out --tile 64")
    assert capsys.readouterr().err == ""
    (answer,) = answers(runs["cells"], [image], tile=64)
    np.testing.assert_array_equal(mask_of("large"), answer.argmax(-1))
    np.testing.assert_allclose(answer, whole, atol=1e-5)


def test_tiles_that_do_not_stand_for_the_whole_fade_into_each_other_and_it_is_said(
    runs: Runs, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Predictor, "reach", None)
    image = large_cells()
    (whole,) = answers(runs["cells"], [image])
    (tiled,) = answers(runs["cells"], [image], tile=128)
    # One tile's alone, and far from its end.
    np.testing.assert_allclose(tiled[:32, :40], whole[:32, :40], atol=1e-5)
    assert np.abs(tiled - whole).max() < 0.05
    assert np.mean(tiled.argmax(-1) == whole.argmax(-1)) > 0.998
    save("large.png", image)
    run_predict(runs["cells"], "large.png --output-dir out --tile 128")
    assert "tiles do not quite give what the whole image would" in capsys.readouterr().err


def test_unpadded_networks_answer_for_the_border_too(runs: Runs) -> None:
    image = large_cells()
    (whole,) = answers(runs["valid"], [image])
    assert whole.shape == (160, 352, 2)
    plain = softmax(network(runs["valid"])(image[None]))[0]
    before = (160 - plain.shape[0]) // 2
    inner = np.s_[before : before + plain.shape[0], before : before + plain.shape[1]]
    np.testing.assert_allclose(whole[inner], plain, atol=1e-5)
    (tiled,) = answers(runs["valid"], [image], tile=64)
    np.testing.assert_allclose(tiled, whole, atol=1e-5)


def test_images_normalized_each_by_itself_are_so_before_they_are_cut(runs: Runs) -> None:
    run = edited(runs["cells"], normalize="image")
    image = large_cells()
    (whole,) = answers(run, [image])
    np.testing.assert_allclose(
        whole, softmax(network(runs["cells"], per_image=True)(image[None]))[0], atol=1e-4
    )
    (tiled,) = answers(run, [image], tile=128)
    np.testing.assert_allclose(tiled, whole, atol=1e-4)
    digit = np.arange(64, dtype=np.uint8).reshape(8, 8, 1)
    (classes,) = answers(edited(runs["digits"], normalize="image"), [digit])
    np.testing.assert_allclose(
        classes, softmax(network(runs["digits"], per_image=True)(digit[None]))[0], atol=1e-5
    )


def test_images_are_resized_where_the_dataset_was_and_answers_back(
    runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    run = edited(runs["cells"], image_size="96x96")
    small = cells(1)[0]
    large = np.asarray(Image.fromarray(small[..., 0]).resize((120, 200), Image.Resampling.NEAREST))[
        ..., None
    ]
    answer, same = answers(run, [large, small])
    assert answer.shape == (200, 120, 2)
    back = np.stack(
        [np.asarray(Image.fromarray(answer[..., k]).resize((96, 96))) for k in range(2)], -1
    )
    assert np.mean(back.argmax(-1) == same.argmax(-1)) > 0.97
    np.testing.assert_allclose(answer.sum(-1), 1, atol=1e-5)
    save("large.png", large)
    run_predict(run, "large.png --output-dir out")
    shown = capsys.readouterr()
    assert "1 of 1 images is not 96x96 pixels: resized" in shown.err
    assert "200x120" in shown.out
    np.testing.assert_array_equal(mask_of("large"), answer.argmax(-1))


def test_checkpoints_and_settings_of_a_run(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dataset itself is not looked at, and may be elsewhere; the number format is the run's."""
    digit = open_dataset("digits").test[0]["images"]
    best, first, last = (answers(runs["digits"], [digit], step=step)[0] for step in (None, 6, 12))
    assert np.abs(first - last).max() > 1e-3
    step, _ = evaluated(runs["digits"], strategy="single", devices=1)
    np.testing.assert_array_equal(best, {6: first, 12: last}[step])
    for order, expected in (([6, 12], first), ([12, 6], last)):
        with monkeypatch.context() as patch:
            patch.setattr(saved_model.SavedCheckpoints, "best_first", lambda _, order=order: order)
            np.testing.assert_array_equal(answers(runs["digits"], [digit])[0], expected)
    (same,) = answers(edited(runs["digits"], dataset="folder:/gone", data_dir="/gone"), [digit])
    np.testing.assert_array_equal(same, best)
    (other,) = answers(edited(runs["digits"], optimizer="adam"), [digit])
    np.testing.assert_array_equal(other, best)


@pytest.mark.half_precision
def test_a_run_in_bfloat16_predicts_in_it(runs: Runs) -> None:
    digit = open_dataset("digits").test[0]["images"]
    (best,) = answers(runs["digits"], [digit])
    (rough,) = answers(edited(runs["digits"], precision="bfloat16"), [digit])
    assert 1e-5 < np.abs(rough - best).max() < 0.05


def test_notes_and_warnings_are_said_once(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(3):
        save(f"{number}.png", np.full((10, 12, 3), 80 * number or 5, np.uint8))
    run_predict(runs["digits"], "0.png 1.png 2.png")
    notes = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in notes] == ["note", "note", "warning"]
    assert "3 of 3 images are in colour: made grey" in notes[0]
    assert "3 of 3 images are not 8x8 pixels: resized" in notes[1]
    assert "other intensities than in training may change the results of 2 of 3 images" in notes[2]
    assert "1.png (mean 80, in training " in notes[2]


def test_broken_images_are_left_out_if_wanted(
    runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    save("in/good.png", cells(1)[0])
    pathlib.Path("in/broken.png").write_bytes(pathlib.Path("in/good.png").read_bytes()[:90])
    run_predict(runs["cells"], "in --output-dir out --on-bad-example error", 2)
    assert "in/broken.png: cannot be read as an image (image file is truncated)" in one_line(capsys)
    assert not pathlib.Path("out").exists()
    run_predict(runs["cells"], "in --output-dir out --csv out/shares.csv")
    shown = capsys.readouterr()
    assert "in/good.png" in shown.out
    assert "broken" not in shown.out
    assert shown.err.splitlines()[0].startswith("warning: in/broken.png: cannot be read")
    assert shown.err.splitlines()[-1] == "warning: 1 of 2 images were left out"
    assert len(list(pathlib.Path("out").iterdir())) == 3
    header, good, bad = pathlib.Path("out/shares.csv").read_text().splitlines()
    assert good.startswith("in/good.png,0.")
    assert bad == "in/broken.png" + "," * header.count(",")
    run_predict(runs["cells"], "in/broken.png --output-dir out --on-bad-example skip", 2)
    assert "no image is left" in capsys.readouterr().err


# Run, flags, and what the line must name.
BAD = """\
nowhere | a.png | --run-dir nowhere: holds no run
digits |  | PATH ... is required: images, and folders to search for images
digits | nowhere.png | nowhere.png: no such file or folder
digits | nothing | nothing: no images in that folder
digits | a.png --step 5 | --step 5 | there are: 6, 12
digits | a.png --top-k 0 | --top-k 0 | greater than 0
digits | a.png --tile 63 | --tile 63 | at least 64
digits | a.png --devices 0 | devices | 0
digits | a.png --output-dir out | --output-dir out | --csv FILE.csv
digits | a.png --csv nothing | --csv nothing | is a folder
digits | a.png --csv fifo | --csv fifo: is no regular file; give a file, e.g. pred
digits | a.png --csv to_device | --csv to_device: is no regular file; give a file
digits | a.png --csv /dev/null/x.csv | --csv /dev/null | cannot be written
digits | a.png --output x.csv | --output: was removed in 0.3.0: use --csv FILE.csv
digits | a.png --overlap 64 | --overlap: was removed in 0.3.0: leave it out
cells | a.png --probabilities=tiff | --probabilities: was removed in 0.3.0: jaxdp.load(RUN)
denoise | a.png --csv x.csv --output-dir out | --csv x.csv | is for classes
cells | a.png | --output-dir | masks
denoise | a.png | --output-dir | images
cells | a.png --output-dir /dev/null/out | --output-dir /dev/null/out | cannot be written
cells | a.png --output-dir a.png | --output-dir a.png | cannot be written
cells | . --output-dir . | --output-dir . | searched for images
cells | a.png other --output-dir out | a.png and other/a.png would both be written
cells | deep.png --output-dir out | deep.png | 16 bits
"""


@pytest.mark.parametrize("row", BAD.splitlines())
def test_bad_input_is_one_line_and_code_2(
    row: str, runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    run, flags, *named = (cell.strip() for cell in row.split("|"))
    save("a.png", np.zeros((8, 8, 1), np.uint8))
    save("other/a.png", np.zeros((8, 8, 1), np.uint8))
    Image.fromarray(np.zeros((8, 8), np.uint16)).save("deep.png")
    pathlib.Path("nothing").mkdir()
    os.mkfifo("fifo")
    pathlib.Path("to_device").symlink_to("/dev/null")
    before = sorted(pathlib.Path().rglob("*"))
    run_predict(runs.get(run, run), flags, 2)
    line = one_line(capsys)
    assert line.startswith("jaxdp.predict: error: ")
    for text in named:
        assert text in line
    assert sorted(pathlib.Path().rglob("*")) == before


def test_a_symbolic_link_stays_one(runs: Runs) -> None:
    save("a.png", np.zeros((8, 8, 1), np.uint8))
    pathlib.Path("kept").mkdir()
    link = pathlib.Path("link.csv")
    link.symlink_to("kept/target.csv")  # which is not there yet the first time
    for _ in range(2):
        run_predict(runs["digits"], "a.png --csv link.csv")
        assert link.is_symlink()
        assert pathlib.Path("kept/target.csv").read_text().startswith("file,class,probability,0,1")
        assert [path.name for path in pathlib.Path("kept").iterdir()] == ["target.csv"]


@pytest.mark.parametrize(
    "bad",
    [
        np.zeros((2, 8, 8, 1), np.uint8),
        np.zeros((8, 8, 3), np.uint8),
        np.zeros((8, 8, 1)),
        np.zeros((0, 8, 1), np.uint8),
    ],
)
def test_arrays_that_are_no_images(bad: np.ndarray, runs: Runs) -> None:
    with pytest.raises(ConfigError, match=r"give uint8 \(height, width, 1\)"):
        answers(runs["digits"], [bad])


def test_images_of_two_channels_have_no_file(runs: Runs) -> None:
    description = saved_model.read_description(RunDirectory(runs["denoise"]))
    pairs = dataclasses.replace(description, num_classes=2)
    with pytest.raises(ConfigError, match="its targets have 2 channels"):
        Results(pairs, tasks.Regression(2), csv=None, output_dir="out", top_k=1)


def test_names_are_whole_in_a_narrow_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    name = 'a "quoted", [bold]name[/bold]/' + "x" * 100 + ".png"
    classes = [f"[{k}], class" for k in range(4)]
    predictions.print_table(
        [{"file": name, "classes": [{"class": each, "probability": 0.25} for each in classes]}]
    )
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert shown.count("x") >= 100
    assert "[bold]" in shown
    assert "[0], class" in shown
    assert "4th" in shown


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("hidden", [True, False])
def test_progress_is_a_bar_on_a_terminal(
    terminal: bool,
    hidden: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
    with create_bar("predicting images: 4", hidden=hidden) as bar:
        bar.advance(bar.add_task("", total=4), 1.0)
    captured = capsys.readouterr()
    assert captured.out == ""
    is_bar = "predicting images: 4" in captured.err and "25%" in captured.err
    assert is_bar == (terminal and not hidden)
    assert is_bar or not captured.err


def test_help_does_not_import_jax() -> None:
    code = "import sys; from jaxdp.predict import main\ntry: main(['--help'])\n"
    code += "finally: assert 'jax' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "RUN_DIR PATH" in done.stdout
