"""Draw the plots of the documentation from files of measurements: ``plots.py FOLDER``.

Reads ``operations.json`` (``python -m benches.python --json``) and ``loader.json``
(``benches/data_loader.py --json``) in the folder, and writes pictures beside them.
Below each plot stand the machine and the date of the measurement, from the file. Needs
matplotlib.
"""

from __future__ import annotations

import io
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
"""The operations in the first plot, by their names in ``benches/python``."""

LIGHT = {"text": "#24292f", "card": "#f6f8fa", "bare": "#8c959f"}
DARK = {"text": "#e6edf3", "card": "#161b22", "bare": "#6e7681"}
"""Colours for the light and the dark scheme of the reader."""

GREY = LIGHT["bare"]
COLOURS = {"ours": "#2f81f7", "peer": "#db6d28", "bare": GREY}
NAMES = {
    "ours": "tensordict-rs",
    "peer": "tensordict 0.15.3",
    "bare": "bare torch loop",
}

STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "tensordict",
    "font.size": 11,
    "font.family": "sans-serif",
    "text.color": LIGHT["text"],
    "axes.labelcolor": LIGHT["text"],
    "axes.edgecolor": LIGHT["text"],
    "xtick.color": LIGHT["text"],
    "ytick.color": LIGHT["text"],
    "axes.facecolor": "none",
    "figure.facecolor": LIGHT["card"],
    "savefig.facecolor": LIGHT["card"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "legend.frameon": False,
}

WIDTH = 5.0
"""The width of a plot in inches. On a narrow page, a wider plot is hard to read."""


def source(machine: dict[str, Any]) -> str:
    """Return the lines below a plot: machine, versions and date."""
    return (
        "{processor}, {cores} cores (load {load})\n"
        "Python {python}, torch {torch}\n"
        "tensordict {tensordict}, {date}".format(**machine)
    )


def in_both_schemes(picture: str) -> str:
    """Return an SVG whose colours follow the light or dark scheme of the reader."""
    declared = {}
    for scheme, colours in (("light", LIGHT), ("dark", DARK)):
        values = "; ".join(f"--{name}: {value}" for name, value in colours.items())
        declared[scheme] = f":root {{ {values} }}"
    for name, value in LIGHT.items():
        picture = picture.replace(value, f"var(--{name}, {value})")
    style = (
        f"<style>{declared['light']} "
        f"@media (prefers-color-scheme: dark) {{ {declared['dark']} }}</style>"
    )
    return picture.replace(" <metadata>", f" {style}\n <metadata>", 1)


def finish(figure: Any, path: Path, machine: dict[str, Any]) -> None:
    """Add the lines below the plot, and write the file."""
    height = figure.get_figheight()
    figure.text(0.03, 0.1 / height, source(machine), fontsize=10, va="bottom")
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    plt.close(figure)
    path.write_text(in_both_schemes(file.getvalue()), encoding="utf-8")
    print(path)


def figure_of(rows: int, height: float, left: float, top: float = 0.4) -> Any:
    """Return a figure with axes below each other, and room for text around them."""
    figure, axes = plt.subplots(rows, 1, figsize=(WIDTH, height), squeeze=False)
    figure.subplots_adjust(
        left=left, right=0.96, top=1 - top / height, bottom=1.3 / height
    )
    return figure, axes[:, 0]


def draw_operations(measured: dict[str, Any], tree: str, path: Path) -> None:
    """Draw the times of the operations, one topic below the other."""
    found = measured["trees"][tree]
    topics = {
        title: [
            name
            for name in map(str.strip, listed.split("|"))
            if "ours" in found.get(name, {})
        ]
        for title, listed in SHOWN.items()
    }
    figure, both = figure_of(len(topics), 7.2, left=0.3, top=0.9)
    grid = both[0].get_gridspec()
    grid.set_height_ratios([len(names) + 1 for names in topics.values()])
    grid.update(hspace=0.4)
    places = {"peer": 0.27, "ours": 0.0, "bare": -0.27}
    for axes, (title, names) in zip(both, topics.items(), strict=True):
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
        axes.set_ylim(0.4, len(names) + 0.6)
        axes.set_title(title, loc="left")
        axes.set_xlabel("microseconds per call, less is better")
    handles, labels = both[0].get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="upper center",
        ncols=3,
        columnspacing=1,
        handlelength=1,
        title=f"{tree} leaves",
    )
    finish(figure, path, measured["machine"])


def draw_ratios(measured: dict[str, Any], path: Path) -> None:
    """Draw the time of each tensor operation divided by the bare loop's, sorted."""
    trees = list(measured["trees"])
    figure, all_axes = figure_of(len(trees), 0.8 + 2.7 * len(trees), left=0.14)
    figure.subplots_adjust(hspace=0.3)
    for tree, axes in zip(trees, all_axes, strict=True):
        for side in ("peer", "ours"):
            ratios = sorted(
                times[side]["min"] / times["bare"]["min"]
                for times in measured["trees"][tree].values()
                if side in times and "bare" in times
            )
            if not ratios:
                continue
            mean = math.exp(statistics.fmean(map(math.log, ratios)))
            label = f"{NAMES[side]}, mean {mean:.2f}"
            axes.plot(ratios, color=COLOURS[side], label=label, linewidth=2)
        axes.axhline(1, color=GREY, linewidth=1, linestyle="--")
        axes.set_yscale("log")
        axes.set_yticks([0.5, 1, 2, 5, 10], ["0.5", "1", "2", "5", "10"])
        axes.set_title(f"{tree} leaves: time / bare torch loop", loc="left")
        axes.legend(loc="upper left")
    all_axes[-1].set_xlabel("tensor operations, sorted")
    finish(figure, path, measured["machine"])


def draw_loader(measured: dict[str, Any], path: Path) -> None:
    """Draw the rows per second of each way to read shuffled batches."""
    rates = {
        name: statistics.median(numbers["rows_per_s"])
        for name, numbers in measured["contestants"].items()
    }
    names = sorted(rates, key=rates.__getitem__)
    figure, [axes] = figure_of(1, 1.8 + 0.5 * len(names), left=0.04)
    ours = [
        COLOURS["ours" if name.startswith("BatchLoader") else "bare"] for name in names
    ]
    axes.barh(names, [rates[name] / 1e3 for name in names], 0.4, color=ours)
    axes.set_yticks([])
    for row, name in enumerate(names):
        axes.text(0, row + 0.26, name, va="bottom")
    axes.set_ylim(-0.4, len(names) - 0.2)
    axes.set_xlabel("thousand rows of 12 KiB a second, shuffled")
    axes.set_title("An epoch of data in files, more is better", loc="left")
    finish(figure, path, measured["machine"])


def main() -> None:
    """Draw the measurements in the folder."""
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
