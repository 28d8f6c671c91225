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
from tensordict.checkpoint.steps import META, read_meta
from tensordict.checkpoint.tools import verify
from tensordict.cli import main

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


def save_in_one_folder(rank: int, folder: str) -> None:
    """Save as two trainings that know nothing of each other: 0 and 2, 1 and 3."""
    group = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))["a"]
    job = rank % 2
    with Checkpointer(
        folder, durable=False, background=True, keep=None, process_group=group
    ) as checkpointer:
        for step in range(4):
            checkpointer.save(2 * step + job, x=[job, rank])
        for _ in range(3):
            # Both have this number: the last one is there, whole.
            checkpointer.save(100, x=[job, rank])


def test_two_trainings_in_one_folder(four: Ranks, tmp_path: Path) -> None:
    four.all(save_in_one_folder, str(tmp_path))
    names = [f"step-{step}" for step in (*range(8), 100)]
    assert sorted(os.listdir(tmp_path)) == sorted(names)
    for name in names:
        assert verify(tmp_path / name) == []
        jobs = {
            tuple(read_meta(tmp_path / name, file)["items"]["x"]["value"])
            for file in (META, "rank-00001.json")
        }
        assert jobs in ({(0, 0), (0, 2)}, {(1, 1), (1, 3)})


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
    with pytest.raises(
        TypeError, match="process_group must be a ProcessGroup or a Device"
    ):
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


# Folders that are not shared ----------------------------------------------------------


def spread(rank: int, value: float) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model that is sharded over pairs and replicated, sharded over all, and plain."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    flat = init_device_mesh("cpu", (4,))
    values = torch.arange(8.0).reshape(4, 2) + value
    model = holding(
        all=distribute_tensor(values, flat, [Shard(0)]),
        pairs=distribute_tensor(values, mesh, [Replicate(), Shard(0)]),
        copies=distribute_tensor(values, mesh, [Shard(0), Replicate()]),
        plain=torch.full((3,), value),
        # Values that differ by rank: those of the lowest rank of a folder.
        own=torch.full((2,), value + rank),
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return model, optimizer


def locals_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    found = {}
    for name, each in model.named_parameters():
        momentum = optimizer.state[each]["momentum_buffer"]
        for key, value in ((name, each.detach()), (f"{name}.momentum", momentum)):
            local = value.to_local() if isinstance(value, DTensor) else value
            found[key] = local.tolist()
    return found


def folder_of(rank: int, folder: str, per_folder: int) -> str:
    return f"{folder}/{rank // per_folder}"


def save_locally(
    rank: int, folder: str, per_folder: int, options: dict[str, Any]
) -> dict[str, Any]:
    model, optimizer = spread(rank, 1.0)
    place = folder_of(rank, folder, per_folder)
    with Checkpointer(
        place, shared=False, durable=False, keep=2, **options
    ) as checkpointer:
        for step in range(4):
            checkpointer.save(
                step, model=model, optimizer=optimizer, loader={"rank": rank}
            )
        checkpointer.wait()
        assert checkpointer.steps() == [2, 3]
    return locals_of(model, optimizer)


def restore_locally(
    rank: int, folder: str, per_folder: int, step: int | None = None
) -> dict[str, Any]:
    model, optimizer = spread(rank, 50.0)
    place = folder_of(rank, folder, per_folder)
    checkpointer = Checkpointer(place, shared=False)
    restored = checkpointer.restore(step, model=model, optimizer=optimizer)
    assert restored["loader"] == {"rank": rank}
    checkpointer.restore_random_states(step)
    return {**locals_of(model, optimizer), "step": restored.step}


@pytest.mark.parametrize(
    ("per_folder", "options"),
    [(1, {}), (1, {"background": True, "dedupe": True}), (2, {"dedupe": True})],
)
def test_folders_of_nodes(
    four: Ranks, tmp_path: Path, capsys: Any, per_folder: int, options: dict[str, Any]
) -> None:
    # A save that was killed has left this.
    (tmp_path / "0" / f"{PARTS}old").mkdir(parents=True)
    expected = four.all(save_locally, str(tmp_path), per_folder, options)
    folders = sorted(tmp_path.iterdir())
    assert len(folders) == WORLD // per_folder
    for number, folder in enumerate(folders):
        assert sorted(os.listdir(folder)) == ["step-2", "step-3"]
        meta = read_meta(folder / "step-3")
        first = number * per_folder
        here = list(range(first, first + per_folder))
        assert meta["ranks"] == [*here, *(set(range(WORLD)) - set(here))]
        assert verify(folder / "step-3") == []
        if options.get("dedupe"):
            for file in (folder / "step-3").glob("*.safetensors"):
                assert file.stat().st_nlink == 2
    assert main(["verify", str(folders[0])]) == 0
    others = ", ".join(map(str, range(per_folder, WORLD)))
    assert f"are elsewhere (shared=False): {others}" in capsys.readouterr().out
    answers = four.all(restore_locally, str(tmp_path), per_folder)
    for rank, (answer, known) in enumerate(zip(answers, expected, strict=True)):
        lowest = rank // per_folder * per_folder
        known["own"] = expected[lowest]["own"]
        assert answer == {**known, "step": 3}
    # A process alone gets what is here, and is told what is not.
    checkpointer = Checkpointer(folders[1])
    with pytest.raises(RuntimeError, match="'all', which is elsewhere: in the folder"):
        checkpointer.load()
    model = holding(plain=torch.zeros(3))
    checkpointer.restore(model=model, strict=False)
    assert model.plain.tolist() == expected[0]["plain"]
    # A folder that lacks the newest step, one that changed its place, and a new one.
    (folders[1] / "step-3").rename(tmp_path / "kept")
    assert {
        each["step"] for each in four.all(restore_locally, str(tmp_path), per_folder)
    } == {2}
    (folders[0] / "step-2").rename(tmp_path / "other")
    for answer in four.try_all(restore_locally, str(tmp_path), per_folder):
        assert isinstance(answer, Raised)
        assert "have no common step" in answer.text
        assert "0: [3]" in answer.text
    (tmp_path / "other").rename(folders[1] / "step-3")
    (folders[1] / "step-2").rename(folders[0] / "step-2")
    for rank, answer in enumerate(
        four.try_all(restore_locally, str(tmp_path), per_folder)
    ):
        assert isinstance(answer, Raised)
        assert "elsewhere" in answer.text or "have no common step" in answer.text, rank


def restore_on_another_mesh(rank: int, folder: str) -> None:
    model = holding(all=torch.zeros(4, 2))
    checkpointer = Checkpointer(folder_of(rank, folder, 1), shared=False)
    try:
        checkpointer.restore(model=model, strict=False)
    finally:
        assert not model.all.any()


def test_a_part_that_is_elsewhere_is_named_on_all_ranks(
    four: Ranks, tmp_path: Path
) -> None:
    four.all(save_locally, str(tmp_path), 1, {})
    for rank, answer in enumerate(four.try_all(restore_on_another_mesh, str(tmp_path))):
        assert isinstance(answer, Raised)
        assert "a part of the tensor 'all', which is elsewhere" in answer.text
        assert "in the folder of rank" in answer.text, rank


def fail_on_one(rank: int, folder: str) -> list[Any]:
    """A save that one folder cannot take: the step before stays the newest of all."""
    place = folder_of(rank, folder, 1)
    checkpointer = Checkpointer(place, shared=False, durable=False, keep=1)
    checkpointer.save(1, x=rank)
    if rank == 2:
        (Path(place) / "step-2").touch()
    with pytest.raises((OSError, RuntimeError), match="step-2"):
        checkpointer.save(2, x=rank)
    found = checkpointer.restore()
    checkpointer.save(3, x=rank)
    return [
        found.step,
        found["x"],
        checkpointer.steps()[-1],
        checkpointer.restore()["x"],
    ]


def test_a_folder_that_fails_is_an_error_on_all(four: Ranks, tmp_path: Path) -> None:
    answers = four.all(fail_on_one, str(tmp_path))
    assert answers == [[1, rank, 3, rank] for rank in range(WORLD)]


def share_by_mistake(rank: int, folder: str) -> None:
    """Say that folders are not shared where they are, by what looks like other machines."""
    from tensordict.checkpoint import distributed

    told = distributed.Ranks.call

    def call(self: Any, what: str, value: Any) -> Any:
        is_identity = isinstance(value, tuple) and len(value) == 3
        return told(self, what, (rank, *value[1:]) if is_identity else value)

    distributed.Ranks.call = call  # type: ignore[method-assign]
    try:
        Checkpointer(folder, shared=False, durable=False).save(1, x=1)
    finally:
        distributed.Ranks.call = told  # type: ignore[method-assign]


def test_a_folder_that_is_shared_is_found(four: Ranks, tmp_path: Path) -> None:
    for answer in four.try_all(share_by_mistake, str(tmp_path / "run")):
        assert isinstance(answer, Raised)
        assert "leave it out" in answer.text
    assert os.listdir(tmp_path / "run") == []


# The class before fully_shard ---------------------------------------------------------


def flat(rank: int, folder: str, is_original: bool) -> list[Any]:
    """Save and restore with FullyShardedDataParallel; return what is refused."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    def make(seed: int) -> tuple[Any, Any, torch.optim.Optimizer]:
        torch.manual_seed(seed)
        inner = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        model = FullyShardedDataParallel(
            inner, device_id=torch.device("cpu"), use_orig_params=is_original
        )
        return inner, model, torch.optim.AdamW(model.parameters(), 0.1)

    def train(model: Any, optimizer: Any) -> float:
        loss = model(torch.ones(2, 4) * (rank + 1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return float(loss.item())

    inner, model, optimizer = make(0)
    train(model, optimizer)
    checkpointer = Checkpointer(folder, durable=False)
    refused = []
    for items in ({"model": model, "optimizer": optimizer}, {"model": inner}):
        with pytest.raises(TypeError, match="in flat pieces") as raised:
            checkpointer.save(1, **items)
        refused.append(str(raised.value))
    states = FullyShardedDataParallel.optim_state_dict(model, optimizer)
    checkpointer.save(1, model=model, optimizer=states)
    expected = [train(model, optimizer) for _ in range(2)]
    _, model, optimizer = make(1)
    with pytest.raises(RuntimeError, match="a value was saved"):
        checkpointer.restore(model=model, optimizer=optimizer)
    plain = nn.Linear(1, 1)
    checkpointer.save(2, optimizer=torch.optim.AdamW(plain.parameters()))
    with pytest.raises(TypeError, match="in flat pieces"):
        checkpointer.restore(2, optimizer=optimizer)
    state = checkpointer.restore(1, model=model)["optimizer"]
    optimizer.load_state_dict(
        FullyShardedDataParallel.optim_state_dict_to_load(model, optimizer, state)
    )
    found = [train(model, optimizer) for _ in range(2)]
    # With the original parameters torch itself goes on otherwise from the second step.
    assert found[0] == expected[0]
    assert is_original or found == expected
    return refused


@pytest.mark.parametrize("is_original", [True, False])
def test_fully_sharded_data_parallel(
    four: Ranks, tmp_path: Path, is_original: bool
) -> None:
    for optimizer, inner in four.all(flat, str(tmp_path), is_original):
        assert "'optimizer'" in optimizer
        assert "fully_shard" in optimizer
        assert "not the model inside it" in inner
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    Checkpointer(tmp_path).restore(1, model=model)
    saved = Checkpointer(tmp_path).load(1)["model"]
    assert torch.equal(saved["0", "weight"], model[0].weight)
    assert verify(tmp_path / "step-1") == []


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
        if phase == "export":
            if rank == DIES:
                from tensordict.checkpoint import export_dcp

                export_dcp._Writer.write_data = lambda *_: die()  # type: ignore[method-assign]
            checkpointer.export(Path(folder) / "out", format="dcp")
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
        "export",
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
    is_saved = phase in ("wait", "prepare", "load_state_dict", "export")
    assert "out" not in str(os.listdir(tmp_path / "run"))
    assert Checkpointer(tmp_path / "run").steps() == [1] * is_saved
    assert not isinstance(answers[0], Raised)
    # The next training sweeps what is left, and goes on.
    checkpointer = Checkpointer(tmp_path / "run", durable=False)
    checkpointer.save(3, x=1)
    assert checkpointer.latest() == 3
    assert not any(name.startswith(PARTS) for name in os.listdir(tmp_path / "run"))
