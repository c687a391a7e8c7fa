#!/usr/bin/env bash
# Is jaxdp right and fast on this machine's GPU? Tables in under ten minutes; where PyTorch is installed, beside it.
#   pip install '.[cuda13]' torch pytest && experiments/gpu_check.sh [flags of benchmarks/gpu_check.py]
# Without a network: PYTHONPATH=src and what pyproject.toml depends on. What ten minutes do not hold takes further calls:
#   experiments/gpu_check.sh --output results --models pyramidnet
#   experiments/gpu_check.sh --output results --models resnet unet --parts throughput prediction
#   experiments/gpu_check.sh --output results --models pyramidnet --parts throughput --first-batch 1024
# --output keeps each result as a line of JSON as soon as it is there; --tiny tries it all on any machine.
# Result: not yet run on a GPU.
set -euo pipefail
cd "$(dirname "$0")/.."
exec python3 benchmarks/gpu_check.py "$@"
