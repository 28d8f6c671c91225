"""Stores and pipes, compared with their lower limit: one bare call of socket or server.

Rounds of both sides alternate in one run. CPU time is the time of this process. The stores
need ``redis-server`` and the package ``redis``; without them, only the pipe is measured.

Run: python benches/stores.py [--gigabytes 1] [--rounds 7] [--release PATH]
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

import torch

from tensordict import TensorDict

LEAVES = 10


def shown(name: str, ours: list[tuple[float, float]], bare: list[tuple[float, float]]):
    """Return one line: minimum and median of both sides, wall and CPU time."""

    def text(found):
        walls, cpus = zip(*found, strict=True)
        return (
            f"{min(walls) * 1e3:9.2f} ms least {statistics.median(walls) * 1e3:9.2f} median"
            f" {statistics.median(cpus) * 1e3:9.2f} CPU"
        )

    first = min(wall for wall, _ in ours) / min(wall for wall, _ in bare)
    middle = statistics.median(w for w, _ in ours) / statistics.median(
        w for w, _ in bare
    )
    print(f"{name}\n  ours {text(ours)}\n  bare {text(bare)}")
    print(f"  ratio {first:.2f} of the least, {middle:.2f} of the medians", flush=True)


def timed(call) -> tuple[float, float]:
    """Return the wall and CPU seconds of a call."""
    cpu, wall = time.process_time(), time.perf_counter()
    call()
    return time.perf_counter() - wall, time.process_time() - cpu


# The pipe --------------------------------------------------------------------------------


def send_all(kind: str, port: int, num_bytes: int) -> None:
    """Run the other process: send when asked to, until the connection closes."""
    from tensordict._ucxx import TensorDictPipe

    if kind == "bare":
        content = memoryview(torch.ones(num_bytes, dtype=torch.uint8).numpy())
        with socket.create_connection(("127.0.0.1", port)) as connection:
            while connection.recv(1):
                connection.sendall(content)
        return

    async def main():
        size = num_bytes // LEAVES
        td = TensorDict(
            {str(i): torch.ones(size, dtype=torch.uint8) for i in range(LEAVES)}
        )
        async with await TensorDictPipe.connect(
            "127.0.0.1", port, transport="tcp"
        ) as pipe:
            async for _ in pipe:
                await pipe.asend(td)

    asyncio.run(main())


def pipe_against_bare_send(gigabytes: float, rounds: int) -> None:
    """Send a tensordict of ten leaves through a pipe, and as many bytes by socket."""
    from tensordict._ucxx import TensorDictServer

    num_bytes = int(gigabytes * 1e9) // LEAVES * LEAVES
    go = TensorDict(go=torch.zeros(1))

    async def main():
        server = TensorDictServer(0, host="127.0.0.1", transport="tcp")
        with socket.create_server(("127.0.0.1", 0)) as listening:
            ports = {"bare": listening.getsockname()[1], "pipe": server.port}
            others = [
                subprocess.Popen(  # noqa: ASYNC220 (they are only started)
                    [
                        sys.executable,
                        __file__,
                        "--send",
                        kind,
                        str(port),
                        str(num_bytes),
                    ]
                )
                for kind, port in ports.items()
            ]
            bare, _ = listening.accept()
        pipe = await anext(aiter(server))
        memory = memoryview(bytearray(num_bytes))

        def receive_bare():
            bare.sendall(b"x")
            received = 0
            while received < num_bytes:
                received += bare.recv_into(memory[received:])

        found: dict[str, list[tuple[float, float]]] = {"bare": [], "pipe": []}
        for number in range(rounds + 1):
            one = timed(receive_bare)
            cpu, wall = time.process_time(), time.perf_counter()
            await pipe.asend(go)
            td = await pipe.arecv()
            other = time.perf_counter() - wall, time.process_time() - cpu
            assert int(td["9"][-1]) == 1
            if number:  # the first makes the memory
                found["bare"].append(one)
                found["pipe"].append(other)
        bare.close()
        await pipe.aclose()
        await server.aclose()
        for process in others:
            process.wait()
        shown(f"{gigabytes} GB in {LEAVES} leaves, pipe", found["pipe"], found["bare"])

    asyncio.run(main())


# The store -------------------------------------------------------------------------------


RELEASE = """
import os, sys, time, torch
from tensordict import TensorDict
td = TensorDict({str(i): torch.ones(256) for i in range(100)})
store = td.to_store(unix_socket_path=sys.argv[1])
def best(call, rounds=int(sys.argv[2])):
    found = []
    for _ in range(rounds):
        start = time.perf_counter(); call(); found.append(time.perf_counter() - start)
    return min(found) * 1e3
print(best(lambda: store.update_(td)), best(lambda: store.to_tensordict()), best(lambda: store["7"]))
sys.stdout.flush()
store.close()
os._exit(0)  # its thread would keep the process
"""


def store_against_bare_pipeline(rounds: int, release: str | None) -> None:
    """Write and read 100 leaves of 1 KiB, and the same strings by MSET and MGET."""
    import redis

    with tempfile.TemporaryDirectory(prefix="bench", dir="/tmp") as folder:
        path = str(Path(folder) / "socket")
        command = ["redis-server", "--port", "0", "--unixsocket", path, "--save", ""]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            client = redis.Redis(unix_socket_path=path)
            while True:
                try:
                    client.ping()
                    break
                except redis.ConnectionError:
                    time.sleep(0.01)
            td = TensorDict({str(i): torch.ones(256) for i in range(100)})
            store = td.to_store(unix_socket_path=path)
            values = {f"bare:{k}": v.numpy().tobytes() for k, v in td.items()}
            keys = list(values)
            calls = {
                "write": (lambda: store.update_(td), lambda: client.mset(values)),
                "read": (store.to_tensordict, lambda: client.mget(keys)),
                "one": (lambda: store["7"], lambda: client.get("bare:7")),
            }
            for name, (ours, bare) in calls.items():
                pairs = [(timed(ours), timed(bare)) for _ in range(rounds * 20)]
                shown(
                    f"store, 100 leaves of 1 KiB: {name}",
                    *map(list, zip(*pairs, strict=True)),
                )
            if release is not None:
                environment = {**os.environ, "PYTHONPATH": release}
                command = [sys.executable, "-W", "ignore", "-c", RELEASE]
                command += [path, str(rounds * 20)]
                print("the release: write, read, one, least ms", flush=True)
                subprocess.run(command, env=environment, check=True)
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--gigabytes", type=float, default=1.0, help="size of the data (default: 1.0)"
    )
    parser.add_argument("--rounds", type=int, default=7, help="rounds (default: 7)")
    parser.add_argument("--release", help="folder with the installed published release")
    parser.add_argument("--send", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.send:
        kind, port, num_bytes = options.send
        send_all(kind, int(port), int(num_bytes))
    else:
        pipe_against_bare_send(options.gigabytes, options.rounds)
        if shutil.which("redis-server"):
            store_against_bare_pipeline(options.rounds, options.release)
