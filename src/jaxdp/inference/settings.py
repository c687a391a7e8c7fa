"""Settings of `python -m jaxdp.predict`."""

import dataclasses
from typing import Literal

from jaxdp.config import MOST_DEVICES, POSITIVE, REQUIRED, Settings, at_most, setting
from jaxdp.registry import ConfigError

_LEAST_TILE = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImagesConfig(Settings):
    """The run, its checkpoint and the images."""

    run_dir: str = setting(
        REQUIRED,
        "folder of the run",
        metavar="RUN_DIR",
        positional=True,
    )
    paths: tuple[str, ...] = setting(
        (),
        "images, and folders to search for images",
        metavar="PATH ...",
        positional=True,
    )
    step: int | None = setting(
        None,
        "step of the checkpoint (default: the best by validation data, or the last)",
    )
    on_bad_example: Literal["error", "skip"] = setting(
        "error",
        "what to do about an image that cannot be read: stop before anything is written, or "
        "go on without it",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResultsConfig(Settings):
    """Which results are shown, and where they are written."""

    top_k: int = setting(
        3,
        "classification: how many classes to name for each image, the most likely first",
        POSITIVE,
    )
    csv: str | None = setting(
        None,
        "CSV file with a line for each image and a column for each class: classification: "
        "its probability; segmentation: its share of the pixels, or of a run with "
        "--instances the number of objects and their mean area in pixels",
        metavar="PATH",
    )
    output_dir: str | None = setting(
        None,
        "segmentation: folder for NAME-mask.png, with the values or colours of training, or "
        "of a run with --instances for NAME-instances.png, whose pixels are numbers of "
        "objects in 16 bits, and NAME-overlay.png; regression: for NAME-prediction.png. In "
        "it are the same folders as in the one that was searched for images",
        metavar="PATH",
    )
    json: bool = setting(
        False,
        "print a line of JSON for each image instead of a table",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TilesConfig(Settings):
    """The tiles in which large images are predicted."""

    tile: int = setting(
        512,
        "segmentation, regression: side of the tiles in which larger images are predicted, "
        "in pixels",
    )
    overlap: int | None = setting(
        None,
        "how many pixels neighbouring tiles share at least (default: as many as make the "
        "result that of the whole image, for which small tiles grow)",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredictConfig(ImagesConfig, ResultsConfig, TilesConfig):
    """The plugins and the devices."""

    plugins: tuple[str, ...] = setting(
        (),
        "Python files or modules that the run was trained with: those that only its folder "
        "names are not run, since they are code of whoever made the folder",
        metavar="FILE.py|MODULE",
    )
    devices: int | None = setting(
        None,
        "how many devices to use, by default all; on a CPU so many are simulated",
        POSITIVE,
        at_most(MOST_DEVICES),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.paths:
            raise ConfigError(
                "", "", "no images are named; give files or folders after the folder of the run"
            )
        check_tiles(self.tile, self.overlap)


def check_tiles(tile: int, overlap: int | None) -> None:
    """Raises ConfigError if tiles are too small, or if their overlap is negative or more than half
    a tile.
    """
    if tile < _LEAST_TILE:
        raise ConfigError("tile", tile, f"must be at least {_LEAST_TILE}")
    if overlap is not None and not 0 <= overlap <= tile // 2:
        raise ConfigError("overlap", overlap, f"must be from 0 to {tile // 2}, half of --tile")
