"""Checkpoints of several ranks, compared with ``torch.distributed.checkpoint``.

Ranks are processes over gloo. Contestants alternate in the same run. A row is the median of its
rounds: wall time between two barriers, and CPU time of all ranks together. torch saves and loads
a state that ``get_state_dict`` made before the timing. Run
``python benches/many_ranks.py --mb 1000 --rounds 7``; ``--only plan`` runs one topic:

* ``fsdp``, ``hsdp``: save, stall of a save in the background, restore;
* ``written``: the bytes that the busiest rank writes, divided by the mean;
* ``reads``: bytes read and memory needed if ranks or placements change;
* ``plan``: the division of a step over 1,024 and 4,096 ranks, simulated by one process, and
  the description that each rank reads.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import multiprocessing
import os
import shutil
import statistics
import sys
import tempfile
import time
import tracemalloc
import warnings
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WIDTH = 1024
SERVER = multiprocessing.get_context("forkserver")


# Processes ----------------------------------------------------------------------------


def _serve(rank: int, world: int, path: str, connection: Any) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{path}",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=600),
    )
    while (task := connection.recv()) is not None:
        call, arguments = task
        connection.send(call(rank, *arguments))
    os._exit(0)


@contextlib.contextmanager
def ranks(world: int) -> Iterator[Callable[..., list[Any]]]:
    """Start processes that call a function together; yield how to call it."""
    folder = Path(tempfile.mkdtemp())
    connections, processes = [], []
    for rank in range(world):
        here, there = SERVER.Pipe()
        arguments = rank, world, str(folder / "rendezvous"), there
        process = SERVER.Process(target=_serve, args=arguments, daemon=True)
        process.start()
        there.close()
        connections.append(here)
        processes.append(process)

    def call(function: Callable[..., Any], *arguments: Any) -> list[Any]:
        for connection in connections:
            connection.send((function, arguments))
        return [connection.recv() for connection in connections]

    try:
        yield call
    finally:
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.send(None)
        for process in processes:
            process.join(10)
            process.kill()
        shutil.rmtree(folder)


# Models -------------------------------------------------------------------------------


def mesh_of(mode: str) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    world = torch.distributed.get_world_size()
    if mode in ("hsdp", "tp"):
        return init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("a", "b"))
    return init_device_mesh("cpu", (world,), mesh_dim_names=("a",))


def model_of(mode: str, megabytes: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Make a model and AdamW with its moments, of ``mb`` megabytes together."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard, distribute_tensor
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    torch.manual_seed(0)
    count = max(2, round(megabytes * 1e6 / (3 * 4 * WIDTH * (WIDTH + 1))))
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(count)))
    if mode in ("fsdp", "hsdp", "tp"):
        mesh = mesh_of(mode)
        if mode == "tp":
            styles = [ColwiseParallel(), RowwiseParallel()]
            plan = {str(number): styles[number % 2] for number in range(count)}
            parallelize_module(model, mesh["b"], plan)
            mesh = mesh["a"]
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    elif mode == "columns":
        mesh = mesh_of(mode)
        for layer in model:
            for name, value in list(layer.named_parameters()):
                dim = Shard(min(1, value.dim() - 1))
                placed = distribute_tensor(value.detach(), mesh, [dim])
                setattr(layer, name, nn.Parameter(placed))
    elif mode == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    return model, optimizer


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    from torch.distributed.checkpoint.state_dict import get_state_dict

    names, groups = get_state_dict(model, optimizer)
    return {"model": names, "optimizer": groups}


# Speed --------------------------------------------------------------------------------


def timed(work: Callable[[], Any]) -> tuple[float, float]:
    """Return the wall time between two barriers, and the CPU time of this rank."""
    torch.distributed.barrier()
    begun, used = time.perf_counter(), time.process_time()
    work()
    torch.distributed.barrier()
    return time.perf_counter() - begun, time.process_time() - used


def measure_speed(
    rank: int, mode: str, megabytes: int, rounds: int, folder: str
) -> dict[str, list[tuple[float, float]]]:
    import torch.distributed.checkpoint as dcp

    from tensordict.checkpoint import Checkpointer

    model, optimizer = model_of(mode, megabytes)
    checkpointer = Checkpointer(f"{folder}/run", keep=1, durable=False)
    state = state_of(model, optimizer)
    found: dict[str, list[tuple[float, float]]] = {}
    step = 0

    def save(background: bool) -> None:
        nonlocal step
        step += 1
        items = {"model": model, "optimizer": optimizer}
        checkpointer.save(step, background=background, **items)

    def save_by_torch() -> None:
        dcp.save(state, checkpoint_id=f"{folder}/dcp")

    def save_later_by_torch() -> None:
        nonlocal future
        place = f"{folder}/dcp-later"
        future = dcp.async_save(state, checkpoint_id=place, process_group=later)

    future: Any = None
    # Its thread and the barriers would meet in one group.
    later = torch.distributed.new_group()
    contestants: list[tuple[str, str, Callable[[], Any], Callable[[], Any]]] = [
        ("save", "Checkpointer", lambda: save(False), lambda: None),
        ("save", "torch", save_by_torch, lambda: None),
        ("background", "Checkpointer", lambda: save(True), checkpointer.wait),
        ("background", "torch", save_later_by_torch, lambda: future.result()),  # noqa: PLW0108 (it is not there yet)
        (
            "restore",
            "Checkpointer",
            lambda: checkpointer.restore(model=model, optimizer=optimizer),
            lambda: None,
        ),
        (
            "restore",
            "torch",
            lambda: dcp.load(state, checkpoint_id=f"{folder}/dcp"),
            lambda: None,
        ),
    ]
    for number in range(rounds + 1):
        for kind in ("save", "background", "restore"):
            some = [each for each in contestants if each[0] == kind]
            for _, name, work, wait in some[:: 1 if number % 2 else -1]:
                if rank == 0 and kind != "restore":
                    if name == "torch":
                        old = "dcp" if kind == "save" else "dcp-later"
                        shutil.rmtree(f"{folder}/{old}", ignore_errors=True)
                    os.sync()
                called = timed(work)
                waited = timed(wait)
                if number:
                    row = "stall" if kind == "background" else kind
                    found.setdefault(f"{row}/{name}", []).append(called)
                    if kind == "background":
                        both = called[0] + waited[0], called[1] + waited[1]
                        found.setdefault(f"until it is there/{name}", []).append(both)
    checkpointer.close()
    return found


def bench_speed(mode: str, megabytes: int, rounds: int) -> None:
    folder = tempfile.mkdtemp()
    try:
        with ranks(4) as call:
            answers = call(measure_speed, mode, megabytes, rounds, folder)
    finally:
        shutil.rmtree(folder)
    print(f"\n{mode}, 4 ranks, {megabytes} MB, {rounds} rounds: Checkpointer / torch")
    for row in ("save", "stall", "until it is there", "restore"):
        shown = []
        for place, unit in ((0, "wall"), (1, "CPU")):
            medians = []
            for name in ("Checkpointer", "torch"):
                by_rank = [answer[f"{row}/{name}"] for answer in answers]
                take = max if place == 0 else sum
                each = [
                    take(found[number][place] for found in by_rank)
                    for number in range(rounds)
                ]
                medians.append(statistics.median(each))
            own, other = medians
            shown.append(
                f"{unit} {own * 1000:7.1f} / {other * 1000:7.1f} ms = {own / other:.2f}"
            )
        print(f"  {row:18} {'   '.join(shown)}")


# Shares of the writing ------------------------------------------------------------------


def save_once(_: int, mode: str, megabytes: int, folder: str) -> None:
    from tensordict.checkpoint import Checkpointer

    model, optimizer = model_of(mode, megabytes)
    with Checkpointer(f"{folder}/run", durable=False) as checkpointer:
        checkpointer.save(1, model=model, optimizer=optimizer)


def save_by_torch_once(_: int, mode: str, megabytes: int, folder: str) -> None:
    import torch.distributed.checkpoint as dcp

    dcp.save(state_of(*model_of(mode, megabytes)), checkpoint_id=f"{folder}/dcp")


def bench_written(megabytes: int) -> None:
    print(
        f"\nbytes of the busiest of 4 ranks over the mean, {megabytes} MB: torch beside"
    )
    with ranks(4) as call:
        for mode in ("fsdp", "hsdp", "tp", "ddp", "plain"):
            folder = tempfile.mkdtemp()
            call(save_once, mode, megabytes, folder)
            call(save_by_torch_once, mode, megabytes, folder)
            own, other = [0] * 4, [0] * 4
            for file in Path(folder, "run", "step-1").glob("*.safetensors"):
                stem = file.stem.partition("-rank-")[2]
                own[int(stem[:5] or 0)] += file.stat().st_size
            for file in Path(folder, "dcp").glob("*.distcp"):
                other[int(file.name.split("_")[2])] += file.stat().st_size
            shutil.rmtree(folder)
            shown = "   ".join(
                f"{max(sizes) / (sum(sizes) / 4):.2f} ({sum(sizes) / 1e6:.0f} MB)"
                for sizes in (own, other)
            )
            print(f"  {mode:6} {shown}")


# Reading ------------------------------------------------------------------------------


def counted(work: Callable[[], Any]) -> tuple[int, int]:
    """Return the bytes of read calls, and the memory that was needed."""

    def number(file: str, key: str) -> int:
        text = Path("/proc/self", file).read_text()
        return int(text.partition(f"{key}:")[2].split()[0])

    # Memory that other work has left is given back, or it would be used again.
    ctypes.CDLL(None).malloc_trim(0)
    before = number("status", "VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    read = number("io", "rchar")
    work()
    most = number("status", "VmHWM")
    return number("io", "rchar") - read, (most - before) * 1024


def local_bytes(value: Any) -> int:
    if isinstance(value, dict):
        return sum(map(local_bytes, value.values()))
    if not isinstance(value, torch.Tensor):
        return 0
    local = value.to_local() if hasattr(value, "to_local") else value
    return int(local.numel() * local.element_size())


def read_back(
    _: int, mode: str, megabytes: int, folder: str, by_torch: bool
) -> tuple[int, int, int]:
    """Return the bytes of this rank's part, the bytes read and the extra memory."""
    import torch.distributed.checkpoint as dcp

    from tensordict.checkpoint import Checkpointer

    model, optimizer = model_of(mode, megabytes)
    state = state_of(model, optimizer)
    part = local_bytes(state)
    # Imports and caches do not belong to it.
    small = nn.Linear(2, 2)
    if by_torch:
        warm = {"x": torch.zeros(2)}
        dcp.save(warm, checkpoint_id=f"{folder}/warm-dcp")
        dcp.load(warm, checkpoint_id=f"{folder}/warm-dcp")
        work = lambda: dcp.load(state, checkpoint_id=f"{folder}/dcp")  # noqa: E731
    else:
        warmed = Checkpointer(f"{folder}/warm", durable=False)
        warmed.save(1, model=small)
        warmed.restore(model=small)
        checkpointer = Checkpointer(f"{folder}/run")
        # A fresh optimizer, as that of a training that starts again; memory of the first
        # one is not used again.
        fresh = torch.optim.AdamW(model.parameters())
        work = lambda: checkpointer.restore(model=model, optimizer=fresh)  # noqa: E731
    read, most = counted(work)
    if not by_torch:
        # The moments are the state.
        most -= part * 2 // 3
    return part, read, most


def bench_reads(megabytes: int) -> None:
    print(
        f"\nrestores of {megabytes} MB: most bytes read by a rank over its part (mean), "
        "most memory beside the state over all of the state: torch beside"
    )
    cases = [
        ("4 -> 3 ranks, FSDP2", "fsdp", "fsdp", 3),
        ("FSDP2 x TP -> FSDP2", "tp", "fsdp", 4),
        ("FSDP2 -> FSDP2 x TP", "fsdp", "tp", 4),
        ("Shard(1) -> Shard(0)", "columns", "fsdp", 4),
        ("Shard(0) -> Shard(1)", "fsdp", "columns", 4),
        ("FSDP2 -> one process", "fsdp", "plain", 1),
        ("FSDP2 x TP -> one process", "tp", "plain", 1),
    ]
    for title, before, after, world in cases:
        folder = tempfile.mkdtemp()
        try:
            with ranks(4) as call:
                call(save_once, before, megabytes, folder)
                call(save_by_torch_once, before, megabytes, folder)
            shown = []
            for by_torch in (False, True):
                with ranks(world) as call:
                    answers = call(read_back, after, megabytes, folder, by_torch)
                ratios = [read / part for part, read, _ in answers]
                memory = max(most for *_, most in answers) / megabytes / 1e6
                shown.append(
                    f"{max(ratios):5.2f} ({statistics.mean(ratios):.2f}) {memory:6.3f}"
                )
        finally:
            shutil.rmtree(folder)
        print(f"  {title:28} {'    '.join(shown)}")


# Plans and descriptions ---------------------------------------------------------------

NUM_TENSORS = 2000


class _Simulated(NamedTuple):
    """A process group in which every other rank says the same as this rank."""

    rank: int
    world: int
    group: Any
    members: tuple[int, ...]
    here: int

    def gather(self, value: object) -> list[Any]:
        return [value] * self.world

    def raise_together(self, error: Exception | None, *_: object) -> None:
        if error is not None:
            raise error


def simulated_model(world: int, *, copies: bool) -> nn.Module:
    """Make a model of which one of many ranks has its part."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard

    shape = (world // 64, 64) if copies else (world,)
    mesh = init_device_mesh("cpu", shape)
    placements = [Replicate(), Shard(0)] if copies else [Shard(0)]
    model = nn.Module()
    for number in range(NUM_TENSORS):
        whole = torch.empty(world, number % 10 + 1, device="meta")
        local = torch.zeros(world // shape[-1], whole.shape[1])
        placed = DTensor.from_local(
            local,
            mesh,
            placements,
            run_check=False,
            shape=whole.shape,
            stride=whole.stride(),
        )
        model.register_parameter(f"layer{number}", nn.Parameter(placed))
    return model


def plan_simulated(_: int, world: int, copies: bool, folder: str) -> str:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from tensordict.checkpoint.items import describe_all
    from tensordict.checkpoint.shares import Sharer
    from tensordict.checkpoint.steps import META, read_meta
    from tensordict.checkpoint.writing import plan_step

    torch.distributed.destroy_process_group()
    torch.distributed.init_process_group(
        "fake", store=FakeStore(), rank=0, world_size=world
    )
    model = simulated_model(world, copies=copies)
    sharer = Sharer(_Simulated(0, world, None, tuple(range(world)), 0))  # type: ignore[arg-type]
    found, peak, plan = [], 0, None
    for number in range(4):
        described = describe_all({"model": model}, (), trainable_only=False)
        if number == 3:
            # Counting memory takes time, so it has a round of its own.
            tracemalloc.start()
            sharer = Sharer(_Simulated(0, world, None, tuple(range(world)), 0))  # type: ignore[arg-type]
        begun = time.process_time()
        shared = sharer.share(described)
        fields = {"order": 0, "time": 0.0, "metrics": {}, "world": world}
        divided = time.process_time()
        place = Path(folder)
        plan = plan_step(
            place, number, shared, fields, shards=None, retired=[], target=place
        )
        found.append((divided - begun, time.process_time() - divided))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert plan is not None
    (Path(folder) / META).write_bytes(plan.description)
    begun = time.process_time()
    read_meta(Path(folder))
    parsed = time.process_time() - begun
    first, second = found[0], min(found[1:3])
    return (
        f"first {first[0]:.2f} s, description {first[1]:.2f} s, {peak / 1e6:.0f} MB; "
        f"again {second[0]:.3f} s, description {second[1]:.3f} s; "
        f"{len(plan.description) / 1e6:.2f} MB, parsed in {parsed:.3f} s"
    )


def bench_plan() -> None:
    print(f"\nplan and description of {NUM_TENSORS} tensors, processor time of rank 0")
    for world in (1024, 4096):
        for copies in (False, True):
            with tempfile.TemporaryDirectory() as folder, ranks(1) as call:
                (shown,) = call(plan_simulated, world, copies, folder)
            print(f"  {world} ranks, {'HSDP' if copies else 'FSDP2'}: {shown}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--mb", type=int, default=100, help="size of the state in MB (default: 100)"
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds (default: 5)")
    parser.add_argument("--only", default="", help="run cases with this in the name")
    arguments = parser.parse_args()
    size, rounds = arguments.mb, arguments.rounds
    print(
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, torch {torch.__version__}"
    )
    benches: dict[str, Callable[[], None]] = {
        "fsdp": lambda: bench_speed("fsdp", size, rounds),
        "hsdp": lambda: bench_speed("hsdp", size, rounds),
        "written": lambda: bench_written(size),
        "reads": lambda: bench_reads(size),
        "plan": bench_plan,
    }
    for name, bench in benches.items():
        if arguments.only in name:
            bench()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    SERVER.set_forkserver_preload(
        [
            "torch",
            "torch.distributed.checkpoint",
            "torch.distributed.fsdp",
            "tensordict",
        ]
    )
    main()
