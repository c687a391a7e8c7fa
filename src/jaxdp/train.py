"""`python -m jaxdp.train`: trains a model and leaves a folder with everything about the run."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Sequence

from jaxdp import command_line
from jaxdp.config import TrainConfig
from jaxdp.exit_codes import (
    EXIT_DIVERGED,
    EXIT_LOCKED,
    EXIT_STOPPED,
    EXIT_USAGE_ERROR,
    SUPERVISED,
)
from jaxdp.registry import ConfigError, load_plugins, with_script
from jaxdp.run_directory import MovedError
from jaxdp.run_lock import FolderLocked
from jaxdp.runtime import large_pages, platform, processes, streams
from jaxdp.runtime.signals import STOPPED_AT_START, StoppedAtStart, StopSignals

DESCRIPTION = "Train an image model data-parallel; the same command resumes a run."
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
_STARTED = time.perf_counter()


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    large_pages.restart()

    def run(words: Sequence[str]) -> int:
        return train(
            command_line.parse(
                TrainConfig, words, prog="python -m jaxdp.train", description=DESCRIPTION
            )
        )

    streams.complete()
    with contextlib.redirect_stderr(streams.BestEffortStream(sys.stderr)):  # pyright: ignore
        return command_line.main(run, argv, "jaxdp.train")


def train(config: TrainConfig) -> int:
    """Trains as configured, prints the result and returns the exit code.

    Raises:
        ConfigError: for settings that cannot work; nothing has been computed or written then.
    """
    try:
        return _train(config)
    except OSError as error:  # a full disk, a folder that has vanished
        if error.errno in command_line.OF_NAMES:
            processes.leave(error, EXIT_USAGE_ERROR, str(error))
            raise ConfigError("", "", str(error)) from error
        what = "" if error.filename or not error.errno else "the run directory cannot be written: "
        after = (
            ""
            if isinstance(error, MovedError)
            else "; the same command continues after the last checkpoint"
        )
        message = f"{what}{error}{after}"
        processes.leave(error, 1, message)
        print(f"jaxdp.train: error: {message}", file=sys.stderr)
        return 1
    except StoppedAtStart as error:
        processes.leave(error, EXIT_STOPPED, STOPPED_AT_START)
        print(STOPPED_AT_START, file=sys.stderr)
        return EXIT_STOPPED
    except FolderLocked as error:
        code = EXIT_LOCKED if SUPERVISED in os.environ else EXIT_USAGE_ERROR
        processes.leave(error, code, str(error))
        print(f"jaxdp.train: error: {error}", file=sys.stderr)
        return code
    except BaseException as error:
        refused = isinstance(error, ConfigError)
        said = str(error) if refused or isinstance(error, streams.OutputError) else None
        said = "interrupted" if isinstance(error, KeyboardInterrupt) else said
        processes.leave(error, EXIT_USAGE_ERROR if refused else 1, said)
        raise


def _train(config: TrainConfig) -> int:
    signals = StopSignals(_SIGNALS, exit_code=EXIT_STOPPED, message=STOPPED_AT_START)
    with signals.handled(), contextlib.ExitStack() as cleanup:
        platform.configure(
            config.sharding.devices,
            deterministic=config.sharding.deterministic,
            precision=config.model.precision,
        )
        from jaxdp.callbacks.watchdog import Watchdog
        from jaxdp.reporting import progress
        from jaxdp.trainer import Trainer
        from jaxdp.training import setup as setup_lib

        group = processes.start(config.processes)
        signals.check()
        cleanup.enter_context((watchdog := Watchdog(group, config.run.step_timeout)).watching())
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


if __name__ == "__main__":
    sys.exit(main())
