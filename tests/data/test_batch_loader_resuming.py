"""A loader that goes on where it was: after a kill, in a fork, with other ranks."""

from __future__ import annotations

import contextlib
import gc
import json
import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler

from tensordict import TensorDict, lazy_stack
from tensordict.checkpoint import Checkpointer
from tensordict.data import BatchLoader, Mixture, WeightedSampler

fork = multiprocessing.get_context("fork")

TIMEOUT_S = 60


def numbers(count: int = 50) -> TensorDict:
    return TensorDict(x=torch.arange(count), batch_size=[count])


def texts(count: int = 50) -> TensorDict:
    td = numbers(count)
    td["text"] = [str(row) for row in range(count)]
    return td


def drawn_from_torch() -> RandomSampler:
    return RandomSampler(range(50), generator=torch.Generator().manual_seed(3))


def mixture() -> Mixture:
    return Mixture([numbers(7), numbers(50)], [1, 2], num_rows=60)


LOADERS: dict[str, Any] = {
    "in turn": lambda **more: BatchLoader(numbers(), 4, **more),
    "shuffled": lambda **more: BatchLoader(numbers(), 4, shuffle=True, **more),
    "blocks": lambda **more: BatchLoader(
        numbers(), 4, shuffle="blocks", block_size=3, **more
    ),
    "texts": lambda **more: BatchLoader(texts(), 4, shuffle=True, **more),
    "mixture": lambda **more: BatchLoader(mixture(), 4, shuffle=True, **more),
    "sampler": lambda **more: BatchLoader(
        numbers(), 4, sampler=RandomSampler(range(50)), **more
    ),
    "generator": lambda **more: BatchLoader(
        numbers(), 4, sampler=drawn_from_torch(), **more
    ),
    "weights": lambda **more: BatchLoader(
        numbers(), 4, sampler=WeightedSampler(torch.arange(50.0) + 1), **more
    ),
}


def rows_of(loader: Any) -> list[list[int]]:
    return [batch["x"].tolist() for batch in loader]


@pytest.mark.parametrize("kind", LOADERS)
@pytest.mark.parametrize("prefetch", [0, 3])
def test_a_state_of_any_batch_goes_on_with_the_next(kind: str, prefetch: int) -> None:
    loader = LOADERS[kind](prefetch=prefetch)
    list(loader)
    expected = rows_of(loader) + rows_of(loader)
    loader = LOADERS[kind](seed=loader.seed)
    states = [(0, loader.state_dict())]
    list(loader)
    count = 0
    for _ in range(2):
        for _ in loader:
            count += 1
            states.append((count, loader.state_dict()))
    assert count == len(expected)
    for count, state in states[1:]:
        other = LOADERS[kind](prefetch=1)
        other.load_state_dict(state)
        again = loader.state_dict()["epoch"] - state["epoch"]
        assert other.state_dict()["position"] == state["position"]
        rest = [rows for _ in range(again) for rows in rows_of(other)]
        assert rest == expected[count:]


def test_a_state_is_numbers() -> None:
    loader = LOADERS["mixture"](seed=5)
    next(iter(loader))
    state = json.loads(json.dumps(loader.state_dict()))
    other = LOADERS["mixture"]()
    other.load_state_dict(state)
    assert other.seed == 5
    assert other.progress == (1, 15)


@pytest.mark.parametrize("kind", ["shuffled", "sampler", "mixture", "weights"])
@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1), (2, 4)])
def test_other_ranks_go_on_with_the_rows_that_are_left(
    kind: str, before: int, after: int
) -> None:
    one = LOADERS[kind](seed=2)
    if kind == "weights":
        expected = [row for rows in rows_of(one) for row in rows]
    else:
        whole = [row for rows in rows_of(one) for row in rows]
        expected = sorted(whole)
    first = [
        LOADERS[kind](seed=2, rank=rank, world_size=before) for rank in range(before)
    ]
    taken = []
    for loader in first:
        batches = iter(loader)
        taken += [row for _ in range(3) for row in next(batches)["x"].tolist()]
    states = [loader.state_dict() for loader in first]
    assert all(state["position"] == 12 * before for state in states)
    rest = []
    for rank in range(after):
        loader = LOADERS[kind](rank=rank, world_size=after, uneven="pad")
        loader.load_state_dict(states[0])
        rest.append([row for rows in rows_of(loader) for row in rows])
    assert len({len(rows) for rows in rest}) == 1
    found = taken + [row for rows in rest for row in rows]
    assert len(found) - len(expected) < after
    if kind == "weights":
        # Other rows are drawn, as the steps differ, but as many.
        assert len(found) >= len(expected)
    else:
        for row in set(expected):
            assert found.count(row) >= expected.count(row)


def test_weights_that_changed_are_in_the_state() -> None:
    loader = LOADERS["weights"](prefetch=4)
    batches = iter(loader)
    next(batches)
    loader.sampler.update(torch.ones(50))
    next(batches)
    state = loader.state_dict()
    other = LOADERS["weights"]()
    other.load_state_dict(state)
    assert rows_of(other) == rows_of(batches)


def test_a_state_of_something_else_is_refused() -> None:
    state = LOADERS["shuffled"]().state_dict()
    with pytest.raises(ValueError, match="num_rows=50"):
        BatchLoader(numbers(3), 4, shuffle=True).load_state_dict(state)
    with pytest.raises(ValueError, match="shuffle=True"):
        LOADERS["in turn"]().load_state_dict(state)
    with pytest.raises(ValueError, match="version None"):
        LOADERS["in turn"]().load_state_dict({})


def test_functions_that_draw_in_processes_draw_the_same_again() -> None:
    def noisy(batch: Any) -> Any:
        return batch["x"].tolist(), torch.rand(3).tolist()

    def made() -> BatchLoader:
        return BatchLoader(
            numbers(30),
            4,
            shuffle=True,
            seed=1,
            transform=noisy,
            workers=2,
            backend="processes",
            mp_start_method="fork",
        )

    expected = list(made())
    loader = made()
    batches = iter(loader)
    assert [next(batches) for _ in range(3)] == expected[:3]
    other = made()
    other.load_state_dict(loader.state_dict())
    assert list(other) == expected[3:]


# A training that is killed ---------------------------------------------------------------


def train(folder: Path, data: Path, last_step: int, *, dies: bool) -> list[float]:
    """Losses of the steps that this process did."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    td = TensorDict.load_memmap(data)
    model = torch.nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    loader = BatchLoader(td, 16, shuffle=True, prefetch=3)
    checkpointer = Checkpointer(folder, keep=2)
    step, losses = 0, []
    parts = {"model": model, "optimizer": optimizer, "loader": loader}
    if checkpointer.latest() is not None:
        step = checkpointer.restore(**parts)["progress"]["step"]
    while True:
        for batch in loader:
            if step == last_step:
                if dies:
                    os.kill(os.getpid(), signal.SIGKILL)
                return losses
            loss = torch.nn.functional.cross_entropy(model(batch["x"]), batch["y"])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            step += 1
            checkpointer.save(step, **parts, progress={"step": step})


def test_a_training_that_was_killed_has_the_same_losses(tmp_path: Path) -> None:
    count = 16 * 4
    td = TensorDict(
        x=torch.randn(count, 8), y=torch.arange(count) % 2, batch_size=[count]
    )
    td.memmap(tmp_path / "data")
    expected = train(tmp_path / "whole", tmp_path / "data", 7, dies=False)
    for last_step in (3, 5):
        process = fork.Process(
            target=train,
            args=(tmp_path / "killed", tmp_path / "data", last_step),
            kwargs={"dies": True},
        )
        process.start()
        process.join(TIMEOUT_S)
        assert process.exitcode == -signal.SIGKILL
    found = train(tmp_path / "killed", tmp_path / "data", 7, dies=False)
    assert found == expected[5:]


# Forks -----------------------------------------------------------------------------------


def in_child(function: Any) -> Any:
    """Return the result of a function in the child of a fork, which must not hang."""
    receiver, sender = fork.Pipe(duplex=False)
    process = fork.Process(target=lambda: sender.send(function()))
    process.start()
    sender.close()
    try:
        assert receiver.poll(TIMEOUT_S), "the child does not answer"
        found = receiver.recv()
        process.join(TIMEOUT_S)
        assert process.exitcode == 0
        return found
    finally:
        process.kill()


@pytest.mark.parametrize("kind", ["shuffled", "texts"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_child_goes_on_for_itself(kind: str, workers: int) -> None:
    loader = LOADERS[kind](prefetch=4, workers=workers, seed=0)
    batches = iter(loader)
    next(batches)
    rest = in_child(lambda: rows_of(batches))
    anew = in_child(lambda: rows_of(loader))
    assert rest == rows_of(batches)
    assert anew == rows_of(loader)


def test_a_child_goes_on_with_processes_of_its_own() -> None:
    def made() -> BatchLoader:
        return LOADERS["shuffled"](
            workers=1, backend="processes", mp_start_method="fork", seed=0
        )

    batches = iter(made())
    next(batches)

    def in_the_child() -> Any:
        # Processes of a pool are daemons, which have no children.
        multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
        return rows_of(batches)

    assert in_child(in_the_child) == rows_of(batches)


class Batches(IterableDataset[Any]):
    def __init__(self, loader: BatchLoader) -> None:
        self.loader = loader

    def __iter__(self) -> Any:
        return (batch["x"] for batch in self.loader)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_in_the_worker_of_a_data_loader(num_workers: int) -> None:
    loader = LOADERS["shuffled"](seed=0)
    next(iter(loader))
    loader.set_epoch(0)
    outer = DataLoader(
        Batches(loader),
        batch_size=None,
        num_workers=num_workers,
        multiprocessing_context="fork" if num_workers else None,
        timeout=TIMEOUT_S if num_workers else 0,
    )
    found = sorted(row for batch in outer for row in batch.tolist())
    assert found == sorted(list(range(50)) * max(1, num_workers))


def test_an_iterator_that_is_left_ends_its_threads() -> None:
    gc.collect()
    for kind in ("shuffled", "texts"):
        loader = LOADERS[kind](prefetch=2)
        for _ in range(20):
            next(iter(loader))
    names = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # a thread that ends meanwhile
            names.append((task / "comm").read_text())
    assert sum(name.startswith("td-prefetch") for name in names) < 20


def test_lazy_stacks_resume() -> None:
    td = lazy_stack([TensorDict(x=torch.arange(n)) for n in range(1, 8)])
    loader = BatchLoader(td, 2, shuffle=True, seed=0, ragged="padded")
    expected = [batch["x"].shape for batch in loader]
    loader.set_epoch(0)
    batches = iter(loader)
    next(batches)
    other = BatchLoader(td, 2, shuffle=True, ragged="padded")
    other.load_state_dict(loader.state_dict())
    assert [batch["x"].shape for batch in other] == expected[1:]
