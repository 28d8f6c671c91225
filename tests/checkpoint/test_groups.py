"""Groups of ranks that save and restore at once, and ranks that die."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from ranks import Raised, Ranks
from tensordict.checkpoint import Checkpointer
from tensordict.checkpoint.distributed import PARTS
from tensordict.checkpoint.tools import verify

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(280)]

if not torch.distributed.is_available():
    pytest.skip("this torch has no ranks", allow_module_level=True)

import torch.distributed.checkpoint as dcp  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import (  # noqa: E402
    DTensor,
    Replicate,
    Shard,
    distribute_tensor,
)

WORLD = 4


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    ranks = Ranks(WORLD, tmp_path_factory.mktemp("four"), 20)
    yield ranks
    ranks.close()


def holding(**tensors: torch.Tensor) -> nn.Module:
    module = nn.Module()
    for name, value in tensors.items():
        setattr(module, name, nn.Parameter(value))
    return module


def whole(value: Any) -> torch.Tensor:
    return value.full_tensor() if hasattr(value, "full_tensor") else value


# Groups -------------------------------------------------------------------------------


def save_in_groups(rank: int, folder: str, kind: str) -> dict[str, Any]:
    """Save and restore in two groups at once: 0 and 2, 1 and 3."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    column = mesh["a"]
    group: Any = column
    if kind == "group":
        made = [torch.distributed.new_group([first, first + 2]) for first in (0, 1)]
        group = made[rank % 2]
    start = 100.0 * (rank % 2)
    values = torch.arange(8.0).reshape(4, 2) + start
    model = holding(
        sharded=distribute_tensor(values, column, [Shard(0)]),
        # Copies on ranks of the other group do not count.
        both=distribute_tensor(torch.arange(4.0), mesh, [Shard(0), Replicate()]),
        plain=torch.full((3,), start),
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    items: dict[str, Any] = {"model": model, "optimizer": optimizer}
    expected = {name: whole(each).tolist() for name, each in model.named_parameters()}
    path = Path(folder) / str(rank % 2)
    # The groups do not save equally often, so nothing of one waits for the other.
    with Checkpointer(
        path,
        durable=False,
        background=True,
        handle_sigterm=True,
        process_group=group,
    ) as checkpointer:
        for step in range(1 + rank % 2):
            checkpointer.save(step, loader={"rank": rank}, **items)
        checkpointer.wait()
        assert checkpointer.latest() == rank % 2
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        restored = checkpointer.restore(**items)
        assert restored["loader"] == {"rank": rank}
        found = {name: whole(each).tolist() for name, each in model.named_parameters()}
        assert found == expected
        if rank == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        assert checkpointer.reached_preemption(5) == (rank % 2 == 1)
        for form in ("huggingface", "dcp"):
            checkpointer.export(path / form, format=form)  # type: ignore[arg-type]
        if rank % 2:
            with pytest.raises(RuntimeError, match=r"Rank 3 could not save|bad item"):
                checkpointer.save(7, bad=Bad(rank == 3))
    return expected


class Bad:
    def __init__(self, is_bad: bool) -> None:
        self.is_bad = is_bad

    def state_dict(self) -> dict[str, Any]:
        if self.is_bad:
            raise RuntimeError("bad item")
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@pytest.mark.parametrize("kind", ["mesh", "group"])
def test_two_groups_save_and_restore_at_once(
    four: Ranks, tmp_path: Path, kind: str
) -> None:
    expected = four.all(save_in_groups, str(tmp_path), kind)
    for number in (0, 1):
        folder = tmp_path / str(number)
        assert Checkpointer(folder).latest() == number
        names = [f"step-{step}" for step in range(number + 1)]
        assert sorted(os.listdir(folder)) == ["dcp", "huggingface", *names]
        step = folder / f"step-{number}"
        assert verify(step) == []
        assert (step / "rank-00001.json").is_file()
        model = holding(
            sharded=torch.zeros(4, 2), both=torch.zeros(4), plain=torch.zeros(3)
        )
        Checkpointer(folder).restore(model=model)
        found = {name: each.tolist() for name, each in model.named_parameters()}
        assert found == expected[number]
        state = {
            name: torch.zeros_like(each) for name, each in model.state_dict().items()
        }
        dcp.load(state, checkpoint_id=folder / "dcp")
        assert {name: each.tolist() for name, each in state.items()} == found


def refuse(rank: int, folder: str) -> list[str]:
    """Ask for groups that this rank, or its tensors, are not in."""
    found = []
    group = torch.distributed.new_group([0, 1])
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    if rank > 1:
        with pytest.raises(ValueError, match="not in the process_group") as raised:
            Checkpointer(folder, process_group=group)
        found.append(str(raised.value))
    else:
        checkpointer = Checkpointer(folder, process_group=group)
        half = torch.arange(4.0)
        value = DTensor.from_local(half, mesh, [Shard(0), Replicate()], run_check=False)
        with pytest.raises(RuntimeError, match=r"'w' has parts on the ranks \[2, 3\]"):
            checkpointer.save(1, model=holding(w=value))
        # Each makes another call.
        with pytest.raises(RuntimeError, match=r"\{0: 'save\(1\)', 1: 'resto"):
            checkpointer.restore() if rank else checkpointer.save(1, x=1)
        with pytest.raises(RuntimeError, match=r"\{0: 'save\(2\)', 1: 'save\(3\)'\}"):
            checkpointer.save(2 + rank, x=1)
    torch.distributed.barrier()
    with pytest.raises(TypeError, match="process_group is a ProcessGroup or a Device"):
        Checkpointer(folder, process_group="dp")  # type: ignore[arg-type]
    # Alone in a group, whatever its number.
    own = torch.distributed.new_group([rank], use_local_synchronization=True)
    checkpointer = Checkpointer(f"{folder}-{rank}", durable=False, process_group=own)
    alone = init_device_mesh("cpu", (4, 1), mesh_dim_names=("a", "b"))["b"]
    full = torch.full((8,), float(rank))
    value = DTensor.from_local(full, alone, [Shard(0)], run_check=False)
    checkpointer.save(1, model=holding(w=value))
    model = holding(w=torch.zeros(8))
    checkpointer.restore(model=model)
    assert model.w.tolist() == [float(rank)] * 8
    return found


def test_who_is_not_in_the_group_is_refused(four: Ranks, tmp_path: Path) -> None:
    found = four.all(refuse, str(tmp_path / "run"))
    (text,) = found[3]
    assert "This process, rank 3 of 4, is not in the process_group" in text
    assert os.listdir(tmp_path / "run") == []


# Ranks that die -----------------------------------------------------------------------

DIES = 2


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Doomed(Bad):
    """An item whose process is killed when it is asked for its state, or given one."""

    def __init__(self, phase: str) -> None:
        self.phase = phase

    def state_dict(self) -> dict[str, Any]:
        if self.phase == "state_dict":
            die()
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.phase == "load_state_dict":
            die()


def save_or_die(rank: int, folder: str, phase: str) -> str:
    """Save, where one rank dies in a phase, and return what the others are told."""
    # The first call of all, so names of processes were not exchanged before.
    checkpointer = Checkpointer(folder, durable=False, background=phase == "background")
    model = holding(w=torch.full((1000,), 1.0))
    if rank == DIES and phase == "before":
        die()
    if rank == DIES and phase in ("plan", "background"):
        sys.modules["tensordict.checkpoint.checkpointer"].plan_step = lambda *_, **__: (
            die()
        )
    if rank == DIES and phase == "last":
        checkpointer._await_published = die
    item = Doomed(phase if rank == DIES else "")
    try:
        checkpointer.save(1, model=model, item=item)
        checkpointer.wait()
        if phase == "wait":
            if rank == DIES:
                die()
            checkpointer.save(2, item=item)
        if phase.startswith("load") or phase == "prepare":
            if rank == DIES and phase == "prepare":
                restoring = sys.modules["tensordict.checkpoint.restoring"]
                restoring.Restoring.prepare = lambda *_: die()
            checkpointer.restore(model=model, item=item)
    except (OSError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


@pytest.mark.parametrize(
    "phase",
    [
        "before",
        "state_dict",
        "plan",
        "background",
        "wait",
        "prepare",
        "load_state_dict",
    ],
)
def test_a_rank_that_dies_is_named_on_all(tmp_path: Path, phase: str) -> None:
    """The timeout of the group is a minute, and that of a test of ranks two."""
    doomed = Ranks(WORLD, tmp_path)
    answers = doomed.try_all(save_or_die, str(tmp_path / "run"), phase)
    for process in doomed.processes:
        process.kill()
        process.join()
    assert answers[DIES] is None
    for answer in answers[:DIES] + answers[DIES + 1 :]:
        assert f"rank {DIES}" in answer, answers
    is_saved = phase in ("wait", "prepare", "load_state_dict")
    assert Checkpointer(tmp_path / "run").steps() == [1] * is_saved
    assert not isinstance(answers[0], Raised)
    # The next training sweeps what is left, and goes on.
    checkpointer = Checkpointer(tmp_path / "run", durable=False)
    checkpointer.save(3, x=1)
    assert checkpointer.latest() == 3
    assert not any(name.startswith(PARTS) for name in os.listdir(tmp_path / "run"))
