"""`python -m jaxdp.evaluate RUN_DIR`: evaluates a checkpoint of a run, on any number of devices."""

import json
import sys
from collections.abc import Sequence

from jaxdp import command_line
from jaxdp.runtime import large_pages
from jaxdp.tools.evaluation import EvaluateConfig, evaluate, evaluate_examples

__all__ = ["evaluate", "main"]

DESCRIPTION = "Evaluate a checkpoint of a run on all its test data, or on other labelled data."


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `python -m jaxdp.evaluate` with these arguments, by default the process's own, and
    returns the exit code.
    """
    large_pages.restart()
    return command_line.main(_main, argv, "jaxdp.evaluate")


def _main(argv: Sequence[str]) -> int:
    prog = "python -m jaxdp.evaluate"
    command = command_line.parse(
        EvaluateConfig,
        argv,
        prog=prog,
        description=DESCRIPTION,
        defaults_file=False,
    )
    step, split, metrics = evaluate_examples(command)
    if command.json:
        print(json.dumps({"step": step, "split": split} | metrics))
        return 0
    from jaxdp.reporting.progress import metrics_text

    print(f"step {step}: {split} {metrics_text(metrics)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
