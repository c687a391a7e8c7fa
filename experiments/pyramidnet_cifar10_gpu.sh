#!/usr/bin/env bash
# PyramidNet 110 α48 on all of CIFAR-10, from device memory, in pieces.
#   experiments/pyramidnet_cifar10_gpu.sh short|paper|tiny DATA_DIR [flags of jaxdp.train]
# short: 30 epochs of a one-cycle recipe in bfloat16; the aim is 94 %. paper: the authors' recipe, 300 epochs in float32; their error
# is 4.62 %. tiny: a few steps of a small network, to try this script on any machine. Batch norm takes the whole batch together.
# DATA_DIR holds cifar10 as TensorFlow Datasets prepares it. Nothing is downloaded, and nothing but Python and jaxdp is needed
# (PYTHONPATH=src where it is not installed).
#
# It stops after MINUTES (default 8, fractions too) with a checkpoint. Exit code 75: not yet done, the same command continues; 0: done;
# 143: they were up while Python was still starting.
# To go on elsewhere, take runs/pyramidnet110-cifar10-RECIPE along: about 20 MB, so where only small files come back
#   tar -C runs -cz pyramidnet110-cifar10-RECIPE | split -b 15M - results/run.      here, after each piece
#   mkdir -p runs && cat results/run.* | tar -C runs -xz                              there, before the next one
#
# | recipe | hardware | time | test error |
# |---|---|---|---|
# | short | | | not yet run |
# | paper | | | not yet run |
set -euo pipefail
cd "$(dirname "$0")/.."
usage() { echo "$1; usage: $0 short|paper|tiny DATA_DIR [flags of jaxdp.train]" >&2; exit 2; }
[ $# -ge 2 ] || usage "name a recipe and the folder of prepared datasets"
recipe=$1 data=$2 minutes=${MINUTES:-8}; shift 2
[[ $minutes =~ ^[0-9]*\.?[0-9]+$ && ! $minutes =~ ^[0.]+$ ]] || usage "MINUTES=$minutes is no number above 0"
# A run that is stopped saves where it is; the checkpoints between are for a machine that is lost without warning.
common=(--model pyramidnet --dataset cifar10 --data-dir "$data" --augment pad_crop:4 flip --optimizer nesterov --weight-decay 1e-4
  --batch-norm global --data-placement device --keep 1 --run-dir "runs/pyramidnet110-cifar10-$recipe")
case $recipe in
  short) flags=(--model-kwargs depth=110 alpha=48 --epochs 30 --schedule onecycle --learning-rate 0.4 --global-batch-size 512
    --precision bfloat16 --label-smoothing 0.1 --eval-every 485 --checkpoint-every 970) ;;
  paper) flags=(--model-kwargs depth=110 alpha=48 --epochs 300 --schedule multistep --learning-rate 0.1 --global-batch-size 128
    --eval-every 1950 --checkpoint-every 3900) ;;
  tiny) flags=(--model-kwargs depth=8 alpha=6 --steps 60 --learning-rate 0.1 --global-batch-size 128 --log-every 2 --eval-every 60) ;;
  *) usage "unknown recipe $recipe" ;;
esac
# TERM makes a run save and leave with 75; one that does not manage to within a minute is ended.
exec timeout --preserve-status --signal=TERM --kill-after=60 "${minutes}m" \
  python3 -m jaxdp.train "${common[@]}" "${flags[@]}" "$@"
