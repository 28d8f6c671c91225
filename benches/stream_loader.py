"""``python benches/stream_loader.py``: batches a second of ``StreamDataLoader``.

Reads sixteen rows without workers and with two workers, alternately: the best of three
rounds each. The items are tiny, or make batches of 7.9 MB, or take 5 ms each. Then
prints the memory of a worker after few steps and after many.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch

from tensordict.data import StreamDataLoader

ROWS = 16


def tiny(length):
    for number in range(length):
        yield torch.full((8,), number, dtype=torch.float32)


def large(length):
    # 16 rows of 3 x 180 x 320 in uint8 and a little more: 7.9 MB together.
    for number in range(length):
        yield torch.full((3, 3, 180, 305), number % 256, dtype=torch.uint8)


def slow(length):
    """Return an item after 5 ms of CPU work."""
    for number in range(length):
        end_s = time.process_time() + 5e-3
        while time.process_time() < end_s:
            pass
        yield torch.full((8,), number, dtype=torch.float32)


def waiting(length):
    """Return an item after 5 ms of waiting, as for a disk."""
    for number in range(length):
        time.sleep(5e-3)
        yield torch.full((8,), number, dtype=torch.float32)


def batches_per_second(streamer, num_steps: int, workers: int, collate) -> float:
    """Return the rate after the first batch, which waits for the workers to start."""
    loader = StreamDataLoader(
        [num_steps + 1] * ROWS, streamer, ROWS, workers, collate, "zeros"
    )
    iterator = iter(loader)
    next(iterator)
    start_s = time.perf_counter()
    count = sum(1 for _ in iterator)
    return count / (time.perf_counter() - start_s)


def memory_of_workers(num_steps: int) -> float:
    """Return the MB of the workers and their slots at the end of an epoch."""
    loader = StreamDataLoader([num_steps] * ROWS, large, ROWS, 2, None, "zeros")
    iterator = iter(loader)
    for _ in range(num_steps - 1):
        next(iterator)
    total = 0
    for process in iterator._steps._processes:
        fields = Path(f"/proc/{process.pid}/smaps_rollup").read_text().split("\n")
        total += sum(int(line.split()[1]) for line in fields if line.startswith("Pss:"))
    iterator.close()
    return total / 1e3


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="run cases with this in the name")
    only = parser.parse_args().only
    print(f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} processors")
    cases = {
        "tiny, collection": (tiny, 4000, None),
        "tiny, collate_fn": (tiny, 4000, torch.stack),
        "7.9 MB, collection": (large, 60, None),
        "7.9 MB, collate_fn": (large, 60, torch.stack),
        "5 ms of work": (slow, 20, None),
        "5 ms of waiting": (waiting, 20, None),
    }
    for name, (streamer, num_steps, collate) in cases.items():
        if only not in name:
            continue
        rates = {0: 0.0, 2: 0.0}
        for _ in range(3):
            for workers in (0, 2):
                rate = batches_per_second(streamer, num_steps, workers, collate)
                rates[workers] = max(rates[workers], rate)
        print(
            f"{name:20} {rates[0]:9.1f} /s without, {rates[2]:9.1f} /s with two "
            f"workers: {rates[2] / rates[0]:.2f}"
        )
    if not only:
        few, many = memory_of_workers(20), memory_of_workers(400)
        print(f"memory of two workers: {few:.0f} MB at 20 steps, {many:.0f} MB at 400")


if __name__ == "__main__":
    main()
