"""Measure what native primitives gain over their twins, for ``docs/dev/native.md``.

Each row is an operation that a program calls. It runs with everything native, and with the
primitive left out by ``TENSORDICT_NATIVE``, in processes of their own that take turns; the
minimum over rounds and batches counts. The gain is the time without the primitive over the
time with it; ``again`` is the noise: a second process with everything native.

    python -m benches.native --rounds 10
"""

from __future__ import annotations

import argparse
import os

from benches.python.__main__ import TREES, Worker

ENOUGH = 1.3
"""A native primitive stays while it gains this much on one of its rows."""

ROWS = {
    "flatten_keys": ['td.flatten_keys(".")'],
    "unflatten_keys": ['flat.unflatten_keys(".")'],
    "string_keys": ["td.keys()", "list(td.keys())", "'x' in td.keys()"],
    "walk": ["list(td.keys(True, True))", "list(td.items(True, True))"],
    "containers": ["td.clone().lock_().unlock_()", "td.to('cpu')"],
    "cloned_members": ["stacked.clone(False)", "copy.copy(stacked)"],
}
"""The rows on which each primitive is asked what it gains."""


def measure(
    name: str, rows: list[str], tree: str, rounds: int
) -> dict[str, dict[str, float]]:
    """Return the least seconds of each row, with the primitive, again, and without it."""
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
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--only", default="", help="primitives with this in the name")
    parser.add_argument("--tree", default="nested 20", choices=TREES)
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
