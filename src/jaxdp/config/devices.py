"""Settings of the devices, the processes and the workers that compute."""

from typing import Literal

from jaxdp.config.settings import Settings, setting, settings_group
from jaxdp.config.values import MOST_DEVICES, MOST_WORKERS, NON_NEGATIVE, POSITIVE, at_most


@settings_group
class LayoutConfig(Settings):
    """The layout of a training step on the devices."""

    shard_params: bool = setting(
        False,
        """with --strategy sharded, shard parameters, optimizer state and EMA over the devices, for
        models that do not fit on one device""",
        resume="free",
    )
    deterministic: bool = setting(
        False,
        """on GPUs, use only kernels that are bitwise reproducible, which is slower; CPU kernels
        are always reproducible""",
        resume="free",
    )


@settings_group
class ShardingConfig(LayoutConfig):
    """The strategy and the devices."""

    strategy: str = setting(
        "pmap",
        "how devices share the work: {jaxdp.sharding}",
        resume="free",
        each_fit=False,
        basic=True,
    )
    devices: int | None = setting(
        None,
        """use the first N devices (default: all); on a CPU, simulate N. jaxdp adds the flags for
        this, and flags that make steps fast, to XLA_FLAGS unless you set them; `python -m
        jaxdp.devices` prints them""",
        POSITIVE,
        at_most(MOST_DEVICES),
        resume="free",
        each_fit=False,
        basic=True,
        none="all",
    )


@settings_group
class ProcessConfig(Settings):
    """The processes of a run."""

    distributed: Literal["auto", "on", "off"] = setting(
        "auto",
        """whether this process is one of several: detected (from the flags below, Slurm, Open
        MPI, a Kubernetes indexed job or a TPU pod), yes, or no. `python -m jaxdp.launch -n N --
        train ...` starts several on one machine""",
        saved=False,
    )
    coordinator: str | None = setting(
        None,
        "address at which process 0 listens, e.g. 10.0.0.1:1234 (default: detected on a cluster)",
        metavar="HOST:PORT",
        saved=False,
        none="as the cluster says",
    )
    num_processes: int | None = setting(
        None,
        "number of processes (default: detected on a cluster)",
        POSITIVE,
        saved=False,
        none="as the cluster says",
    )
    process_id: int | None = setting(
        None,
        "index of this process, from 0 (default: detected on a cluster)",
        NON_NEGATIVE,
        saved=False,
        none="as the cluster says",
    )
    distributed_timeout: float = setting(
        60.0, "seconds to wait for the other processes at startup", POSITIVE, saved=False
    )
    heartbeat_timeout: float = setting(
        30.0,
        "seconds without a heartbeat after which a process counts as dead",
        POSITIVE,
        saved=False,
    )


@settings_group
class WorkersConfig(Settings):
    """Workers, which come and go (Ray)."""

    workers: int | None = setting(
        None,
        """exact: processes that compute, each on one CPU core (default: none, and the devices
        compute; 4 with --ray-address)""",
        POSITIVE,
        at_most(MOST_WORKERS),
        names_run="never",
        none="the devices compute",
    )
    slices: int | None = setting(
        None,
        """exact: number of equal slices of each batch, which are whole batch-norm groups
        (default: one for each group, at most 16; 8 without batch norm)""",
        POSITIVE,
        at_most(MOST_WORKERS),
        names_run="never",
        none="one for each batch-norm group, at most 16; 8 without batch norm",
    )
    ray_address: str | None = setting(
        None,
        """Ray cluster that runs the workers; only in networks that you trust, because Ray
        executes what it receives (default: a cluster on this machine only, for this run)""",
        metavar="auto|HOST:PORT",
        names_run="never",
        none="a cluster of this machine alone",
    )
