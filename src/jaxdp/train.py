"""`python -m jaxdp.train`: trains a model and leaves a folder with everything about the run."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator

from jaxdp.command_line import OF_NAMES, Exit, command
from jaxdp.config import TrainConfig
from jaxdp.exit_codes import (
    EXIT_DIVERGED,
    EXIT_LOCKED,
    EXIT_STOPPED,
    EXIT_USAGE_ERROR,
    SUPERVISED,
)
from jaxdp.registry import ConfigError, load_plugins, with_script
from jaxdp.rundir.layout import MovedError
from jaxdp.rundir.lock import FolderLocked
from jaxdp.runtime import platform, processes, streams
from jaxdp.runtime.signals import STOPPED_AT_START, StoppedAtStart, StopSignals

DESCRIPTION = "Train an image model data-parallel; the same command resumes a run."
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
_STARTED = time.perf_counter()


@command(TrainConfig, "jaxdp.train", DESCRIPTION)
def main(config: TrainConfig) -> int:
    """Trains as configured, prints the result and returns the exit code.

    Raises:
        ConfigError: for settings that cannot work; nothing has been computed or written then.
    """
    with _peers_notified():
        signals = StopSignals(_SIGNALS)
        with signals.handled(), contextlib.ExitStack() as cleanup:
            platform.configure(
                config.devices, deterministic=config.deterministic, precision=config.precision
            )
            from jaxdp.callbacks.watchdog import Watchdog
            from jaxdp.reporting import progress
            from jaxdp.trainer import Trainer
            from jaxdp.training import setup as setup_lib

            group = processes.start(config)
            signals.check()
            cleanup.enter_context((watchdog := Watchdog(group, config.step_timeout)).watching())
            load_plugins(config.plugins, reload=True)
            reading = progress.Reading() if group.index == 0 else lambda split, done, total: None
            setup = setup_lib.create_setup(
                config.replace(plugins=with_script(config.plugins)), advance=reading
            )
            signals.check()
            trained = Trainer.of_setup(setup, group).run(
                setup, signals, writes=True, callbacks=[watchdog], started=_STARTED
            )
        progress.print_outcome(trained, setup.config, setup.skipped() if group.index == 0 else None)
        return {"done": 0, "diverged": EXIT_DIVERGED, "stopped": EXIT_STOPPED}[trained.status]


@contextlib.contextmanager
def _peers_notified() -> Iterator[None]:
    """Tells the other processes of the run why this one ends, before its error goes on."""
    try:
        yield
    except StoppedAtStart as error:
        processes.exit_and_notify(error, EXIT_STOPPED, STOPPED_AT_START)
        raise Exit(EXIT_STOPPED, STOPPED_AT_START) from error
    except OSError as error:  # a full disk, a folder that has vanished
        if error.errno in OF_NAMES:
            processes.exit_and_notify(error, EXIT_USAGE_ERROR, str(error))
            raise ConfigError("", "", str(error)) from error
        what = "" if error.filename or not error.errno else "the run directory cannot be written: "
        after = "; the same command continues after the last checkpoint"
        message = f"{what}{error}" + after * (not isinstance(error, MovedError))
        processes.exit_and_notify(error, 1, message)
        raise Exit(1, f"jaxdp.train: error: {message}") from error
    except FolderLocked as error:
        code = EXIT_LOCKED if SUPERVISED in os.environ else EXIT_USAGE_ERROR
        processes.exit_and_notify(error, code, str(error))
        raise Exit(code, f"jaxdp.train: error: {error}") from error
    except BaseException as error:
        refused = isinstance(error, ConfigError)
        reason = str(error) if refused or isinstance(error, streams.OutputError) else None
        reason = "interrupted" if isinstance(error, KeyboardInterrupt) else reason
        processes.exit_and_notify(error, EXIT_USAGE_ERROR if refused else 1, reason)
        raise


if __name__ == "__main__":
    sys.exit(main())
