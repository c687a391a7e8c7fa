"""Small sets in every form, and the real ones of ../shared where that folder is."""

import fcntl
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterable
from typing import Any

import pytest

SHARED = pathlib.Path(__file__).parents[3].parent / "shared"


@pytest.fixture(scope="session")
def shared_data() -> pathlib.Path:
    if not (SHARED / "data" / "mnist").is_dir():
        pytest.skip("the real images lie in ../shared/data, which is not here")
    return SHARED / "data"


@pytest.fixture(scope="session")
def prepare(
    shared_data: pathlib.Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., pathlib.Path]:
    """Returns a function that writes real sets as TFDS directories, once for all workers, and
    returns the folder of all.
    """
    base = tmp_path_factory.getbasetemp()
    folder = (
        base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base
    ) / "tensorflow_datasets"
    folder.mkdir(exist_ok=True)

    def write(*names: str) -> pathlib.Path:
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            tool = shared_data.parent / "tools" / "prepare_tfds.py"
            missing = [name for name in names if not (folder / name).is_dir()]
            if missing:
                subprocess.run(
                    [sys.executable, tool, "--data-dir", folder, *missing],
                    check=True,
                    capture_output=True,
                )
        return folder

    return write


@pytest.fixture
def write_tfds(tmp_path: pathlib.Path) -> Callable[..., pathlib.Path]:
    """Returns a function that writes a set of TFDS without TensorFlow, and returns its
    `--data-dir`.
    """

    def write(
        name: str,
        features: dict[str, Any],
        splits: dict[str, Iterable[dict[str, Any]]],
        version: str = "1.0.0",
    ) -> pathlib.Path:
        import tensorflow_datasets as tfds

        def info(builder: Any) -> Any:
            return tfds.core.DatasetInfo(
                builder=builder, features=tfds.features.FeaturesDict(features)
            )

        members = {
            "VERSION": tfds.core.Version(version),
            "__module__": __name__,
            "_info": info,
            "_split_generators": lambda builder, manager: {
                split: enumerate(rows) for split, rows in splits.items()
            },
            "_generate_examples": lambda builder: None,
        }
        with tfds.core.registered.skip_registration():
            kind: Any = type(name, (tfds.core.GeneratorBasedBuilder,), members)
        kind(
            data_dir=os.fspath(tmp_path / "tfds"), file_format="array_record"
        ).download_and_prepare()
        return tmp_path / "tfds"

    return write
