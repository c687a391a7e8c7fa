#!/bin/sh
# Question: does the number of worker processes of Grain's DataLoader change how many batches an
# epoch has?
# Guess: no, it changes the speed alone.
# What happens: each worker takes every n-th record and makes batches of its own records alone. What
# is in a batch depends on the number of workers, and with drop_remainder=True each worker drops a
# remainder of its own: a set of 20 records has two batches of 8 without workers, and none with 3.
# Seen with grain 0.2.18.
# Why it matters: a small validation set is shortened, or empty, on a machine with more cores, and
# nothing is said. Batches of another composition also change a training with batch norm.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --no-compile --disable-pip-version-check grain==0.2.18 numpy==2.4.6
cat >find.py <<'END'
import importlib.metadata

import grain.python as grain
import numpy as np
from absl import app


def batches(workers, size, drop):
    loader = grain.DataLoader(
        data_source=grain.RangeDataSource(0, 20, 1),
        sampler=grain.IndexSampler(
            20, shard_options=grain.NoSharding(), shuffle=False, num_epochs=1, seed=0
        ),
        operations=[grain.Batch(size, drop_remainder=drop)],
        worker_count=workers,
    )
    return [np.asarray(batch).tolist() for batch in loader]


def main(_):
    print("grain", importlib.metadata.version("grain"))
    for workers in (0, 2):
        print(f"{workers} workers, the first batch of 4: {batches(workers, 4, False)[0]}")
    for workers in (0, 1, 2, 3):
        print(f"{workers} workers: {len(batches(workers, 8, True))} whole batches of 8")


if __name__ == "__main__":
    app.run(main)
END
venv/bin/python find.py >seen
cat seen
diff - seen <<'END'
grain 0.2.18
0 workers, the first batch of 4: [0, 1, 2, 3]
2 workers, the first batch of 4: [0, 2, 4, 6]
0 workers: 2 whole batches of 8
1 workers: 2 whole batches of 8
2 workers: 2 whole batches of 8
3 workers: 0 whole batches of 8
END
