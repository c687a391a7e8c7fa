"""Data-parallel training of image models in JAX.

    import jaxdp

    result = jaxdp.Trainer("pyramidnet", "digits").fit(epochs=20)

On the command line: `python -m jaxdp.train --model pyramidnet`.
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxdp import callbacks, data, models, tasks
    from jaxdp.errors import ConfigError
    from jaxdp.loading import load
    from jaxdp.result import Result
    from jaxdp.runtime.devices import available_devices
    from jaxdp.trainer import Trainer

    __version__: str

__all__ = [
    "ConfigError",
    "Result",
    "Trainer",
    "__version__",
    "available_devices",
    "callbacks",
    "data",
    "load",
    "models",
    "tasks",
]

_MODULES = {
    "ConfigError": "errors",
    "Result": "result",
    "Trainer": "trainer",
    "load": "loading",
    "available_devices": "runtime.devices",
}


def __getattr__(name: str) -> Any:
    """Loads a public name when it is first used, so that importing the package takes no time.

    XLA reads some flags only once. jaxdp sets them here, because a program may start JAX before it
    creates a Trainer.
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "__version__":
        return importlib.import_module(f"{__name__}.text.version").version()
    if name != "ConfigError":
        importlib.import_module(f"{__name__}.runtime.platform").configure(None)
    module = importlib.import_module(f"{__name__}.{_MODULES.get(name, name)}")
    return getattr(module, name) if name in _MODULES else module


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if "JAXDP_COORDINATOR" in os.environ:  # of `jaxdp.launch -- script.py`
    importlib.import_module(f"{__name__}.runtime.processes").join_launched()
