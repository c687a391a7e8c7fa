#!/bin/sh
# Question: with ShardOptions(drop_remainder=False), does one epoch of Grain's DataLoader read every
# record on some shard?
# Guess: yes. The documentation of ShardOptions says that the remainder goes to the first shards: 10
# records on 3 shards are 4, 3 and 3.
# What happens: the shards own 4, 3 and 3 records, but each loader ends after 3. Record 3 is read by
# no shard. With several epochs the first shard starts its next epoch one record early each time.
# Seen with grain 0.2.18.
# Why it matters: an evaluation on several hosts leaves out up to (hosts - 1) examples, and the
# counts look even. MapDataset.source(...)[shard::shards] reads every record.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --no-compile --disable-pip-version-check grain==0.2.18 numpy==2.4.6
cat >find.py <<'END'
import importlib.metadata

import grain.python as grain

print("grain", importlib.metadata.version("grain"))


def records(shard, shards, epochs):
    sampler = grain.IndexSampler(
        10,
        shard_options=grain.ShardOptions(shard, shards, drop_remainder=False),
        shuffle=False,
        num_epochs=epochs,
        seed=0,
    )
    source = grain.RangeDataSource(0, 10, 1)
    return [int(record) for record in grain.DataLoader(data_source=source, sampler=sampler)]


for shards, epochs in ((3, 1), (4, 1), (3, 2)):
    read = [records(shard, shards, epochs) for shard in range(shards)]
    missing = sorted(set(range(10)) - {record for part in read for record in part})
    print(f"shards {shards}, epochs {epochs}: {read}, read by none: {missing}")
END
venv/bin/python find.py >seen
cat seen
diff - seen <<'END'
grain 0.2.18
shards 3, epochs 1: [[0, 1, 2], [4, 5, 6], [7, 8, 9]], read by none: [3]
shards 4, epochs 1: [[0, 1], [3, 4], [6, 7], [8, 9]], read by none: [2, 5]
shards 3, epochs 2: [[0, 1, 2, 3, 0, 1], [4, 5, 6, 4, 5, 6], [7, 8, 9, 7, 8, 9]], read by none: []
END
