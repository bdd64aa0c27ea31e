"""The picture of a run: latency CDFs, and a bar of the stages of each round of ours."""

from pathlib import Path
from typing import Any

import numpy as np

from pp3shm.demo.optional import require

MOST = 4.0
"""So many times the median bar is the longest that is shown whole."""


def draw(path: Path, rows: dict[str, dict[str, Any]]) -> Path:
    """Write a PNG; its path.

    Args:
        path: where to.
        rows: of the report, by name; those with ``cdf_us``.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    colours = require("matplotlib", "bench").colormaps["tab20"]
    figure_of = require("matplotlib.figure", "bench").Figure
    staged = {name: row for name, row in rows.items() if row["stages_us"]}
    figure = figure_of(figsize=(12, 6 + 0.4 * len(staged)), layout="constrained")
    heights = [6, 0.8 + 0.4 * len(staged)] if staged else [1]
    axes = figure.subplots(len(heights), 1, height_ratios=heights, squeeze=False)
    _curves(axes[0][0], rows, colours)
    if staged:
        _bars(axes[1][0], staged)
    figure.savefig(path, dpi=120)
    return path


def _curves(axes: Any, rows: dict[str, dict[str, Any]], colours: Any) -> None:
    wanted = [name for name in rows if "checked" not in name and "10 ms" not in name]
    shares = None
    for at, name in enumerate(wanted):
        curve = rows[name]["cdf_us"]
        shares = np.linspace(0, 1, len(curve))
        style = {"floor": ":", "ring": "-", "unix": "-", "tcp": "-", "kill": "-"}
        axes.plot(
            curve,
            shares,
            style.get(name.split()[0], "--"),
            color=colours(at % 20),
            label=name,
            linewidth=1.2,
        )
    axes.set_xscale("log")
    axes.set_xlabel("microseconds from request to reply")
    axes.set_ylabel("share of rounds")
    axes.set_ylim(0, 1)
    axes.grid(visible=True, which="both", alpha=0.2)
    axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _bars(axes: Any, rows: dict[str, dict[str, Any]]) -> None:
    names = list(rows)
    left = np.zeros(len(names))
    for stage in rows[names[0]]["stages_us"]:
        widths = np.array([rows[name]["stages_us"].get(stage, 0.0) for name in names])
        axes.barh(names, widths, left=left, label=f"to {stage}")
        left = left + widths
    # One that waits for milliseconds would leave no room for the others.
    most = min(float(left.max()), MOST * float(np.median(left)))
    for at, total in enumerate(left):
        axes.text(min(total, most), at, f" {total:,.0f}", va="center", fontsize=7)
    axes.set_xlim(0, most * 1.08)
    axes.invert_yaxis()
    axes.set_xlabel("median microseconds of each stage")
    axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0))
