"""Checkpoints, compared with the limits of disk and memory and with other libraries.

The state is a model, the moments of AdamW (each twice half of the tensors) and
counters. Each row is the median of its rounds, in which all contestants alternate,
relative to a limit that is measured in the same rounds. Run ``python
benches/checkpoint.py --mb 1000``.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch._dynamo

from machine import keep

if TYPE_CHECKING:
    from collections.abc import Callable

NUM_TENSORS = 100
NUM_COUNTERS = 100
PIECE = 4 << 20


class State:
    """A model, its optimizer, and the same as a flat dict."""

    def __init__(self, megabytes: int) -> None:
        count = megabytes * 1_000_000 // 4 // 3 // NUM_TENSORS
        self.model = torch.nn.ParameterList(
            [torch.nn.Parameter(torch.rand(count)) for _ in range(NUM_TENSORS)]
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        for parameter in self.model.parameters():
            self.optimizer.state[parameter] = {
                "step": torch.tensor(3.0),
                "exp_avg": torch.rand(count),
                "exp_avg_sq": torch.rand(count),
            }

    def flat(self) -> dict[str, torch.Tensor]:
        flat = {
            f"model.{name}": value for name, value in self.model.state_dict().items()
        }
        for number, values in self.optimizer.state_dict()["state"].items():
            flat |= {
                f"optimizer.{number}.{name}": value for name, value in values.items()
            }
        return flat

    def fresh(self) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        model = torch.nn.ParameterList(
            [torch.nn.Parameter(torch.zeros_like(value)) for value in self.model]
        )
        return model, torch.optim.AdamW(model.parameters())


def pwrite(tensors: list[torch.Tensor], folder: Path, durable: bool) -> None:
    """Write with two threads, one file each, by positioned writes: the limit."""
    folder.mkdir()

    def write(number: int) -> None:
        file = os.open(folder / str(number), os.O_WRONLY | os.O_CREAT)
        at = 0
        for tensor in tensors[number::2]:
            view = memoryview(tensor.detach().reshape(-1).view(torch.uint8).numpy())
            for start in range(0, len(view), PIECE):
                at += os.pwrite(file, view[start : start + PIECE], at)
            if durable and hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        if durable:
            os.fdatasync(file)
        os.close(file)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def timed(work: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


SHOWN: dict[str, object] = {}
"""The times of all rounds, for the file that ``--json`` names."""


class Rounds:
    """Rounds in which all contestants alternate."""

    def __init__(self, title: str, limit: str) -> None:
        self.title = title
        self.limit = limit
        self.times: dict[str, list[float]] = {}

    def add(self, name: str, seconds: float) -> None:
        self.times.setdefault(name, []).append(seconds)

    def show(self) -> None:
        SHOWN[self.title] = {"limit": self.limit, "s": self.times}
        medians = {name: statistics.median(found) for name, found in self.times.items()}
        unit = medians[self.limit]
        print(f"\n{self.title} ({self.limit} = {unit * 1000:.1f} ms)")
        for name, median in medians.items():
            low, high = min(self.times[name]), max(self.times[name])
            print(
                f"  {name:34} {median / unit:6.2f}   "
                f"({low * 1000:.1f} to {high * 1000:.1f} ms)"
            )


def others(
    flat: dict[str, torch.Tensor], durable: bool
) -> dict[str, Callable[[Path], Any]]:
    found: dict[str, Callable[[Path], Any]] = {}

    def sync(path: Path) -> None:
        for file in [path] if path.is_file() else list(path.rglob("*")):
            with file.open("rb") as opened:
                os.fsync(opened.fileno())

    def torch_save(path: Path) -> None:
        torch.serialization.set_crc32_options(False)
        torch.save(flat, path)
        if durable:
            sync(path)

    found["torch.save without its CRC"] = torch_save
    with contextlib.suppress(ImportError):
        from safetensors.torch import save_file

        def safetensors_save(path: Path) -> None:
            save_file(flat, path)
            if durable:
                sync(path)

        found["safetensors"] = safetensors_save
    with contextlib.suppress(ImportError):
        import torch.distributed.checkpoint as dcp

        def dcp_save(path: Path) -> None:
            writer = dcp.FileSystemWriter(path, thread_count=2, sync_files=durable)
            dcp.save(flat, storage_writer=writer, no_dist=True)

        found["torch.distributed.checkpoint"] = dcp_save
    return found


def bench_saves(state: State, folder: Path, rounds: int, durable: bool) -> None:
    from tensordict.checkpoint import Checkpointer

    flat = state.flat()
    tensors = list(flat.values())
    shown = Rounds(f"blocking save, durable={durable}", "two threads of pwrite")
    contestants: dict[str, Callable[[Path], Any]] = {
        "two threads of pwrite": lambda path: pwrite(tensors, path, durable),
        "Checkpointer": lambda path: Checkpointer(path, durable=durable).save(
            1, model=state.model, optimizer=state.optimizer
        ),
        **others(flat, durable),
    }
    for number in range(rounds + 1):
        for name, work in contestants.items():
            path = folder / "save"
            os.sync()
            seconds = timed(lambda work=work, path=path: work(path))  # type: ignore[misc]
            if number:
                shown.add(name, seconds)
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    shown.show()


def bench_stall(state: State, folder: Path, rounds: int) -> None:
    from tensordict.checkpoint import Checkpointer

    tensors = list(state.flat().values())
    kept = [torch.empty_like(tensor) for tensor in tensors]
    stall = Rounds("stall of a background save", "bare copy")
    first = Rounds("stall of the first", "copy to fresh memory")
    loss = Rounds("what training loses until it is whole", "bare copy + write")
    small = torch.rand(16, 16)

    def train(until: Callable[[], bool]) -> int:
        count = 0
        while not until():
            for _ in range(20):
                small @ small
            count += 20
        return count

    for number in range(rounds + 1):
        path = folder / "run"
        checkpointer = Checkpointer(path, durable=False, keep=1)

        def save(step: int, checkpointer: Checkpointer = checkpointer) -> None:
            checkpointer.save(
                step, model=state.model, optimizer=state.optimizer, background=True
            )

        fresh_copy = timed(lambda: [tensor.clone() for tensor in tensors])
        first_save = timed(lambda: save(0))
        checkpointer.wait()
        copy = timed(lambda: [k.copy_(t) for k, t in zip(kept, tensors, strict=True)])
        os.sync()
        # The speed of the training without saves.
        end = time.perf_counter() + 0.2
        alone = train(lambda end=end: time.perf_counter() > end) / 0.2  # type: ignore[misc]
        bare_write = timed(lambda: pwrite(tensors, folder / "bare", durable=False))
        shutil.rmtree(folder / "bare")
        os.sync()
        begun = time.perf_counter()
        save(1)
        stalled = time.perf_counter() - begun
        count = train(lambda c=checkpointer: not c._writer.is_busy())  # type: ignore[misc]
        whole = time.perf_counter() - begun
        checkpointer.close()
        shutil.rmtree(path)
        if number:
            stall.add("bare copy", copy)
            stall.add("Checkpointer", stalled)
            first.add("copy to fresh memory", fresh_copy)
            first.add("Checkpointer", first_save)
            loss.add("bare copy + write", copy + bare_write)
            loss.add("Checkpointer", whole - count / alone)
    for one in (stall, first, loss):
        one.show()


def bench_background(state: State, folder: Path, rounds: int) -> None:
    """Time a durable background save, from the call until it is on the disk."""
    from tensordict.checkpoint import Checkpointer

    tensors = list(state.flat().values())
    shown = Rounds("whole durable background save", "two threads of pwrite")
    checkpointer = Checkpointer(folder / "run", background=True, keep=1)
    for number in range(rounds + 1):
        os.sync()
        limit = timed(lambda: pwrite(tensors, folder / "bare", durable=True))
        shutil.rmtree(folder / "bare")
        os.sync()
        begun = time.perf_counter()
        checkpointer.save(number, model=state.model, optimizer=state.optimizer)
        checkpointer.wait()
        whole = time.perf_counter() - begun
        if number:
            shown.add("two threads of pwrite", limit)
            shown.add("Checkpointer", whole)
    checkpointer.close()
    shown.show()


def memory(name: str) -> float:
    """Return the peak (``VmHWM``) or current (``RssAnon``) megabytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024 / 1e6
    raise KeyError(name)


def bench_memory(state: State, folder: Path, rounds: int) -> None:
    """Measure the memory beyond the state during saves and after them."""
    from tensordict.checkpoint import Checkpointer

    flat = state.flat()
    size = sum(value.numel() * value.element_size() for value in flat.values()) / 1e6
    print(f"\nmemory beside a state of {size:.0f} MB")
    small = torch.rand(10)
    for background in (False, True):
        checkpointer = Checkpointer(
            folder / "run", durable=False, background=background
        )
        # The first save imports modules and fills caches, which are not measured.
        checkpointer.save(0, x=small)
        checkpointer.wait()
        before = memory("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")
        checkpointer.save(1, model=state.model, optimizer=state.optimizer)
        checkpointer.wait()
        most = memory("VmHWM") - before
        print(
            f"  background={background!s:5} {most:8.1f} MB, {most / size:.2f} of the state"
        )
        checkpointer.close()
    part = dict(list(flat.items())[:20])
    checkpointer = Checkpointer(
        folder / "many", durable=False, background=True, dedupe=True
    )
    seen = []
    for number in range(20 * rounds + 10):
        for value in part.values():
            value += 1
        checkpointer.save(number, x=part)
        checkpointer.wait()
        seen.append(memory("RssAnon"))
    checkpointer.close()
    print(
        f"  after 10 saves {seen[9]:.1f} MB, after {20 * rounds} more {seen[-1]:.1f} MB"
    )


def bench_restore(state: State, folder: Path, rounds: int) -> None:
    from tensordict.checkpoint import Checkpointer

    checkpointer = Checkpointer(folder / "run", durable=False)
    checkpointer.save(1, model=state.model, optimizer=state.optimizer)
    flat = state.flat()
    torch.save(
        {"model": state.model.state_dict(), "optimizer": state.optimizer.state_dict()},
        folder / "torch",
    )
    shown = Rounds("restore, and one pass over all values", "parallel read")

    def read() -> None:
        files = sorted((folder / "run" / "step-1").glob("*.safetensors"))

        def one(file: Path) -> None:
            with file.open("rb", buffering=0) as opened:
                size = file.stat().st_size
                memory = memoryview(torch.empty(size, dtype=torch.uint8).numpy())
                at = 0
                while at < size:
                    at += opened.readinto(memory[at : at + PIECE])

        threads = [threading.Thread(target=one, args=(file,)) for file in files]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def restored(work: Callable[[Any, Any], None]) -> float:
        model, optimizer = state.fresh()

        def both() -> None:
            work(model, optimizer)
            for parameter in model.parameters():
                parameter.detach().sum()
                for value in optimizer.state[parameter].values():
                    value.sum()

        return timed(both)

    def from_torch(model: Any, optimizer: Any, mmap: bool) -> None:
        loaded = torch.load(folder / "torch", mmap=mmap)
        model.load_state_dict(loaded["model"])
        optimizer.load_state_dict(loaded["optimizer"])

    contestants: dict[str, Callable[[Any, Any], Any]] = {
        "Checkpointer, lazy": lambda m, o: checkpointer.restore(
            model=m, optimizer=o, lazy=True
        ),
        "Checkpointer": lambda m, o: checkpointer.restore(model=m, optimizer=o),
        "torch.load with mmap": lambda m, o: from_torch(m, o, True),
        "torch.load": lambda m, o: from_torch(m, o, False),
    }
    with contextlib.suppress(ImportError):
        from safetensors.torch import load_file, save_file

        save_file(flat, folder / "all.safetensors")

        def from_safetensors(model: Any, optimizer: Any) -> None:
            loaded = load_file(folder / "all.safetensors")
            state_dict = optimizer.state_dict()
            states: dict[int, dict[str, Any]] = {}
            for name, value in loaded.items():
                kind, number, *rest = name.split(".")
                if kind == "optimizer":
                    states.setdefault(int(number), {})[rest[0]] = value
            weights = {n[6:]: v for n, v in loaded.items() if n.startswith("model.")}
            model.load_state_dict(weights)
            optimizer.load_state_dict({**state_dict, "state": states})

        contestants["safetensors"] = from_safetensors
    for number in range(rounds + 1):
        seconds = timed(read)
        if number:
            shown.add("parallel read", seconds)
        for name, work in contestants.items():
            seconds = restored(work)
            if number:
                shown.add(name, seconds)
    shown.show()


def bench_dedupe(state: State, folder: Path, rounds: int) -> None:
    from tensordict import _rust
    from tensordict.checkpoint import Checkpointer

    tensors = list(state.flat().values())
    checkpointer = Checkpointer(folder / "run", durable=False, dedupe=True, keep=2)
    shown = Rounds("dedupe, 1 % changed", "checksumming the state")
    written = 0
    for number in range(rounds + 2):
        with torch.no_grad():
            state.model[0] += 1
            for name in ("exp_avg", "exp_avg_sq"):
                state.optimizer.state[state.model[0]][name] += 1
        sums = timed(lambda: _rust.tensor_digests(tensors, 0))
        save = timed(
            lambda n=number: checkpointer.save(  # type: ignore[misc]
                n, model=state.model, optimizer=state.optimizer
            )
        )
        if number > 1:
            shown.add("checksumming the state", sums)
            shown.add("Checkpointer", save)
            path = folder / "run" / f"step-{number}"
            written = sum(
                file.stat().st_size
                for file in path.iterdir()
                if file.stat().st_nlink == 1
            )
    shown.show()
    changed = 3 * state.model[0].numel() * 4
    print(f"  bytes written: {written}, changed: {changed}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--mb", type=int, default=256, help="size of the state in MB (default: 256)"
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds (default: 5)")
    parser.add_argument(
        "--only",
        nargs="*",
        default=[""],
        help="topics to run, or parts of their names (default: all)",
    )
    parser.add_argument("--json", help="file to write all numbers to")
    arguments = parser.parse_args()
    state = State(arguments.mb)
    print(f"{arguments.mb} MB, {os.cpu_count()} cores, torch {torch.__version__}")
    benches: dict[str, Callable[[Path], None]] = {
        "save": lambda place: bench_saves(state, place, arguments.rounds, False),
        "durable": lambda place: bench_saves(state, place, arguments.rounds, True),
        "stall": lambda place: bench_stall(state, place, arguments.rounds),
        "background": lambda place: bench_background(state, place, arguments.rounds),
        "memory": lambda place: bench_memory(state, place, arguments.rounds),
        "restore": lambda place: bench_restore(state, place, arguments.rounds),
        "dedupe": lambda place: bench_dedupe(state, place, arguments.rounds),
    }
    for name, bench in benches.items():
        if any(part in name for part in arguments.only):
            place = Path(tempfile.mkdtemp())
            try:
                bench(place)
            finally:
                shutil.rmtree(place)
    keep(arguments.json, {"rounds": SHOWN})


if __name__ == "__main__":
    main()
