"""``python benches/interop.py``: conversions, compared with the other library alone.

Both sides of a pair alternate. Prints the best and the median of the rounds, with the
CPU time of the best. The data is a million rows of ten columns, and images of 4 kB.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tensordict import TensorDict, from_dlpack, from_xarray, to_dlpack, to_hf, to_xarray

Pair = tuple[Callable[[], Any], Callable[[], Any]]


def hugging_face(folder: str, rows: int) -> dict[str, Pair]:
    """Return batches of ``with_format("tensordict")`` and ``with_format("torch")``."""
    import datasets

    datasets.disable_progress_bars()
    columns = {f"c{at}": torch.rand(rows) for at in range(8)}
    columns |= {f"n{at}": torch.randint(0, 9, (rows,)) for at in range(2)}
    to_hf(TensorDict(columns, [rows])).save_to_disk(f"{folder}/table")
    pictures = torch.randint(0, 255, (1000, 32, 32, 4), dtype=torch.uint8)
    td = TensorDict(picture=pictures, label=torch.arange(1000), batch_size=[1000])
    to_hf(td).save_to_disk(f"{folder}/pictures")
    texts = TensorDict(
        tokens=torch.randint(0, 9, (1000, 128)),
        text=[f"row {at}" for at in range(1000)],
        batch_size=[1000],
    )
    to_hf(texts).save_to_disk(f"{folder}/texts")
    pairs: dict[str, Pair] = {}
    order = torch.randperm(1000).tolist()
    for name in ("table", "pictures", "texts"):
        dataset = datasets.load_from_disk(f"{folder}/{name}")
        ours, theirs = (dataset.with_format(form) for form in ("tensordict", "torch"))

        def slices(made: Any = None) -> None:
            for start in range(0, 1000, 500):
                made[start : start + 500]

        def chosen(made: Any = None) -> None:
            for start in range(0, 1000, 250):
                made[order[start : start + 250]]

        def single(made: Any = None) -> None:
            for at in order[:100]:
                made[at]

        for what, call in (
            ("slices of 500", slices),
            ("250 shuffled", chosen),
            ("one row", single),
        ):
            pairs[f"datasets {name}, {what} / torch format"] = (
                lambda call=call, made=ours: call(made),
                lambda call=call, made=theirs: call(made),
            )
    whole = datasets.load_from_disk(f"{folder}/table")
    from tensordict import from_hf

    pairs["from_hf, all rows / arrow columns to NumPy, copied"] = (
        lambda: from_hf(whole),
        lambda: [
            column.combine_chunks().to_numpy(zero_copy_only=False).copy()
            for column in whole.with_format("arrow")[:].columns
        ],
    )
    return pairs


def arrays(rows: int) -> dict[str, Pair]:
    """DLPack and xarray."""
    import xarray

    td = TensorDict({f"c{at}": torch.rand(rows) for at in range(10)}, [rows])
    held = to_dlpack(td)
    labelled = to_xarray(td)
    return {
        "to_dlpack / torch alone": (
            lambda: to_dlpack(td),
            lambda: {key: np.from_dlpack(value) for key, value in td.items()},
        ),
        "from_dlpack / torch alone": (
            lambda: from_dlpack(held, batch_size=[rows]),
            lambda: {key: torch.from_dlpack(value) for key, value in held.items()},
        ),
        "to_xarray / xarray alone": (
            lambda: to_xarray(td),
            lambda: xarray.Dataset({k: ("row", v.numpy()) for k, v in td.items()}),
        ),
        "from_xarray / torch alone": (
            lambda: from_xarray(labelled),
            lambda: {
                key: torch.from_numpy(value.values) for key, value in labelled.items()
            },
        ),
    }


def streaming(folder: str, rows: int) -> dict[str, Pair]:
    """MDS, against loops over the library's writer and reader."""
    from streaming import MDSWriter, StreamingDataset

    from tensordict import from_mds

    pictures = torch.randint(0, 255, (rows, 32, 32, 4), dtype=torch.uint8)
    td = TensorDict(picture=pictures, label=torch.arange(rows), batch_size=[rows])
    td.to_mds(out=f"{folder}/read")
    counter = iter(range(10**6))

    def alone() -> None:
        columns = {"picture": "ndarray", "label": "int"}
        with MDSWriter(out=f"{folder}/w{next(counter)}", columns=columns) as writer:
            for row in td:
                writer.write(
                    {"picture": row["picture"].numpy(), "label": row["label"].item()}
                )

    dataset = StreamingDataset(local=f"{folder}/read", batch_size=1, shuffle=False)
    return {
        "to_mds / the writer in a loop": (
            lambda: td.to_mds(out=f"{folder}/w{next(counter)}"),
            alone,
        ),
        "from_mds / the dataset in a loop": (
            lambda: from_mds(f"{folder}/read"),
            lambda: [dataset[at] for at in range(len(dataset))],
        ),
    }


def measured(call: Callable[[], Any]) -> tuple[float, float]:
    """Return the wall time of a call, and the CPU time of the process."""
    wall, processor = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - wall, time.process_time() - processor


def main() -> None:
    """Run the pairs in turns, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--rows",
        type=int,
        default=1_000_000,
        help="number of rows (default: 1_000_000)",
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds (default: 5)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        pairs = {**hugging_face(folder, options.rows), **arrays(options.rows)}
        if importlib.util.find_spec("streaming"):
            pairs |= streaming(str(Path(folder, "mds")), 2000)
        print(f"load {os.getloadavg()[0]:.1f}, torch {torch.__version__}")
        print(
            f"{'':52} {'ours ms':>9} {'theirs':>9} {'ratio':>6} {'cpu':>6} {'median':>6}"
        )
        for name, (ours, theirs) in pairs.items():
            ours(), theirs()
            mine, others = [], []
            for _ in range(options.rounds):
                mine.append(measured(ours))
                others.append(measured(theirs))
            best, other = min(mine), min(others)
            ratios = [a[0] / b[0] for a, b in zip(mine, others, strict=True)]
            cpu = min(a[1] for a in mine) / max(min(b[1] for b in others), 1e-9)
            print(
                f"{name:52} {best[0] * 1e3:9.3f} {other[0] * 1e3:9.3f} "
                f"{best[0] / other[0]:6.2f} {cpu:6.2f} {statistics.median(ratios):6.2f}"
            )


if __name__ == "__main__":
    main()
