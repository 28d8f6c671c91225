"""``python benches/lazy.py --peer DIR``: a lazy stack of 1,000 members with two leaves.

Each operation is timed beside the torch calls that it needs at least, and with the
published release, which alternates in a separate process. Prints the minimum and the
median of the ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

NUM_MEMBERS = 1000


def operations() -> dict[str, tuple[Callable[[], Any], Callable[[], Any] | None]]:
    """Return each operation, with its bare torch calls if there are any."""
    from tensordict import TensorDict, lazy_stack

    members = [
        TensorDict(a=torch.randn(8), n=TensorDict(b=torch.randn(4)))
        for _ in range(NUM_MEMBERS)
    ]
    stack = lazy_stack(members)
    first = [member["a"] for member in members]
    second = [member["n", "b"] for member in members]
    leaves = [leaf for pair in zip(first, second, strict=True) for leaf in pair]
    rows = torch.randint(0, NUM_MEMBERS, (100,))
    return {
        "get": (lambda: stack.get("a"), lambda: torch.stack(first)),
        "get nested": (lambda: stack["n", "b"], lambda: torch.stack(second)),
        "contiguous": (
            stack.contiguous,
            lambda: (torch.stack(first), torch.stack(second)),
        ),
        "+ 1": (lambda: stack + 1, lambda: torch._foreach_add(leaves, 1)),
        "stack + stack": (
            lambda: stack + stack,
            lambda: torch._foreach_add(leaves, leaves),
        ),
        "lazy_stack": (lambda: lazy_stack(members), None),
        "keys(True, True)": (lambda: list(stack.keys(True, True)), None),
        "repr": (lambda: repr(stack), None),
        "batch_size": (lambda: stack.batch_size, None),
        "index by tensor": (lambda: stack[rows], None),
        "clone(False)": (lambda: stack.clone(False), None),
    }


def best_us(function: Callable[[], Any], repeats: int = 30) -> float:
    """Return the shortest time of a call, in microseconds."""
    function()
    times = []
    for _ in range(repeats):
        start_s = time.perf_counter()
        function()
        times.append(time.perf_counter() - start_s)
    return min(times) * 1e6


def measure() -> dict[str, tuple[float, float | None]]:
    """Return for each operation its microseconds, and those of the bare calls."""
    return {
        name: (best_us(ours), None if bare is None else best_us(bare))
        for name, (ours, bare) in operations().items()
    }


def measured_by(path: str | None) -> dict[str, Any]:
    """Run :func:`measure` in a separate process, with the package at ``path``."""
    environment = dict(os.environ)
    if path is not None:
        environment["PYTHONPATH"] = path
    command = [sys.executable, "-W", "ignore", __file__, "--worker"]
    result = subprocess.run(
        command, env=environment, check=True, capture_output=True, text=True
    )
    found: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Print one line for each operation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", help="folder with the installed published release")
    parser.add_argument("--rounds", type=int, default=5, help="rounds (default: 5)")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        print(json.dumps(measure()))
        return
    ours = [measured_by(None) for _ in range(arguments.rounds)]
    peer = []
    if arguments.peer:
        peer = [measured_by(arguments.peer) for _ in range(arguments.rounds)]
    print(f"{NUM_MEMBERS} members, {arguments.rounds} rounds; microseconds, best")
    print(f"{'operation':18}{'ours':>10}{'bare':>10}{'ours/bare':>22}{'peer':>10}")
    for name in ours[0]:
        line = f"{name:18}{min(each[name][0] for each in ours):10.1f}"
        if ours[0][name][1] is None:
            line += f"{'':32}"
        else:
            ratios = [each[name][0] / each[name][1] for each in ours]
            bare = min(each[name][1] for each in ours)
            spread = f"{min(ratios):.2f}, median {statistics.median(ratios):.2f}"
            line += f"{bare:10.1f}{spread:>22}"
        if peer:
            line += f"{min(each[name][0] for each in peer):10.1f}"
        print(line)


if __name__ == "__main__":
    main()
