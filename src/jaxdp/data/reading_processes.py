"""Processes that read examples, for sources that hold the GIL.

A thread that needs a batch hands its numbers to one of them and waits; checking, counting and
placing stay with the threads. The processes are loky's: those of `concurrent.futures` and Grain run
the user's script again, and Grain's start anew for each iterator.
"""

import os
import pickle
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from jaxdp.data.dataset import BadExample, Example, Source
from jaxdp.data.split import Split
from jaxdp.registry import ConfigError

Read = Callable[[Sequence[int]], list[Example | BadExample]]

# What a terminal or a cluster sends to all processes of a run is for the one that trains, which
# ends those that read.
_NOT_OURS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


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
        self._executor: Any = None
        self._were_there: list[bool] = []  # whether they were, for each context that is open

    def check(self) -> None:
        """Raises ConfigError for a source that cannot be sent to a process."""
        for name, split in self._splits.items():
            _pickled(name, split)

    def reader(self, split: str, count: int) -> Read | None:
        """Returns a function that reads examples in processes; for a bad example it returns the
        error.

        It raises ConfigError if a process has ended, or cannot make the source from what it was
        sent, and what the source raises.

        Args:
            split: the result is None if threads read it.
            count: of processes, unless they are there already.
        """
        if split not in self._splits:
            return None
        if self._executor is None:
            self._executor = _start(_pickled(", ".join(self._splits), self._splits), count)
        executor = self._executor

        def read(numbers: Sequence[int]) -> list[Example | BadExample]:
            try:
                return executor.submit(_read, split, list(map(int, numbers))).result()
            except BrokenProcessPool as error:
                raise _ended(str(error)) from None

        return read

    def __enter__(self) -> "ReadingProcesses":
        self._were_there.append(self._executor is not None)
        return self

    def __exit__(self, *error: object) -> None:
        were_there = self._were_there.pop() or bool(self._were_there)
        if not were_there and self._executor is not None:
            self._executor.shutdown(wait=True, kill_workers=True)
            self._executor = None


def _start(pickled: bytes, count: int) -> Any:
    from loky import ProcessPoolExecutor
    from loky.backend.context import get_context

    # A source that imports JAX must not take an accelerator's memory.
    cpu = {"JAX_PLATFORMS": "cpu"}
    context = get_context("loky")  # the default, loky_init_main, runs the script again
    return ProcessPoolExecutor(
        count, context=context, initializer=_begin, initargs=(pickled, os.getpid()), env=cpu
    )


def _ended(text: str) -> ConfigError:
    codes = re.search(r"exit codes of the workers are \{(.*)\}", text)
    how = f"ended with {codes[1]}" if codes else f"ended: {' '.join(text.split())}"
    if "SIGKILL" in how:
        how += (
            "; memory may have run out, since each has a copy of the source: give fewer"
            " --data-workers"
        )
    return ConfigError("", "", f"a process that reads examples {how}")


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


def _begin(pickled: bytes, parent: int) -> None:
    global _given
    _given = pickled
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    for number in _NOT_OURS:
        signal.signal(number, signal.SIG_IGN)


def _end_with(parent: int) -> None:
    """Ends this process soon after that which started it, even if that was killed."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _read(split: str, numbers: list[int]) -> list[Example | BadExample]:
    try:
        if not _splits:  # not earlier, where an error would have no way back
            _splits.update(_unpickled(_given))
        return list(_splits[split].examples(numbers))
    except BaseException as error:  # SystemExit as well
        if _survives(error):
            raise
        raise RuntimeError(f"{type(error).__name__}: {error}") from error


def _unpickled(pickled: bytes) -> dict[str, Split]:
    try:
        return pickle.loads(pickled)
    except Exception as error:  # whatever an object raises
        remedy = (
            "a process that reads examples cannot make the source from what it was sent:"
            f" {type(error).__name__}: {' '.join(str(error).split())}"
        )
        raise ConfigError("", "", remedy) from error


def _survives(error: BaseException) -> bool:
    """Whether an exception can be pickled and made again, as many with arguments of their own
    cannot.
    """
    try:
        return str(pickle.loads(pickle.dumps(error))) == str(error)
    except Exception:  # the constructor of any exception may raise anything
        return False
