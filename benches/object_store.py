"""Rows of a save in an object store beside bare range requests of the same bytes.

nginx serves the files of a save on the loopback interface, with and without a relay that
delays every byte. Rounds of both sides alternate in one run; CPU time is that of this process,
not of the server. Needs nginx and the package obstore.

Run: python benches/object_store.py [--gigabytes 2] [--rounds 7] [--latency-ms 10]
"""

import argparse
import asyncio
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import obstore
import torch

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
    """Pass bytes on half the latency later, in both directions."""
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
    """Ask for the same ranges with the library alone."""
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
    """The same with as many requests at a time as there are."""

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


def asked_bytes(remote, rows) -> float:
    """The bytes of all requests over those of the rows, by the plan of a read."""
    plans = [remote[key].plan(rows)[1] for key in remote.keys()]  # noqa: SIM118
    spans = sum(span.size for plan in plans for span in segments.spans_of(plan))
    return spans / reading.count_bytes(plans)


def shown(name: str, found: dict[str, list[tuple[float, float]]]) -> None:
    ours = found["ours"]
    print(name)
    for side, times in found.items():
        walls, cpus = zip(*times, strict=True)
        ratio = min(wall for wall, _ in ours) / min(walls)
        print(
            f"  {side:22} least {min(walls) * 1e3:8.1f} ms, median "
            f"{statistics.median(walls) * 1e3:8.1f} ms, CPU {min(cpus) * 1e3:7.1f} ms"
            f"  ours / this {ratio:5.2f}",
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
    remote[torch.randint(0, num_rows, (BATCH,))]
    for _ in range(args.rounds):
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


def epochs(args, label: str, url: str, path: Path, folder: Path, num_rows: int) -> None:
    steps = min(args.steps, num_rows // BATCH)

    def some(loader):
        batches = iter(loader)
        for _ in range(steps):
            next(batches)
        batches.close()

    loader = BatchLoader(tensordict.load(url), BATCH, shuffle=True, seed=0)
    wall, cpu = timed(lambda: some(loader))
    rate = steps * BATCH / wall
    print(
        f"shuffled batches, {label}: {rate:.0f} rows/s, CPU {cpu:.2f} s of {wall:.2f} s"
    )
    cached = tensordict.load(url, cache_dir=folder / "cache")

    def again(source):
        return timed(lambda: some(BatchLoader(source, BATCH, shuffle=True, seed=0)))

    first = again(cached)
    second = again(cached)
    local = tensordict.load(path)
    again(local)
    files = again(local)
    print(
        f"  from the cache: first {first[0]:.2f} s, second {second[0]:.2f} s, "
        f"local files {files[0]:.2f} s, second / files {second[0] / files[0]:.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--gigabytes", type=float, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--latency-ms", type=float, default=10)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--relay", nargs=3, type=float, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.relay:
        port, target, latency = args.relay
        asyncio.run(relay(int(port), int(target), latency))
        return
    num_rows = int(args.gigabytes * (1 << 30) / ROW_BYTES)
    folder = Path(tempfile.mkdtemp(prefix="object-store-"))
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
            epochs(args, label, url, folder / "of-1", folder / f"at-{at}", num_rows)
    finally:
        for process in processes:
            process.terminate()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
