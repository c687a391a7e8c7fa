"""`python -m jaxdp.checkpoints RUN_DIR`: lists the checkpoints of a run, and whether they still are
what was saved.
"""

import dataclasses
import json
import sys
from collections.abc import Sequence

from jaxdp import command_line
from jaxdp.config import REQUIRED, Settings, setting

DESCRIPTION = "List the checkpoints of a run and whether they are whole."


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointsConfig(Settings):
    """What `python -m jaxdp.checkpoints` takes."""

    run_dir: str = setting(
        REQUIRED,
        "folder of the run",
        positional=True,
    )
    plugins: tuple[str, ...] = setting(
        (),
        "Python files or modules that the run was trained with: those that only its folder "
        "names are not run, since they are code of whoever made the folder",
        metavar="FILE.py|MODULE",
    )
    verify: bool = setting(
        False,
        "compare every byte with what was saved; otherwise only whether the files are there "
        "and have their sizes",
    )
    json: bool = setting(
        False,
        "print one line of JSON instead of a table",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `python -m jaxdp.checkpoints` with these arguments, by default the process's own, and
    returns the exit code.
    """
    return command_line.main(_main, argv, "jaxdp.checkpoints")


def _main(argv: Sequence[str]) -> int:
    command = command_line.parse(
        CheckpointsConfig,
        argv,
        prog="python -m jaxdp.checkpoints",
        description=DESCRIPTION,
        defaults_file=False,
    )
    from jaxdp.tools import checkpoint_list

    rows = checkpoint_list.list_checkpoints(
        command.run_dir, verify=command.verify, plugins=command.plugins
    )
    if command.json:
        print(json.dumps(rows))
    else:
        checkpoint_list.print_table(rows)
    return 1 if any(row["verdict"] == "damaged" for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
