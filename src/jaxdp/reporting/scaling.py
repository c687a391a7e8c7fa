"""Draws the predicted scaling curve of a training step."""

import pathlib
from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from jaxdp.registry import ConfigError

_STYLES: dict[str, dict[str, Any]] = {
    "weak": {"color": "#0072b2", "marker": "s"},
    "strong": {"color": "#d55e00", "marker": "o"},
}


def plot(found: Mapping[str, Any], path: str) -> None:
    """Writes a figure of predicted scaling: images per second and efficiency over the number of
    devices.

    Args:
        found: from `tools.prediction.scale`.
        path: of the file, whose ending chooses the format.

    Raises:
        ConfigError: for a file that cannot be written, or another ending.
    """
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    rate, efficiency = figure.subplots(1, 2)
    labels = {
        "weak": f"weak: {found['weak_examples_per_device']} examples a device",
        "strong": f"strong: {found['strong_global_batch_size']:,} examples in all",
    }
    for name, style in _STYLES.items():
        rows = [
            (row["devices"], row[name])
            for row in found["predicted_scaling"]
            if "predicted_efficiency" in row[name]
        ]
        devices = [count for count, _ in rows]
        rate.plot(
            devices,
            [row["predicted_images_per_second"] for _, row in rows],
            label=labels[name],
            **style,
        )
        efficiency.plot(devices, [100 * row["predicted_efficiency"] for _, row in rows], **style)
    counts = [row["devices"] for row in found["predicted_scaling"]]
    for axes in (rate, efficiency):
        axes.set_xscale("log", base=2)
        axes.set_xticks(counts, [str(count) for count in counts])
        axes.set_xlabel("devices")
        axes.grid(alpha=0.3)
    rate.set_yscale("log")
    rate.set_ylabel("predicted images/s")
    efficiency.set_ylabel("predicted efficiency, %")
    efficiency.set_ylim(0, 105)
    efficiency.axhline(100 * found["efficient"], color="#4d4d4d", linestyle=":")
    rate.legend(frameon=False)
    figure.suptitle(
        f"Predicted scaling: {found['model']}, {found['strategy']} on {found['target']},"
        f" {found['precision']}"
    )
    try:
        pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise ConfigError(
            "output", path, f"cannot be written: {' '.join(str(error).split())}"
        ) from error
