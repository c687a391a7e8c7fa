"""Provides datasets: the sources and the order of examples, and augmentation inside the compiled
step.

`load` opens a dataset by its name, and `from_folder` opens a folder of your own pictures.
`from_arrays` makes a dataset of arrays in memory, and `from_dataset` of an object with a length and
an index.

A batch is a dict of arrays with a leading dim of examples: `images` (uint8, NHWC), `labels`,
`indices` (each example's number in its set) and `weights` (1; 0 for the padding of a last
evaluation batch).
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxdp.data import augment, pipeline
    from jaxdp.data.arrays import from_arrays
    from jaxdp.data.dataset import Dataset
    from jaxdp.data.loaders import from_dataset
    from jaxdp.data.source import ArraySource, BadExample, Source
    from jaxdp.data.sources import from_folder, load

__all__ = [
    "ArraySource",
    "BadExample",
    "Dataset",
    "Source",
    "augment",
    "from_arrays",
    "from_dataset",
    "from_folder",
    "load",
    "pipeline",
]

# The other types are in `source`.
_MODULES = {
    "Dataset": "dataset",
    "from_arrays": "arrays",
    "from_dataset": "loaders",
    "from_folder": "sources",
    "load": "sources",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in ("augment", "pipeline"):  # modules for a loop of one's own
        return importlib.import_module(f"{__name__}.{name}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES.get(name, 'source')}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
