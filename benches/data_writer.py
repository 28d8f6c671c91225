"""``python benches/data_writer.py --peer DIR``: growing datasets and ragged rows.

The packages run in separate processes, one after the other, beside bare system calls
and bare columns of NumPy. Prints the best and the median of the rounds with their CPU
time; the release runs one round. Caches are warm: the rows that are read were just
written.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

CALLS = 100
ROWS = 100
LEAVES = 20
ITEMS = int(os.environ.get("BENCH_ITEMS", "64"))
"""The size of an append: rows a call, leaves, and float32 a row and leaf."""

BATCH = 256


def batches() -> Any:
    """Return the rows of each call."""
    import torch

    from tensordict import TensorDict

    leaves = {f"k{at}": torch.rand(ROWS, ITEMS) for at in range(LEAVES)}
    return TensorDict(leaves, batch_size=[ROWS])


def appends(folder: str) -> dict[str, Callable[[], None]]:
    """Return the ways to write the rows of all calls."""
    from tensordict import TensorDict, append_memmap

    batch = batches()
    path = f"{folder}/append"

    def published() -> None:
        batch.memmap(path)
        for _ in range(CALLS - 1):
            append_memmap(path, batch)
        assert TensorDict.load_memmap(path).batch_size[0] == CALLS * ROWS

    cases = {"append_memmap, each call published": published}
    try:
        from tensordict.data import DatasetWriter
    except ImportError:
        return cases

    def flushed_each() -> None:
        with DatasetWriter(path) as writer:
            for _ in range(CALLS):
                writer.extend(batch)
                writer.flush()

    def flushed_once() -> None:
        with DatasetWriter(path) as writer:
            for _ in range(CALLS):
                writer.extend(batch)

    row = batch[0]

    def row_by_row() -> None:
        with DatasetWriter(path) as writer:
            for _ in range(CALLS * ROWS):
                writer.append(row)

    cases["DatasetWriter.extend, each call published"] = flushed_each
    cases["DatasetWriter.extend, published at the end"] = flushed_once
    cases["DatasetWriter.append of 10,000 rows"] = row_by_row
    return cases


def bare_appends(folder: str) -> dict[str, Callable[[], None]]:
    """Write the same bytes with one ``write`` for each leaf and call."""
    import numpy as np

    chance = np.random.default_rng(0)
    data = [chance.random((ROWS, ITEMS), np.float32) for _ in range(LEAVES)]

    def write() -> None:
        Path(folder, "append").mkdir()
        flags = os.O_WRONLY | os.O_CREAT
        files = [os.open(f"{folder}/append/k{at}", flags) for at in range(LEAVES)]
        for _ in range(CALLS):
            for file, values in zip(files, data, strict=True):
                os.write(file, values)
        for file in files:
            os.close(file)

    return {"bare appends": write}


def ragged_parts(count: int) -> list[tuple[Any, Any]]:
    """Return samples of two leaves: a sequence of vectors and a sequence of numbers."""
    import numpy as np

    chance = np.random.default_rng(0)
    lengths = chance.integers(10, 200, (count, 2))
    return [
        (chance.random((a, 4), np.float32), np.arange(b)) for a, b in lengths.tolist()
    ]


def ragged(folder: str, count: int) -> dict[str, Callable[[], Any]]:
    """Save, open and read ragged samples."""
    import torch

    from tensordict import TensorDict, lazy_stack

    stack = lazy_stack(
        [
            TensorDict({"x": torch.from_numpy(x), "y": torch.from_numpy(y)})
            for x, y in ragged_parts(count)
        ]
    )
    path = f"{folder}/ragged"
    index = torch.randint(0, count, (BATCH,))
    is_ours = importlib.util.find_spec("tensordict.data") is not None
    how: dict[str, Any] = {"ragged": "columns"} if is_ours else {}
    opened: list[Any] = []

    def save() -> None:
        stack.memmap(path, **how)

    def load() -> None:
        opened[:] = [TensorDict.load_memmap(path)]

    def read() -> None:
        data = opened[0]
        for at in index.tolist():
            sample = data[at]
            sample["x"].sum()
            sample["y"].sum()

    cases: dict[str, Callable[[], Any]] = {
        f"{count} ragged: save": save,
        f"{count} ragged: open": load,
        f"{count} ragged: {BATCH} samples, one by one": read,
    }
    if is_ours:
        cases[f"{count} ragged: {BATCH} samples, gathered"] = lambda: opened[0][index]
        cases[f"{count} ragged: {BATCH} samples, padded"] = lambda: opened[
            0
        ].gather_rows(index, ragged="padded")
    return cases


def bare_ragged(folder: str, count: int) -> dict[str, Callable[[], Any]]:
    """Save, open and read columns of values and offsets with NumPy."""
    import numpy as np

    parts = ragged_parts(count)
    Path(folder, "ragged").mkdir(exist_ok=True)
    path = f"{folder}/ragged/"
    index = np.random.default_rng(0).integers(0, count, BATCH).tolist()
    opened: list[Any] = []

    def save() -> None:
        for name, column in zip("xy", zip(*parts, strict=True), strict=True):
            np.concatenate(column).tofile(path + name)
            lengths = np.array([len(part) for part in column])
            np.cumsum(lengths).tofile(path + name + "o")

    def load() -> None:
        opened[:] = [
            (
                np.memmap(path + name, dtype, "r"),
                np.concatenate([[0], np.fromfile(path + name + "o", np.int64)]),
            )
            for name, dtype in (("x", np.float32), ("y", np.int64))
        ]

    def read() -> None:
        (x, xo), (y, yo) = opened[0], opened[1]
        for at in index:
            x[xo[at] * 4 : xo[at + 1] * 4].reshape(-1, 4).sum()
            y[yo[at] : yo[at + 1]].sum()

    return {
        f"{count} ragged: save": save,
        f"{count} ragged: open": load,
        f"{count} ragged: {BATCH} samples, one by one": read,
    }


def run_worker(kind: str, group: str, rounds: int) -> None:
    """Time the cases of a group, and print them as JSON."""
    import torch

    torch.set_num_threads(1)
    folder = tempfile.mkdtemp(dir=os.environ.get("BENCH_FOLDER"))
    makers: dict[str, Any] = {"append": bare_appends, "ragged": bare_ragged}
    if kind != "bare":
        makers = {"append": appends, "ragged": ragged}
    name, _, count = group.partition(":")
    given = (folder, int(count)) if count else (folder,)
    cases = makers[name](*given)
    found: dict[str, Any] = {case: [] for case in cases}
    try:
        for _ in range(rounds):
            for case, work in cases.items():
                if name == "append":
                    shutil.rmtree(f"{folder}/append", ignore_errors=True)
                began, busy = time.perf_counter(), time.process_time()
                work()
                spent = time.perf_counter() - began
                found[case].append((spent, time.process_time() - busy))
    finally:
        shutil.rmtree(folder)
    print(json.dumps(found))


def main() -> None:
    """Run all groups, and print a line a case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", help="folder with the installed published release")
    parser.add_argument("--rounds", type=int, default=3, help="rounds (default: 3)")
    parser.add_argument(
        "--groups", nargs="*", help="groups of cases to run (default: all)"
    )
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        run_worker(*arguments.worker, arguments.rounds)
        return
    kinds = ["bare", "ours", *(["release"] if arguments.peer else [])]
    ours = str(Path(__file__).parent.parent / "python")
    print(f"load {os.getloadavg()[0]:.1f}, caches warm, one thread of torch")
    for group in arguments.groups or ["append", "ragged:5000"]:
        found: dict[tuple[str, str], list[tuple[float, float]]] = {}
        for kind in kinds:
            rounds = 1 if kind == "release" else arguments.rounds
            path = arguments.peer if kind == "release" else ours
            command = [sys.executable, __file__, "--worker", kind, group]
            command += ["--rounds", str(rounds)]
            environment = {**os.environ, "PYTHONPATH": path}
            done = subprocess.run(
                command, env=environment, check=True, capture_output=True, text=True
            )
            for case, times in json.loads(done.stdout).items():
                found[case, kind] = times
        for (case, kind), times in sorted(found.items()):
            walls = [wall for wall, _ in times]
            busy = min(each for _, each in times)
            print(
                f"{case:48} {kind:8} best {1e3 * min(walls):9.2f} ms, "
                f"median {1e3 * statistics.median(walls):9.2f} ms, cpu {1e3 * busy:9.2f} ms"
            )


if __name__ == "__main__":
    main()
