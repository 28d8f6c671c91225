"""``python benches/distributed.py --peer DIR``: messages between two processes over gloo.

Two pairs of processes, one for this package and one for the published release in
``DIR``, alternate in short rounds. Beside each call the same round times a bare call
that moves the same bytes: one tensor instead of many leaves, and for a pipe one buffer
through a socket. Prints the wall time of rank 0 and the CPU time of both ranks: the
minimum and the median of the rounds. ``--cases large large_bare pipe pipe_bare`` runs
some of the cases.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

OVER = {
    "send": ("send_bare",),
    "reduce": ("reduce_bare",),
    "large": ("large_bare",),
    "pipe": ("large_bare", "pipe_bare"),
}
"""The bare calls that each call is compared with."""

CASES = tuple(dict.fromkeys(each for case in OVER for each in (case, *OVER[case])))

ONLY_OURS = ("pipe", "pipe_bare")
"""Pipes of the release need UCXX."""

ROUNDS_OF_LARGE = 5


def calls(
    rank: int, megabytes: int, is_ours: bool
) -> dict[str, tuple[Callable[[], Any], int]]:
    """Return the calls of a rank, and the repetitions of each in a round."""
    import torch
    from torch import distributed

    from tensordict import TensorDict

    small = TensorDict({f"key {number}": torch.zeros(4) for number in range(1000)})
    flat = torch.zeros(4000)
    # The leaves lie in the tensor of the bare call: both move the same memory.
    large_flat = torch.ones(megabytes * (1 << 20) // 40 * 10)
    pieces = large_flat.chunk(10)
    large = TensorDict({f"key {number}": piece for number, piece in enumerate(pieces)})

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
        **(pipe_calls(rank, large, large_flat) if is_ours else {}),
    }


def pipe_calls(rank: int, large: Any, flat: Any) -> dict[str, Any]:
    """Return the calls of a rank that go through a TCP socket."""
    import torch
    from torch import distributed

    from tensordict._ucxx import TensorDictPipe

    port = torch.zeros(1, dtype=torch.long)
    if rank == 1:
        server = socket.create_server(("127.0.0.1", 0))
        port += server.getsockname()[1]
    distributed.broadcast(port, src=1)
    if rank == 1:
        ends = [server.accept()[0] for _ in range(2)]
    else:
        address = "127.0.0.1", int(port)
        ends = [socket.create_connection(address) for _ in range(2)]
    pipe, end = TensorDictPipe(ends[0]), ends[1]
    content = memoryview(flat.numpy()).cast("B")

    def receive() -> None:
        done = 0
        while done < len(content):
            done += end.recv_into(content[done:])

    if rank == 0:
        calls = (lambda: pipe.send(large)), (lambda: end.sendall(content))
    else:
        calls = pipe.recv, receive
    return {"pipe": (calls[0], 1), "pipe_bare": (calls[1], 1)}


def serve(rank: int, path: str, megabytes: int, is_ours: bool) -> None:
    """Run the cases that standard input names, and print wall and CPU time."""
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{path}", rank=rank, world_size=2
    )
    known = calls(rank, megabytes, is_ours)
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


OURS = str(Path(__file__).parents[1] / "python")


class Pair:
    """Two processes of one package."""

    def __init__(self, package: str, megabytes: int) -> None:
        folder = tempfile.mkdtemp()
        self.processes = [
            subprocess.Popen(
                [
                    *(sys.executable, "-W", "ignore", __file__, "--megabytes"),
                    *(str(megabytes), "--rank", str(rank), "--path", f"{folder}/group"),
                    *(["--ours"] if package == OURS else []),
                ],
                env=dict(os.environ, PYTHONPATH=package, OMP_NUM_THREADS="1"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]

    def run(self, case: str) -> list[float]:
        """Run a case: seconds of wall time of rank 0 and of CPU time of both."""
        for process in self.processes:
            process.stdin.write(case + "\n")
            process.stdin.flush()
        answers = [json.loads(process.stdout.readline()) for process in self.processes]
        return [answers[0][0], answers[0][1] + answers[1][1]]

    def close(self) -> None:
        """End the processes."""
        for process in self.processes:
            process.stdin.close()
            process.wait()


def main() -> None:
    """Run the pairs in turns, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", help="folder with the installed published release")
    parser.add_argument("--rounds", type=int, default=15, help="rounds (default: 15)")
    parser.add_argument(
        "--megabytes",
        type=int,
        default=1000,
        help="bytes of a large message (default: 1000)",
    )
    parser.add_argument(
        "--cases",
        nargs="*",
        default=CASES,
        choices=CASES,
        help="cases to run (default: all)",
    )
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--path", help=argparse.SUPPRESS)
    parser.add_argument("--ours", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        serve(options.rank, options.path, options.megabytes, options.ours)
    packages = {"ours": OURS}
    if options.peer:
        packages["release"] = options.peer
    pairs = {name: Pair(path, options.megabytes) for name, path in packages.items()}
    found: dict[tuple[str, str], list[list[float]]] = {}
    for number in range(options.rounds):
        for case in options.cases:
            is_large = case.startswith(("large", "pipe"))
            if is_large and number >= ROUNDS_OF_LARGE:
                continue
            for name, pair in pairs.items():
                if name == "ours" or case not in ONLY_OURS:
                    found.setdefault((case, name), []).append(pair.run(case))
    for pair in pairs.values():
        pair.close()
    tell(found)


def tell(found: dict[tuple[str, str], list[list[float]]]) -> None:
    """Print the table."""
    print(f"load {os.getloadavg()}, torch on the CPU, gloo, wall (CPU of both) in ms")
    print(f"{'case':12} {'who':8} {'least':>20} {'median':>20}  over bare")
    for (case, name), times in found.items():
        least = [1e3 * min(each[place] for each in times) for place in (0, 1)]
        middle = [
            1e3 * statistics.median(each[place] for each in times) for place in (0, 1)
        ]
        over = ""
        for bare in OVER.get(case, ()):
            base = found.get((bare, name))
            if base:
                wall, used = (min(each[place] for each in base) for place in (0, 1))
                over += f"  {least[0] / wall / 1e3:.2f}"
                over += f" ({least[1] / used / 1e3:.2f}) of {bare}"
        cells = [f"{wall:.3f} ({used:.3f})" for wall, used in (least, middle)]
        print(f"{case:12} {name:8} {cells[0]:>20} {cells[1]:>20}{over}")


if __name__ == "__main__":
    main()
