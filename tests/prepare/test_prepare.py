"""What `--dataset cifar10` does where the set is not prepared, with TensorFlow but without a
network: `nox -s prepare`.
"""

import gzip
import importlib.util
import io
import pathlib
import re
import subprocess
import sys
import tarfile

import numpy as np
import pytest

from jaxdp.config import DataConfig
from jaxdp.data.sources import CheckedSource, open_dataset
from jaxdp.registry import ConfigError

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None,
    reason="needs TensorFlow; run by `nox -s prepare`",
)
COUNT = 12  # images in each file
NAMES = [f"class{number}" for number in range(10)]


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    import requests

    def refuse(*args: object, **kwargs: object) -> None:
        raise requests.exceptions.ConnectionError("no network in this test")

    monkeypatch.setattr(requests, "head", refuse)
    monkeypatch.setattr(requests.adapters.HTTPAdapter, "send", refuse)


def folder_of(message: str) -> pathlib.Path:
    """Returns where the error says that files belong, made as its reader would."""
    match = re.search(r" into (\S+) and start again$", message)
    assert match is not None, message
    folder = pathlib.Path(match[1])
    folder.mkdir(parents=True)
    return folder


def write_archive(path: pathlib.Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Writes random images in the form of CIFAR-10's archive, and returns images and labels of both
    splits.
    """
    rng = np.random.default_rng(0)
    content = {"batches.meta.txt": "\n".join(NAMES).encode() + b"\n"}
    arrays: dict[str, list[np.ndarray]] = {"train": [], "test": []}
    for name in [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]:
        # A label, then 1,024 bytes of each channel.
        rows = rng.integers(0, 256, (COUNT, 3073), np.uint8)
        rows[:, 0] %= 10
        content[f"{name}.bin"] = rows.tobytes()
        arrays["test" if name == "test_batch" else "train"].append(rows)
    with tarfile.open(path, "w:gz") as archive:
        for name, data in content.items():
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    whole = {split: np.concatenate(rows) for split, rows in arrays.items()}
    return {
        split: (rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), rows[:, 0])
        for split, rows in whole.items()
    }


def take_for_official(file: pathlib.Path, dataset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes TFDS know another checksum for the file of this name."""
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.download import checksums

    known = tfds.builder(dataset).url_infos
    (url,) = [url for url, info in known.items() if info.filename == file.name]
    monkeypatch.setitem(known, url, checksums.compute_url_info(file))


def test_the_advice_of_the_error_works_and_checksums_stay_on(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    config = DataConfig(dataset="cifar10", data_dir=str(tmp_path / "sets"))
    with pytest.raises(
        ConfigError,
        match=r"put cifar-10-binary\.tar\.gz \(https://\S+/cifar-10-binary\.tar\.gz\) into ",
    ) as caught:
        open_dataset(config)
    assert "\n" not in str(caught.value)
    archive = folder_of(str(caught.value)) / "cifar-10-binary.tar.gz"
    written = write_archive(archive)

    with pytest.raises(
        ConfigError, match=rf"wrong checksum: {archive} is not what TFDS knows as https"
    ) as caught:
        open_dataset(config)
    assert "\n" not in str(caught.value)

    take_for_official(archive, "cifar10", monkeypatch)
    capfd.readouterr()
    dataset = open_dataset(config)
    assert capfd.readouterr().out == ""  # standard output is for results
    for split, (images, labels) in written.items():
        source = getattr(dataset, split)
        assert isinstance(source, CheckedSource)
        found = source.read(range(len(source)))
        expected = {
            (image.tobytes(), int(label)) for image, label in zip(images, labels, strict=True)
        }
        assert {
            (image.tobytes(), int(label))
            for image, label in zip(found["images"], found["labels"], strict=True)
        } == expected
        assert len(source) == len(labels)
    assert dataset.class_names == tuple(NAMES)

    # Apart from other sets' files of the same name.
    assert (tmp_path / "sets" / "downloads" / "extracted" / "cifar10").is_dir()

    # A second time nothing is downloaded or encoded, and TensorFlow, though it is installed, stays
    # on the disk.
    archive.unlink()
    script = f"""
import sys
from jaxdp.config import DataConfig
from jaxdp.data.sources import open_dataset
assert len(open_dataset(DataConfig(dataset="cifar10", data_dir={config.data_dir!r})).train.read([0, 1])["labels"]) == 2
assert not [name for name in sys.modules if name.split(".")[0] == "tensorflow"]
"""
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True)


def test_of_several_files_those_are_named_that_are_missing(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = DataConfig(dataset="fashion_mnist", data_dir=str(tmp_path))
    with pytest.raises(
        ConfigError,
        match=r"put what it needs of t10k-images-idx3-ubyte\.gz .*, train-labels-idx1-ubyte\.gz ",
    ) as caught:
        open_dataset(config)
    folder = folder_of(str(caught.value))
    file = folder / "t10k-images-idx3-ubyte.gz"
    file.write_bytes(gzip.compress(b""))
    take_for_official(file, "fashion_mnist", monkeypatch)
    with pytest.raises(
        ConfigError,
        match=r"put what it needs of t10k-labels-idx1-ubyte\.gz .*, train-labels-idx1-ubyte\.gz ",
    ) as caught:
        open_dataset(config)
    assert f" into {folder} and" in str(caught.value)
