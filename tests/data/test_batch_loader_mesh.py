"""A loader that deals by the data-parallel dims of a mesh of ranks."""

from __future__ import annotations

import contextlib
import math
import pickle
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import DistributedSampler, RandomSampler

from ranks import Ranks
from tensordict import TensorDict, lazy_stack
from tensordict.checkpoint import Checkpointer
from tensordict.data import BatchLoader, Mixture, WeightedSampler

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(240)]

if not torch.distributed.is_available():
    pytest.skip("this torch has no ranks", allow_module_level=True)

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

COUNT = 50


def numbers(count: int = COUNT) -> TensorDict:
    return TensorDict(x=torch.arange(count), batch_size=[count])


def rows_of(loader: Any) -> list[list[int]]:
    return [batch["x"].tolist() for batch in loader]


def flat(batches: list[list[int]]) -> list[int]:
    return [row for batch in batches for row in batch]


@contextlib.contextmanager
def being(rank: int, world: int) -> Iterator[None]:
    """Be a rank of a group whose other ranks are not there."""
    torch.distributed.init_process_group(
        "fake", store=FakeStore(), rank=rank, world_size=world
    )
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


def part_of(mesh: Any, **options: Any) -> tuple[int, int]:
    dealing = BatchLoader(numbers(), 4, mesh=mesh, **options).dealing
    return dealing.rank, dealing.world_size


# Parts ------------------------------------------------------------------------------------

MESHES: list[Any] = [
    (("dp",), (4,), [0]),
    (("dp", "tp"), (2, 2), [0]),
    (("tp", "dp"), (3, 2), [1]),
    (("dp_replicate", "dp_shard", "tp"), (2, 2, 2), [0, 1]),
    (("pp", "dp_replicate", "dp_shard", "cp", "tp"), (2, 2, 2, 1, 2), [1, 2]),
    (("replicate", "shard"), (2, 2), [0, 1]),
    (("data_parallel", "tensor_parallel"), (2, 2), [0]),
    (("ddp", "tp"), (2, 2), [0]),
    (("fsdp", "cp"), (2, 2), [0]),
    (("pp", "tp"), (2, 2), []),
    (("tp",), (4,), []),
]


@pytest.mark.parametrize(("names", "shape", "dims"), MESHES)
def test_the_data_parallel_dims_decide_the_part(
    names: tuple[str, ...], shape: tuple[int, ...], dims: list[int]
) -> None:
    world = math.prod(shape)
    found: dict[tuple[int, ...], set[int]] = {}
    for rank in range(world):
        with being(rank, world):
            mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
            place = tuple(mesh.get_coordinate() or ())
            part, num_parts = part_of(mesh)
            assert num_parts == math.prod(shape[dim] for dim in dims)
            if dims:
                of_part = mesh[tuple(names[dim] for dim in dims)]
                assert part_of(of_part) == (part, num_parts)
        found.setdefault(tuple(place[dim] for dim in dims), set()).add(part)
    # One part at each place along these dims, and each part once.
    assert all(len(parts) == 1 for parts in found.values())
    assert {part for parts in found.values() for part in parts} == set(range(num_parts))


def test_a_mesh_of_one_dim_is_dealt_whatever_its_name() -> None:
    for rank in range(4):
        with being(rank, 4):
            mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("mine", "yours"))
            assert part_of(mesh["mine"]) == (rank // 2, 2)
            assert part_of(mesh["yours"]) == (rank % 2, 2)
            assert part_of(DeviceMesh("cpu", torch.arange(4))) == (rank, 4)


def test_a_mesh_that_does_not_say_it_is_an_error() -> None:
    with being(3, 4):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "island"))
        with pytest.raises(ValueError, match=r"\['island'\].*mesh=mesh\[\"dp\"\]"):
            part_of(mesh)
        with pytest.raises(ValueError, match="2 dims without names.*mesh_dim_names="):
            part_of(init_device_mesh("cpu", (2, 2)))
        named = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        with pytest.raises(ValueError, match=r"\(tp=2\).*2 of 4 ranks.*mesh\[\"dp\"\]"):
            part_of(named["tp"])
        with pytest.raises(ValueError, match="This rank is not in the mesh"):
            part_of(DeviceMesh("cpu", torch.arange(2)))
        for wrong in ("dp", 2, (2, 2)):
            with pytest.raises(TypeError, match="must be a torch DeviceMesh"):
                part_of(wrong)
        for told in ({"rank": 0, "world_size": 2}, {"rank": 1, "world_size": 2}):
            with pytest.raises(
                ValueError, match="rank=. with world_size=2 does so as well: leave out"
            ):
                part_of(named, **told)
        sampler: Any = DistributedSampler(range(COUNT), 2, 1)
        with pytest.raises(ValueError, match="sampler yields .* rank=1 of 2: leave"):
            part_of(named, sampler=sampler)


# Rows -------------------------------------------------------------------------------------


def ragged() -> Any:
    return lazy_stack(
        [TensorDict(x=row, of=torch.full((1 + row % 5,), row)) for row in range(COUNT)]
    )


def of_their_row(batch: Any) -> Any:
    """Check that each row has the values that belong to its number."""
    for row, values in zip(batch["x"].tolist(), batch["of"].tolist(), strict=True):
        assert values[: 1 + row % 5] == [row] * (1 + row % 5)
        assert set(values[1 + row % 5 :]) <= {-1}
    return batch


def padded(source: Any, **options: Any) -> BatchLoader:
    return BatchLoader(
        source, 4, shuffle=True, ragged="padded", padding_value=-1,
        transform=of_their_row, **options,
    )  # fmt: skip


LOADERS: dict[str, Any] = {
    "in turn": lambda **more: BatchLoader(numbers(), 4, **more),
    "shuffled": lambda **more: BatchLoader(numbers(), 4, shuffle=True, **more),
    "sampler": lambda **more: BatchLoader(
        numbers(), 4, sampler=RandomSampler(range(COUNT)), **more
    ),
    "weights": lambda **more: BatchLoader(
        numbers(), 4, sampler=WeightedSampler(torch.ones(COUNT), COUNT), **more
    ),
    "ragged": lambda **more: padded(ragged(), **more),
    "mixture": lambda **more: padded(
        Mixture([ragged()[:9], ragged()], [1, 2], num_rows=60), **more
    ),
}


def begin(rank: int, kind: str, shape: tuple[int, ...], folder: str) -> list[Any]:
    """Take two batches on a mesh, and save."""
    torch.manual_seed(rank)  # No rank has another's random numbers.
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp"))
    loader = LOADERS[kind](mesh=mesh)
    batches = iter(loader)
    taken = [next(batches)["x"].tolist() for _ in range(2)]
    with Checkpointer(folder) as checkpointer:
        checkpointer.save(1, loader=loader)
    position = pickle.loads(pickle.dumps(loader)).state_dict()["position"]
    return [loader.dealing.rank, taken, rows_of(batches), position]


def go_on(rank: int, kind: str, shape: tuple[int, ...], folder: str) -> list[Any]:
    """Take the batches that are left, on another mesh."""
    torch.manual_seed(100 + rank)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp"))
    loader = LOADERS[kind](mesh=mesh["dp"])
    with Checkpointer(folder) as checkpointer:
        checkpointer.restore(loader=loader)
    return [loader.dealing.rank, rows_of(loader), rows_of(loader)]


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    ranks = Ranks(4, tmp_path_factory.mktemp("four"))
    yield ranks
    ranks.close()


def one_of_each(answers: list[list[Any]]) -> list[list[Any]]:
    """Return what each part has, which is the same on all ranks of a part."""
    parts: dict[int, list[Any]] = {}
    for part, *found in answers:
        assert parts.setdefault(part, found) == found
    return [parts[part] for part in sorted(parts)]


@pytest.mark.parametrize("kind", LOADERS)
def test_a_training_goes_on_with_the_rows_that_are_left_on_another_mesh(
    kind: str, four: Ranks, tmp_path: Path
) -> None:
    whole = Counter(flat(rows_of(LOADERS[kind](seed=0, rank=0, world_size=1))))
    for before, after in (((2, 2), (4, 1)), ((4, 1), (2, 2))):
        folder = str(tmp_path / f"{before[0]}")
        first = one_of_each(four.all(begin, kind, before, folder))
        then = one_of_each(four.all(go_on, kind, after, folder))
        assert (len(first), len(then)) == (before[0], after[0])
        assert {position for *_, position in first} == {8 * before[0]}
        taken = [row for rows, *_ in first for row in flat(rows)]
        rest = [row for rows, _ in then for row in flat(rows)]
        assert len({len(rows) for rows, _ in then}) == 1
        # Rows that pad the last batch come twice, fewer than there are parts.
        assert 0 <= len(taken) + len(rest) - whole.total() < after[0]
        if kind != "weights":  # Drawn with replacement, and by steps.
            assert not whole - Counter(taken + rest)
        following = Counter(row for _, rows in then for row in flat(rows))
        assert 0 <= following.total() - whole.total() < after[0]


def test_the_ranks_of_a_part_have_the_same_rows_without_a_seed(
    four: Ranks, tmp_path: Path
) -> None:
    for kind in ("shuffled", "sampler"):
        found = four.all(begin, kind, (1, 4), str(tmp_path / kind))
        assert [one[1:] for one in found] == [found[0][1:]] * 4
