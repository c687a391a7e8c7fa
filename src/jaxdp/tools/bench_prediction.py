"""Predicts the cells of a bench's grid for accelerators that are not here, in place of measuring them."""

import json
import pathlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from jaxdp.config import TrainConfig
from jaxdp.registry import ConfigError
from jaxdp.run_files import no_link
from jaxdp.runtime import platform
from jaxdp.runtime.targets import Target
from jaxdp.tools import bench_cell, prediction

Record = dict[str, Any]


def run(configs: Sequence[TrainConfig], target: Target, folder: pathlib.Path, *, quick: bool) -> int:
    """Predicts the cells, writes their records and a figure, prints a table, and returns the command's exit code.

    Args:
        target: of whose chips each cell takes as many as it has devices.
        folder: where predicted.jsonl grows.
        quick: whether to compile a TPU's programs with the least effort.

    Raises:
        ConfigError: if nothing could be compiled, or the folder cannot be written.
    """
    from jaxdp.reporting import predicted_grid

    platform.describe_only()
    target.devices()  # where the compiler is missing, that is no matter of one cell
    records: list[Record] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / "predicted.jsonl", "a", opener=no_link) as file:
            for record in _predict_all(configs, target, quick=quick):
                print(json.dumps(record), file=file, flush=True)
                records.append(record)
    except OSError as error:
        raise ConfigError("output", folder, f"cannot be written: {error.strerror or error}") from error
    if not records:
        raise ConfigError("", "", "no cell of the grid is left; change --strategies, --devices or --batch-sizes")
    predicted_grid.show(records)
    compiled = any(record["status"] == "ok" for record in records)
    if compiled:
        paths = predicted_grid.plot(records, folder)
        print(f"{folder / 'predicted.jsonl'} and {' and '.join(map(str, paths))} are written", file=sys.stderr)
    return int(not compiled)


def _predict_all(configs: Sequence[TrainConfig], target: Target, *, quick: bool) -> Iterator[Record]:
    """Yields the record of each cell as it is compiled."""
    for number, config in enumerate(configs, 1):
        devices = config.sharding.devices
        assert devices is not None
        where = f"{config.sharding.strategy} on {devices}, batch {config.optimization.global_batch_size}"
        record = bench_cell.describe(config)
        del record["cores"]  # of this machine
        record |= {"target": str(target), "status": "ok", "reason": None}
        try:
            record |= prediction.predict_step(config, target.of_size(devices), quick=quick)
        except ConfigError as error:
            if number == len(configs) == 1:
                raise
            print(f"left out: {where}: {error}", file=sys.stderr)
            continue
        if not record.pop("compiles"):
            out = "memory" in record["reason"].lower() or "RESOURCE_EXHAUSTED" in record["reason"]
            record["status"] = "oom" if out else "failed"
        rate = record.get("predicted_images_per_second")
        said = f"predicted {rate:,.0f} images/s" if rate is not None else record["reason"]
        print(f"[{number}/{len(configs)}] {where}: {said}", file=sys.stderr)
        yield record
