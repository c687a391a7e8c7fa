#!/usr/bin/env bash
# Is jaxdp right and fast on this machine's GPU? One table in under ten minutes; where PyTorch is installed, beside it.
#   pip install '.[cuda13]' torch pytest && experiments/gpu_check.sh
# Result: not yet run on a GPU.
set -euo pipefail
cd "$(dirname "$0")/.."
exec python3 benchmarks/gpu_check.py "$@"
