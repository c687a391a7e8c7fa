"""Trains on a Ray cluster with Ray Train, which starts all processes again after one has failed.

pip install 'ray[train]'
python examples/on_ray_train.py --workers 2 --steps 20 --run-dir runs/on-ray

All machines see the folder of the run, and each attempt resumes the run in it. On GPUs, start one
worker for each machine, with all of its GPUs: `--gpus 4`.
"""

import argparse
import json
import pathlib
from typing import Any

from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.v2.jax import JaxConfig, JaxTrainer

import jaxdp


def train(settings: dict[str, Any]) -> None:
    """Runs in each worker, after Ray Train has connected the workers by `jax.distributed`."""
    jaxdp.Trainer("cnn", "digits", **settings).fit()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--gpus", type=int, default=0, help="of each worker")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--run-dir", type=pathlib.Path, default=pathlib.Path("runs/on-ray"))
    parser.add_argument("--max-failures", type=int, default=3, help="how often to start again")
    given = parser.parse_args()
    run_dir = given.run_dir.resolve()
    trainer = JaxTrainer(
        train,
        train_loop_config={"run_dir": str(run_dir), "steps": given.steps, "checkpoint_every": 10},
        jax_config=JaxConfig(use_gpu=True),  # otherwise the workers are not connected, even on CPUs
        scaling_config=ScalingConfig(
            num_workers=given.workers,
            use_gpu=given.gpus > 0,
            resources_per_worker={"GPU": given.gpus} if given.gpus else None,
        ),
        run_config=RunConfig(
            storage_path=str(run_dir / "ray"),
            failure_config=FailureConfig(max_failures=given.max_failures),
            worker_runtime_env={"env_vars": {"JAX_PLATFORMS": "cuda" if given.gpus else "cpu"}},
        ),
    )
    trainer.fit()
    print(json.loads((run_dir / "summary.json").read_text())["metrics"])


if __name__ == "__main__":
    main()
