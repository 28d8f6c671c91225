"""``python benches/distributed.py --peer DIR``: messages between two processes over gloo.

Two pairs of processes, one for this package and one for the published release of which
``DIR`` has the package, take turns of short rounds. Beside each call stands the bare one
that moves the same bytes, in the same round: one tensor for many leaves. Wall time and
processor time of rank 0 are told, the least and the median of the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

CASES = ("send", "send_bare", "reduce", "reduce_bare", "large", "large_bare")

OVER = {"send": "send_bare", "reduce": "reduce_bare", "large": "large_bare"}


def calls(rank: int, megabytes: int) -> dict[str, tuple[Callable[[], Any], int]]:
    """The calls of a rank, and how often each is repeated in a round."""
    import torch
    from torch import distributed

    from tensordict import TensorDict

    small = TensorDict({f"key {number}": torch.zeros(4) for number in range(1000)})
    flat = torch.zeros(4000)
    length = megabytes * (1 << 20) // 40
    large = TensorDict({f"key {number}": torch.zeros(length) for number in range(10)})
    large_flat = torch.zeros(10 * length)

    def transfer(td: TensorDict) -> Callable[[], Any]:
        return lambda: td.send(dst=1) if rank == 0 else td.recv(src=0)

    def bare(tensor: torch.Tensor) -> Callable[[], Any]:
        if rank == 0:
            return lambda: distributed.send(tensor, dst=1)
        return lambda: distributed.recv(tensor, src=0)

    return {
        "send": (transfer(small), 5),
        "send_bare": (bare(flat), 20),
        "reduce": (small.all_reduce, 3),
        "reduce_bare": (lambda: distributed.all_reduce(flat), 20),
        "large": (transfer(large), 1),
        "large_bare": (bare(large_flat), 1),
    }


def serve(rank: int, path: str, megabytes: int) -> None:
    """Run the cases that standard input names, and tell wall and processor time."""
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{path}", rank=rank, world_size=2
    )
    known = calls(rank, megabytes)
    for line in sys.stdin:
        call, repeats = known[line.strip()]
        distributed.barrier()
        # The first one of a round finds the other side ready.
        walls = []
        before = time.process_time()
        for _ in range(repeats):
            start = time.perf_counter()
            call()
            walls.append(time.perf_counter() - start)
        used = (time.process_time() - before) / repeats
        sys.stdout.write(json.dumps([min(walls), used]) + "\n")
        sys.stdout.flush()
    os._exit(0)


class Pair:
    """Two processes of one package."""

    def __init__(self, package: str, megabytes: int) -> None:
        folder = tempfile.mkdtemp()
        self.processes = [
            subprocess.Popen(
                [
                    *(sys.executable, "-W", "ignore", __file__, "--megabytes"),
                    *(str(megabytes), "--rank", str(rank), "--path", f"{folder}/group"),
                ],
                env=dict(os.environ, PYTHONPATH=package, OMP_NUM_THREADS="1"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]

    def run(self, case: str) -> list[float]:
        """Run a case: wall and processor time of rank 0, in seconds."""
        for process in self.processes:
            process.stdin.write(case + "\n")
            process.stdin.flush()
        answers = [json.loads(process.stdout.readline()) for process in self.processes]
        return answers[0]

    def close(self) -> None:
        """End the processes."""
        for process in self.processes:
            process.stdin.close()
            process.wait()


def main() -> None:
    """Let the pairs take turns, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", help="where the published release is installed")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--rank", type=int)
    parser.add_argument("--path")
    options = parser.parse_args()
    if options.rank is not None:
        serve(options.rank, options.path, options.megabytes)
    packages = {"ours": str(Path(__file__).parents[1] / "python")}
    if options.peer:
        packages["release"] = options.peer
    pairs = {name: Pair(path, options.megabytes) for name, path in packages.items()}
    found: dict[tuple[str, str], list[list[float]]] = {}
    for number in range(options.rounds):
        for case in CASES:
            if case.startswith("large") and number >= 5:
                continue
            for name, pair in pairs.items():
                found.setdefault((case, name), []).append(pair.run(case))
    for pair in pairs.values():
        pair.close()
    print(f"load {os.getloadavg()}, torch on the CPU, gloo, wall (CPU of rank 0) in ms")
    print(f"{'case':12} {'who':8} {'least':>18} {'median':>18} {'over bare':>10}")
    for (case, name), times in found.items():
        walls, used = ([each[place] * 1e3 for each in times] for place in (0, 1))
        least = f"{min(walls):.3f} ({min(used):.3f})"
        middle = f"{statistics.median(walls):.3f} ({statistics.median(used):.3f})"
        over = ""
        if case in OVER:
            base = [each[0] * 1e3 for each in found[OVER[case], name]]
            over = f"{min(walls) / min(base):.2f}"
        print(f"{case:12} {name:8} {least:>18} {middle:>18} {over:>10}")


if __name__ == "__main__":
    main()
