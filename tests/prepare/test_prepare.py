"""TensorFlow Datasets prepares a set once, and a failure is one line: `nox -s prepare`."""

import importlib.util
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from example_files import refused

from jaxdp.config import DataConfig
from jaxdp.data.sources import Split, open_dataset

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None,
    reason="needs TensorFlow; run by `nox -s prepare`",
)
COUNT = 12  # images in each file
NAMES = [f"class{number}" for number in range(10)]


def write_cifar10(folder: pathlib.Path) -> dict[str, set[tuple[bytes, int]]]:
    """Writes random images as CIFAR-10's files, and returns the images and labels of each split."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    (folder / "batches.meta.txt").write_text("\n".join(NAMES) + "\n")
    written: dict[str, set[tuple[bytes, int]]] = {"train": set(), "test": set()}
    for name in [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]:
        # A label, then 1,024 bytes of each channel.
        rows = rng.integers(0, 256, (COUNT, 3073), np.uint8)
        rows[:, 0] %= 10
        (folder / f"{name}.bin").write_bytes(rows.tobytes())
        images = rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        written["test" if name == "test_batch" else "train"] |= {
            (image.tobytes(), int(label)) for image, label in zip(images, rows[:, 0], strict=True)
        }
    return written


def test_a_set_is_prepared_once(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    import tensorflow_datasets as tfds

    written = write_cifar10(tmp_path / "unpacked" / "cifar-10-batches-bin")
    manager = tfds.download.DownloadManager
    monkeypatch.setattr(
        manager, "download_and_extract", lambda self, url: str(tmp_path / "unpacked")
    )
    data_dir = str(tmp_path / "sets")
    dataset = open_dataset(DataConfig(dataset="cifar10", data_dir=data_dir))
    assert capfd.readouterr().out == ""  # standard output is for results
    assert dataset.class_names == tuple(NAMES)
    for split, expected in written.items():
        source = dataset.splits()[split]
        assert isinstance(source, Split)
        batch = source.read(range(len(source)))
        pairs = zip(batch["images"], batch["labels"], strict=True)
        assert {(image.tobytes(), int(label)) for image, label in pairs} == expected
    # A second time nothing is prepared, and TensorFlow, though it is installed, is not imported.
    script = f"""
import sys
from jaxdp.config import DataConfig
from jaxdp.data.sources import open_dataset
assert open_dataset(DataConfig(dataset="cifar10", data_dir={data_dir!r})).train[0]
assert not [name for name in sys.modules if name.split(".")[0] == "tensorflow"]
"""
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True)


def test_a_set_that_cannot_be_prepared_is_one_line(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tensorflow_datasets as tfds

    def refuse(self: object, url: str) -> str:
        raise ConnectionError("no network\nin this test")

    monkeypatch.setattr(tfds.download.DownloadManager, "download_and_extract", refuse)
    with refused(r"is not prepared in .*, and cannot be prepared: no network in this test"):
        open_dataset(DataConfig(dataset="cifar10", data_dir=str(tmp_path)))
