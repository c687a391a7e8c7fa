#!/bin/sh
# Question: what does importing Orbax or Grain, without using them, change for the logging of a
# training script?
# Guess: nothing; only a program that calls logging.basicConfig has a handler at the root.
# What happens: importing orbax.checkpoint leaves a handler at the root logger. So does importing
# grain, which imports Orbax where it is installed. A later logging.basicConfig(level=..., ...) of
# the script then does nothing, without a word: no INFO line appears, and warnings have the format
# of the handler that is there.
# Seen with orbax-checkpoint 0.12.8 and grain 0.2.18, with absl-py 2.5.1.
# Why it matters: a training script that configures logging after its imports, as most do, loses its
# log lines once it imports Orbax. Give force=True, or configure logging before the imports.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --no-compile --disable-pip-version-check orbax-checkpoint==0.12.8 \
    grain==0.2.18 absl-py==2.5.1 jax==0.10.2 numpy==2.4.6
cat >find.py <<'END'
import importlib
import importlib.metadata
import logging
import sys

module = sys.argv[1]
importlib.import_module(module)
print(module, "handlers at the root:", len(logging.getLogger().handlers))
logging.basicConfig(level=logging.INFO, format="own format: %(message)s", stream=sys.stdout)
logging.info("a line of the script")
print("level of the root:", logging.getLevelName(logging.getLogger().level))
END
for package in orbax-checkpoint grain absl-py; do
    venv/bin/pip list --disable-pip-version-check | grep "^$package " | tr -s ' '
done >seen
for module in logging grain orbax.checkpoint; do
    JAX_PLATFORMS=cpu venv/bin/python find.py $module
done >>seen 2>&1
cat seen
diff - seen <<'END'
orbax-checkpoint 0.12.8
grain 0.2.18
absl-py 2.5.1
logging handlers at the root: 0
own format: a line of the script
level of the root: INFO
grain handlers at the root: 1
level of the root: WARNING
orbax.checkpoint handlers at the root: 1
level of the root: WARNING
END
