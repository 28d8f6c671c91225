"""``python benches/tables.py --peer DIR``: a table of a million rows and ten columns.

Each package runs in a separate process and alternates there with the library that it
calls, so that both sides of a ratio come from the same process at the same time. Prints
the best and the median of the rounds, and the CPU time. Files are in the page cache.
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

ROWS = 1_000_000
SMALL = 100_000
"""The number of rows in text files."""


def columns(rows: int) -> dict[str, Any]:
    """Return ten columns of six dtypes: 57 bytes a row."""
    import numpy as np

    random = np.random.default_rng(0)
    made: dict[str, Any] = {
        f"f{at}": random.random(rows, dtype=np.float32) for at in range(3)
    }
    made |= {f"d{at}": random.random(rows) for at in range(3)}
    made |= {f"i{at}": random.integers(0, 2**40, rows) for at in range(2)}
    made["s"] = random.integers(0, 100, rows).astype(np.int32)
    made["b"] = random.integers(0, 2, rows).astype(bool)
    return made


def write(folder: str) -> None:
    """Write the files with the libraries."""
    import pandas as pd
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.table(columns(ROWS)), f"{folder}/data.parquet")
    frame = pd.DataFrame(columns(SMALL))
    frame["t"] = [f"text {at}" for at in range(SMALL)]
    frame.to_csv(f"{folder}/data.csv", index=False)
    frame.to_json(f"{folder}/data.json", orient="records")
    parquet.write_table(pa.table(frame), f"{folder}/text.parquet")


def cases(folder: str) -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    """Return the cases of the library, and the same cases of a tensordict."""
    import pandas as pd
    import pyarrow as pa
    from pyarrow import parquet

    from tensordict import TensorDict, from_arrow, to_arrow

    path = f"{folder}/data.parquet"
    table = parquet.read_table(path)
    frame = table.to_pandas()
    td = TensorDict.from_parquet(path)
    out = f"{folder}/out"
    small = td[:SMALL].contiguous()
    small_frame = frame[:SMALL]
    return {
        "read parquet, 1M rows": (
            lambda: parquet.read_table(path),
            lambda: TensorDict.from_parquet(path),
        ),
        "read parquet with texts, 100k": (
            lambda: parquet.read_table(f"{folder}/text.parquet"),
            lambda: TensorDict.from_parquet(f"{folder}/text.parquet"),
        ),
        "write parquet, 1M rows": (
            lambda: parquet.write_table(table, out),
            lambda: td.to_parquet(out),
        ),
        "from pandas, 1M rows": (frame.copy, lambda: TensorDict.from_pandas(frame)),
        "to pandas, 1M rows": (frame.copy, td.to_pandas),
        "from arrow, 1M rows": (
            table.combine_chunks,
            lambda: from_arrow(table),
        ),
        "to arrow, 1M rows": (
            lambda: pa.table({key: value.numpy() for key, value in td.items()}),
            lambda: to_arrow(td),
        ),
        "read csv with texts, 100k": (
            lambda: pd.read_csv(f"{folder}/data.csv"),
            lambda: TensorDict.from_csv(f"{folder}/data.csv"),
        ),
        "write csv, 100k": (
            lambda: small_frame.to_csv(out, index=False),
            lambda: small.to_csv(out),
        ),
        "read json with texts, 100k": (
            lambda: pd.read_json(f"{folder}/data.json"),
            lambda: TensorDict.from_json(f"{folder}/data.json"),
        ),
        "write json, 100k": (
            lambda: small_frame.to_json(out, orient="records"),
            lambda: small.to_json(out),
        ),
    }


def measure(folder: str, rounds: int, only: str) -> None:
    """Print the times of the cases, one JSON line each."""
    for name, pair in cases(folder).items():
        if only not in name:
            continue
        times: list[list[tuple[float, float]]] = [[], []]
        for _ in range(rounds + 1):
            for side, call in enumerate(pair):
                cpu, wall = time.process_time(), time.perf_counter()
                result = call()
                took = time.perf_counter() - wall, time.process_time() - cpu
                del result
                times[side].append(took)
        print(json.dumps([name, [side[1:] for side in times]]), flush=True)


def ran(path: str, folder: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the times of the package at ``path``, from a separate process."""
    command = [sys.executable, __file__, "--measure", folder]
    command += ["--rounds", str(arguments.rounds), "--only", arguments.only]
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        command, env=environment, check=True, stdout=subprocess.PIPE, text=True
    )
    return dict(json.loads(line) for line in done.stdout.splitlines())


def shown(times: list[list[list[float]]]) -> str:
    """Return best and median times, and the ratios to the library in each round."""
    library, ours = times
    best, cpu = (min(column) * 1e3 for column in zip(*ours, strict=True))
    middle = statistics.median(wall for wall, _ in ours) * 1e3
    ratios = [mine[0] / base[0] for mine, base in zip(ours, library, strict=True)]
    least = min(w for w, _ in ours) / min(w for w, _ in library)
    of_cpu = min(c for _, c in ours) / max(min(c for _, c in library), 1e-9)
    return (
        f"{best:8.1f} {middle:8.1f} {cpu:8.1f} | {least:6.2f} "
        f"{statistics.median(ratios):6.2f} {of_cpu:6.2f}"
    )


def main() -> None:
    """Compare this package, and the package at ``--peer``, with the libraries."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", help="folder with another installed tensordict")
    parser.add_argument("--rounds", type=int, default=7, help="rounds (default: 7)")
    parser.add_argument("--only", default="", help="run cases with this in the name")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        measure(arguments.measure, arguments.rounds, arguments.only)
        return
    here = str(Path(__file__).parents[1] / "python")
    packages = {"here": here} | ({"peer": arguments.peer} if arguments.peer else {})
    with tempfile.TemporaryDirectory() as folder:
        write(folder)
        found = {name: ran(path, folder, arguments) for name, path in packages.items()}
    print(
        f"load {os.getloadavg()[0]:.1f}; ms: best, median, cpu | / library: best, median, cpu"
    )
    for case in found["here"]:
        for package, times in found.items():
            print(f"{case:32} {package:5} {shown(times[case])}")


if __name__ == "__main__":
    main()
