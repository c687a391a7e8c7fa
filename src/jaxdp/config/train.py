"""Defines all settings of a training run.

`config.learning_rate`, `--learning-rate`, the keyword `learning_rate` and `learning_rate:` in YAML
are the same setting. This module does not import JAX, so that `--help` and most usage errors are
printed before JAX starts.
"""

from jaxdp.config.data import DataConfig
from jaxdp.config.devices import ProcessConfig, ShardingConfig, WorkersConfig
from jaxdp.config.model import ModelConfig, TaskConfig
from jaxdp.config.optimization import LearningConfig, OptimizationConfig
from jaxdp.config.run import RunConfig
from jaxdp.config.settings import Settings, setting, settings_group


@settings_group
class PluginsConfig(Settings):
    """Code of your own."""

    plugins: tuple[str, ...] = setting(
        (),
        """your own Python files or modules, imported first to register models, datasets, tasks,
        strategies, callbacks or augmentations""",
        metavar="FILE.py|MODULE",
        resume="free",
        names_run="if_set",
    )


@settings_group
class PartsConfig(PluginsConfig, ModelConfig, DataConfig, TaskConfig):
    """Settings of model, data and task, which commands about training share."""


@settings_group
class TrainConfig(
    PartsConfig,
    ShardingConfig,
    OptimizationConfig,
    LearningConfig,
    WorkersConfig,
    RunConfig,
    ProcessConfig,
):
    """Everything that defines a training run.

    `config.yaml` in its folder holds exactly these settings.
    """
