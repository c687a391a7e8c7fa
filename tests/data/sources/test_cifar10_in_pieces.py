"""Does experiments/pyramidnet_cifar10_gpu.sh stop when its minutes are up, and go on with the same
command?
"""

import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from example_files import noise, png

SCRIPT = pathlib.Path(__file__).parents[3] / "experiments" / "pyramidnet_cifar10_gpu.sh"


@pytest.fixture
def environment(tmp_path: pathlib.Path) -> dict[str, str]:
    """Lets `python3` be the Python that runs the tests."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "python3"  # a link would not find the packages of a virtual environment
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    program.chmod(0o755)
    environment = {
        name: value for name, value in os.environ.items() if name not in ("MINUTES", "XLA_FLAGS")
    }
    return environment | {"PATH": f"{folder}:{os.environ['PATH']}"}


@pytest.mark.slow
def test_cifar10_is_trained_on_in_pieces(
    prepare: Callable[..., pathlib.Path], environment: dict[str, str], tmp_path: pathlib.Path
) -> None:
    train_in_pieces(prepare("cifar10"), environment, tmp_path / "run")


def test_a_small_set_named_cifar10_is_trained_on_in_pieces(
    write_tfds: Callable[..., pathlib.Path], environment: dict[str, str], tmp_path: pathlib.Path
) -> None:
    tfds = pytest.importorskip("tensorflow_datasets")
    features = {
        "image": tfds.features.Image(shape=(32, 32, 3)),
        "label": tfds.features.ClassLabel(num_classes=10),
    }
    splits = {
        split: [{"image": png(noise(row, 32, 32, 3)), "label": row % 10} for row in range(count)]
        for split, count in (("train", 400), ("test", 20))
    }
    version = str(tfds.builder_cls("cifar10").VERSION)
    folder = write_tfds("Cifar10", features, splits, version)
    train_in_pieces(folder, environment, tmp_path / "run")


def train_in_pieces(data_dir: pathlib.Path, environment: dict[str, str], run: pathlib.Path) -> None:
    command = [str(SCRIPT), "tiny", str(data_dir), "--run-dir", str(run)]
    # Python itself takes longer to start.
    done = subprocess.run(command, env=environment | {"MINUTES": "0.01"})
    assert done.returncode in (143, 75)  # the latter if it comes as far as catching signals
    metrics = run / "metrics.jsonl"
    with subprocess.Popen(command, env=environment) as process:
        while process.poll() is None and not (metrics.exists() and metrics.read_text()):
            time.sleep(0.05)
        process.terminate()  # of `timeout`, which does then what it does when the minutes are up
    assert process.returncode == 75
    (stopped_at,) = [
        int(path.name) for path in (run / "checkpoints").iterdir() if path.name.isdecimal()
    ]
    assert 0 < stopped_at < 60
    assert subprocess.run(command, env=environment).returncode == 0
    assert (run / "checkpoints" / "60").is_dir()
