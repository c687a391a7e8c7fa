"""`python -m jaxdp.predict RUN_DIR PATH...`: predicts on images of your own with a trained model.

A classifier gives classes, other models give masks or images as large as the input. The run's
dataset need not be there. The result is the same on any number of devices.
"""

import sys

from jaxdp.command_line import command
from jaxdp.inference.prediction import predict, predict_files
from jaxdp.inference.settings import PredictConfig

__all__ = ["main", "predict"]

DESCRIPTION = "Predict with a trained model on images of any size, on all devices."


@command(PredictConfig, "jaxdp.predict", DESCRIPTION, defaults_file=False)
def main(config: PredictConfig) -> int:
    """Predicts, and returns the exit code."""
    predict_files(config)
    return 0


if __name__ == "__main__":
    sys.exit(main())
