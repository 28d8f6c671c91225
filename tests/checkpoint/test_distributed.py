"""Steps of several ranks, with gloo: each writes its part, and rank 0 publishes."""

import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tensordict.checkpoint import Checkpointer
from tensordict.checkpoint.tools import verify

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(280)]

if not torch.distributed.is_available():
    pytest.skip("this torch has no ranks", allow_module_level=True)

# Imported once, and not by each rank: they are forked. The first is imported by DTensors.
import torch._dynamo  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import Replicate, Shard, distribute_tensor  # noqa: E402


def run(
    world: int, folder: Path, work: Callable[..., None], *arguments: Any
) -> list[int]:
    """Run a function on some ranks; their exit statuses."""
    folder.mkdir(exist_ok=True)
    store = folder / f"store-{os.urandom(4).hex()}"
    children = []
    for rank in range(world):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                signal.alarm(110)
                torch.set_num_threads(1)
                torch.distributed.init_process_group(
                    "gloo", init_method=f"file://{store}", rank=rank, world_size=world
                )
                work(rank, folder, *arguments)
                torch.distributed.barrier()
                status = 0
            except BaseException:  # noqa: BLE001 (the status says that it failed)
                traceback.print_exc()
                sys.stderr.flush()
            finally:
                os._exit(status)
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def make(world: int, seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model with a parameter that is sharded over ranks, and one that is not."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3))
    if world > 1:
        mesh = init_device_mesh("cpu", (world,))
        for layer, placements in ((model[0], [Shard(0)]), (model[1], [Replicate()])):
            for name in ("weight", "bias"):
                whole = getattr(layer, name).detach()
                sharded = nn.Parameter(distribute_tensor(whole, mesh, placements))
                setattr(layer, name, sharded)
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter) * seed
    optimizer.step()
    return model, optimizer


def whole(value: Any) -> torch.Tensor:
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def values(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[list[Any]]:
    found = [whole(parameter.detach()) for parameter in model.parameters()]
    for state in optimizer.state_dict()["state"].values():
        found += [whole(each) for each in state.values()]
    return [each.tolist() for each in found]


def save(rank: int, folder: Path, background: bool) -> None:
    model, optimizer = make(2, 1)
    with Checkpointer(folder / "run", keep=2, background=background) as checkpointer:
        for step in range(3):
            torch.manual_seed(10 + rank)
            checkpointer.save(
                step,
                model=model,
                optimizer=optimizer,
                loader={"rank": rank},
                step_=step,
            )
        checkpointer.wait()
        torch.distributed.barrier()
        assert checkpointer.steps() == [1, 2]
        expected = values(model, optimizer)
        draw = torch.rand(3).tolist()
        model, optimizer = make(2, 5)
        restored = checkpointer.restore(model=model, optimizer=optimizer)
        assert values(model, optimizer) == expected
        assert restored["loader"] == {"rank": rank}
        assert torch.rand(3).tolist() == draw


def restore(rank: int, folder: Path, world: int) -> None:
    model, optimizer = make(world, 7)
    restored = Checkpointer(folder / "run").restore(model=model, optimizer=optimizer)
    assert restored["loader"] == {"rank": rank if rank < 2 else 0}
    (folder / f"values-{world}").write_text(repr(values(model, optimizer)))


@pytest.mark.parametrize("background", [False, True])
def test_ranks_save_and_others_restore(tmp_path: Path, background: bool) -> None:
    folder = tmp_path / "all"
    assert run(2, folder, save, background) == [0, 0]
    path = folder / "run" / "step-2"
    assert verify(path) == []
    assert (path / "rank-00001.json").is_file()
    assert (path / "model-rank-00001.safetensors").is_file()
    assert not (path / "model.safetensors").exists()
    worlds = (3,) if background else (2, 3)
    for world in worlds:
        assert run(world, folder, restore, world) == [0] * world
    # A single process, without ranks.
    model, optimizer = make(1, 7)
    restored = Checkpointer(folder / "run").restore(model=model, optimizer=optimizer)
    assert restored["loader"] == {"rank": 0}
    expected = repr(values(model, optimizer))
    for world in worlds:
        assert (folder / f"values-{world}").read_text() == expected
    loaded = Checkpointer(folder / "run").load()
    assert torch.equal(loaded["model", "0", "weight"], model[0].weight)
    # One rank saves, and two restore.
    Checkpointer(folder / "run").save(
        9, model=model, optimizer=optimizer, loader={"rank": 0}
    )
    assert sorted(os.listdir(folder / "run")) == ["step-1", "step-2", "step-9"]


def save_and_die(rank: int, folder: Path, how: str) -> None:
    model, optimizer = make(2, 1)
    checkpointer = Checkpointer(folder / "run", rank_timeout=100)
    checkpointer.save(1, model=model, optimizer=optimizer)
    if how == "killed":
        background = True
        if rank == 1:
            # It dies when the others have agreed on a save.
            from tensordict.checkpoint import checkpointer as module

            module.plan_step = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
        checkpointer.save(2, background=background, model=model, optimizer=optimizer)
        with pytest.raises(OSError, match="process that writes this part has ended"):
            checkpointer.wait()
        os._exit(7)
    if rank == 1:
        optimizer.param_groups[0]["bad"] = object()
    with pytest.raises((TypeError, OSError, RuntimeError)):
        checkpointer.save(2, model=model, optimizer=optimizer)
    assert checkpointer.steps() == [1]
    optimizer.param_groups[0].pop("bad", None)
    checkpointer.save(3, model=model, optimizer=optimizer)
    assert checkpointer.steps() == [1, 3]


def save_what_is_the_same(rank: int, folder: Path) -> None:
    own = torch.full((100, 100), float(rank))
    for step in range(4):
        # The last two as processes that have saved nothing before.
        if step in (0, 2):
            checkpointer = Checkpointer(
                folder / "run", dedupe=True, background=step == 2, keep=None
            )
        checkpointer.save(step, loader={"own": own, "step": step})
    checkpointer.save(4, background=False, loader={"own": own + 1})
    torch.distributed.barrier()
    for step in range(5):
        loader = checkpointer.restore(step)["loader"]
        assert torch.equal(loader["own"], own + (step == 4))


def test_what_did_not_change_is_not_written_by_any_rank(tmp_path: Path) -> None:
    assert run(2, tmp_path / "all", save_what_is_the_same) == [0, 0]
    folder = tmp_path / "all" / "run"
    for name in ("loader-rank-00000.safetensors", "loader-rank-00001.safetensors"):
        files = [(folder / f"step-{step}" / name).stat() for step in range(5)]
        assert len({file.st_ino for file in files[:4]}) == 1
        assert files[4].st_nlink == 1


@pytest.mark.parametrize("how", ["error", "killed"])
def test_a_rank_that_fails_leaves_the_last_step(tmp_path: Path, how: str) -> None:
    folder = tmp_path / "all"
    statuses = run(2, folder, save_and_die, how)
    assert statuses == ([0, 0] if how == "error" else [7, -signal.SIGKILL])
    model, optimizer = make(1, 3)
    Checkpointer(folder / "run").restore(1, model=model, optimizer=optimizer)
    if how == "error":
        assert sorted(os.listdir(folder / "run")) == ["step-1", "step-3"]
