"""Processes that read examples, for sources that hold the GIL.

A thread that needs a batch sends its indices to one of them and waits; checking, counting and
placing stay with the threads.
"""

import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from jaxdp.data.dataset import BadExample, Example, Source
from jaxdp.data.split import Split
from jaxdp.registry import ConfigError

Read = Callable[[Sequence[int]], list[Example | BadExample]]

# What a terminal or a cluster sends to all processes of a run is for the one that trains, which
# ends those that read.
_NOT_OURS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
_ENDED = (
    "a process that reads examples has ended; memory may have run out, since each has a copy of the"
    " source: give fewer --data-workers; a script needs `if __name__ == '__main__':`, since each"
    " process imports it"
)


class ReadingProcesses:
    """The processes of a run, which are started by the first batch that is read.

    Each can read all splits.

    As a context it ends those that were started in it; without one they end with this process.

    Args:
        splits: by name; others than those with sources that ask for processes are left out.
    """

    def __init__(self, splits: Mapping[str, Source]) -> None:
        self._splits = {
            name: split
            for name, split in splits.items()
            if isinstance(split, Split) and split.source.reads_in_processes
        }
        self._executor: ProcessPoolExecutor | None = None
        self._were_there: list[bool] = []  # whether they were, for each context that is open

    def check(self) -> None:
        """Raises ConfigError for a source that cannot be sent to a process."""
        for name, split in self._splits.items():
            _pickled(name, split)

    def reader(self, split: str, count: int) -> Read | None:
        """Returns a function that reads examples in processes; for a bad example it returns the
        error.

        It raises ConfigError if a process has ended, and RuntimeError for what the source raises.

        Args:
            split: the result is None if threads read it.
            count: of processes, unless they are there already.
        """
        if split not in self._splits:
            return None
        if self._executor is None:
            pickled = _pickled(", ".join(self._splits), self._splits)
            context = multiprocessing.get_context("spawn")  # a fork would copy JAX's threads
            self._executor = ProcessPoolExecutor(count, context, _begin, (pickled,))
        executor = self._executor

        def read(indices: Sequence[int]) -> list[Example | BadExample]:
            try:
                return executor.submit(_read, split, list(map(int, indices))).result()
            except BrokenProcessPool:
                raise ConfigError("", "", _ENDED) from None

        return read

    def __enter__(self) -> "ReadingProcesses":
        self._were_there.append(self._executor is not None)
        return self

    def __exit__(self, *error: object) -> None:
        were_there = self._were_there.pop() or bool(self._were_there)
        if not were_there and self._executor is not None:
            self._executor.shutdown(cancel_futures=True)
            self._executor = None


def _pickled(name: str, what: object) -> bytes:
    """Pickles sources.

    Classes of a script, a notebook or a plugin's file, which no process can import by name, with
    their code.
    """
    import cloudpickle

    modules = [module for key, module in list(sys.modules.items()) if key.endswith(".py")]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        return cloudpickle.dumps(what)
    except Exception as error:  # whatever an object raises
        remedy = (
            f"{name}: is read in processes, but cannot be pickled:"
            f" {' '.join(str(error).split())[:200]}; leave out in __getstate__ what each process"
            " must open for itself, or do without reads_in_processes"
        )
        raise ConfigError("", name, remedy) from error
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


# In the processes: what `_begin` is given, and the splits that it becomes.
_given = b""
_splits: dict[str, Split] = {}


def _begin(pickled: bytes) -> None:
    global _given
    _given = pickled
    # A source that uses JAX must not take an accelerator's memory.
    os.environ["JAX_PLATFORMS"] = "cpu"
    if "jax" in sys.modules:  # the script imports it
        sys.modules["jax"].config.update("jax_platforms", "cpu")
    threading.Thread(target=_end_with_parent, daemon=True).start()
    for number in _NOT_OURS:
        signal.signal(number, signal.SIG_IGN)


def _end_with_parent() -> None:
    parent: Any = multiprocessing.parent_process()
    parent.join()
    os._exit(1)


def _read(split: str, indices: list[int]) -> list[Example | BadExample]:
    try:
        if not _splits:  # not earlier, where an error would have no way back
            _splits.update(pickle.loads(_given))
        return list(_splits[split].examples(indices))
    except ConfigError:
        raise
    except BaseException as error:  # many cannot be pickled, or not be made again
        raise RuntimeError(f"{type(error).__name__}: {error}") from error
