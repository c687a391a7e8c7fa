"""`python -m jaxdp.predict RUN_DIR PATH...`: tells what a trained model says about images of your
own.

Classes for a classifier; for the others masks or images, as large as those given. The run's dataset
need not be there. It uses all devices, and says the same on any number of them.
"""

import sys
from collections.abc import Sequence

from jaxdp import command_line
from jaxdp.inference.prediction import PredictConfig, predict, predict_files
from jaxdp.runtime import large_pages

__all__ = ["main", "predict"]

DESCRIPTION = "Predict with a trained model on images of any size, on all devices."


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `python -m jaxdp.predict` with these arguments, by default the process's own, and
    returns the exit code.
    """
    large_pages.restart()
    return command_line.main(_main, argv, "jaxdp.predict")


def _main(argv: Sequence[str]) -> int:
    prog = "python -m jaxdp.predict"
    config = command_line.parse(
        PredictConfig,
        argv,
        prog=prog,
        description=DESCRIPTION,
        defaults_file=False,
    )
    predict_files(config)
    return 0


if __name__ == "__main__":
    sys.exit(main())
