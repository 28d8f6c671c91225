"""Measure on other Pythons, from the wheel, beside the published release.

``pythons_speed.py 3.11 3.15`` runs the benchmarks in the environments of ``tools/pythons.py``.
The published release is installed in a separate folder there. The numbers are stored in
``docs/performance/pythons/VERSION``. Then the table in ``docs/performance.md`` is written from
all stored numbers; without a Python, the program only writes the table. Stop other programs
during a measurement.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from python_environments import Environment, Unavailable
from pythons import ROOT, prepare

KEPT = ROOT / "docs" / "performance" / "pythons"
PAGE = ROOT / "docs" / "performance.md"
BEGIN, END = (
    "<!-- speed: written by tools/pythons_speed.py -->",
    "<!-- speed: end -->",
)
RELEASE = ("tensordict==0.15.3", "pyvers<0.3", "importlib_metadata", "zipp")

BENCHES = {
    "operations": [
        *("-m", "benches.python", "--tree", "flat 4", "--tree", "nested 20"),
        *("--peer", "release"),
    ],
    "tensorclass": ["benches/tensorclass.py", "--peer", "release"],
    "compilation": ["benches/compilation.py", "--peer", "release"],
    "loader": ["benches/data_loader.py", "--peer", "release"],
    "storage": ["benches/storage.py", "--only", "240 x 5 MB", "--peer", "release"],
    "checkpoint": ["benches/checkpoint.py", "--only", "save", "restore"],
}
"""From names to programs with their arguments. Each writes a file of its name."""

STRUCTURE = """
clone(False)|select|exclude|flatten_keys|update|keys|items|get|set|lock and unlock
"""
"""The structure operations with a goal, by their names in ``benches/python``."""


def measure(environment: Environment, names: list[str], rounds: int | None) -> bool:
    """Run benchmarks in an environment; return whether all wrote their numbers."""
    release = environment.work / "release"
    if not release.exists() and not environment.install_apart(release, RELEASE):
        shutil.rmtree(release, ignore_errors=True)
        raise Unavailable("pip cannot install the published release")
    target = KEPT / environment.name
    target.mkdir(parents=True, exist_ok=True)
    is_well = True
    for name in names:
        print(f"{environment.name}: {name}", flush=True)
        options = [] if rounds is None else ["--rounds", str(rounds)]
        output = environment.work / f"{name}.json"
        output.unlink(missing_ok=True)
        environment.run(["python", *BENCHES[name], *options, "--json", output.name])
        if output.exists():
            shutil.copy(output, target)
        else:
            print(f"{environment.name}: {name} did not end", flush=True)
            is_well = False
    return is_well


def mean(ratios: list[float]) -> float:
    """Return the geometric mean."""
    return math.exp(statistics.fmean(map(math.log, ratios)))


def of_operations(measured: dict[str, Any]) -> dict[str, str]:
    """Return the rows for the operations."""
    rows = {}
    for tree, found in measured["trees"].items():
        complete = {name: one for name, one in found.items() if "error" not in one}
        for side, key in (("this package", "ours"), ("published package", "peer")):
            ratios = [
                times[key]["min"] / times["bare"]["min"]
                for times in complete.values()
                if "bare" in times and key in times
            ]
            title = f"{tree} leaves: tensor operations / bare loop"
            rows[f"{title}, {side}"] = f"{mean(ratios):.2f}"
        faster = [
            complete[name]["peer"]["min"] / complete[name]["ours"]["min"]
            for name in STRUCTURE.strip().split("|")
            if "peer" in complete.get(name, ())
        ]
        title = f"{tree} leaves: structure operations"
        rows[f"{title}, times as fast as the published package"] = f"{mean(faster):.1f}"
        slower = [
            f"`{name}`"
            for name, times in complete.items()
            if "peer" in times and times["ours"]["min"] > times["peer"]["min"]
        ]
        title = f"{tree} leaves: operations slower than in the published package"
        rows[title] = ", ".join(slower) or "none"
    return rows


def of_tensorclass(measured: dict[str, Any]) -> dict[str, str]:
    """Return the rows for tensorclasses."""
    ours, peer = measured["ns"]["ours"], measured["ns"]["peer"]
    by_hand = ours["read, batch []"] / ours["a property by hand"]
    faster = [peer[name] / ours[name] for name in ours if name != "a property by hand"]
    return {
        "tensorclass: reading a field / a hand-written property": f"{by_hand:.2f}",
        "tensorclass: times as fast as the published package": f"{mean(faster):.1f}",
    }


def of_compilation(measured: dict[str, Any]) -> dict[str, str]:
    """Return the rows for compiled functions."""
    found = measured["of_the_release"]["containers"]
    return {
        "compile: time to the first result / published package": f"{found['compile_s']:.2f}",
        "compile: a call / published package": f"{found['call_s']:.2f}",
        "compile: its guards / published package": f"{found['guards_s']:.2f}",
    }


def of_loader(measured: dict[str, Any]) -> dict[str, str]:
    """Return the rows for shuffled batches."""
    rates = {
        name: statistics.median(numbers["rows_per_s"]) / 1e3
        for name, numbers in measured["contestants"].items()
    }
    wanted = ("BatchLoader", "NumPy by hand", "DataLoader, 2 workers, release")
    return {
        f"loader: thousand rows a second, {name}": f"{rates[name]:.0f}"
        for name in wanted
        if name in rates
    }


def of_storage(measured: dict[str, Any]) -> dict[str, str]:
    """Return the rows for saving and loading, from the shortest time of each side."""
    rows = {}
    for name, sides in measured["workloads"].items():
        least = {side: min(numbers["s"]) for side, numbers in sides.items()}
        rows[f"storage, {name} / system calls"] = (
            f"{least['ours'] / least['limit']:.2f}"
        )
        others = [least[side] for side in least if side.startswith("peer")]
        if others:
            rows[f"storage, {name}, times as fast as the published package"] = (
                f"{min(others) / least['ours']:.2f}"
            )
    return rows


def of_checkpoint(measured: dict[str, Any]) -> dict[str, str]:
    """Return the rows for checkpoints, from the median time of each side."""
    rows = {}
    for title, found in measured["rounds"].items():
        medians = {name: statistics.median(s) for name, s in found["s"].items()}
        limit = medians.pop(found["limit"])
        for name in CHECKPOINTS:
            if name in medians:
                rows[f"checkpoint, {title}, {name} / {found['limit']}"] = (
                    f"{medians[name] / limit:.2f}"
                )
    return rows


CHECKPOINTS = (
    *("Checkpointer", "torch.distributed.checkpoint", "torch.save without its CRC"),
    *("Checkpointer, lazy", "torch.load with mmap"),
)
"""The contestants that get a row if they were measured."""

ROWS = {
    "operations": of_operations,
    "tensorclass": of_tensorclass,
    "compilation": of_compilation,
    "loader": of_loader,
    "storage": of_storage,
    "checkpoint": of_checkpoint,
}


def table(folder: Path) -> str:
    """Return the table of all Pythons with stored numbers in a folder."""
    names = sorted(
        (path.name for path in folder.glob("3.*")), key=lambda name: int(name[2:])
    )
    if not names:
        return "Not measured yet."
    columns: dict[str, dict[str, str]] = {}
    for name in names:
        column = columns[name] = {}
        for bench, rows in ROWS.items():
            path = folder / name / f"{bench}.json"
            if path.exists():
                measured = json.loads(path.read_text("utf-8"))
                machine = measured["machine"]
                column["Python"], column["torch"] = machine["python"], machine["torch"]
                column["date"], column["load"] = machine["date"], str(machine["load"])
                column |= rows(measured)
    titles = dict.fromkeys(title for column in columns.values() for title in column)
    lines = ["| | " + " | ".join(names) + " |", "| --- " * (len(names) + 1) + "|"]
    for title in titles:
        cells = [columns[name].get(title, "-") for name in names]
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def page(text: str, folder: Path) -> str:
    """Return the text of the page with the current table."""
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}\n\n{table(folder)}\n\n{END}{after}"


def main() -> None:
    """Measure on each named Python, then write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pythons", nargs="*", help="such as 3.11 3.15")
    parser.add_argument(
        "--where",
        type=Path,
        default=ROOT / "build" / "pythons",
        help="folder of the environments (default: build/pythons)",
    )
    parser.add_argument(
        "--wheels",
        type=Path,
        help="folder of built wheels (default: make builds them)",
    )
    parser.add_argument(
        "--only",
        nargs="*",
        default=[*BENCHES],
        choices=[*BENCHES],
        help="benchmarks to run (default: all)",
    )
    parser.add_argument("--rounds", type=int, help="rounds of each benchmark")
    arguments = parser.parse_args()
    arguments.libraries = False
    is_well = True
    for name in arguments.pythons:
        try:
            environment = prepare(name, arguments)
            is_well &= measure(environment, arguments.only, arguments.rounds)
        except (Unavailable, subprocess.CalledProcessError) as reason:
            print(f"{name} is not measured: {reason}", flush=True)
            is_well = False
    PAGE.write_text(page(PAGE.read_text("utf-8"), KEPT), "utf-8")
    sys.exit(not is_well)


if __name__ == "__main__":
    main()
