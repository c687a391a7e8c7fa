"""Declares, converts and checks settings, and reads and writes their files."""

# pyright: reportUnusedImport=false

from jaxdp.config.data import DataConfig
from jaxdp.config.devices import ProcessConfig, ShardingConfig, WorkersConfig
from jaxdp.config.facts import Facts
from jaxdp.config.files import kept, load, parse, run_hash, to_yaml
from jaxdp.config.optimization import DEFAULT_OPTIMIZER, OptimizationConfig
from jaxdp.config.run import AveragedConfig, SavedRunConfig
from jaxdp.config.settings import (
    OBJECT,
    REQUIRED,
    Settings,
    displaced_by,
    fields,
    setting,
    settings_group,
    settings_with,
)
from jaxdp.config.train import PartsConfig, TrainConfig
from jaxdp.config.values import (
    LOCAL,
    MOST_DEVICES,
    MOST_PROCESSES,
    NON_NEGATIVE,
    POSITIVE,
    BatchNormMode,
    ClassWeights,
    at_most,
    parse_keywords,
)
