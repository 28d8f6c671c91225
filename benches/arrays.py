"""``python benches/arrays.py --peer DIR``: slices of HDF5 and Zarr files.

Reads slices of 500 rows of 4 kB with the library itself, with this package, and with
the published release (``--peer``, its folder), which reads the same files in a separate
process. The contestants alternate slice by slice, and across processes round by round.
Prints the medians over the rounds: wall and CPU microseconds a slice, and the ratio to
the library in the same process and round.
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
from typing import Any

import torch

NUM_ROWS = 15_000
ROW = 1024
LENGTH = 500


def write(folder: Path) -> None:
    """Write the files."""
    from tensordict import TensorDict

    td = TensorDict(a=torch.rand(NUM_ROWS, ROW), batch_size=[NUM_ROWS])
    td.to_h5(folder / "data.h5").close()
    td.to_zarr(folder / "data.zarr", chunks=(LENGTH,)).close()


def measure(folder: Path, kind: str) -> dict[str, list[float]]:
    """Return wall and CPU microseconds of a slice, for the library and this package."""
    from tensordict import TensorDict

    if kind == "h5":
        import h5py

        file = h5py.File(folder / "data.h5")
        td: Any = TensorDict.from_h5(folder / "data.h5", batch_size=[NUM_ROWS])
    else:
        import zarr

        file = zarr.open_group(folder / "data.zarr", mode="r")
        td = TensorDict.from_zarr(folder / "data.zarr", batch_size=[NUM_ROWS])
    array: Any = file["a"]
    calls = {
        "library": lambda rows: torch.from_numpy(array[rows]),
        "entry": lambda rows: td[rows]["a"],
        "to_tensordict": lambda rows: td[rows].to_tensordict(),
    }
    spent = {name: [0.0, 0.0] for name in calls}
    starts = range(0, NUM_ROWS - LENGTH, LENGTH)
    for start in starts:
        rows = slice(start + 3, start + 3 + LENGTH)
        for name, call in calls.items():
            wall, cpu = time.perf_counter(), time.process_time()
            call(rows)
            spent[name][0] += time.perf_counter() - wall
            spent[name][1] += time.process_time() - cpu
    return {
        name: [1e6 * each / len(starts) for each in both]
        for name, both in spent.items()
    }


def run(folder: Path, kind: str, path: str) -> dict[str, list[float]]:
    """Measure in a separate process, with the package at ``path``."""
    environment = dict(os.environ, PYTHONPATH=path, OMP_NUM_THREADS="1")
    command = [sys.executable, "-W", "ignore", __file__, "--measure", kind, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, check=True)
    measured: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return measured


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", help="folder with the installed published release")
    parser.add_argument("--rounds", type=int, default=5, help="rounds (default: 5)")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        kind, folder = options.measure
        measure(Path(folder), kind)  # warms the page cache
        print(json.dumps(measure(Path(folder), kind)))
        return
    ours = os.environ.get("PYTHONPATH", str(Path(__file__).parents[1] / "python"))
    sides = {"here": ours} | ({"release": options.peer} if options.peer else {})
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder)
        for kind in ("h5", "zarr"):
            rounds: dict[str, list[Any]] = {side: [] for side in sides}
            for _ in range(options.rounds):
                for side, path in sides.items():
                    rounds[side].append(run(folder, kind, path))
            for side, found in rounds.items():
                for call in ("library", "entry", "to_tensordict"):
                    wall = statistics.median(each[call][0] for each in found)
                    cpu = statistics.median(each[call][1] for each in found)
                    ratio, of_cpu = (
                        statistics.median(
                            each[call][at] / each["library"][at] for each in found
                        )
                        for at in (0, 1)
                    )
                    print(
                        f"{kind:5} {side:8} {call:14} {wall:8.0f} us wall {cpu:8.0f} us "
                        f"CPU   {ratio:5.2f} of wall {of_cpu:5.2f} of CPU"
                    )


if __name__ == "__main__":
    main()
