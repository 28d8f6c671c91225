"""``python benches/map.py --peer DIR``: the overhead of ``map`` over the work itself.

Each measure runs with this package and, if it ends there, with the published release,
alternately in separate processes. CPU time includes child processes.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

FORK = {"mp_start_method": "fork"}


def identity(row: Any) -> Any:
    return row


def flip(row: Any) -> None:
    row.set_("images", row.get("images").flip(-2).clone())
    row.set_("labels", row.get("labels") // 10)


def work(row: Any) -> Any:
    end = time.thread_time() + float(row["seconds"])
    while time.thread_time() < end:
        pass
    return row


def cpu_seconds() -> float:
    used = [
        resource.getrusage(who)
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    ]
    return sum(one.ru_utime + one.ru_stime for one in used)


def cpu_of(call: Callable[[], Any]) -> float:
    before = cpu_seconds()
    call()
    return cpu_seconds() - before


def wall_of(call: Callable[[], Any]) -> float:
    before = time.perf_counter()
    call()
    return time.perf_counter() - before


def added_cpu_per_row() -> float:
    """Return CPU microseconds for each of 5,000 rows of four leaves, beyond a loop."""
    from tensordict import TensorDict

    td = TensorDict({key: torch.randn(5000, 8) for key in "abcd"}, batch_size=[5000])
    call = cpu_of(lambda: td.map(identity, num_workers=2, chunksize=0, **FORK))
    plain = cpu_of(lambda: [identity(td[row]) for row in range(5000)])
    return (call - plain) / 5000 * 1e6


def flip_of_mapped_images() -> float:
    """Return the CPU time of the example, divided by the CPU time of a plain loop."""
    return _flip(lambda data, _: data.map(flip, num_workers=2, chunksize=0, **FORK))


def flip_in_a_bare_child() -> float:
    """Return the CPU time of the loop in a forked child over the loop's here.

    A child has the open files but no page tables for them. No map that works in a new
    process can take less.
    """

    def child(_: Any, loop: Callable[[], None]) -> None:
        process = os.fork()
        if process == 0:
            loop()
            os._exit(0)
        os.waitpid(process, 0)

    return _flip(child)


def _flip(call: Callable[[Any, Callable[[], None]], Any]) -> float:
    from tensordict import TensorDict

    with tempfile.TemporaryDirectory() as folder:
        data = TensorDict(
            images=torch.zeros(2000, 128, 128, 3, dtype=torch.uint8),
            labels=torch.zeros(2000, dtype=torch.int),
            batch_size=[2000],
        ).memmap_(folder)

        def loop() -> None:
            for row in range(2000):
                flip(data[row])

        torch.set_num_threads(1)
        loop()
        plain = cpu_of(loop)
        return cpu_of(lambda: call(data, loop)) / plain


def speedup_of_two_workers() -> float:
    """Return how much faster 200 rows of 10 ms are with two workers than with one."""
    from tensordict import TensorDict

    td = TensorDict(seconds=torch.full((200,), 0.01), batch_size=[200])
    one, two = (
        wall_of(lambda n=n: td.map(work, num_workers=n, chunksize=0, **FORK))
        for n in (1, 2)
    )
    return one / two


def skew(kind: str) -> float:
    """Return the wall time of skewed work for two workers over the ideal one."""
    from tensordict import TensorDict

    seconds = torch.full((200,), 0.005)
    if kind == "ramp":
        seconds = torch.linspace(0, 0.01, 200)
    else:
        seconds[0 if kind == "first" else 100] = 0.5
    td = TensorDict(seconds=seconds, batch_size=[200])
    wall = wall_of(lambda: td.map(work, num_workers=2, chunksize=0, **FORK))
    return wall / (float(seconds.sum()) / 2)


def break_after_the_first() -> float:
    """Return the seconds until a loop over 1,000 rows of 10 ms is left."""
    from tensordict import TensorDict

    td = TensorDict(seconds=torch.full((1000,), 0.01), batch_size=[1000])

    def loop() -> None:
        for _ in td.map_iter(work, num_workers=2, chunksize=0, **FORK):
            break

    return wall_of(loop)


def warm_pool() -> float:
    """Return the CPU seconds of the second call in a pool."""
    from tensordict import TensorDict
    from tensordict.parallel import WorkerPool

    td = TensorDict(a=torch.zeros(2), batch_size=[2])
    with WorkerPool(2, "spawn") as pool:
        td.map(identity, pool=pool)
        before = cpu_seconds() + _children_cpu()
        td.map(identity, pool=pool)
        return cpu_seconds() + _children_cpu() - before


def _children_cpu() -> float:
    """Return the CPU seconds of living children."""
    import multiprocessing

    ticks = 0
    for child in multiprocessing.active_children():
        text = Path(f"/proc/{child.pid}/stat").read_text()
        ticks += sum(map(int, text.rsplit(")", 1)[1].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


MEASURES: dict[str, Callable[[], float]] = {
    "added CPU per row, us": added_cpu_per_row,
    "flip of mapped images, CPU over the loop": flip_of_mapped_images,
    "flip in a bare forked child, CPU over the loop": flip_in_a_bare_child,
    "two workers against one, times": speedup_of_two_workers,
    "skew, heavy item first, wall over ideal": lambda: skew("first"),
    "skew, heavy item in the middle, wall over ideal": lambda: skew("middle"),
    "skew, ramp, wall over ideal": lambda: skew("ramp"),
    "break after the first of 1,000, s": break_after_the_first,
    "second map with a warm pool, CPU s": warm_pool,
}
OURS_ONLY = ("second map with a warm pool, CPU s",)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", help="folder with the installed published release")
    parser.add_argument("--rounds", type=int, default=3, help="rounds (default: 3)")
    parser.add_argument("--only", default="", help="run cases with this in the name")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        warnings.simplefilter("ignore")
        print(json.dumps(MEASURES[arguments.measure]()))
        return
    for name in MEASURES:
        if arguments.only not in name:
            continue
        found: dict[str, list[float]] = {}
        for _ in range(arguments.rounds):
            for who, path in (("ours", None), ("release", arguments.peer)):
                if who == "release" and (path is None or name in OURS_ONLY):
                    continue
                environment = dict(os.environ)
                if path:
                    environment["PYTHONPATH"] = path
                command = [sys.executable, __file__, "--measure", name]
                answer = subprocess.run(
                    command, env=environment, capture_output=True, text=True, check=True
                )
                found.setdefault(who, []).append(json.loads(answer.stdout))
        shown = ", ".join(
            f"{who} {statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})"
            for who, values in found.items()
        )
        print(f"{name}: {shown}", flush=True)


if __name__ == "__main__":
    main()
