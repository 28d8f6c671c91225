"""``python -m benches.python --peer DIR``: the table of ratios.

Every operation runs with this package and with the published release, in separate
processes, and as a bare torch loop in the process of this package. In each round, the
operation and its loop alternate in short batches, then the release runs. The minimum over
all batches counts. Ratios below 1 are good in the columns ``/bare`` and ``/peer``.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from benches.machine import about
from benches.python.operations import OPERATIONS, Operation

TREES = ["flat 4", "flat 50", "nested 20", "flat 1000"]
GRACE_S = 1e-6  # what a call may cost beyond the factor
BATCH_S = 2e-4  # short, so that some batches run undisturbed on a busy machine
BATCHES = 6  # of each side in a round


class Worker:
    """One implementation in a separate process."""

    def __init__(self, path: str | None, **variables: str) -> None:
        environment = dict(os.environ, OMP_NUM_THREADS="1", **variables)
        if path:
            environment["PYTHONPATH"] = path
        script = Path(__file__).with_name("worker.py")
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def time(self, tree: str, expressions: list[str]) -> list[list[float]] | str:
        """Return the seconds a call for each expression, or the text of the error."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        request = {
            "tree": tree,
            "expressions": expressions,
            "seconds": BATCH_S,
            "repeats": BATCHES,
        }
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            return "the process died"
        answer = json.loads(line)
        return answer.get("seconds", answer.get("error"))

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def measure(
    ours: Worker, peer: Worker | None, tree: str, operation: Operation, rounds: int
) -> dict[str, Any]:
    """Return minimum and median seconds of each side over alternating rounds."""
    turns: list[tuple[Worker, dict[str, str]]] = [(ours, {"ours": operation.container})]
    if operation.bare is not None:
        turns[0][1]["bare"] = operation.bare
    if peer is not None:
        turns.append((peer, {"peer": operation.container}))
    samples: dict[str, list[float]] = {}
    for _ in range(rounds):
        for worker, sides in turns:
            counts = worker.time(tree, list(sides.values()))
            if isinstance(counts, str):
                return {"error": f"{' and '.join(sides)}: {counts}"}
            for side, seconds in zip(sides, counts, strict=True):
                samples.setdefault(side, []).extend(seconds)
    return {
        side: {"min": rounded(min(s)), "median": rounded(statistics.median(s))}
        for side, s in samples.items()
    }


def rounded(seconds: float) -> float:
    """Return a number rounded to four digits."""
    return float(f"{seconds:.4g}")


def geometric_mean(values: list[float]) -> float:
    """Return the geometric mean; NaN for no numbers."""
    if not values:
        return math.nan
    return math.exp(sum(map(math.log, values)) / len(values))


STRUCTURE_GOAL = """
clone(False)|select|exclude|flatten_keys|update|keys|items|get|set|lock and unlock
"""
"""The structure operations with a goal."""


def report(tree: str, rows: list[tuple[Operation, dict[str, Any]]]) -> None:
    """Print the table of one tree and its geometric means."""
    print(f"\n## {tree} leaves\n")
    print(
        f"{'operation':22s} {'ours us':>9s} {'bare us':>9s} {'peer us':>9s}"
        f" {'/bare':>6s} {'/peer':>6s}"
    )
    ratios: dict[str, list[float]] = {
        group: [] for group in ("bare", "tensor", "structure", "further")
    }
    for operation, result in rows:
        if "error" in result:
            print(f"{operation.name:22s} {result['error']}")
            continue
        ours = result["ours"]["min"]
        cells = [f"{operation.name:22s} {ours * 1e6:9.2f}"]
        to_bare = to_peer = ""
        cells += [
            f"{result[side]['min'] * 1e6:9.2f}" if side in result else " " * 9
            for side in ("bare", "peer")
        ]
        mark = ""
        if "bare" in result:
            bare = result["bare"]["min"]
            ratios["bare"].append(ours / bare)
            to_bare = f"{ours / bare:6.2f}"
            if ours > 1.15 * bare + GRACE_S:
                mark += " over the bare loop"
        if "peer" in result:
            peer = result["peer"]["min"]
            ratios[operation.group].append(ours / peer)
            to_peer = f"{ours / peer:6.2f}"
            if ours > peer:
                mark += " slower than the release"
        print(" ".join(cells), f"{to_bare:>6s} {to_peer:>6s}{mark}")
    bare, *others = (geometric_mean(values) for values in ratios.values())
    print(
        f"geometric means: tensor operations {bare:.2f} of the bare loop; of the release:"
        " tensor {:.2f}, structure {:.2f}, further {:.2f}".format(*others)
    )
    wanted = STRUCTURE_GOAL.strip().split("|")
    goal = [
        result["ours"]["min"] / result["peer"]["min"]
        for operation, result in rows
        if operation.name in wanted and "peer" in result
    ]
    if goal:
        print(f"those of the goal: {1 / geometric_mean(goal):.1f} times faster")


def main() -> None:
    """Measure, print the tables, and write all numbers to the file of ``--json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", help="folder with the installed published release")
    parser.add_argument("--only", help="run operations with this in the name")
    parser.add_argument(
        "--group",
        choices=["tensor", "structure", "further"],
        help="run one group of operations (default: all)",
    )
    parser.add_argument(
        "--tree",
        action="append",
        choices=[*TREES, "flat 16"],
        help="a tree of entries; repeatable",
    )
    parser.add_argument("--rounds", type=int, default=30, help="rounds (default: 30)")
    parser.add_argument("--json", help="file to write all numbers to")
    arguments = parser.parse_args()
    ours = Worker(None)
    peer = Worker(arguments.peer) if arguments.peer else None
    trees: dict[str, Any] = {}
    machine = about()
    for tree in arguments.tree or TREES:
        rows = [
            (operation, measure(ours, peer, tree, operation, arguments.rounds))
            for operation in OPERATIONS
            if (not arguments.only or arguments.only in operation.name)
            and arguments.group in (None, operation.group)
        ]
        report(tree, rows)
        trees[tree] = {
            operation.name: {"group": operation.group, **result}
            for operation, result in rows
        }
    if arguments.json:
        everything = {"machine": machine, "rounds": arguments.rounds, "trees": trees}
        Path(arguments.json).write_text(json.dumps(everything) + "\n")


if __name__ == "__main__":
    main()
