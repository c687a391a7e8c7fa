"""`python -m jaxdp.report RUN_DIR...`: compares runs in one HTML file to keep, print or send."""

import dataclasses
import pathlib
import sys
from collections.abc import Sequence

from jaxdp import command_line
from jaxdp.config import REQUIRED, Settings, setting
from jaxdp.parsing import printable
from jaxdp.registry import ConfigError

DESCRIPTION = "Write one HTML page about runs and benchmarks, to read anywhere."


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportConfig(Settings):
    """Settings of `python -m jaxdp.report`."""

    run_dirs: tuple[str, ...] = setting(
        REQUIRED,
        "folders of runs, and of grids that `python -m jaxdp.bench` measured",
        metavar="RUN_DIR ...",
        positional=True,
    )
    output: str = setting(
        "report.html",
        "where to write the page",
        metavar="FILE",
    )
    title: str | None = setting(
        None,
        "title of the page (default: models and datasets)",
        metavar="TEXT",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.run_dirs:
            raise ConfigError("", "", "no folder is named; give those of runs, e.g. runs/*")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command with these arguments, by default those of the process.

    Returns the exit code.
    """
    return command_line.main(_main, argv, "jaxdp.report")


def _main(argv: Sequence[str]) -> int:
    command = command_line.parse(
        ReportConfig,
        argv,
        prog="python -m jaxdp.report",
        description=DESCRIPTION,
        defaults_file=False,
    )
    from jaxdp.reporting import report_page

    report_page.write_report(
        [pathlib.Path(name) for name in command.run_dirs],
        pathlib.Path(command.output),
        command.title,
    )
    print(printable(command.output))
    return 0


if __name__ == "__main__":
    sys.exit(main())
