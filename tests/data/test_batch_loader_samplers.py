"""Samplers of torch and others in a loader: dealt to ranks once, resumed in any epoch."""

from __future__ import annotations

import itertools
import json
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from ranks import Ranks
from tensordict import TensorDict
from tensordict.checkpoint import Checkpointer
from tensordict.data import BatchLoader, Mixture, WeightedSampler

COUNT = 42


def numbers(count: int = COUNT) -> TensorDict:
    return TensorDict(x=torch.arange(count), batch_size=[count])


def rows_of(loader: Any) -> list[list[int]]:
    return [batch["x"].tolist() for batch in loader]


def flat(batches: list[list[int]]) -> list[int]:
    return [row for batch in batches for row in batch]


def drawn() -> torch.Generator:
    return torch.Generator().manual_seed(3)


class Counting(Sampler[int]):
    """Each epoch begins where the one before ended."""

    def __init__(self) -> None:
        self.first = 0

    def __len__(self) -> int:
        return 10

    def __iter__(self) -> Any:
        first = self.first
        self.first = (first + 10) % COUNT
        return iter([(first + row) % COUNT for row in range(10)])

    def state_dict(self) -> dict[str, Any]:
        return {"first": self.first}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.first = state["first"]


class Yielded(Sampler[int]):
    """Its state is how many rows it gave, as in the samplers of torchdata."""

    def __init__(self) -> None:
        self.generator = drawn()
        self.given = 0
        self.skipped: int | None = None

    def __len__(self) -> int:
        return COUNT

    def __iter__(self) -> Any:
        self.given = self.skipped or 0
        self.skipped = None
        for row in torch.randperm(COUNT, generator=self.generator)[self.given :]:
            self.given += 1
            yield int(row)

    def state_dict(self) -> dict[str, Any]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.skipped = state["given"]


class Lazy(Sampler[int]):
    """Draws each row from the generators that all share, when it is asked for."""

    def __len__(self) -> int:
        return COUNT

    def __iter__(self) -> Any:
        for _ in range(COUNT // 3):
            yield int(torch.randint(COUNT, ()))
            yield random.randrange(COUNT)
            yield int(np.random.randint(COUNT))  # noqa: NPY002


class Generators(Sampler[int]):
    """Has generators of its own, in an inner sampler too."""

    def __init__(self) -> None:
        self.numpy = np.random.default_rng(5)
        self.python = random.Random(5)
        self.sampler = RandomSampler(range(COUNT), generator=drawn())

    def __len__(self) -> int:
        return COUNT

    def __iter__(self) -> Any:
        shift = int(self.numpy.integers(COUNT)) + self.python.randrange(COUNT)
        return ((row + shift) % COUNT for row in self.sampler)


class Drawing:
    """Draws from a generator of NumPy; of no class of torch."""

    def __init__(self) -> None:
        self.numpy = np.random.default_rng(3)

    def __len__(self) -> int:
        return COUNT

    def __iter__(self) -> Any:
        return iter(self.numpy.permutation(COUNT).tolist())


class Wrapping:
    """Gives the rows of others, one behind the other."""

    def __init__(self, *samplers: Any) -> None:
        self.samplers = samplers

    def __len__(self) -> int:
        return sum(map(len, self.samplers))

    def __iter__(self) -> Any:
        return itertools.chain(*self.samplers)


def weighted() -> WeightedSampler:
    return WeightedSampler(torch.arange(COUNT) + 1.0, 30, seed=2)


ROWS = range(COUNT)
SAMPLERS: dict[str, Any] = {
    "random": lambda: RandomSampler(ROWS),
    "random with a generator": lambda: RandomSampler(ROWS, generator=drawn()),
    "with replacement": lambda: RandomSampler(ROWS, True, 70),
    "with replacement and a generator": lambda: RandomSampler(
        ROWS, True, 70, generator=drawn()
    ),
    "subset": lambda: SubsetRandomSampler(ROWS[5:30]),
    "subset with a generator": lambda: SubsetRandomSampler(ROWS[5:30], drawn()),
    "weighted": lambda: WeightedRandomSampler([1.0] * COUNT, 33),
    "weighted with a generator": lambda: WeightedRandomSampler(
        [1.0] * COUNT, 33, generator=drawn()
    ),
    "a state": Counting,
    "a state that skips": Yielded,
    "common generators": Lazy,
    "own generators": Generators,
    "wrapped twice": lambda: Wrapping(Wrapping(Drawing())),
    "several in one": lambda: Wrapping(
        RandomSampler(ROWS, generator=drawn()), Drawing()
    ),
    "distributed": lambda: DistributedSampler(ROWS, 2, 1),
    "weights of ours": weighted,
    "a list": lambda: list(ROWS)[::-1],
}


def with_sampler(make: Any) -> Any:
    return lambda **more: BatchLoader(numbers(), 4, sampler=make(), **more)


LOADERS: dict[str, Any] = {
    **{name: with_sampler(make) for name, make in SAMPLERS.items()},
    "in turn": lambda **more: BatchLoader(numbers(), 4, **more),
    "shuffled": lambda **more: BatchLoader(numbers(), 4, shuffle=True, **more),
    "blocks": lambda **more: BatchLoader(
        numbers(), 4, shuffle="blocks", block_size=3, **more
    ),
    "mixture": lambda **more: BatchLoader(
        Mixture([numbers(7), numbers()], [1, 2], num_rows=33), 4, shuffle=True, **more
    ),
}


def saved_and_read(state: Any, folder: Path) -> Any:
    """A state as a checkpoint has it."""
    Checkpointer(folder, durable=False).save(0, loader=state)
    return Checkpointer(folder).restore()["loader"]


@pytest.mark.parametrize(("prefetch", "ranks"), [(0, 1), (3, 1), (2, 3)])
@pytest.mark.parametrize("kind", LOADERS)
def test_epochs_in_a_row_are_those_of_a_resume(
    kind: str, prefetch: int, ranks: int, tmp_path: Path
) -> None:
    def make(**more: Any) -> BatchLoader:
        if ranks > 1 and kind != "distributed":
            more.update(rank=1, world_size=ranks)
        loader: BatchLoader = LOADERS[kind](prefetch=prefetch, **more)
        return loader

    one = make(seed=4)
    expected = [rows_of(one) for _ in range(3)]
    one = make(seed=4)
    states = [[one.state_dict()]]
    for epoch in range(3):
        states += [[]]
        for at, batch in enumerate(one):
            assert batch["x"].tolist() == expected[epoch][at]
            states[-1].append(one.state_dict())
        states += [[one.state_dict()]]
    for found in states[::2][:3]:
        (between,) = found
        epoch = between["epoch"]
        other = make()
        other.load_state_dict(saved_and_read(between, tmp_path))
        assert [rows_of(other) for _ in range(epoch, 3)] == expected[epoch:]
    for epoch, within in enumerate(states[1::2]):
        for at in {0, len(within) // 2, len(within) - 1}:
            other = make()
            other.load_state_dict(within[at])
            # It goes on from the state of a loader that was resumed as well.
            again = make()
            again.load_state_dict(pickle.loads(pickle.dumps(other.state_dict())))
            rest = [rows_of(again) for _ in range(epoch, 3)]
            assert rest == [expected[epoch][at + 1 :], *expected[epoch + 1 :]]


def test_weights_that_changed_are_those_of_the_next_epoch() -> None:
    def make() -> BatchLoader:
        return BatchLoader(numbers(), 4, sampler=weighted())

    one = make()
    rows_of(one)
    one.sampler.update(torch.ones(COUNT))
    state = one.state_dict()
    other = make()
    other.load_state_dict(state)
    assert other.state_dict()["sampler"]["sampler"]["weights"].tolist() == [1.0] * COUNT
    assert rows_of(other) == rows_of(one)


def test_states_between_two_epochs_stay_numbers() -> None:
    one = BatchLoader(numbers(), 4, shuffle=True)
    rows_of(one)
    assert json.loads(json.dumps(one.state_dict()))["epoch"] == 1


def test_the_random_numbers_of_others_stay_as_they_were() -> None:
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    for kind in SAMPLERS:
        rows_of(LOADERS[kind](seed=0))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert np.random.get_state()[1].tolist() == before[2]  # noqa: NPY002


# Samplers that share the rows out -------------------------------------------------------


class Sharded(Sampler[int]):
    """Shares rows out by the names of others."""

    def __init__(self, count: int, num_shards: int, shard_id: int) -> None:
        self.count = count
        self.num_shards = num_shards
        self.shard_id = shard_id

    def __len__(self) -> int:
        return len(range(self.shard_id, self.count, self.num_shards))

    def __iter__(self) -> Any:
        return iter(range(self.shard_id, self.count, self.num_shards))


def of_accelerate(rank: int) -> Any:
    data_loader = pytest.importorskip("accelerate.data_loader")
    rows = data_loader.SeedableRandomSampler(range(100), data_seed=3)
    return data_loader.BatchSamplerShard(BatchSampler(rows, 8, False), 2, rank)


SHARED_OUT: dict[str, Any] = {
    "torch": lambda rank: DistributedSampler(range(100), 2, rank, seed=5),
    "torch in a batch sampler": lambda rank: BatchSampler(
        DistributedSampler(range(100), 2, rank), 8, False
    ),
    "shards": lambda rank: Sharded(100, 2, rank),
    "accelerate": of_accelerate,
}


@pytest.mark.parametrize("kind", SHARED_OUT)
@pytest.mark.parametrize("is_said", [True, False])
def test_a_sampler_that_shares_out_is_taken_as_dealt(kind: str, is_said: bool) -> None:
    found = []
    for rank in range(2):
        said = {"rank": rank, "world_size": 2} if is_said else {}
        sampler = SHARED_OUT[kind](rank)
        loader = BatchLoader(numbers(100), 8, sampler=sampler, seed=0, **said)
        epochs = [rows_of(loader), rows_of(loader)]
        assert {len(loader)} == {len(epoch) for epoch in epochs}
        assert {len(batch) for epoch in epochs for batch in epoch[:-1]} == {8}
        if kind not in ("shards", "torch in a batch sampler"):
            assert epochs[0] != epochs[1]
        found.append([set(flat(epoch)) for epoch in epochs])
    for first, second in zip(*found, strict=True):
        assert len(first | second) == 100
        # accelerate fills the last batches up.
        assert len(first & second) <= (12 if kind == "accelerate" else 0)


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 1), (1, 2)])
def test_other_ranks_go_on_where_those_of_a_sampler_were(
    before: int, after: int
) -> None:
    def make(rank: int, world: int) -> BatchLoader:
        sampler: Any = DistributedSampler(range(120), world, rank, seed=5)
        return BatchLoader(numbers(120), 4, sampler=sampler)

    first = [make(rank, before) for rank in range(before)]
    taken = []
    for loader in first:
        batches = iter(loader)
        taken += [row for _ in range(3) for row in next(batches)["x"].tolist()]
    state = first[-1].state_dict()
    assert state["position"] == len(taken)
    for rank in range(after):
        loader = make(rank, after)
        loader.load_state_dict(state)
        taken += flat(rows_of(loader))
    assert sorted(taken) == list(range(120))


def test_parts_that_differ_are_an_error() -> None:
    sampler: Any = DistributedSampler(range(100), 2, 1)
    with pytest.raises(ValueError, match="rank=0 and world_size=2.*rank=1 of 2"):
        BatchLoader(numbers(100), 8, sampler=sampler, rank=0, world_size=2)


def rows_of_rank(rank: int) -> list[list[int]]:
    td = numbers(100)
    sampler: Any = DistributedSampler(td)  # type: ignore[arg-type]
    loader = BatchLoader(td, 8, sampler=sampler)
    sampler.set_epoch(3)
    return [flat(rows_of(loader)), [loader.epoch]]


def test_a_distributed_sampler_in_a_group(tmp_path: Path) -> None:
    ranks = Ranks(2, tmp_path)
    try:
        found = ranks.all(rows_of_rank)
    finally:
        ranks.close()
    assert [epoch for _, epoch in found] == [[4], [4]]
    expected: Any = [DistributedSampler(range(100), 2, rank) for rank in range(2)]
    for sampler, (rows, _) in zip(expected, found, strict=True):
        sampler.set_epoch(3)
        assert rows == list(sampler)


def test_the_epoch_that_a_sampler_is_told_is_that_of_the_loader() -> None:
    def order_of(epoch: int) -> list[int]:
        sampler: Any = DistributedSampler(range(COUNT), 1, 0)
        sampler.set_epoch(epoch)
        return list(sampler)

    sampler: Any = DistributedSampler(range(COUNT), 1, 0)
    sampler.set_epoch(3)
    loader = BatchLoader(numbers(), 4, sampler=sampler)
    assert flat(rows_of(loader)) == order_of(3)
    assert flat(rows_of(loader)) == order_of(4)
    for epoch in (0, 1, 1, 7):
        sampler.set_epoch(epoch)
        assert flat(rows_of(loader)) == order_of(epoch)
        assert loader.epoch == epoch + 1
    loader.set_epoch(2)
    assert flat(rows_of(loader)) == order_of(2)
    # Also between the two halves of an iteration that has not begun.
    batches = iter(loader)
    sampler.set_epoch(5)
    assert flat(rows_of(batches)) == order_of(5)
    assert flat(rows_of(loader)) == order_of(6)


def test_a_sampler_may_be_told_the_epoch_that_is_gone_on_with() -> None:
    def make() -> BatchLoader:
        sampler: Any = DistributedSampler(range(COUNT), 1, 0)
        return BatchLoader(numbers(), 4, sampler=sampler)

    one = make()
    one.set_epoch(2)
    batches = iter(one)
    next(batches)
    state = one.state_dict()
    rest = rows_of(batches)
    for say in (
        lambda loader: loader.sampler.set_epoch(2),
        lambda loader: loader.set_epoch(2),
        lambda loader: None,
    ):
        other = make()
        other.load_state_dict(state)
        say(other)
        assert rows_of(other) == rest
    other = make()
    other.load_state_dict(state)
    other.set_epoch(3)
    assert rows_of(other) == rows_of(one)
