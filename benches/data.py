"""``python benches/data.py --peer DIR``: gathering rows of memory-mapped data.

Reads 256 random rows of 12 KiB, a label and six numbers: warm, beside two busy
processes, and cold; windows of sequences; and a million of 10^9 rows of a sparse file.
In each round, this package and the published release (``--peer``, its folder) alternate
in separate processes, beside NumPy by hand and a copy by two threads into reused
memory. Prints the medians over the rounds: milliseconds a call, and CPU microseconds a
row.
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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

NUM_ROWS = 80_000
NUM_TAKEN = 256
ROW_BYTES = 12 << 10


def make_data(folder: Path) -> None:
    """Write the data with this package."""
    from tensordict import TensorDict

    rest = {"label": torch.arange(NUM_ROWS), "numbers": torch.randn(NUM_ROWS, 6)}
    for name, dtype in (("uint8", torch.uint8), ("float32", torch.float32)):
        if (folder / name).exists():
            continue
        shape = (NUM_ROWS, ROW_BYTES // dtype.itemsize)
        td = TensorDict(rest, batch_size=[NUM_ROWS])
        td["x"] = torch.empty(shape, dtype=dtype).random_(0, 200)
        td.memmap(str(folder / name))
    for count in (10**7, 10**9):
        path = folder / str(count) / "x.memmap"
        if not path.exists():
            path.parent.mkdir()
            path.touch()
            os.truncate(path, count * 4)


def leaves_of(folder: Path, name: str) -> Any:
    from tensordict import TensorDict

    return TensorDict.load_memmap(str(folder / name)).select("x", "label", "numbers")


def sparse_of(folder: Path, count: int) -> Any:
    from tensordict import MemoryMappedTensor, TensorDict

    path = str(folder / str(count) / "x.memmap")
    x = MemoryMappedTensor.from_filename(path, dtype=torch.float32, shape=(count,))
    return TensorDict(x=x, batch_size=[count])


def contestants(td: Any) -> dict[str, Any]:
    """Return the contestants: functions that gather the rows at some positions."""
    found: dict[str, Any] = {"td[idx]": lambda index: td[index]}
    arrays = [leaf.numpy() for leaf in td.values()]
    outs = [np.empty((NUM_TAKEN, *array.shape[1:]), array.dtype) for array in arrays]
    pool = ThreadPoolExecutor(2)

    def take(index: Any, part: slice) -> None:
        for array, out in zip(arrays, outs, strict=True):
            np.take(array, index[part], axis=0, out=out[part], mode="clip")

    def copied(index: torch.Tensor) -> None:
        numbers, half = index.numpy(), len(index) // 2
        parts = (slice(0, half), slice(half, None))
        list(pool.map(lambda part: take(numbers, part), parts))

    found["NumPy by hand"] = lambda index: [array[index.numpy()] for array in arrays]
    found["threaded copy"] = copied
    try:
        from tensordict.data import gather
    except ImportError:
        return found
    out = td[torch.arange(NUM_TAKEN)]
    found["gather(out=)"] = lambda index: gather(td, index, out=out)
    return found


def timed(call: Any, indices: list[torch.Tensor]) -> tuple[float, float]:
    """Return the median milliseconds of a call, and the CPU microseconds of a row."""
    times = []
    cpu_s = time.process_time()
    for index in indices:
        start_s = time.perf_counter()
        call(index)
        times.append(time.perf_counter() - start_s)
    cpu_s = time.process_time() - cpu_s
    rows = sum(index.numel() for index in indices)
    return statistics.median(times) * 1e3, cpu_s / rows * 1e6


def random_indices(count: int, num_rows: int = NUM_ROWS) -> list[torch.Tensor]:
    return [torch.randint(0, num_rows, (NUM_TAKEN,)) for _ in range(count)]


def measure_warm(folder: Path, name: str) -> dict[str, tuple[float, float]]:
    td = leaves_of(folder, name)
    for leaf in td.values():
        leaf.view(torch.uint8).max()
    found = {}
    for who, call in contestants(td).items():
        timed(call, random_indices(30))
        found[who] = timed(call, random_indices(200))
    return found


def drop_cache(folder: Path) -> None:
    for path in folder.rglob("*.memmap"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def bytes_read() -> int:
    text = Path("/proc/self/io").read_text()
    line = next(line for line in text.splitlines() if line.startswith("read_bytes"))
    return int(line.split()[1])


def measure_cold(folder: Path, name: str) -> dict[str, tuple[float, float]]:
    """Return cold times; the second number is bytes read per byte requested."""
    found = {}
    folder = folder / name

    def exact(_: Any) -> Any:
        files = [os.open(path, os.O_RDONLY) for path in sorted(folder.glob("*.memmap"))]
        sizes = [os.fstat(file).st_size // NUM_ROWS for file in files]
        pool = ThreadPoolExecutor(16)

        def read(row: int) -> None:
            for file, size in zip(files, sizes, strict=True):
                os.pread(file, size, row * size)

        return lambda index: list(pool.map(read, index.tolist()))

    for who, make in (
        ("td[idx]", lambda td: td.__getitem__),
        ("16 exact reads", exact),
    ):
        times, ratios = [], []
        for _ in range(5):
            drop_cache(folder)
            td = leaves_of(folder.parent, name)
            asked = NUM_TAKEN * (ROW_BYTES + 8 + 24)
            call = make(td)
            before = bytes_read()
            times.append(timed(call, random_indices(1))[0])
            ratios.append((bytes_read() - before) / asked)
            del td, call
        found[who] = statistics.median(times), statistics.median(ratios)
    return found


def measure_slices(folder: Path) -> dict[str, tuple[float, float]]:
    """Read 256 windows of 64 steps, of 10^8 rows of ten numbers in a sparse file."""
    from tensordict import TensorDict
    from tensordict.data import gather_slices

    x = sparse_of(folder, 10**9)["x"].view(-1, 10)
    td, array = TensorDict(x=x, batch_size=[len(x)]), x.numpy()
    out = np.empty((NUM_TAKEN, 64, 10), np.float32)

    def bare(starts: torch.Tensor) -> None:
        for place, start in enumerate(starts.tolist()):
            out[place] = array[start : start + 64]

    calls = {
        "gather_slices": lambda starts: gather_slices(td, starts, 64, layout="stacked"),
        "NumPy by hand": bare,
    }
    found = {}
    for who, call in calls.items():
        timed(call, random_indices(20, len(td) - 64))
        found[who] = timed(call, random_indices(100, len(td) - 64))
    return found


def measure_sparse(folder: Path) -> dict[str, tuple[float, float]]:
    found = {}
    for count in (10**7, 10**9):
        drop_cache(folder / str(count))
        td = sparse_of(folder, count)
        index = torch.randint(0, count, (10**6,))
        found[f"10^6 of {count:.0e} rows"] = timed(td.__getitem__, [index])
    return found


CASES: dict[str, Any] = {
    "warm uint8": lambda folder: measure_warm(folder, "uint8"),
    "warm float32": lambda folder: measure_warm(folder, "float32"),
    "busy uint8": lambda folder: measure_warm(folder, "uint8"),
    "cold uint8": lambda folder: measure_cold(folder, "uint8"),
    "slices": measure_slices,
    "sparse": measure_sparse,
}

NOT_OF_THE_RELEASE = {"slices", "sparse"}
"""The release has no windows, and the goal of 10^9 rows is a ratio to ours of 10^7."""


def measured(case: str, folder: Path, package: str) -> dict[str, Any]:
    environment = {**os.environ, "PYTHONPATH": package}
    command = [sys.executable, __file__, "--measure", case, "--data", str(folder)]
    out = subprocess.run(
        command,
        check=False,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
    )
    if out.returncode:
        return {out.stderr.strip().splitlines()[-1][:60]: (float("nan"), float("nan"))}
    return json.loads(out.stdout.splitlines()[-1])


def report(case: str, folder: Path, packages: dict[str, str], rounds: int) -> None:
    found: dict[str, list[Any]] = {}
    busy = []
    if case.startswith("busy"):
        command = [sys.executable, "-c", "while True: pass"]
        busy = [subprocess.Popen(command) for _ in range(2)]
    try:
        for _ in range(rounds):
            for name, package in packages.items():
                if name == "release" and case in NOT_OF_THE_RELEASE:
                    continue
                for who, times in measured(case, folder, package).items():
                    found.setdefault(f"{name}: {who}", []).append(times)
    finally:
        for process in busy:
            process.kill()
    unit = "bytes/asked" if case.startswith("cold") else "CPU us/row"
    print(f"{case}, load {os.getloadavg()[0]:.1f}, {rounds} rounds")
    for who, times in found.items():
        call_ms = statistics.median(each[0] for each in times)
        second = statistics.median(each[1] for each in times)
        print(f"  {who:40} {call_ms:9.3f} ms {second:9.2f} {unit}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", help="folder with the installed published release")
    parser.add_argument(
        "--data", type=Path, default=Path(tempfile.gettempdir()) / "rows"
    )
    parser.add_argument("--only", default="", help="run cases with this in the name")
    parser.add_argument("--rounds", type=int, default=5, help="rounds (default: 5)")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(CASES[arguments.measure](arguments.data)))
        return
    arguments.data.mkdir(exist_ok=True)
    make_data(arguments.data)
    packages = {"ours": os.environ.get("PYTHONPATH", "")}
    if arguments.peer:
        packages["release"] = arguments.peer
    for device in Path("/sys/block").glob("*/queue/read_ahead_kb"):
        print(f"read-ahead of {device.parts[3]}: {device.read_text().strip()} KiB")
    for case in CASES:
        if arguments.only in case:
            report(case, arguments.data, packages, arguments.rounds)


if __name__ == "__main__":
    main()
