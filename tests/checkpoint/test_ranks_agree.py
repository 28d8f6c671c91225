"""Ranks that save and restore together: all of them, or none."""

from __future__ import annotations

import gc
import os
import signal
import sys
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from ranks import Raised, Ranks
from tensordict.checkpoint import Checkpointer
from tensordict.checkpoint import distributed as parts_module
from tensordict.checkpoint.distributed import PARTS, new_token, sweep_parts
from tensordict.checkpoint.steps import META, meta_bytes, read_meta
from tensordict.checkpoint.tools import verify

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(280)]

if not torch.distributed.is_available():
    pytest.skip("this torch has no ranks", allow_module_level=True)

from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import Shard, distribute_tensor  # noqa: E402

WORLD = 3
ROWS = 600


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    ranks = Ranks(WORLD, tmp_path_factory.mktemp("three"), 20)
    yield ranks
    ranks.close()


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    ranks = Ranks(4, tmp_path_factory.mktemp("four"), 20)
    yield ranks
    ranks.close()


def sharded(value: float) -> tuple[nn.Module, torch.optim.Optimizer]:
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    model = nn.Module()
    whole = torch.full((ROWS, 500), value)
    model.weight = nn.Parameter(distribute_tensor(whole, mesh, [Shard(0)]))
    model.small = nn.Parameter(torch.full((3,), value))
    optimizer = torch.optim.SGD(model.parameters(), lr=value, momentum=0.9)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return model, optimizer


def snapshot(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Any]:
    found: list[Any] = [optimizer.param_groups[0]["lr"], torch.get_rng_state().tolist()]
    for parameter in model.parameters():
        state = optimizer.state[parameter] if parameter in optimizer.state else {}
        for value in (parameter.detach(), *state.values()):
            local = value.to_local() if hasattr(value, "to_local") else value
            found.append(local.sum().item())
    return found


class Loader:
    def __init__(self) -> None:
        self.place = 0
        self.fails = False

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]
        if self.fails and state["place"] >= 100:
            raise ValueError("not from here")


def save(rank: int, folder: str) -> None:
    model, optimizer = sharded(1.0)
    loader = Loader()
    loader.place = 100 + rank
    checkpointer = Checkpointer(folder, durable=False)
    checkpointer.save(1, model=model, optimizer=optimizer, loader=loader)


def restore(rank: int, folder: str, how: str) -> str:
    """Restore with something that is wrong on one rank; return what is said of it."""
    model, optimizer = sharded(2.0)
    loader = Loader()
    items: dict[str, Any] = {"optimizer": optimizer, "model": model, "loader": loader}
    if rank == 1:
        loader.fails = how == "load fails"
        if how == "name":
            model.other = nn.Parameter(torch.zeros(1))
        if how == "item":
            items["other"] = nn.Linear(1, 1)
    before = snapshot(model, optimizer)
    checkpointer = Checkpointer(folder)
    try:
        checkpointer.restore(**items)
    except Exception as error:  # noqa: BLE001 (the test looks at it)
        assert snapshot(model, optimizer) == before
        assert loader.place == 0
        # They go on together.
        torch.distributed.barrier()
        return f"{type(error).__name__}: {error}"
    return ""


@pytest.mark.parametrize("how", ["name", "item", "load fails"])
def test_a_rank_that_refuses_is_an_error_on_all(
    three: Ranks, tmp_path: Path, how: str
) -> None:
    three.all(save, str(tmp_path))
    answers = three.all(restore, str(tmp_path), how)
    expected = {
        "name": "missing in the checkpoint: 'other'",
        "item": "no item 'other'",
        "load fails": "not from here",
    }
    for rank, answer in enumerate(answers):
        assert expected[how] in answer
        assert ("Rank 1 " in answer) == (rank != 1)
    assert three.all(restore, str(tmp_path), "") == [""] * WORLD


def files_of_tensors(step: Path) -> list[Path]:
    return sorted(step.glob("*.safetensors"))


def test_a_flipped_byte_is_refused_on_all_ranks(three: Ranks, tmp_path: Path) -> None:
    three.all(save, str(tmp_path))
    files = files_of_tensors(tmp_path / "step-1")
    assert len(files) >= 2 * WORLD
    for file in files:
        content = file.read_bytes()
        start = 8 + int.from_bytes(content[:8], "little")
        place = start + (len(content) - start) // 2
        changed = bytearray(content)
        changed[place] ^= 1
        file.write_bytes(changed)
        for answer in three.all(restore, str(tmp_path), ""):
            assert file.name in answer
            assert "not those that were saved" in answer
        file.write_bytes(content)
    assert three.all(restore, str(tmp_path), "") == [""] * WORLD
    # A part, or its description, that is gone.
    for name in ("model-rank-00002.safetensors", "rank-00001.json"):
        path = tmp_path / "step-1" / name
        path.rename(tmp_path / name)
        assert all(three.all(restore, str(tmp_path), ""))
        (tmp_path / name).rename(path)


def wait_and_look(rank: int, folder: str) -> list[Any]:
    """Look for a step right behind wait: it is there, on whichever rank."""
    model, _ = sharded(1.0)
    checkpointer = Checkpointer(folder, background=True, durable=False)
    found: list[Any] = []
    for step in range(4):
        checkpointer.save(step, model=model, big=torch.zeros(200_000 * (rank == 0)))
        checkpointer.wait()
        found.append(checkpointer.latest())
    return found


def test_a_step_is_there_when_wait_returns(three: Ranks, tmp_path: Path) -> None:
    assert three.all(wait_and_look, str(tmp_path)) == [[0, 1, 2, 3]] * WORLD


def fail_to_publish(rank: int, folder: str) -> str:
    checkpointer = Checkpointer(folder, background=True, durable=False)
    if rank == 0:
        # Rank 0 cannot publish: a file is in the place of the step.
        Path(folder).mkdir(exist_ok=True)
        (Path(folder) / "step-1").touch()
    checkpointer.save(1, x=rank)
    try:
        checkpointer.wait()
    except OSError as error:
        return str(error)
    return ""


def test_a_step_that_does_not_appear_is_an_error_on_all(
    three: Ranks, tmp_path: Path
) -> None:
    answers = three.all(fail_to_publish, str(tmp_path / "run"))
    assert "step-1" in answers[0]
    assert all("The step 1 did not appear" in answer for answer in answers[1:])


def save_in_own_folders(rank: int, folder: str) -> None:
    parts_module.SEEN_WITHIN = 0.2
    try:
        Checkpointer(f"{folder}/{rank}", durable=False).save(1, x=rank)
    finally:
        parts_module.SEEN_WITHIN = 10.0


def test_a_folder_that_is_not_shared(three: Ranks, tmp_path: Path) -> None:
    for answer in three.try_all(save_in_own_folders, str(tmp_path)):
        assert isinstance(answer, Raised)
        assert "do not share the folder" in answer.text
    assert all(os.listdir(path) == [] for path in tmp_path.iterdir())


def ask(rank: int, folder: str) -> list[Any]:
    checkpointer = Checkpointer(folder, handle_sigterm=True)
    found: list[Any] = [checkpointer.reached_preemption(1)]
    if rank == 2:
        os.kill(os.getpid(), signal.SIGTERM)
    found += [checkpointer.reached_preemption(2), checkpointer.preempted]
    with pytest.raises(RuntimeError, match=r"asked for \[7, 8, 9\]"):
        checkpointer.reached_preemption(7 + rank)
    checkpointer.close()
    return found


def test_all_ranks_know_that_one_is_to_end(three: Ranks, tmp_path: Path) -> None:
    assert three.all(ask, str(tmp_path)) == [
        [False, True, False],
        [False, True, False],
        [False, True, True],
    ]


def test_parts_of_another_training_are_left_alone(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        (tmp_path / f"{PARTS}{new_token()}").mkdir()
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)
    os.waitpid(child, os.WUNTRACED)
    own = tmp_path / f"{PARTS}{new_token()}"
    own.mkdir()
    kept = new_token()
    (tmp_path / f"{PARTS}{kept}").mkdir()
    sweep_parts(tmp_path, [kept])
    assert len(list(tmp_path.iterdir())) == 2
    assert not own.exists()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    sweep_parts(tmp_path, [])
    assert list(tmp_path.iterdir()) == []


def read_bytes() -> int:
    text = Path("/proc/self/io").read_text()
    return int(text.partition("rchar: ")[2].split()[0])


def count_read(rank: int, folder: str) -> tuple[int, int]:
    """Restore; return the bytes that were read, and those of this rank's part."""
    model, optimizer = sharded(2.0)
    checkpointer = Checkpointer(folder)
    before = read_bytes()
    checkpointer.restore(model=model, optimizer=optimizer)
    return read_bytes() - before, 2 * model.weight.to_local().numel() * 4


def test_a_rank_reads_what_it_needs(
    three: Ranks, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    three.all(save, str(tmp_path))
    for found, part in three.all(count_read, str(tmp_path)):
        assert found < 1.1 * part + 200_000
    assert not any(path.name.startswith(PARTS) for path in tmp_path.iterdir())
    two = Ranks(2, tmp_path_factory.mktemp("two"))
    for found, part in two.all(count_read, str(tmp_path)):
        # Blocks of a mebibyte have one checksum, so they are read whole.
        assert found < 1.1 * part + 4 * (1 << 20)
    two.close()


def columns(dim: int, value: float | None = None) -> nn.Module:
    """A model of 8 MB, which is cut along one of its dims."""
    whole = torch.arange(2**21, dtype=torch.float32).reshape(1024, 2048)
    if value is not None:
        whole.fill_(value)
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    model = nn.Module()
    model.weight = nn.Parameter(distribute_tensor(whole, mesh, [Shard(dim)]))
    return model


def save_columns(rank: int, folder: str, dim: int) -> None:
    Checkpointer(folder, durable=False).save(1, model=columns(dim))


def memory(name: str) -> int:
    text = Path("/proc/self/status").read_text()
    return 1024 * int(text.partition(f"{name}:")[2].split()[0])


def read_columns(rank: int, folder: str, dim: int) -> list[float]:
    """The bytes that were read, and the memory that was needed, over this rank's part."""
    model, expected = columns(dim, 0.0), columns(dim)
    checkpointer = Checkpointer(folder)
    # Imports and caches are no part of it.
    checkpointer.restore(model=model)
    nn.init.zeros_(model.weight.to_local())
    before, had = read_bytes(), memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    checkpointer.restore(model=model)
    part = model.weight.to_local().numel() * 4
    assert torch.equal(model.weight.to_local(), expected.weight.to_local())
    return [(read_bytes() - before) / part, (memory("VmHWM") - had) / part]


def refuse_columns(rank: int, folder: str, dim: int) -> str:
    model = columns(dim, 0.0)
    with pytest.raises(RuntimeError) as met:
        Checkpointer(folder).restore(model=model)
    assert not model.weight.to_local().any()
    return str(met.value)


@pytest.mark.parametrize(("before", "after"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_parts_along_another_dim_are_read_once(
    three: Ranks, four: Ranks, tmp_path: Path, before: int, after: int
) -> None:
    four.all(save_columns, str(tmp_path), before)
    found = three.all(read_columns, str(tmp_path), after)
    # A block of a mebibyte is compared by one of the ranks that have something of it.
    assert sum(read for read, _ in found) < 3 * 1.1
    assert max(read for read, _ in found) < 1.7
    # Windows of four mebibytes are mapped at a time.
    assert all(most < 4.5 * 2**20 * 2 * 3 / 2**23 for _, most in found)
    for file in files_of_tensors(tmp_path / "step-1"):
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
        for answer in three.all(refuse_columns, str(tmp_path), after):
            assert file.name in answer
        content[-1] ^= 1
        file.write_bytes(content)


def restore_and_die(rank: int, folder: str) -> str:
    model, optimizer = sharded(2.0)
    if rank == 1:
        # It dies in the middle of a restore: when it has read its files.
        restoring = sys.modules["tensordict.checkpoint.restoring"]
        restoring.Restoring.prepare = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    before = snapshot(model, optimizer)
    with pytest.raises(RuntimeError, match="The process of rank 1 has ended"):
        Checkpointer(folder).restore(model=model, optimizer=optimizer)
    assert snapshot(model, optimizer) == before
    return "refused"


def test_a_rank_that_dies_is_named_by_the_others(
    three: Ranks, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    three.all(save, str(tmp_path))
    doomed = Ranks(WORLD, tmp_path_factory.mktemp("doomed"), 20)
    answers = doomed.try_all(restore_and_die, str(tmp_path))
    assert answers == ["refused", None, "refused"], answers
    doomed.close()


def test_a_missing_part_is_found(three: Ranks, tmp_path: Path) -> None:
    three.all(save, str(tmp_path))
    step = tmp_path / "step-1"
    assert verify(step) == []
    meta = read_meta(step)
    grid = meta["grids"][meta["items"]["model"]["parts"]["weight"]]
    grid[1][2] = 0
    (step / META).write_bytes(meta_bytes(meta))
    assert any(
        "parts of the tensor 'weight' are missing" in line for line in verify(step)
    )


def draw_again(rank: int, folder: str) -> None:
    torch.manual_seed(rank)
    checkpointer = Checkpointer(folder, durable=False)
    checkpointer.save(1, x=1)
    expected = torch.rand(3).tolist()
    checkpointer.restore_random_states(1)
    assert torch.rand(3).tolist() == expected


def test_random_states_are_those_of_the_rank(three: Ranks, tmp_path: Path) -> None:
    three.all(draw_again, str(tmp_path))


def save_in_a_handler(rank: int, folder: str) -> None:
    model, _ = sharded(1.0)
    checkpointer = Checkpointer(folder, durable=False)
    # The state of a checkpointer when a signal comes upon a save of the same thread.
    checkpointer._is_saving = True
    with pytest.raises(RuntimeError, match="parts of the DTensor 'weight'"):
        checkpointer.save(1, model=model)


def test_a_process_that_saves_alone_refuses_parts(three: Ranks, tmp_path: Path) -> None:
    three.all(save_in_a_handler, str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def restore_without_collector(rank: int, folder: str) -> tuple[int, int]:
    """Restore, and count the replaced values, and those of a refused restore, in memory."""
    model, optimizer = sharded(2.0)
    checkpointer = Checkpointer(folder, durable=False)
    checkpointer.save(1, model=model, optimizer=optimizer)
    gc.collect()
    gc.disable()
    try:
        states = list(optimizer.state.values())
        old = [weakref.ref(state["momentum_buffer"]) for state in states]
        del states
        checkpointer.restore(model=model, optimizer=optimizer)
        replaced = sum(each() is not None for each in old)
        other = nn.Linear(2, 2)
        with pytest.raises(RuntimeError):
            checkpointer.restore(model=other)
        refused = weakref.ref(other.weight)
        del other
        return replaced, int(refused() is not None)
    finally:
        gc.enable()


def test_a_restore_of_ranks_releases_the_replaced_values(
    three: Ranks, tmp_path: Path
) -> None:
    assert three.all(restore_without_collector, str(tmp_path)) == [(0, 0)] * WORLD
