"""``python benches/streams.py --peer DIR``: 2,000 windows of two streams, densified.

Measures the time beyond the work of the producers: from values that have arrived to one
nested tensor for each stream. This package is timed twice: the collector, and the loop
of the tutorial (one tensordict a window from lists, appended, densified). The published
release is timed with this loop, alternately in a separate process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time

import torch

NUM_WINDOWS = 2000
SIZES = {"a": 5, "b": 3}


def time_tutorial() -> float:
    """Return the milliseconds of the tutorial's loop over values that have arrived."""
    from tensordict import LazyStackedTensorDict, TensorDict

    windows = [
        {key: list(range(size)) for key, size in SIZES.items()}
        for _ in range(NUM_WINDOWS)
    ]
    start_s = time.perf_counter()
    stack = LazyStackedTensorDict(stack_dim=0)
    for window in windows:
        stack.append(TensorDict(window))
    stack.densify(layout=torch.strided)
    return (time.perf_counter() - start_s) * 1e3


def time_collector() -> float:
    """Return the milliseconds of ``collect`` after all windows have ended."""
    from tensordict.data import StreamCollector

    class Clock(asyncio.SelectorEventLoop):
        now_s = 0.0

        def time(self) -> float:
            return self.now_s

    async def main(loop: Clock) -> float:
        async with StreamCollector(dict.fromkeys(SIZES), 1.0) as collector:
            for window in range(NUM_WINDOWS):
                loop.now_s = window + 0.5
                for key, size in SIZES.items():
                    for value in range(size):
                        collector.push(key, value)
            loop.now_s = float(NUM_WINDOWS)
            start_s = time.perf_counter()
            await collector.collect(NUM_WINDOWS)
            return (time.perf_counter() - start_s) * 1e3

    loop = Clock()
    try:
        return loop.run_until_complete(main(loop))
    finally:
        loop.close()


def run(case: str, path: str | None) -> float:
    """Return the best of three times from a separate process."""
    environment = {**os.environ, "PYTHONPATH": path} if path else None
    out = subprocess.run(
        [sys.executable, __file__, "--case", case],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    return float(json.loads(out.stdout))


def main() -> None:
    """Run the sides in turns and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", help="folder with the installed published release")
    parser.add_argument("--rounds", type=int, default=5, help="rounds (default: 5)")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    cases = {"collector": time_collector, "tutorial": time_tutorial}
    if arguments.case:
        print(json.dumps(min(cases[arguments.case]() for _ in range(3))))
        return
    sides = {"collector": ("collector", None), "tutorial": ("tutorial", None)}
    if arguments.peer:
        sides["tutorial, published release"] = ("tutorial", arguments.peer)
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(arguments.rounds):
        for name, side in sides.items():
            times[name].append(run(*side))
    print(f"{'':30}{'least ms':>10}{'median ms':>10}")
    for name, found in times.items():
        print(f"{name:30}{min(found):10.1f}{statistics.median(found):10.1f}")


if __name__ == "__main__":
    main()
