"""Ranks that are killed at any moment, and bytes that are flipped anywhere: all or nothing.

``TENSORDICT_RANK_KILLS`` and ``TENSORDICT_FLIPS`` say how many there are.
"""

from __future__ import annotations

import os
import random
import re
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from ranks import Ranks
from tensordict.checkpoint import Checkpointer

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(7200)]

if not torch.distributed.is_available():
    pytest.skip("this torch has no ranks", allow_module_level=True)

from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import Shard, distribute_tensor  # noqa: E402

WORLD = 3
NUM_KILLS = int(os.environ.get("TENSORDICT_RANK_KILLS", "3"))
NUM_FLIPS = int(os.environ.get("TENSORDICT_FLIPS", "6"))
ROWS = 30_000
"""The rows of the large tensor, of 40 bytes each: two blocks of checksums."""

STARTED_WITHIN = 600.0
"""The seconds within which ranks start and save a step, on a machine that does much else."""

GENERATION = re.compile(rb"(?<=generation..: ..)[0-9a-f-]+")
"""The name that a save gives itself in the header of a file, which nothing reads."""


def make(value: float) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model and an optimizer all of whose values are one number."""
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    model = nn.Module()
    for name, dim in (("rows", 0), ("columns", 1)):
        whole = torch.full((ROWS, 10), value)
        placed = distribute_tensor(whole, mesh, [Shard(dim)])
        setattr(model, name, nn.Parameter(placed))
    model.plain = nn.Parameter(torch.full((5,), value))
    optimizer = torch.optim.SGD(model.parameters(), lr=value, momentum=0.9)
    for parameter in model.parameters():
        full = torch.full_like(parameter, value).detach()
        optimizer.state[parameter] = {"momentum_buffer": full}
    return model, optimizer


def values(model: nn.Module, optimizer: torch.optim.Optimizer) -> set[float]:
    """All values that this rank has."""
    tensors = [each.detach() for each in model.parameters()]
    tensors += [each["momentum_buffer"] for each in optimizer.state.values()]
    local = [each.to_local() if hasattr(each, "to_local") else each for each in tensors]
    found = {float(value) for each in local for value in each.unique()}
    return found | {optimizer.param_groups[0]["lr"]}


def save_until_killed(rank: int, folder: str, first: int, background: bool) -> None:
    """Save one step after the other, and note each that is known to be there."""
    checkpointer = Checkpointer(folder, keep=3, durable=False, background=background)
    model, optimizer = make(float(first))
    step = first
    while True:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(float(step))
                optimizer.state[parameter]["momentum_buffer"].fill_(float(step))
            optimizer.param_groups[0]["lr"] = float(step)
        checkpointer.save(step, model=model, optimizer=optimizer)
        if background and step % 2:
            checkpointer.wait()
        if not background or step % 2:
            Path(f"{folder}.{rank}").write_text(str(step))
        step += 1


def restore_all(rank: int, folder: str) -> list[tuple[int, set[float]]]:
    """Restore each step; what there is, with the values."""
    checkpointer = Checkpointer(folder, durable=False)
    found = []
    for step in checkpointer.steps():
        model, optimizer = make(0.0)
        checkpointer.restore(step, model=model, optimizer=optimizer)
        found.append((step, values(model, optimizer)))
    return found


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    ranks = Ranks(WORLD, tmp_path_factory.mktemp("three"))
    yield ranks
    ranks.close()


def noted(folder: Path) -> list[int]:
    texts = [
        path.read_text() if path.exists() else ""
        for path in (Path(f"{folder}.{rank}") for rank in range(WORLD))
    ]
    return [int(text) for text in texts if text]


@pytest.mark.parametrize("background", [False, True])
def test_no_step_is_lost_and_none_is_half(
    three: Ranks, tmp_path: Path, background: bool
) -> None:
    folder = tmp_path / "run"
    rng = random.Random(11)  # noqa: S311
    for number in range(-(-NUM_KILLS // 2)):
        place = tmp_path / f"ranks-{number}"
        place.mkdir()
        doomed = Ranks(WORLD, place, STARTED_WITHIN)
        before = noted(folder)
        first = max(before, default=0) + 1
        for connection in doomed.connections:
            arguments = str(folder), first, background
            connection.send((save_until_killed, arguments))
        limit = time.monotonic() + STARTED_WITHIN
        while noted(folder) == before:
            assert time.monotonic() < limit, "no step was saved"
            for connection in doomed.connections:
                assert not connection.poll(), connection.recv()
            time.sleep(0.001)
        time.sleep(rng.uniform(0, 0.2))
        os.kill(doomed.processes[rng.randrange(WORLD)].pid, signal.SIGKILL)
        # Others meet the error, or go on in vain, and end as a scheduler would have it.
        time.sleep(rng.uniform(0, 0.1))
        for process in doomed.processes:
            process.kill()
            process.join()
        answers = three.all(restore_all, str(folder))
        assert answers[0]
        assert [step for step, _ in answers[0]][-1] >= max(noted(folder))
        for answer in answers:
            assert answer == [(step, {float(step)}) for step, _ in answers[0]]


def save_one(rank: int, folder: str) -> None:
    model, optimizer = make(1.0)
    Checkpointer(folder, durable=False).save(1, model=model, optimizer=optimizer)


def refuse(rank: int, folder: str) -> str:
    model, optimizer = make(2.0)
    checkpointer = Checkpointer(folder, durable=False)
    with pytest.raises((RuntimeError, OSError, ValueError, KeyError)) as met:
        checkpointer.restore(1, model=model, optimizer=optimizer)
    assert values(model, optimizer) == {2.0}
    return f"{met.type.__name__}: {met.value}"


def flipped_places(folder: Path, count: int) -> Iterator[tuple[Path, int]]:
    """Choose places in the data and the headers of parts, and in the descriptions."""
    parts = sorted(folder.glob("*.safetensors"))
    large = [path for path in parts if path.stat().st_size > 1000]
    assert len(large) >= 2 * WORLD
    descriptions = [folder / "meta.json", *sorted(folder.glob("rank-*.json"))]
    assert len(descriptions) == WORLD
    rng = random.Random(12)  # noqa: S311
    for number in range(count):
        where = ("data", "header", "description")[number % 3]
        path = rng.choice({"data": large, "header": parts}.get(where, descriptions))
        content = path.read_bytes()
        start, stop = 0, len(content)
        if where != "description":
            header = 8 + int.from_bytes(content[:8], "little")
            start, stop = (header, stop) if where == "data" else (0, header)
        named = GENERATION.search(content)
        assert named or where == "description"
        unread = range(*named.span()) if named else range(0)
        place = rng.randrange(start, stop)
        while place in unread:
            place = rng.randrange(start, stop)
        yield path, place


def test_a_flipped_byte_anywhere_is_refused_by_all(
    three: Ranks, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    three.all(save_one, str(folder))
    rng = random.Random(13)  # noqa: S311
    for path, place in flipped_places(folder / "step-1", NUM_FLIPS):
        content = path.read_bytes()
        changed = bytearray(content)
        changed[place] ^= 1 << rng.randrange(8)
        path.write_bytes(changed)
        for answer in three.all(refuse, str(folder)):
            assert path.name in answer, (path.name, place, content[place], answer)
        path.write_bytes(content)
    answers: list[Any] = three.all(restore_all, str(folder))
    assert answers == [[(1, {1.0})]] * WORLD
