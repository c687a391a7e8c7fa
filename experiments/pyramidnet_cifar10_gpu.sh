#!/usr/bin/env bash
# PyramidNet 110 α48 on all of CIFAR-10, from device memory.
#   experiments/pyramidnet_cifar10_gpu.sh paper|short DATA_DIR [flags of jaxdp.train]
# paper: the authors' recipe, 300 epochs in float32 (published error 4.62 %). short: a one-cycle recipe in bfloat16.
# It stops after MINUTES (default 9) with a checkpoint and exit code 75; the same command continues, until it ends with 0.
# DATA_DIR holds cifar10 as TensorFlow Datasets prepares it.
#
# | recipe | hardware | time | test error |
# |---|---|---|---|
# | paper | | | not yet run |
# | short | | | not yet run |
set -euo pipefail
cd "$(dirname "$0")/.."
recipe=${1:?paper or short}; data=${2:?folder of prepared datasets}; shift 2
common=(--model pyramidnet --model-kwargs depth=110 alpha=48 --dataset cifar10 --data-dir "$data" --augment pad_crop:4 flip
  --optimizer nesterov --weight-decay 1e-4 --data-placement device --run-dir "runs/pyramidnet110-cifar10-$recipe")
case $recipe in
  paper) recipe_flags=(--epochs 300 --schedule multistep --learning-rate 0.1 --global-batch-size 128) ;;
  short) recipe_flags=(--epochs 30 --schedule onecycle --learning-rate 0.4 --global-batch-size 512 --precision bfloat16
    --label-smoothing 0.1) ;;
  *) echo "unknown recipe $recipe: paper or short" >&2; exit 2 ;;
esac
# TERM makes a run save where it is and leave with 75.
exec timeout --preserve-status --signal=TERM "$((${MINUTES:-9} * 60))" \
  python3 -m jaxdp.train "${common[@]}" "${recipe_flags[@]}" "$@"
