"""Rows of a save in an object store, compared with bare range requests and with zarr.

nginx serves the files of a save on the loopback interface, with and without a relay that
delays every byte. Rounds of all sides alternate in one run. CPU time is the time of this
process, not of the server. Needs nginx and the packages obstore and zarr. Lance, MosaicML
streaming and litData were not measured.

Run: python benches/object_stores.py [--gigabytes 2] [--rounds 7] [--latency-ms 10]
"""

import argparse
import asyncio
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import obstore
import torch
import zarr

import tensordict
from tensordict import TensorDict
from tensordict.data import BatchLoader
from tensordict.storage.remote import reading, segments

ROW_FLOATS = 3072
ROW_BYTES = 4 * ROW_FLOATS
BATCH = 256
CONFIG = """
worker_processes 1; daemon off; pid {folder}/pid; error_log {folder}/errors;
events {{ worker_connections 4096; }}
http {{ access_log off; keepalive_requests 1000000; sendfile on;
  client_body_temp_path {folder}/1; proxy_temp_path {folder}/2; fastcgi_temp_path {folder}/3;
  uwsgi_temp_path {folder}/4; scgi_temp_path {folder}/5;
  server {{ listen 127.0.0.1:{port}; root {root}; }} }}
"""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def wait_for(port: int) -> None:
    for _ in range(1200):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise SystemExit(f"nothing listens on {port}")


async def relay(port: int, target: int, latency: float) -> None:
    """Forward bytes in both directions, delayed by half the latency."""
    loop = asyncio.get_running_loop()

    async def pass_on(reader, writer):
        queue: asyncio.Queue = asyncio.Queue()

        async def write():
            while True:
                due, part = await queue.get()
                if due > loop.time():
                    await asyncio.sleep(due - loop.time())
                if not part:
                    writer.close()
                    return
                writer.write(part)
                await writer.drain()

        task = asyncio.create_task(write())
        part = b"-"
        while part:
            try:
                part = await reader.read(1 << 16)
            except OSError:
                part = b""
            queue.put_nowait((loop.time() + latency / 2, part))
        await asyncio.gather(task, return_exceptions=True)

    async def connect(reader, writer):
        there = await asyncio.open_connection("127.0.0.1", target)
        await asyncio.gather(pass_on(reader, there[1]), pass_on(there[0], writer))

    server = await asyncio.start_server(connect, "127.0.0.1", port, backlog=2000)
    await server.serve_forever()


def timed(call) -> tuple[float, float]:
    cpu, wall = time.process_time(), time.perf_counter()
    call()
    return time.perf_counter() - wall, time.process_time() - cpu


def bare_ranges(store, names: dict[str, int], rows: list[int]) -> None:
    """Request the same ranges with the library alone."""
    ordered = sorted(rows)
    for name, size in names.items():
        starts = [row * size for row in ordered]
        obstore.get_ranges(
            store,
            name,
            starts=starts,
            lengths=[size] * len(rows),
            coalesce=segments.GAP,
        )


def bare_at_best(store, names: dict[str, int], rows: list[int]) -> None:
    """Request the same ranges, all of them at once."""

    async def all_of_them():
        ordered = sorted(rows)
        await asyncio.gather(
            *(
                obstore.get_ranges_async(
                    store,
                    name,
                    starts=[row * size for row in ordered[at : at + 10]],
                    lengths=[size] * len(ordered[at : at + 10]),
                    coalesce=segments.GAP,
                )
                for name, size in names.items()
                for at in range(0, len(ordered), 10)
            )
        )

    asyncio.run(all_of_them())


def zarr_sides(url: str, folder: Path, num_rows: int) -> dict:
    """Return what reads rows of zarr's arrays: of chunks, and of one row a chunk in shards."""
    shapes = {
        "zarr, chunks of 64 rows": {"chunks": (64, ROW_FLOATS)},
        "zarr, a row a chunk": {
            "chunks": (1, ROW_FLOATS),
            "shards": (1024, ROW_FLOATS),
        },
    }
    num_rows = min(num_rows, 20_480)
    sides = {}
    for number, (name, how) in enumerate(shapes.items()):
        below = f"zarr-{number}"
        if not (folder / below).exists():
            array = zarr.create_array(
                folder / below,
                shape=(num_rows, ROW_FLOATS),
                dtype="float32",
                compressors=None,
                fill_value=None,
                **how,
            )
            for at in range(0, num_rows, 1024):
                array[at : at + 1024] = np.full((1024, ROW_FLOATS), at, np.float32)
        store = obstore.store.from_url(
            f"{url}/{below}", client_options={"allow_http": True}
        )
        opened = zarr.open_array(
            zarr.storage.ObjectStore(store, read_only=True), mode="r"
        )
        sides[name] = (opened, num_rows)
    return sides


def asked_bytes(remote, rows) -> float:
    """Return the requested bytes divided by the bytes of the rows, by the read plan."""
    plans = [remote[key].plan(rows)[1] for key in remote.keys()]  # noqa: SIM118
    spans = sum(span.size for plan in plans for span in segments.spans_of(plan))
    return spans / reading.count_bytes(plans)


def shown(name: str, found: dict[str, list[tuple[float, float]]]) -> None:
    ours = found["ours"]
    print(name)
    for side, times in found.items():
        walls, cpus = zip(*times, strict=True)
        ratio = min(wall for wall, _ in ours) / min(walls)
        of_cpu = min(cpu for _, cpu in ours) / min(cpus)
        print(
            f"  {side:24} least {min(walls) * 1e3:8.1f} ms, median "
            f"{statistics.median(walls) * 1e3:8.1f} ms, CPU {min(cpus) * 1e3:7.1f} ms"
            f"  ours / this {ratio:5.2f}, CPU {of_cpu:5.2f}",
            flush=True,
        )


def rows_at_random(args, label: str, url: str, leaves: int, num_rows: int) -> None:
    remote = tensordict.load(url)
    store = obstore.store.from_url(url, client_options={"allow_http": True})
    size = 4 * (ROW_FLOATS // leaves)
    names = {f"{at}.memmap": size for at in range(leaves)}
    found: dict[str, list] = {
        "ours": [],
        "bare get_ranges": [],
        "bare, all at once": [],
    }
    others = {}
    if leaves == 1:
        others = zarr_sides(url.rpartition("/")[0], args.folder, num_rows)
        found |= {name: [] for name in others}
    remote[torch.randint(0, num_rows, (BATCH,))]
    for _ in range(args.rounds):
        for name, (array, count) in others.items():
            few = np.sort(torch.randperm(count)[:BATCH].numpy())
            found[name].append(timed(lambda: array.oindex[few]))  # noqa: B023
        rows = torch.randperm(num_rows)[:BATCH]
        numbers = rows.tolist()
        found["ours"].append(timed(lambda: remote[rows]))  # noqa: B023
        found["bare get_ranges"].append(
            timed(lambda: bare_ranges(store, names, numbers))  # noqa: B023
        )
        found["bare, all at once"].append(
            timed(lambda: bare_at_best(store, names, numbers))  # noqa: B023
        )
    shown(f"{BATCH} random rows of 12 KiB, {leaves} leaves, {label}", found)
    ratio = asked_bytes(remote, torch.randperm(num_rows)[:BATCH].numpy())
    print(f"  bytes asked for over those of the rows: {ratio:.3f}")


def epoch_of(source) -> None:
    for _ in BatchLoader(source, BATCH, shuffle=True, seed=0):
        pass


def epochs(args, label: str, url: str, path: Path, folder: Path, num_rows: int) -> None:
    remote = tensordict.load(url)
    store = obstore.store.from_url(url, client_options={"allow_http": True})
    names = {"0.memmap": ROW_BYTES}
    epoch_of(remote)

    def bare() -> None:
        for rows in torch.randperm(num_rows).split(BATCH):
            bare_at_best(store, names, rows.tolist())

    found: dict[str, list] = {"ours": [], "bare, all at once": []}
    for _ in range(3):
        found["ours"].append(timed(lambda: epoch_of(remote)))
        found["bare, all at once"].append(timed(bare))
    shown(f"an epoch of shuffled batches, {label}", found)
    cached = tensordict.load(url, cache_dir=folder / "cache")
    first = timed(lambda: epoch_of(cached))
    print(f"  the first through the cache: {first[0]:.2f} s, CPU {first[1]:.2f} s")
    local = tensordict.load(path)
    epoch_of(local)
    found = {"ours": [], "local files": []}
    for _ in range(args.rounds):
        found["ours"].append(timed(lambda: epoch_of(cached)))
        found["local files"].append(timed(lambda: epoch_of(local)))
    shown("the same out of the cache", found)


def downloads(label: str, url: str, folder: Path) -> None:
    store = obstore.store.from_url(url, client_options={"allow_http": True})
    target = folder / "copy"

    def ours() -> None:
        shutil.rmtree(target, ignore_errors=True)
        tensordict.load(url, download=target)

    def bare() -> None:
        target.with_suffix(".bare").unlink(missing_ok=True)
        with target.with_suffix(".bare").open("wb") as file:
            for part in obstore.get(store, "0.memmap").stream():
                file.write(part)

    found: dict[str, list] = {"ours": [], "bare get to a file": []}
    for _ in range(3):
        found["ours"].append(timed(ours))
        found["bare get to a file"].append(timed(bare))
    shown(f"a download, {label}", found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--gigabytes", type=float, default=2, help="size of the data (default: 2)"
    )
    parser.add_argument("--rounds", type=int, default=7, help="rounds (default: 7)")
    parser.add_argument(
        "--latency-ms", type=float, default=10, help="delay of the relay (default: 10)"
    )
    parser.add_argument("--relay", nargs=3, type=float, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.relay:
        port, target, latency = args.relay
        asyncio.run(relay(int(port), int(target), latency))
        return
    num_rows = int(args.gigabytes * (1 << 30) / ROW_BYTES)
    folder = Path(tempfile.mkdtemp(prefix="object-store-"))
    args.folder = folder
    print("load", " ".join(f"{load:.1f}" for load in os.getloadavg()))
    folder.chmod(0o755)  # nginx serves as another user
    processes = []
    try:
        for leaves in (1, 10):
            per_leaf = ROW_FLOATS // leaves
            td = TensorDict(
                {str(at): torch.zeros(num_rows, per_leaf) for at in range(leaves)},
                [num_rows],
            )
            td.memmap(folder / f"of-{leaves}", checks=False)
            del td
        port, slow = free_port(), free_port()
        config = folder / "nginx.conf"
        config.write_text(CONFIG.format(folder=folder, port=port, root=folder))
        nginx = shutil.which("nginx") or "/usr/sbin/nginx"
        processes.append(subprocess.Popen([nginx, "-c", str(config)]))
        relay_args = ["--relay", str(slow), str(port), str(args.latency_ms / 1000)]
        processes.append(subprocess.Popen([sys.executable, __file__, *relay_args]))
        wait_for(port)
        wait_for(slow)
        for label, at in (("no latency", port), (f"{args.latency_ms:g} ms", slow)):
            for leaves in (1, 10):
                url = f"http://127.0.0.1:{at}/of-{leaves}"
                rows_at_random(args, label, url, leaves, num_rows)
            url = f"http://127.0.0.1:{at}/of-1"
            own = folder / f"at-{at}"
            epochs(args, label, url, folder / "of-1", own, num_rows)
            downloads(label, url, own)
    finally:
        for process in processes:
            process.terminate()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
