"""`python -m jaxdp.report RUN_DIR...`: compares runs in one HTML file to keep, print or send."""

import pathlib
import sys

from jaxdp.cli.command_line import command
from jaxdp.config import LOCAL, REQUIRED, Settings, setting, settings_group
from jaxdp.text.messages import printable

DESCRIPTION = "Write one HTML page about runs, to read anywhere."


@settings_group
class ReportConfig(Settings):
    """The page and its runs."""

    run_dirs: tuple[str, ...] = setting(
        REQUIRED, "folders of runs, e.g. runs/*", metavar="RUN_DIR ...", positional=True
    )
    output: str = setting("report.html", "where to write the page", LOCAL, metavar="FILE")
    title: str | None = setting(
        None, "title of the page (default: models and datasets)", metavar="TEXT"
    )


@command(ReportConfig, "jaxdp.report", DESCRIPTION, defaults_file=False)
def main(config: ReportConfig) -> int:
    """Writes the page, and returns the exit code."""
    from jaxdp.reporting import report_page

    folders = [pathlib.Path(name) for name in config.run_dirs]
    report_page.write_report(folders, pathlib.Path(config.output), config.title)
    print(printable(config.output))
    return 0


if __name__ == "__main__":
    sys.exit(main())
