"""Settings: their groups, how they are parsed and checked, and the files that hold them."""

from jaxdp.config.files import OF_ONE_COMMAND as OF_ONE_COMMAND
from jaxdp.config.files import defining as defining
from jaxdp.config.files import hash_of as hash_of
from jaxdp.config.files import load as load
from jaxdp.config.files import run_hash as run_hash
from jaxdp.config.files import to_yaml as to_yaml
from jaxdp.config.groups import DataConfig as DataConfig
from jaxdp.config.groups import ExchangeConfig as ExchangeConfig
from jaxdp.config.groups import OptimizationConfig as OptimizationConfig
from jaxdp.config.groups import PartsConfig as PartsConfig
from jaxdp.config.groups import ProcessConfig as ProcessConfig
from jaxdp.config.groups import ShardingConfig as ShardingConfig
from jaxdp.config.groups import TrainConfig as TrainConfig
from jaxdp.config.settings import OBJECT as OBJECT
from jaxdp.config.settings import Settings as Settings
from jaxdp.config.settings import convert as convert
from jaxdp.config.settings import displaced_by as displaced_by
from jaxdp.config.values import NON_NEGATIVE as NON_NEGATIVE
from jaxdp.config.values import POSITIVE as POSITIVE
from jaxdp.config.values import BatchNormMode as BatchNormMode
from jaxdp.config.values import ClassWeights as ClassWeights
from jaxdp.config.values import OptionalInt as OptionalInt
from jaxdp.config.values import OptionalPath as OptionalPath
from jaxdp.config.values import number as number
from jaxdp.config.values import parse_keywords as parse_keywords
