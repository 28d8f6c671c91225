"""Measure the gain of native primitives over their twins, for ``docs/dev/native.md``.

Each row is an operation that a program calls. It runs with all native primitives, and
without the primitive (``TENSORDICT_NATIVE``), in separate processes that alternate. The
minimum over rounds and batches counts. The gain is the time without the primitive divided
by the time with it. ``again`` shows the noise: a second process with all primitives.

    python -m benches.native --rounds 10
"""

from __future__ import annotations

import argparse
import os

from benches.python.__main__ import TREES, Worker

ENOUGH = 1.3
"""A native primitive is kept if it gains this much on one of its rows."""

ROWS = {
    "flatten_keys": ['td.flatten_keys(".")'],
    "unflatten_keys": ['flat.unflatten_keys(".")'],
    "string_keys": ["td.keys()", "list(td.keys())", "'x' in td.keys()"],
    "walk": ["list(td.keys(True, True))", "list(td.items(True, True))"],
    "containers": ["td.clone().lock_().unlock_()", "td.to('cpu')"],
    "cloned_members": ["stacked.clone(False)", "copy.copy(stacked)"],
}
"""From primitives to the rows that measure their gain."""


def measure(
    name: str, rows: list[str], tree: str, rounds: int
) -> dict[str, dict[str, float]]:
    """Return the minimum seconds of each row: with the primitive, again, without it."""
    path = os.environ.get("PYTHONPATH")
    workers = {
        "native": Worker(path, TENSORDICT_NATIVE=""),
        "again": Worker(path, TENSORDICT_NATIVE=""),
        "without": Worker(path, TENSORDICT_NATIVE=f"-{name}"),
    }
    least: dict[str, dict[str, float]] = {row: {} for row in rows}
    for _ in range(rounds):
        for row in rows:
            for side, worker in workers.items():
                counts = worker.time(tree, [row])
                if isinstance(counts, str):
                    raise SystemExit(f"{row} with {side}: {counts}")
                known = least[row].get(side, float("inf"))
                least[row][side] = min(known, *counts[0])
    for worker in workers.values():
        worker.close()
    return least


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10, help="rounds (default: 10)")
    parser.add_argument(
        "--only", default="", help="run primitives with this in the name"
    )
    parser.add_argument(
        "--tree", default="nested 20", choices=TREES, help="the tree of entries"
    )
    arguments = parser.parse_args()
    print("| Primitive | Row | Native us | Gain | Again |")
    print("| --- | --- | --- | --- | --- |")
    for name, rows in ROWS.items():
        if arguments.only not in name:
            continue
        least = measure(name, rows, arguments.tree, arguments.rounds)
        for row, found in least.items():
            base = found["native"]
            gain, again = (found[side] / base for side in ("without", "again"))
            print(
                f"| `{name}` | `{row}` | {base * 1e6:.2f} | {gain:.2f} | {again:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
