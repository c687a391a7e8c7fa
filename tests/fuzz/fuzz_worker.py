"""Runs commands one after another in one process, so that starting JAX is paid once.

Under a limit on its memory.

Each line on standard input is a request in JSON, each line on the descriptor that its first
argument names an answer.
"""

import contextlib
import faulthandler
import importlib
import io
import json
import os
import pathlib
import re
import resource
import signal
import sys
import time
import traceback
from typing import Any

from jaxdp.text import console

ROOM_BYTES = 3 * 2**30  # beside what the process holds once it has started
DEVICES = 8


def held_bytes(name: str) -> int:
    """Returns a line of the process's status: VmSize, VmRSS or VmHWM."""
    found = re.search(
        rf"^{name}:\s*(\d+) kB", pathlib.Path("/proc/self/status").read_text(), re.MULTILINE
    )
    assert found is not None
    return 1024 * int(found[1])


def start() -> None:
    from jaxdp.launching import launcher
    from jaxdp.runtime import platform

    platform.configure(DEVICES)
    platform.check_backend()
    resource.setrlimit(resource.RLIMIT_AS, (held_bytes("VmSize") + ROOM_BYTES,) * 2)
    # What is started is not what is tried here, and takes seconds.
    assert launcher.TRAIN
    launcher.TRAIN = ("-c", "pass")  # pyright: ignore[reportAttributeAccessIssue]


@contextlib.contextmanager
def without_pictures(leave_out: bool) -> Any:
    """Drawing them takes as long as all steps of a short run."""
    from jaxdp.reporting import outcome, plots

    before = outcome.draw, plots.plot_curves
    if leave_out:
        outcome.draw, plots.plot_curves = (lambda *_, **__: {}), (lambda *_, **__: None)  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        outcome.draw, plots.plot_curves = before


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Runs a command in a folder.

    What it prints goes into the files out.txt and err.txt above that folder.
    """
    folder = pathlib.Path(request["folder"])
    os.chdir(folder)

    console._warned.clear()  # pyright: ignore[reportPrivateUsage]
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # forgets the peak
    before, began = held_bytes("VmRSS"), time.monotonic()
    for number, name in ((1, "out.txt"), (2, "err.txt")):
        file = os.open(folder.parent / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, number)
        os.close(file)
    sys.stdout = io.TextIOWrapper(
        io.FileIO(1, "w", closefd=False), encoding="utf-8", write_through=True
    )
    sys.stderr = io.TextIOWrapper(
        io.FileIO(2, "w", closefd=False),
        encoding="utf-8",
        errors="backslashreplace",
        write_through=True,
    )
    code: object = None
    try:
        with without_pictures(not request["pictures"]):
            if request["command"] == "jaxdp":
                sys.argv = ["jaxdp", *request["argv"]]
                code = importlib.import_module("jaxdp.__main__").main()
            else:
                code = importlib.import_module(f"jaxdp.{request['command']}").main(request["argv"])
    except SystemExit as stop:
        code = stop.code
    except BaseException:
        traceback.print_exc()
    handlers = [
        number
        for number in (signal.SIGTERM, signal.SIGINT)
        if signal.getsignal(number) not in (signal.SIG_DFL, INTERRUPT)
    ]
    return {
        "code": code, "seconds": time.monotonic() - began, "bytes": held_bytes("VmHWM") - before,
        "left": [signal.Signals(number).name for number in handlers],
    }  # fmt: skip


INTERRUPT = signal.default_int_handler


def main() -> None:
    signal.signal(signal.SIGINT, INTERRUPT)
    # Says on SIGABRT where it stands, though standard error is elsewhere by then.
    faulthandler.enable(os.fdopen(os.dup(2), "w"))
    requests, answers = os.fdopen(os.dup(0)), os.fdopen(int(sys.argv[1]), "w")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    start()
    answers.write("ready\n")
    answers.flush()
    for line in requests:
        answers.write(json.dumps(answer(json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
