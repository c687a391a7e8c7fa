"""A trained model is evaluated on other labelled data: by the names of its classes, as it was
normalized.
"""

import json
import pathlib
from typing import Any

import numpy as np
import pytest
from PIL import Image
from shared_run import copy_here, make_once

import jaxdp
from jaxdp import evaluate

BRIGHTNESS = {"ant": 0, "bee": 80, "cat": 160}
SETTINGS: dict[str, Any] = {
    "model_kwargs": {"width": 4, "hidden": 16},
    "devices": 1,
    "global_batch_size": 18,
    "progress": False,
}


def write(folder: str, names: list[str], *, count: int = 20, side: int = 8, added: int = 0) -> None:
    random = np.random.default_rng(len(folder))
    for name in names:
        place = pathlib.Path(folder, name)
        place.mkdir(parents=True)
        for index in range(count):
            pixels = (
                random.integers(0, 60, (side, side, 1)).repeat(3, -1)
                + BRIGHTNESS.get(name, 0)
                + added
            )
            Image.fromarray(pixels.astype(np.uint8)).save(place / f"{index}.png")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[pathlib.Path, jaxdp.Result]:
    def make() -> jaxdp.Result:
        write("ours", list(BRIGHTNESS))
        return jaxdp.Trainer("cnn", "folder:ours", **SETTINGS, run_dir="run").fit(epochs=15)

    return make_once(tmp_path_factory, make)


@pytest.fixture
def result(made: tuple[pathlib.Path, jaxdp.Result]) -> jaxdp.Result:
    copy_here(made[0])
    return made[1]


def test_another_folder_counts_by_the_names_of_its_classes(
    result: jaxdp.Result, capsys: pytest.CaptureFixture[str]
) -> None:
    write("theirs", ["cat", "bee"], count=12, side=16, added=20)
    files = sorted(pathlib.Path("theirs").glob("*/*.png"))
    probabilities = evaluate_files(result, files)
    names = result.description.class_names
    expected = [
        names[each.argmax()] == file.parent.name
        for each, file in zip(probabilities, files, strict=True)
    ]
    assert evaluate.main(["run", "--dataset", "folder:theirs", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["split"], found["examples"]) == ("all", 24)
    assert found["accuracy"] == pytest.approx(np.mean(expected))
    # Chance is a third, and class numbers that were not translated none at all.
    assert found["accuracy"] > 0.5


def evaluate_files(result: jaxdp.Result, files: list[pathlib.Path]) -> np.ndarray:
    return result.predict([np.asarray(Image.open(file)) for file in files])


def test_other_data_are_normalized_as_the_training_data_were(result: jaxdp.Result) -> None:
    write("brighter", list(BRIGHTNESS), added=25)
    own = result.evaluate("folder:brighter", split="all")
    assert jaxdp.load("run").evaluate("folder:brighter", split="all") == pytest.approx(own)
    data = jaxdp.data.load("folder:brighter")
    assert jaxdp.load("run").evaluate(data, split="all") == pytest.approx(own)
    assert own["loss"] != pytest.approx(
        result.evaluate("folder:ours", split="all")["loss"], rel=1e-3
    )


def test_classes_that_the_model_does_not_know_are_one_line(
    result: jaxdp.Result, capsys: pytest.CaptureFixture[str]
) -> None:
    write("more", ["ant", "dog"], count=12)
    assert evaluate.main(["run", "--dataset", "folder:more"]) == 2
    line = capsys.readouterr().err.strip()
    assert line.endswith(
        "--dataset folder:more: has classes that the model does not know: dog; it knows ant,"
        " bee, cat"
    )
    assert evaluate.main(["run", "--split", "val"]) == 2
    assert (
        "--split val: there is no split 'val' in folder:ours; there are: train, test, all"
        in capsys.readouterr().err
    )
