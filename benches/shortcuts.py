"""Measure the gain of each shortcut into CPython and torch, for ``docs/dev/native.md``.

Each operation of ``make bench`` runs with all shortcuts, without one of them, and with none,
alternately in separate processes. A process can be slower than an equal process for its whole
life, so every pass starts new processes. The minimum over passes and batches counts. The gain of
a shortcut is the time without it divided by the time with all. ``all again`` shows the noise.

    python -m benches.shortcuts --passes 3
"""

from __future__ import annotations

import argparse
import os

from benches.python.__main__ import TREES, Worker, geometric_mean
from benches.python.operations import OPERATIONS

from tensordict import _rust

ENOUGH = 1.1
"""A shortcut is removed if its best gain is less."""


def settings() -> dict[str, str]:
    """Return the value of ``TENSORDICT_SHORTCUTS`` for each column."""
    names = list(_rust.shortcuts())
    without = {n: ",".join(m for m in names if m != n) for n in names}
    return {"all": "1", "all again": "1", **without, "none": "0"}


def measure(
    tree: str, passes: int, rounds: int, only: str
) -> dict[str, dict[str, float]]:
    """Return the minimum seconds of each setting and operation."""
    least: dict[str, dict[str, float]] = {name: {} for name in settings()}
    operations = [op for op in OPERATIONS if only in op.name]
    for _ in range(passes):
        workers = {
            name: Worker(os.environ.get("PYTHONPATH"), TENSORDICT_SHORTCUTS=value)
            for name, value in settings().items()
        }
        for op in operations:
            for _ in range(rounds):
                for name, worker in workers.items():
                    counts = worker.time(tree, [op.container])
                    if isinstance(counts, str):
                        continue
                    known = least[name].get(op.name, float("inf"))
                    least[name][op.name] = min(known, *counts[0])
        for worker in workers.values():
            worker.close()
    return least


def report(tree: str, least: dict[str, dict[str, float]]) -> None:
    """Print the best gains of each shortcut, and their geometric mean."""
    print(f"\n## {tree} leaves\n")
    for name, found in least.items():
        gains = {op: seconds / least["all"][op] for op, seconds in found.items()}
        best = sorted(gains, key=gains.__getitem__, reverse=True)[:4]
        count = sum(gain >= ENOUGH for gain in gains.values())
        listed = ", ".join(f"{op} {gains[op]:.2f}" for op in best)
        mean = geometric_mean(list(gains.values()))
        print(f"{name:13s} mean {mean:.3f}, {count:3d} from {ENOUGH} on: {listed}")


def main() -> None:
    """Measure and print one table for each tree."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--passes", type=int, default=3, help="passes with new processes (default: 3)"
    )
    parser.add_argument("--rounds", type=int, default=2, help="rounds (default: 2)")
    parser.add_argument(
        "--only", default="", help="run operations with this in the name"
    )
    parser.add_argument(
        "--tree", action="append", choices=TREES, help="a tree of entries; repeatable"
    )
    arguments = parser.parse_args()
    for tree in arguments.tree or ["flat 4", "nested 20"]:
        least = measure(tree, arguments.passes, arguments.rounds, arguments.only)
        report(tree, least)


if __name__ == "__main__":
    main()
