"""``python benches/storage.py --peer DIR``: saving and loading, compared with the limits.

``--list`` prints the names of the workloads. ``--only "save 240 x 5 MB"`` runs one workload,
or all workloads whose names contain the text. ``--rounds 1`` gives a quick estimate.

Each workload is timed in turns: a bare loop of system calls (the limit), this package, and
the published release in a separate process, with its best number of threads. Before each
timing, a scratch file of the same size is written and removed, so that no side pays for
dirty pages of another side. Every save goes to a fresh directory, which is removed after all
timings of its workload, because ext4 creates files slowly where many were just removed. In
"again" workloads, each side except the limit overwrites its previous save. Each side loads
its own save, and the limit loads this package's: the layout of bytes in the page cache
depends on how they were written.

Everything is warm: in the page cache, not durable. Prints the shortest and the median time
of each side, the shortest CPU time (which other programs disturb less), and the ratios of
the shortest times.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import mmap
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from machine import keep

MIB = 1 << 20

Times = tuple[float, ...]
"""Wall seconds, CPU seconds, and if parts are timed, the wall seconds of each part."""

WORKLOADS: dict[str, tuple[int, int]] = {
    # name: (leaves, bytes of each)
    "save 12 x 100 MB": (12, 100_000_000),
    "save 240 x 5 MB": (240, 5_000_000),
    "save 240 x 5 MB, 4 shards": (240, 5_000_000),
    "save 12 x 100 MB, 4 shards": (12, 100_000_000),
    "save 10000 x 1 KiB": (10_000, 1024),
    "save 10000 x 1 KiB, archive": (10_000, 1024),
    "save 1000 x 1 KiB, again": (1000, 1024),
    "save 12 x 100 MB, archive": (12, 100_000_000),
    "save 12 x 100 MB, durable": (12, 100_000_000),
    "load 240 x 5 MB": (240, 5_000_000),
    "load 10000 x 1 KiB": (10_000, 1024),
    "load 10000 x 1 KiB, archive": (10_000, 1024),
    "full load of 12 x 100 MB": (12, 100_000_000),
}

PEER_THREADS = (0, 2, 4, 8)

SHARDS = 4


def main() -> None:
    """Run the workloads and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", help="folder with the installed published release")
    parser.add_argument("--rounds", type=int, default=5, help="rounds (default: 5)")
    parser.add_argument("--folder", default=None, help="folder to write to")
    parser.add_argument(
        "--only", default="", help="run workloads with this in the name"
    )
    parser.add_argument("--json", help="file to write all numbers to")
    parser.add_argument("--list", action="store_true", help="print names of workloads")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        serve()
        return
    if arguments.list:
        print(*WORKLOADS, sep="\n")
        return
    ours = Worker({})
    sides: dict[str, Callable[[dict[str, Any]], Times]] = {
        "limit": run_limit,
        "ours": ours.run,
    }
    if arguments.peer:
        peer = Worker({"PYTHONPATH": arguments.peer})
        for threads in PEER_THREADS:
            sides[f"peer, {threads} threads"] = lambda job, threads=threads: peer.run(
                {**job, "threads": threads}
            )
    print(
        f"{os.process_cpu_count() if sys.version_info > (3, 13) else os.cpu_count()} cores"
    )
    kept: dict[str, object] = {}
    for name, (leaves, size) in WORKLOADS.items():
        # A complete name selects one workload, even if other names begin with it.
        if name == arguments.only or (
            arguments.only not in WORKLOADS and arguments.only in name
        ):
            times = time_workload(name, leaves, size, sides, arguments)
            report(name, times)
            kept[name] = {
                side: {"s": [run[0] for run in runs], "cpu_s": [run[1] for run in runs]}
                for side, runs in times.items()
            }
    keep(arguments.json, {"workloads": kept})


def time_workload(
    name: str,
    leaves: int,
    size: int,
    sides: dict[str, Callable[[dict[str, Any]], Times]],
    arguments: argparse.Namespace,
) -> dict[str, list[Times]]:
    times: dict[str, list[Times]] = {side: [] for side in sides}
    folder = Path(tempfile.mkdtemp(dir=arguments.folder))
    job = {
        "kind": name.split(maxsplit=1)[0],
        "leaves": leaves,
        "size": size,
        "threads": 0,
        "archive": name.endswith("archive"),
        "durable": name.endswith("durable"),
        "shards": SHARDS if name.endswith("shards") else 0,
        "checks": True,
    }
    if job["kind"] == "save":
        without = {"checks": False}
        run_ours = sides["ours"]
        sides = {**sides, "ours, no checks": lambda job: run_ours({**job, **without})}
    if job["durable"]:
        # The release has no durable saves.
        sides = {side: run for side, run in sides.items() if "peer" not in side}
    if job["shards"]:
        # The release writes one safetensors file, with the safetensors package.
        sides = {side: run for side, run in sides.items() if "peer" not in side}
    is_of_package = job["shards"] or (job["kind"] == "save" and size >= MIB)
    if is_of_package and not job["archive"] and not job["durable"]:
        sides["safetensors package"] = lambda job: run_ours({**job, "package": True})
    suffix = ".tdz" if job["archive"] else ""
    if job["kind"] == "save" and size < MIB and not name.endswith("again"):
        sides["ours, in parts"] = lambda job: run_ours({**job, "in_parts": True})
    times = {side: [] for side in sides}
    try:
        if job["archive"] and job["kind"] == "save":
            # The limit writes as many bytes as the finished archive contains.
            finished = folder / f"finished{suffix}"
            sides["ours"]({**job, "path": str(finished)})
            job["finished_bytes"] = finished.stat().st_size
            finished.unlink()
        # Each side loads its own save; the limit loads ours. The layout of bytes in the page
        # cache depends on how they were written.
        saved = dict.fromkeys(sides, folder / f"ours{suffix}")
        for side in ("ours", *[side for side in sides if side.startswith("peer")]):
            if side != "ours":
                saved[side] = folder / f"peer{suffix}"
            if job["kind"] != "save" and not saved[side].exists():
                sides[side]({**job, "kind": "save", "path": str(saved[side])})
        for round_number in range(arguments.rounds):
            for number, (side, run) in enumerate(sides.items()):
                is_again = name.endswith("again") and side != "limit"
                turn = "again" if is_again else str(round_number)
                path = folder / f"{turn}-{number}{suffix}"
                if job["kind"] != "save":
                    path = saved[side]
                else:
                    write_scratch(folder / "scratch", leaves * size)
                times[side].append(run({**job, "path": str(path)}))
                if job["kind"] == "save" and path.is_file():
                    path.unlink()
                elif job["kind"] == "save" and size >= MIB:
                    shutil.rmtree(path)
    finally:
        shutil.rmtree(folder)
    return times


def write_scratch(path: Path, num_bytes: int) -> None:
    block = bytes(8 * MIB)
    with path.open("wb", buffering=0) as file:
        for _ in range(max(1, num_bytes // len(block))):
            file.write(block)
    path.unlink()


def report(name: str, times: dict[str, list[Times]]) -> None:
    print(f"\n{name}")
    least = {side: min(run[0] for run in runs) for side, runs in times.items()}
    median = {
        side: statistics.median(run[0] for run in runs) for side, runs in times.items()
    }
    cpu = {side: min(run[1] for run in runs) for side, runs in times.items()}
    for side, runs in times.items():
        if side == "ours, in parts":
            report_parts(runs, [run[0] for run in times["limit"]])
            continue
        print(
            f"  {side:16} least {least[side] * 1e3:8.2f} ms, median "
            f"{median[side] * 1e3:8.2f} ms, CPU {cpu[side] * 1e3:8.2f} ms; ours / this: least "
            f"{least['ours'] / least[side]:5.2f}, median {median['ours'] / median[side]:5.2f}, "
            f"CPU {cpu['ours'] / cpu[side]:5.2f}"
        )
    peers = [side for side in times if side.startswith("peer")]
    if peers:
        gain = min(least[side] for side in peers) / least["ours"]
        middle = min(median[side] for side in peers) / median["ours"]
        cpu_gain = min(cpu[side] for side in peers) / cpu["ours"]
        print(
            f"  faster than the release at its best: least {gain:.2f}, median {middle:.2f}, "
            f"CPU {cpu_gain:.2f}"
        )


def report_parts(runs: list[Times], limits: list[float]) -> None:
    """Print the parts of a save of small leaves.

    The comparison with the limit leaves out the metadata text and the returned
    container. It includes the plan, the files, and the release of the plan. For a
    directory, files are mapped while they are written, which counts as part of the
    files.
    """
    names = "plan", "metadata text", "files", "returned container", "plan's end"
    for name, part in zip(names, list(zip(*runs, strict=True))[2:], strict=True):
        print(
            f"    {name:18} least {min(part) * 1e3:6.2f} ms, "
            f"median {statistics.median(part) * 1e3:6.2f} ms"
        )
    alone = [run[2] + run[4] + run[6] for run in runs]
    print(
        f"    without text and container / limit: least {min(alone) / min(limits):.2f}, "
        f"median {statistics.median(alone) / statistics.median(limits):.2f}"
    )


# The limit ------------------------------------------------------------------------------


def run_limit(job: dict[str, Any]) -> Times:
    """Run system calls in two threads, each on its own files."""
    path = Path(job["path"])
    if job["archive"] or job["kind"] == "full":
        return run_limit_of_one(job)
    names = [str(path / f"k{i}.memmap") for i in range(job["leaves"])]
    if job["shards"]:
        # The same bytes in the same number of files.
        names = [str(path / f"shard-{i}") for i in range(job["shards"])]
        job = {**job, "size": job["leaves"] * job["size"] // job["shards"]}
    is_save = job["kind"] == "save"
    work = write_plain if is_save else map_plain
    if job["durable"]:
        work = write_early
    # As many different bytes as a save reads: two threads that write from the same memory
    # would share the processor's cache.
    num_bytes = len(names) * job["size"] if is_save else job["size"]
    content = memoryview(os.urandom(MIB) * (num_bytes // MIB + 1))
    step = job["size"] if is_save else 0
    files = [
        (name, content[number * step :][: job["size"]])
        for number, name in enumerate(names)
    ]
    kept: list[Any] = []
    start, used = time.perf_counter(), time.process_time()
    if is_save:
        path.mkdir()
    halves = [
        threading.Thread(target=work, args=(files[part::2], kept)) for part in range(2)
    ]
    for half in halves:
        half.start()
    for half in halves:
        half.join()
    if job["durable"]:
        descriptor = os.open(path, os.O_RDONLY)
        LIBC.syncfs(descriptor)
        os.close(descriptor)
    return time.perf_counter() - start, time.process_time() - used


def run_limit_of_one(job: dict[str, Any]) -> Times:
    """Write the bytes of one finished file, read files into memory, or map one file."""
    path = Path(job["path"])
    num_bytes = job["leaves"] * job["size"]
    if job["kind"] == "save":
        num_bytes = job["finished_bytes"]
        content = memoryview(os.urandom(MIB) * (num_bytes // MIB + 1))[:num_bytes]
        start, used = time.perf_counter(), time.process_time()
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        for offset in range(0, num_bytes, 8 * MIB):
            os.pwrite(descriptor, content[offset : offset + 8 * MIB], offset)
        os.close(descriptor)
        return time.perf_counter() - start, time.process_time() - used
    if job["kind"] == "load":
        start, used = time.perf_counter(), time.process_time()
        descriptor = os.open(path, os.O_RDWR)
        kept = mmap.mmap(descriptor, 0)
        views = [
            memoryview(kept)[at * 1100 : at * 1100 + 1024]
            for at in range(job["leaves"])
        ]
        os.close(descriptor)
        times = time.perf_counter() - start, time.process_time() - used
        del views
        return times
    targets = TARGETS.setdefault(
        num_bytes,
        # Touched before the timing, and aligned like the memory of tensors.
        [np.ones(job["size"] + 64, np.uint8) for _ in range(job["leaves"])],
    )
    names = [path / f"k{i}.memmap" for i in range(job["leaves"])]

    def read(part: int) -> None:
        for name, target in zip(names[part::2], targets[part::2], strict=True):
            descriptor = os.open(name, os.O_RDONLY)
            view = memoryview(target)[-target.ctypes.data % 64 :][: job["size"]]
            for offset in range(0, len(view), 8 * MIB):
                os.preadv(descriptor, [view[offset : offset + 8 * MIB]], offset)
            os.close(descriptor)

    start, used = time.perf_counter(), time.process_time()
    halves = [threading.Thread(target=read, args=(part,)) for part in range(2)]
    for half in halves:
        half.start()
    for half in halves:
        half.join()
    return time.perf_counter() - start, time.process_time() - used


LIBC = ctypes.CDLL(None)
SYNC_FILE_RANGE_WRITE = 2

TARGETS: dict[int, list[np.ndarray]] = {}
"""Target memory of reads, touched before the timing."""


def write_plain(files: list[tuple[str, memoryview]], _kept: list[Any]) -> None:
    for name, content in files:
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        for offset in range(0, len(content), 8 * MIB):
            os.pwrite(descriptor, content[offset : offset + 8 * MIB], offset)
        os.close(descriptor)


def write_early(files: list[tuple[str, memoryview]], _kept: list[Any]) -> None:
    """Write like :func:`write_plain`, but start the write-back of each piece."""
    for name, content in files:
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        for offset in range(0, len(content), 8 * MIB):
            piece = content[offset : offset + 8 * MIB]
            os.pwrite(descriptor, piece, offset)
            LIBC.sync_file_range(
                descriptor,
                ctypes.c_int64(offset),
                ctypes.c_int64(len(piece)),
                SYNC_FILE_RANGE_WRITE,
            )
        os.close(descriptor)


def map_plain(files: list[tuple[str, memoryview]], kept: list[Any]) -> None:
    for name, content in files:
        descriptor = os.open(name, os.O_RDWR)
        kept.append(mmap.mmap(descriptor, len(content)))
        os.close(descriptor)


# A side in a separate process ------------------------------------------------------------


class Worker:
    """A process that times jobs with the ``tensordict`` that it imports."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", __file__, "--worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )

    def run(self, job: dict[str, Any]) -> Times:
        """Return the times of a job."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        return tuple(json.loads(self.process.stdout.readline()))


def serve() -> None:
    """Run the jobs on standard input, one a line; print the times of each."""
    import torch

    import tensordict
    from tensordict import TensorDict

    made: dict[tuple[int, int], Any] = {}
    for line in sys.stdin:
        job = json.loads(line)
        shape = job["leaves"], job["size"]
        if shape not in made:
            made.clear()
            made[shape] = TensorDict(
                {
                    f"k{i}": torch.randint(0, 255, (job["size"],), dtype=torch.uint8)
                    for i in range(job["leaves"])
                }
            )
        own = {}
        if "rs" in tensordict.__version__:
            own = {"checks": job["checks"], "durable": job["durable"]}
        td = made[shape]
        if job.get("in_parts"):
            print(json.dumps(save_in_parts(td, job["path"])), flush=True)
            continue
        start, used = time.perf_counter(), time.process_time()
        if job.get("package"):
            result = save_by_package(td, Path(job["path"]), job["shards"])
        elif job["shards"]:
            Path(job["path"]).mkdir()
            result = tensordict.to_safetensors(
                td,
                f"{job['path']}/model.safetensors",
                shards=job["shards"],
                checks=job["checks"],
            )
        elif job["kind"] == "save":
            result = td.memmap(job["path"], num_threads=job["threads"], **own)
        elif job["kind"] == "full" and own:
            result = TensorDict.load_memmap(job["path"], out=td)
        elif job["kind"] == "full":
            result = td.update_(TensorDict.load_memmap(job["path"]))
        else:
            result = TensorDict.load_memmap(job["path"], num_threads=job["threads"])
        times = time.perf_counter() - start, time.process_time() - used
        del result
        print(json.dumps(times), flush=True)


def save_in_parts(td: Any, path: str) -> Times:
    """Return the seconds of a save of a flat tensordict, and of its parts.

    The parts are the plan, the metadata text, the files, the returned container, and
    the release of the plan.
    """
    from tensordict import _rust
    from tensordict.primitives import registry
    from tensordict.storage.layouts.directory import Directory

    texts = registry.type_text(type(td)), registry.class_text(type(td))
    used = time.process_time()
    ticks = [time.perf_counter()]
    plan = _rust.SavePlan(path, True, True, False)
    plan.add_entries(0, td._tensordict)
    ticks.append(time.perf_counter())
    plan.close_level(0, list(td.batch_size), None, *texts)
    ticks.append(time.perf_counter())
    how, progress = (0, False, True), _rust.SaveProgress()
    if path.endswith(".tdz"):
        leaves = plan.write_archive(0, False, how, progress)
        ticks.append(time.perf_counter())
        result = td._saved(leaves, None, False)._unlock_saved()
    else:
        leaves = plan.write(True, False, how, progress)
        ticks.append(time.perf_counter())
        result = td._saved(leaves, Directory(Path(path), True), False)
    ticks.append(time.perf_counter())
    del plan, leaves
    ticks.append(time.perf_counter())
    used = time.process_time() - used
    del result
    parts = [after - before for before, after in itertools.pairwise(ticks)]
    return sum(parts), used, *parts


def save_by_package(td: Any, path: Path, shards: int) -> None:
    """Write files with the safetensors package, one by one, as its users do."""
    from safetensors.torch import save_file

    path.mkdir()
    names = list(td.keys())
    for number in range(max(shards, 1)):
        part = {name: td[name] for name in names[number :: max(shards, 1)]}
        save_file(part, path / f"model-{number:05}.safetensors")


if __name__ == "__main__":
    main()
