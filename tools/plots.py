"""Draw the plots of the documentation from files of measurements: ``plots.py FOLDER``.

Reads ``operations.json`` (``python -m benches.python --json``) and ``loader.json``
(``benches/data_loader.py --json``) in the folder and writes pictures beside them. Below each
stands what it was measured on, and when, as the file says it. Needs matplotlib.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")

from matplotlib import pyplot as plt

SHOWN = {
    "Tensor operations": """
view|reshape|permute|split|unbind|index int|index slice|index tensor|index mask
|stack|cat|clone|to dtype|add|exp|apply|where
""",
    "Structure": "select|exclude|flatten_keys|update|set|lock and unlock",
}
"""Operations that the first plot shows, as they are named in ``benches/python``."""

GREY = "#7d8590"  # readable on white and on black
COLOURS = {"ours": "#2f81f7", "peer": "#db6d28", "bare": GREY}
NAMES = {
    "ours": "tensordict-rs",
    "peer": "tensordict 0.15.3",
    "bare": "bare torch loop",
}

STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "tensordict",
    "font.size": 10,
    "text.color": GREY,
    "axes.labelcolor": GREY,
    "axes.edgecolor": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
}


def source(machine: dict[str, Any]) -> str:
    """Return the line that says what was measured on what, and when."""
    return (
        "{processor}, {cores} cores (load {load}), Python {python}, torch {torch},"
        " tensordict {tensordict}, {date}".format(**machine)
    )


def finish(figure: Any, path: Path, machine: dict[str, Any]) -> None:
    """Write the line below the plot, and the plot."""
    figure.text(0.01, 0.01, source(machine), fontsize=7, ha="left", va="bottom")
    figure.savefig(path, transparent=True, metadata={"Date": None})
    plt.close(figure)
    print(path)


def draw_operations(measured: dict[str, Any], tree: str, path: Path) -> None:
    """Draw the times of some operations, side by side."""
    found = measured["trees"][tree]
    figure, both = plt.subplots(1, 2, figsize=(7.2, 4.8), width_ratios=[3, 1])
    figure.subplots_adjust(left=0.15, right=0.98, top=0.86, bottom=0.17, wspace=0.55)
    places = {"peer": 0.27, "ours": 0.0, "bare": -0.27}
    for axes, (title, listed) in zip(both, SHOWN.items(), strict=True):
        wanted = [name.strip() for name in listed.split("|")]
        names = [name for name in wanted if "ours" in found.get(name, {})]
        for side, place in places.items():
            rows = [
                (len(names) - row + place, found[name][side]["min"] * 1e6)
                for row, name in enumerate(names)
                if side in found[name]
            ]
            if rows:
                heights, times = zip(*rows, strict=True)
                axes.barh(heights, times, 0.27, color=COLOURS[side], label=NAMES[side])
        axes.set_yticks([len(names) - row for row in range(len(names))], names)
        axes.set_title(title, loc="left", fontsize=11)
    both[0].set_xlabel(f"microseconds per call ({tree} leaves), less is better")
    figure.legend(*both[0].get_legend_handles_labels(), loc="upper center", ncols=3)
    finish(figure, path, measured["machine"])


def draw_ratios(measured: dict[str, Any], path: Path) -> None:
    """Draw what each tensor operation takes, as a multiple of the bare loop, sorted."""
    trees = list(measured["trees"])
    figure, all_axes = plt.subplots(
        1, len(trees), figsize=(7.2, 3.6), sharey=True, squeeze=False
    )
    figure.subplots_adjust(left=0.09, right=0.98, top=0.88, bottom=0.22)
    for tree, axes in zip(trees, all_axes[0], strict=True):
        for side in ("peer", "ours"):
            ratios = sorted(
                one[side]["min"] / one["bare"]["min"]
                for one in measured["trees"][tree].values()
                if side in one and "bare" in one
            )
            if not ratios:
                continue
            mean = math.exp(statistics.fmean(map(math.log, ratios)))
            label = f"{NAMES[side]}, mean {mean:.2f}"
            axes.plot(ratios, color=COLOURS[side], label=label)
        axes.axhline(1, color=GREY, linewidth=0.8, linestyle="--")
        axes.set_yscale("log")
        axes.set_yticks([0.5, 1, 2, 5, 10], ["0.5", "1", "2", "5", "10"])
        axes.set_title(f"{tree} leaves", loc="left", fontsize=11)
        axes.set_xlabel("tensor operations, sorted")
        axes.legend(loc="upper left", fontsize=8)
    all_axes[0][0].set_ylabel("time / bare torch loop")
    finish(figure, path, measured["machine"])


def draw_loader(measured: dict[str, Any], path: Path) -> None:
    """Draw rows a second of every way to read shuffled batches."""
    rates = {
        name: statistics.median(numbers["rows_per_s"])
        for name, numbers in measured["contestants"].items()
    }
    names = sorted(rates, key=rates.__getitem__)
    figure, axes = plt.subplots(figsize=(7.2, 3.2))
    figure.subplots_adjust(left=0.34, right=0.98, top=0.89, bottom=0.25)
    ours = [
        COLOURS["ours" if name.startswith("BatchLoader") else "bare"] for name in names
    ]
    axes.barh(names, [rates[name] / 1e3 for name in names], color=ours)
    axes.set_xlabel("thousand rows of 12 KiB a second, shuffled; more is better")
    axes.set_title("An epoch of data in files", loc="left", fontsize=11)
    finish(figure, path, measured["machine"])


def main() -> None:
    """Draw what the files in the folder hold."""
    folder = Path(sys.argv[1])
    plt.rcParams.update(STYLE)
    operations, loader = folder / "operations.json", folder / "loader.json"
    if operations.is_file():
        measured = json.loads(operations.read_text(encoding="utf-8"))
        tree = next(iter(measured["trees"]))
        draw_operations(measured, tree, folder / "operations.svg")
        draw_ratios(measured, folder / "ratios.svg")
    if loader.is_file():
        measured = json.loads(loader.read_text(encoding="utf-8"))
        draw_loader(measured, folder / "loader.svg")


if __name__ == "__main__":
    main()
