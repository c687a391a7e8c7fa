"""labels.csv determines the classes, or the numbers, of the images of a folder."""

import csv
import json
import pathlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

import jaxdp
from jaxdp import evaluate, predict, train
from jaxdp.build.data import open_data
from jaxdp.config import TrainConfig
from jaxdp.errors import ConfigError

COUNT = 40
RNG = np.random.default_rng(0)
CATS, DOGS = np.arange(COUNT) % 2, np.arange(COUNT) // 2 % 2
AGES = RNG.uniform(20, 60, COUNT).round(1)


def write(folder: pathlib.Path, lines: list[str], name: str = "labels.csv") -> pathlib.Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(COUNT):
        pixels = RNG.integers(0, 60, (8, 8)) + 90 * CATS[number]
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number}.png")
    (folder / name).write_text("\n".join(lines) + "\n")
    return folder


def several() -> list[str]:
    """A line for each image with its animals."""
    named = [
        ";".join(name for name, there in (("dog", DOGS[i]), ("cat", CATS[i])) if there)
        for i in range(COUNT)
    ]
    return ["file,labels", *(f"{i}.png,{names}" for i, names in enumerate(named))]


def opened(folder: pathlib.Path, **settings: Any) -> jaxdp.data.Dataset:
    return jaxdp.data.from_folder(folder, validation="none", **settings)


def read_all(folder: pathlib.Path) -> None:
    for split in opened(folder, on_bad_example="error").splits().values():
        for index in range(len(split)):
            split[index]


def test_classes_are_separated_by_semicolons(tmp_path: pathlib.Path) -> None:
    dataset = opened(write(tmp_path / "set", several()))
    assert dataset.task == "multilabel"
    assert dataset.class_names == ("cat", "dog")
    held = {}
    for split in dataset.splits().values():
        for index in range(len(split)):
            name = pathlib.Path(split.name(index)).stem
            held[int(name)] = split[index]["present"].tolist()
    assert held == {i: [CATS[i], DOGS[i]] for i in range(COUNT)}


def test_columns_of_0_and_1_are_classes(tmp_path: pathlib.Path) -> None:
    lines = ["cat,Image,dog", *(f"{CATS[i]},{i}.png,{DOGS[i]}" for i in range(COUNT))]
    folder = write(tmp_path / "set", lines)
    assert opened(folder).task == "multilabel"
    assert opened(folder).class_names == ("cat", "dog")
    assert opened(folder, task="scalar_regression").task == "scalar_regression"
    # A classifier serves several tasks.
    config = TrainConfig.of(model="cnn", dataset=f"folder:{folder}", validation="none")
    assert open_data(config)[0].task == "multilabel"


def test_one_class_of_each_image_is_a_classification(tmp_path: pathlib.Path) -> None:
    lines = ["file,label", *(f"{i}.png,{['dog', 'cat'][CATS[i]]}" for i in range(COUNT))]
    dataset = opened(write(tmp_path / "set", lines))
    assert (dataset.task, dataset.class_names) == ("classification", ("cat", "dog"))
    numbered = ["file,label", *(f"{i}.png,{9 + CATS[i]}" for i in range(COUNT))]
    assert opened(write(tmp_path / "numbered", numbered)).class_names == ("9", "10")


def test_other_columns_are_numbers(tmp_path: pathlib.Path) -> None:
    lines = ["file,age", *(f"{i}.png,{AGES[i]}" for i in range(COUNT))]
    dataset = opened(write(tmp_path / "set", lines))
    assert (dataset.task, dataset.class_names) == ("scalar_regression", ("age",))
    train_ages = [dataset.splits()["train"][i]["values"][0] for i in range(len(dataset.train))]
    np.testing.assert_allclose(dataset.value_mean, np.mean(train_ages), rtol=1e-5)
    assert {*np.float32(AGES)} >= {*train_ages}


def test_a_table_for_each_split(tmp_path: pathlib.Path) -> None:
    write(tmp_path / "set/train", several())
    write(tmp_path / "set/test", several())
    dataset = jaxdp.data.from_folder(tmp_path / "set")
    assert dataset.describe().examples == {"train": COUNT, "test": COUNT}
    # One table of all images.
    (tmp_path / "set/train/labels.csv").unlink()
    (tmp_path / "set/test/labels.csv").unlink()
    header, *lines = several()
    whole = [header, *(f"{split}/{line}" for split in ("train", "test") for line in lines)]
    (tmp_path / "set/labels.csv").write_text("\n".join(whole))
    again = jaxdp.data.from_folder(tmp_path / "set")
    assert again.describe() == dataset.describe()


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["id,labels", "0.png,cat"], "should hold a folder of pictures for each class, or"),
        (["file", "0.png"], "write a line file,labels"),
        (["file,labels", "0.png"], "line 2 of .* has 1 cells, not 2"),
        (["file,labels", "0.png,cat", "0.png,dog"], "line 3 of .* names 0.png once more"),
        (["file,age", "0.png,20", "1.png,old"], "has no number for age"),
        (["file,age", "0.png,20", "1.png,30", "lost.png,40"], "is not there"),
        (["file,age", "0.png,20", "1.png,nan"], "has no number for age"),
        (["file,defect", "0.png,0", "1.png,1"], "column defect of labels.csv holds 0 and 1 only"),
        (["file,age,site", "0.png,20,x", "1.png,30,y"], "column site of labels.csv holds text"),
        (["file,labels", "0.png,cat", "/elsewhere/1.png,dog"], "lies in no folder"),
    ],
)
def test_a_table_that_cannot_be_read(
    lines: list[str], message: str, tmp_path: pathlib.Path
) -> None:
    folder = write(tmp_path / "set", lines)
    with pytest.raises(ConfigError, match=message):
        read_all(folder)


def test_a_class_without_training_images(tmp_path: pathlib.Path) -> None:
    write(tmp_path / "set/train", several())
    lines = several()
    write(tmp_path / "set/test", [*lines[:5], "4.png,bird", *lines[6:]])
    with pytest.raises(ConfigError, match="no training image has the class bird"):
        jaxdp.data.from_folder(tmp_path / "set")


def test_another_file_of_this_name_is_left_alone(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("cat", "dog"):
        write(tmp_path / "set" / name, [], "names.txt")
    (tmp_path / "set/labels.csv").write_text("id,name\n0,cat\n1,dog\n")
    assert opened(tmp_path / "set").task == "classification"
    assert "labels.csv has no column file, and is not read" in capsys.readouterr().err
    # A table of images says nothing of masks.
    for name in ("images", "masks"):
        write(tmp_path / "pairs" / name, [], "names.txt")
        for file in (tmp_path / "pairs" / name).glob("*.png"):
            Image.fromarray(np.full((8, 8), int(file.stem) % 2, np.uint8)).save(file)
    (tmp_path / "pairs/labels.csv").write_text("file,site\nimages/0.png,north\n")
    assert opened(tmp_path / "pairs", task="segmentation").task == "segmentation"


def test_pictures_without_a_line_are_told(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = opened(write(tmp_path / "set", several()[:-4]))
    assert sum(dataset.describe().examples.values()) == COUNT - 4
    assert "4 pictures are not in" in capsys.readouterr().err


@pytest.mark.usefixtures("no_pictures")
def test_the_commands_train_evaluate_and_predict(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(tmp_path / "set", several())
    flags = "--model cnn --model-kwargs width=4 hidden=8 --steps 4 --global-batch-size 8"
    flags += " --devices 2 --validation 0.2 --run-dir run"
    assert train.main(["--dataset", f"folder:{folder}", *flags.split()]) == 0
    capsys.readouterr()
    assert evaluate.main(["run", "--json", "--devices", "2"]) == 0
    assert 0 <= json.loads(capsys.readouterr().out)["mean_average_precision"] <= 1
    images = [str(folder / f"{number}.png") for number in (3, 4)]
    assert predict.main(["run", *images, "--csv", "out.csv", "--devices", "1"]) == 0
    assert "labels" in capsys.readouterr().out
    header, *rows = csv.reader(pathlib.Path("out.csv").read_text().splitlines())
    assert header == ["file", "labels", "cat", "dog"]
    metrics = json.loads(pathlib.Path("run/summary.json").read_text())["metrics"]["validation"]
    for _, labels, *probabilities in rows:
        named = [
            name
            for name, value in zip(("cat", "dog"), probabilities, strict=True)
            if float(value) >= metrics[f"threshold/{name}"] - 1e-6
        ]
        assert labels == ";".join(named)


@pytest.mark.usefixtures("no_pictures")
def test_photographs_of_several_sizes_are_cropped_at_random(tmp_path: pathlib.Path) -> None:
    folder = write(tmp_path / "set", several())
    Image.fromarray(np.zeros((20, 16), np.uint8)).save(folder / "3.png")
    dataset = jaxdp.data.from_folder(folder, validation="0.2")
    assert dataset.augment == ("flip", "random_resized_crop:8")
    trainer = jaxdp.Trainer(
        "cnn",
        dataset,
        model_kwargs={"width": 4, "hidden": 8},
        steps=1,
        global_batch_size=8,
        devices=1,
        progress=False,
    )
    assert trainer.fit().status == "done"
