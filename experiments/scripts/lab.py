"""Provides the common parts of all experiments: benchmarks/experiment.py, and the folder of their
results.
"""

import pathlib
import sys

SCRIPTS = pathlib.Path(__file__).parent
RESULTS = SCRIPTS.parent / "results"
ROOT = SCRIPTS.parents[1]
sys.path.append(str(ROOT / "benchmarks"))  # a script's own folder alone is on the path

from experiment import (  # noqa: E402, F401
    COLORS,
    PAGES,
    Experiment,
    Run,
    command,
    create_figure,
    environment,
    keep,
    run,
    where,
)
