"""``python benches/data_loader.py --peer DIR [--cold]``: shuffled epochs of mapped data.

Rows have 12 KiB, a label and six numbers; a batch has 256 rows. In each round all
contestants alternate: :class:`~tensordict.data.BatchLoader`, ``td[index]`` by hand,
NumPy by hand, a copy by two threads into reused memory, lmdb and ArrayRecord if they
are installed, torch's ``DataLoader`` with two workers over this package, and the same
over the published release (``--peer``, its folder) in a separate process. Prints rows a
second and CPU seconds for a thousand rows, including child processes: the median and
the range over the rounds. Then prints the time to the first batch.

With ``--cold``, the pages of all files are dropped before each epoch
(``POSIX_FADV_DONTNEED`` after ``fsync``), the bytes read for each byte of a row are
printed, and exact reads by 16 threads take part. The read-ahead of the disks is
printed, too; ``/sys/block/*/queue/read_ahead_kb`` sets it.
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
    """Write the data with this package, and as an lmdb table."""
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
    write_lmdb(folder, td)
    write_array_record(folder, td)


def row_bytes(td: Any, row: int) -> bytes:
    return b"".join(leaf[row].numpy().tobytes() for leaf in td.values())


def write_lmdb(folder: Path, td: Any) -> None:
    try:
        import lmdb
    except ImportError:
        return
    num_rows = len(td)
    table = lmdb.open(str(folder / "lmdb"), map_size=2 * num_rows * ROW_BYTES)
    with table.begin(write=True) as transaction:
        for row in range(num_rows):
            transaction.put(row.to_bytes(8, "big"), row_bytes(td, row))
    table.close()


def write_array_record(folder: Path, td: Any) -> None:
    try:
        from array_record.python import array_record_module
    except ImportError:
        return
    # A group of one row, as random access wants it.
    writer = array_record_module.ArrayRecordWriter(
        str(folder / "array_record"), "group_size:1,uncompressed"
    )
    for row in range(len(td)):
        writer.write(row_bytes(td, row))
    writer.close()


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

    def batches() -> Iterable[Any]:
        table = lmdb.open(
            str(folder / "lmdb"), readonly=True, lock=False, readahead=False
        )
        for index in batches_of(num_rows):
            out = np.empty((len(index), ROW_BYTES + 32), np.uint8)
            with table.begin(buffers=True) as transaction:
                for place, row in enumerate(index.tolist()):
                    one = transaction.get(row.to_bytes(8, "big"))
                    out[place] = np.frombuffer(one, np.uint8)
            yield out
        table.close()

    return batches


def with_array_record(
    folder: Path, num_rows: int
) -> Callable[[], Iterable[Any]] | None:
    try:
        from array_record.python import array_record_module
    except ImportError:
        return None

    def batches() -> Iterable[Any]:
        reader = array_record_module.ArrayRecordReader(
            str(folder / "array_record"), "readahead_buffer_size:0"
        )
        for index in batches_of(num_rows):
            rows = reader.read(index.tolist())
            yield np.stack([np.frombuffer(row, np.uint8) for row in rows])

    return batches


def with_exact_reads(folder: Path, num_rows: int) -> Callable[[], Iterable[Any]]:
    """Read exactly the rows by positioned reads, with 16 threads."""
    pool = ThreadPoolExecutor(16)
    paths = [folder / "td" / f"{name}.memmap" for name in ("x", "label", "numbers")]

    def batches() -> Iterable[Any]:
        files = [path.open("rb", buffering=0) for path in paths]
        sizes = [path.stat().st_size // num_rows for path in paths]
        for file in files:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)

        def read(row: int) -> list[bytes]:
            return [
                os.pread(file.fileno(), size, row * size)
                for file, size in zip(files, sizes, strict=True)
            ]

        for index in batches_of(num_rows):
            yield list(pool.map(read, index.tolist()))
        for file in files:
            file.close()

    return batches


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


def bytes_read() -> int:
    """Return the bytes that this process read from disks, without children."""
    text = Path("/proc/self/io").read_text()
    line = next(line for line in text.splitlines() if line.startswith("read_bytes"))
    return int(line.split()[1])


def drop_pages(folder: Path) -> None:
    """Drop the cached pages of all files."""
    for path in folder.rglob("*"):
        if path.is_file() and path.name != "sparse.memmap":
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def timed(make: Callable[[], Iterable[Any]], num_rows: int) -> tuple[float, ...]:
    """Return rows a second, CPU seconds per 1,000 rows, bytes read per byte."""
    cpu, start, before = cpu_s(), time.perf_counter(), bytes_read()
    for _ in make():
        pass
    wall = time.perf_counter() - start
    ratio = (bytes_read() - before) / (num_rows * (ROW_BYTES + 32))
    return num_rows / wall, (cpu_s() - cpu) / num_rows * 1e3, ratio


def cold(folder: Path) -> Any:
    drop_pages(folder)
    return loaded(folder)


def warmed(folder: Path) -> Any:
    td = loaded(folder)
    for leaf in td.values():
        leaf.view(torch.uint8).max()
    return td


def in_peer(peer: str, folder: Path, is_cold: bool) -> tuple[float, ...]:
    """Run one epoch of the published release in a separate process."""
    environment = {**os.environ, "PYTHONPATH": peer}
    command = [sys.executable, __file__, "--one", str(folder)]
    command += ["--cold"] if is_cold else []
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True
    )
    return tuple(json.loads(done.stdout.splitlines()[-1]))


def first_batches(folder: Path) -> None:
    """Print the time to the first batch, also of 10^9 rows."""
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


def contestants_of(td: Any, folder: Path, is_cold: bool) -> dict[str, Any]:
    """Return the contestants by name; None for a library that is not installed."""
    found: dict[str, Any] = {
        "BatchLoader": with_loader(td, 2),
        "BatchLoader, prefetch=4": with_loader(td, 4),
        "td[index] by hand": by_hand(td),
        "NumPy by hand": with_numpy(td),
        "lmdb": with_lmdb(folder, len(td)),
        "ArrayRecord": with_array_record(folder, len(td)),
    }
    if is_cold:
        found["16 exact reads"] = with_exact_reads(folder, len(td))
    else:
        found["threaded copy"] = with_threads(td)
        found["DataLoader, 2 workers"] = with_data_loader(td)
    return found


def names_of(folder: Path, is_cold: bool) -> list[str]:
    made = contestants_of(loaded(folder), folder, is_cold)
    return [who for who, make in made.items() if make is not None]


def report(found: dict[str, list[tuple[float, ...]]], is_cold: bool) -> None:
    for who, results in found.items():
        rates = [result[0] for result in results]
        cpu = statistics.median(result[1] for result in results)
        line = f"{statistics.median(rates):9.0f} ({min(rates):.0f} to {max(rates):.0f})"
        line = f"{who:32} {line:32} rows/s   {cpu:.4f} CPU s / 1000 rows"
        if is_cold:
            ratio = statistics.median(result[2] for result in results)
            line += f"   {ratio:.2f} bytes read / asked"
        print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", help="folder with the installed published release")
    parser.add_argument("--folder", help="folder that keeps the data between runs")
    parser.add_argument(
        "--rows", type=int, default=40_000, help="number of rows (default: 40_000)"
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds (default: 5)")
    parser.add_argument("--json", help="file to write all numbers to")
    parser.add_argument(
        "--cold", action="store_true", help="drop the cached pages first"
    )
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.one:
        folder = Path(options.one)
        td = cold(folder) if options.cold else warmed(folder)
        print(json.dumps(timed(with_data_loader(td), len(td))))
        return
    with tempfile.TemporaryDirectory() as made:
        folder = Path(options.folder or made)
        folder.mkdir(exist_ok=True)
        make_data(folder, options.rows)
        found: dict[str, list[tuple[float, ...]]] = {}
        machine = about()
        print("load", machine["load"], "of", machine["cores"], "processors")
        for device in Path("/sys/block").glob("*/queue/read_ahead_kb"):
            print(f"read-ahead of {device.parts[3]}: {device.read_text().strip()} KiB")
        for _ in range(options.rounds):
            for who in names_of(folder, options.cold):
                td = cold(folder) if options.cold else warmed(folder)
                make = contestants_of(td, folder, options.cold)[who]
                found.setdefault(who, []).append(timed(make, len(td)))
                # Pages that are mapped are not dropped.
                del td, make
            if options.peer:
                peer = in_peer(options.peer, folder, options.cold)
                found.setdefault("DataLoader, 2 workers, release", []).append(peer)
        report(found, options.cold)
        if options.json:
            numbers = {
                who: {"rows_per_s": [result[0] for result in results]}
                for who, results in found.items()
            }
            everything = {
                "machine": machine,
                "rows": options.rows,
                "contestants": numbers,
            }
            Path(options.json).write_text(json.dumps(everything, indent=1) + "\n")
        if not options.cold:
            first_batches(folder)


if __name__ == "__main__":
    main()
