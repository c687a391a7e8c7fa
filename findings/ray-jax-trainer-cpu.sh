#!/bin/sh
# Question: how many processes does JAX count in a worker of Ray Train's JaxTrainer, with two workers
# on CPUs and the default configuration?
# Guess: 2, because the code that connects the workers has a branch for JAX_PLATFORMS=cpu.
# What happens: 1. Each worker trains alone, and nothing is reported. The workers are connected only
# if JaxConfig has use_tpu=True or use_gpu=True, the latter also on CPUs.
# Seen with ray 2.60.0 and jax 0.10.2.
# Why it matters: a test of a data-parallel job on a laptop or in CI passes with two independent runs.
# Both write the same folder, and no gradient is averaged. Assert jax.process_count() in the loop.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --no-compile --disable-pip-version-check ray==2.60.0 'ray[train]' \
    jax==0.10.2 jaxlib==0.10.2 pandas==2.3.3
cat >find.py <<'END'
import importlib.metadata
import pathlib
import sys

from ray.train import RunConfig, ScalingConfig
from ray.train.v2.jax import JaxConfig, JaxTrainer

folder = pathlib.Path.cwd()


def count(settings):
    import os

    import jax

    path = pathlib.Path(settings["folder"], f"{settings['name']}-{os.getpid()}")
    path.write_text(f"{jax.process_count()} {jax.default_backend()}")


def train(name, **options):
    JaxTrainer(
        count,
        train_loop_config={"folder": str(folder), "name": name},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            storage_path=str(folder / "ray"),
            worker_runtime_env={"env_vars": {"JAX_PLATFORMS": "cpu"}},
        ),
        **options,
    ).fit()
    found = sorted(path.read_text() for path in folder.glob(f"{name}-*"))
    print(f"{name}: {', '.join(found)}")


print(*(f"{name} {importlib.metadata.version(name)}" for name in ("ray", "jax")))
train("default")
train("use_gpu", jax_config=JaxConfig(use_gpu=True))
sys.stdout.flush()
END
RAY_USAGE_STATS_ENABLED=0 RAY_TRAIN_V2_ENABLED=1 venv/bin/python find.py 2>log | grep -E '^(ray |default:|use_gpu:)' >seen ||
    { tail -n 20 log; exit 1; }
cat seen
diff - seen <<'END'
ray 2.60.0 jax 0.10.2
default: 1 cpu, 1 cpu
use_gpu: 2 cpu, 2 cpu
END
