"""``python benches/data_loader.py --peer DIR``: a shuffled epoch of mapped data, in batches.

Rows of 12 KiB, a label and six numbers, 256 of them a batch, warm. Each round runs all
contestants in turns: :class:`~tensordict.data.BatchLoader`, ``td[index]`` by hand, NumPy by
hand, a copy by two threads into memory that is used again, lmdb, torch's ``DataLoader`` of
two workers over this package, and over the published release (``--peer``, the folder that
it is installed in) in a process of its own. Printed are rows a second and seconds of CPU for
a thousand rows, children counted: the median and the range over the rounds. Then the time
to the first batch.
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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from machine import about

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

ROWS_OF_BATCH = 256
ROW_BYTES = 12 << 10


def make_data(folder: Path, num_rows: int) -> None:
    """Write what is read, by this package, and as a table of lmdb."""
    from tensordict import TensorDict

    if (folder / "td").exists():
        return
    td = TensorDict(
        x=torch.empty(num_rows, ROW_BYTES, dtype=torch.uint8).random_(0, 200),
        label=torch.arange(num_rows),
        numbers=torch.randn(num_rows, 6),
        batch_size=[num_rows],
    )
    td.memmap(str(folder / "td"))
    sparse = folder / "sparse.memmap"
    sparse.touch()
    os.truncate(sparse, 4 * 10**9)
    try:
        import lmdb
    except ImportError:
        return
    table = lmdb.open(str(folder / "lmdb"), map_size=2 * num_rows * ROW_BYTES)
    with table.begin(write=True) as transaction:
        for row in range(num_rows):
            one = b"".join(leaf[row].numpy().tobytes() for leaf in td.values())
            transaction.put(row.to_bytes(8, "big"), one)
    table.close()


def loaded(folder: Path) -> Any:
    from tensordict import TensorDict

    td = TensorDict.load_memmap(str(folder / "td"))
    return td.select("x", "label", "numbers")


def batches_of(num_rows: int) -> list[torch.Tensor]:
    return list(torch.randperm(num_rows).split(ROWS_OF_BATCH))


def with_loader(td: Any, prefetch: int) -> Callable[[], Iterable[Any]]:
    from tensordict.data import BatchLoader

    return lambda: BatchLoader(
        td, ROWS_OF_BATCH, shuffle=True, seed=0, prefetch=prefetch
    )


def by_hand(td: Any) -> Callable[[], Iterable[Any]]:
    return lambda: (td[index] for index in batches_of(len(td)))


def with_numpy(td: Any) -> Callable[[], Iterable[Any]]:
    arrays = [leaf.numpy() for leaf in td.values()]
    return lambda: (
        [array[index.numpy()] for array in arrays] for index in batches_of(len(td))
    )


def with_threads(td: Any) -> Callable[[], Iterable[Any]]:
    arrays = [leaf.numpy() for leaf in td.values()]
    outs = [np.empty((ROWS_OF_BATCH, *one.shape[1:]), one.dtype) for one in arrays]
    pool = ThreadPoolExecutor(2)

    def take(index: Any, part: slice) -> None:
        own = index[part]
        for array, out in zip(arrays, outs, strict=True):
            np.take(array, own, axis=0, out=out[part][: len(own)], mode="clip")

    def copied(index: torch.Tensor) -> Any:
        numbers, half = index.numpy(), len(index) // 2
        parts = (slice(0, half), slice(half, len(index)))
        list(pool.map(lambda part: take(numbers, part), parts))
        return outs

    return lambda: map(copied, batches_of(len(td)))


def with_lmdb(folder: Path, num_rows: int) -> Callable[[], Iterable[Any]] | None:
    try:
        import lmdb
    except ImportError:
        return None
    table = lmdb.open(str(folder / "lmdb"), readonly=True, lock=False, readahead=False)

    def batch(index: torch.Tensor) -> Any:
        out = np.empty((len(index), ROW_BYTES + 32), np.uint8)
        with table.begin(buffers=True) as transaction:
            for place, row in enumerate(index.tolist()):
                out[place] = np.frombuffer(
                    transaction.get(row.to_bytes(8, "big")), np.uint8
                )
        return out

    return lambda: map(batch, batches_of(num_rows))


def with_data_loader(td: Any) -> Callable[[], Iterable[Any]]:
    from torch.utils.data import DataLoader

    return lambda: DataLoader(
        td,
        batch_size=ROWS_OF_BATCH,
        shuffle=True,
        num_workers=2,
        collate_fn=_unchanged,
        multiprocessing_context="fork",
    )


def _unchanged(batch: Any) -> Any:
    return batch


def cpu_s() -> float:
    used = [resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN]
    found = [resource.getrusage(who) for who in used]
    return sum(one.ru_utime + one.ru_stime for one in found)


def timed(make: Callable[[], Iterable[Any]], num_rows: int) -> tuple[float, float]:
    """Rows a second, and seconds of CPU for a thousand rows."""
    cpu, start = cpu_s(), time.perf_counter()
    for _ in make():
        pass
    wall = time.perf_counter() - start
    return num_rows / wall, (cpu_s() - cpu) / num_rows * 1e3


def warmed(folder: Path) -> Any:
    td = loaded(folder)
    for leaf in td.values():
        leaf.view(torch.uint8).max()
    return td


def in_peer(peer: str, folder: Path) -> tuple[float, float]:
    """One epoch of the published release, in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": peer}
    command = [sys.executable, __file__, "--one", str(folder)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True
    )
    rate, cpu = json.loads(done.stdout.splitlines()[-1])
    return rate, cpu


def first_batches(folder: Path) -> None:
    """The time to the first batch, of 10^9 rows too."""
    from tensordict import MemoryMappedTensor, TensorDict
    from tensordict.data import BatchLoader

    td = loaded(folder)
    path = str(folder / "sparse.memmap")
    x = MemoryMappedTensor.from_filename(path, dtype=torch.float32, shape=(10**9,))
    sparse = TensorDict(x=x, batch_size=[10**9])
    for name, source in (("the data", td), ("10^9 rows", sparse)):
        times = []
        for seed in range(9):
            start = time.perf_counter()
            next(iter(BatchLoader(source, ROWS_OF_BATCH, shuffle=True, seed=seed)))
            times.append((time.perf_counter() - start) * 1e3)
        found = f"{times[0]:.2f}, then {statistics.median(times[1:]):.2f}"
        print(f"first batch of {name}: {found} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", help="the folder of the published release")
    parser.add_argument("--folder", help="where data are kept from run to run")
    parser.add_argument("--rows", type=int, default=40_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", help="file for all numbers")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.one:
        td = warmed(Path(options.one))
        print(json.dumps(timed(with_data_loader(td), len(td))))
        return
    with tempfile.TemporaryDirectory() as made:
        folder = Path(options.folder or made)
        folder.mkdir(exist_ok=True)
        make_data(folder, options.rows)
        td = warmed(folder)
        contestants: dict[str, Any] = {
            "BatchLoader": with_loader(td, 2),
            "BatchLoader, prefetch=4": with_loader(td, 4),
            "td[index] by hand": by_hand(td),
            "NumPy by hand": with_numpy(td),
            "threaded copy": with_threads(td),
            "lmdb": with_lmdb(folder, len(td)),
            "DataLoader, 2 workers": with_data_loader(td),
        }
        found: dict[str, list[tuple[float, float]]] = {}
        machine = about()
        print("load", machine["load"], "of", machine["cores"], "processors")
        for _ in range(options.rounds):
            for who, make in contestants.items():
                if make is not None:
                    found.setdefault(who, []).append(timed(make, len(td)))
            if options.peer:
                peer = in_peer(options.peer, folder)
                found.setdefault("DataLoader, 2 workers, release", []).append(peer)
        for who, results in found.items():
            rates = [rate for rate, _ in results]
            cpu = statistics.median(cpu for _, cpu in results)
            line = f"{statistics.median(rates):9.0f} ({min(rates):.0f} to {max(rates):.0f})"
            print(f"{who:32} {line:32} rows/s   {cpu:.4f} CPU s / 1000 rows")
        if options.json:
            numbers = {
                who: {"rows_per_s": [rate for rate, _ in results]}
                for who, results in found.items()
            }
            everything = {"machine": machine, "rows": len(td), "contestants": numbers}
            Path(options.json).write_text(json.dumps(everything, indent=1) + "\n")
        first_batches(folder)


if __name__ == "__main__":
    main()
