"""`python -m jaxdp.train`: trains a model and leaves a folder with everything about the run."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator

from jaxdp.cli.command_line import Exit, command, exit_code
from jaxdp.cli.exit_codes import (
    EXIT_DIVERGED,
    EXIT_LOCKED,
    EXIT_STOPPED,
    EXIT_USAGE_ERROR,
    SUPERVISED,
)
from jaxdp.config import TrainConfig
from jaxdp.plugins.loading import add_running_script, load_plugins
from jaxdp.rundir.lock import FolderLocked
from jaxdp.runtime import garbage_collector, platform, processes
from jaxdp.runtime.signals import STOPPED_AT_START, StoppedAtStart, StopSignals
from jaxdp.text.flags import for_command

DESCRIPTION = "Train an image model data-parallel; the same command resumes a run."
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
_STARTED = time.perf_counter()


@command(TrainConfig, "jaxdp.train", DESCRIPTION)
def main(config: TrainConfig) -> int:
    """Trains as configured, prints the result and returns the exit code.

    Raises:
        ConfigError: for settings that cannot work; most are found before anything is computed or
            written.
    """
    with _peers_notified():
        signals = StopSignals(_SIGNALS)
        with signals.handled(), contextlib.ExitStack() as cleanup:
            with garbage_collector.paused():
                platform.configure(
                    config.devices,
                    deterministic=config.deterministic,
                    precision=config.precision,
                    strategy=config.strategy,
                )
                from jaxdp.build import setup as setup_lib
                from jaxdp.build import step_memory
                from jaxdp.callbacks.watchdog import Watchdog
                from jaxdp.reporting import progress
                from jaxdp.training.run import run_setup

            group = processes.start(config)
            signals.check()
            cleanup.enter_context((watchdog := Watchdog(group, config.step_timeout)).watching())
            load_plugins(config.plugins, reload=True)
            reading = progress.Reading() if group.index == 0 else setup_lib.ignore_progress
            setup = setup_lib.create_setup(
                config.replace(plugins=add_running_script(config.plugins)), advance=reading
            )
            signals.check()
            cleanup.enter_context(step_memory.explained(setup))
            outcome = run_setup(
                setup,
                group,
                [*config.callbacks, watchdog],
                signals,
                writes=True,
                start_time=_STARTED,
            )
        progress.print_outcome(
            outcome, setup.config, setup.examples.skipped() if group.index == 0 else None
        )
        return {"done": 0, "diverged": EXIT_DIVERGED, "stopped": EXIT_STOPPED}[outcome.status]


@contextlib.contextmanager
def _peers_notified() -> Iterator[None]:
    """Reports to the other processes why this process ends, before its error propagates."""
    try:
        yield
    except BaseException as error:
        code, reason = _code_and_reason(error)
        processes.notify_peers_of_exit(error, code, reason)
        if isinstance(error, StoppedAtStart):
            raise Exit(code, STOPPED_AT_START) from error
        if isinstance(error, OSError | FolderLocked):
            raise Exit(code, f"jaxdp.train: error: {reason}") from error
        raise


def _code_and_reason(error: BaseException) -> tuple[int, str | None]:
    """Returns the exit code for an error, and the reason to report to the other processes; None for
    a defect, which has a traceback.
    """
    reason = for_command(error)
    if isinstance(error, StoppedAtStart):
        return EXIT_STOPPED, STOPPED_AT_START
    if isinstance(error, FolderLocked) and SUPERVISED in os.environ:
        return EXIT_LOCKED, reason
    if exit_code(error) == EXIT_USAGE_ERROR:
        return EXIT_USAGE_ERROR, reason
    if isinstance(error, OSError):  # a full disk, a folder that has vanished
        if error.errno and not error.filename:
            reason = f"the run directory cannot be written: {reason}"
        return 1, f"{reason}; the same command continues after the last checkpoint"
    return 1, "interrupted" if isinstance(error, KeyboardInterrupt) else None


if __name__ == "__main__":
    sys.exit(main())
