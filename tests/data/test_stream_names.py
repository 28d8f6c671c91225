"""The names of ``pytorch_stream_dataloader``, and streams that are shuffled by a call."""

import json
import pickle
from typing import Any

import pytest
import torch

from pytorch_stream_dataloader import StreamDataLoader, StreamDataset
from pytorch_stream_dataloader.utils import split_batch_size, split_dataset_sizes
from tensordict.data import StreamDataLoader as OwnLoader


def numbers(stream: tuple[int, int]) -> Any:
    name, length = stream
    for item in range(length):
        yield torch.tensor([name, item])


STREAMS = [(name, 2 + name % 4) for name in range(12)]


def dataset(**options: Any) -> StreamDataset:
    return StreamDataset(STREAMS, numbers, 3, "zeros", **options)


def rows_of(batches: Any) -> list[Any]:
    return [batch["data"].tolist() for batch in batches]


def test_the_flag_and_the_method_work() -> None:
    assert StreamDataLoader is OwnLoader
    for flag in (False, True):
        one = dataset(shuffle=flag)
        assert bool(one.shuffle) is flag
        assert one.shuffle == flag
        assert repr(one.shuffle) == repr(flag)
        torch.manual_seed(0)
        one.shuffle()
        assert one.stream_list != STREAMS
        assert sorted(one.stream_list) == STREAMS
        assert bool(one.shuffle) is flag
        one.shuffle = not flag  # type: ignore[assignment]
        assert bool(one.shuffle) is not flag
        assert pickle.loads(pickle.dumps(one)).stream_list == one.stream_list


@pytest.mark.parametrize("flag", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_shuffle_holds_from_the_next_epoch_on(flag: bool, workers: int) -> None:
    lengths = [length for _, length in STREAMS]
    one = dataset(shuffle=flag, lengths=lengths)
    loader = StreamDataLoader(one, workers)
    expected = rows_of(loader)
    loader.set_epoch(0)
    batches = iter(loader)
    begun = [next(batches)["data"].tolist()]
    torch.manual_seed(1)
    one.shuffle()
    assert begun + rows_of(batches) == expected
    loader.set_epoch(0)
    found = rows_of(loader)
    assert found != expected
    pairs = {(name, item) for name, length in STREAMS for item in range(length)}
    assert {tuple(row) for batch in found for row in batch} == pairs | {(0, 0)}


@pytest.mark.parametrize("again", [0, 1, 2])
def test_a_state_has_the_order_of_the_list(again: int) -> None:
    loader = StreamDataLoader(dataset(), 0)
    loader.dataset.shuffle()
    batches = iter(loader)
    next(batches)
    # The order of the epoch that runs, and not that of the next one.
    loader.dataset.shuffle()
    state = json.loads(json.dumps(loader.state_dict()))
    expected = rows_of(batches)
    other = StreamDataLoader(dataset(), 0)
    for _ in range(again):
        other.dataset.shuffle()
    other.load_state_dict(state)
    assert rows_of(other) == expected
    between = loader.state_dict()
    other.load_state_dict(between)
    assert other.dataset.stream_list == loader.dataset.stream_list
    plain = StreamDataLoader(dataset(), 0)
    other.load_state_dict(plain.state_dict())
    assert other.dataset.stream_list == STREAMS


@pytest.mark.parametrize("batch_size", [1, 2, 3, 7, 10])
@pytest.mark.parametrize("num_workers", [0, 1, 2, 3, 4, 12])
def test_rows_and_streams_are_split(batch_size: int, num_workers: int) -> None:
    sizes = split_batch_size(batch_size, num_workers)
    assert sum(sizes) == batch_size
    assert len(sizes) == max(1, min(num_workers, batch_size))
    assert max(sizes) - min(sizes) <= 1
    for count in (0, batch_size, batch_size + 1, 31):
        groups = split_dataset_sizes(list(range(count)), sizes)
        assert [one for group in groups for one in group] == list(range(count))
        assert len(groups) == len(sizes)
        if count >= batch_size:
            for group, size in zip(groups, sizes, strict=True):
                assert len(group) >= size


def test_wrong_sizes_are_errors() -> None:
    with pytest.raises(ValueError, match="batch_size=0"):
        split_batch_size(0, 2)
    with pytest.raises(ValueError, match="num_workers=-1"):
        split_batch_size(3, -1)
    with pytest.raises(ValueError, match=r"split_sizes=\[0\]"):
        split_dataset_sizes([1], [0])
