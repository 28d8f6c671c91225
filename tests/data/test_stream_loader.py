"""Laws of the loader of streams: whole, in order, once, and the same for all workers."""

import os
import random
import signal
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from separate_process import SERVER, check_freshly
from tensordict import NonTensorStack, TensorDict
from tensordict.data import (
    StreamDataLoader,
    StreamDataset,
    StreamError,
    picture_of_rows,
)
from tensordict.data.streams import workers

# Random runs of the law below; the issue was closed with 1,000.
RUNS = int(os.environ.get("TENSORDICT_STREAM_RUNS", "12"))


def numbers(stream):
    """A stream of the pairs of its name and the number of the item."""
    name, length = stream
    for item in range(length):
        yield torch.tensor([name, item])


def delayed(stream):
    generator = random.Random(repr(stream))
    for item in numbers(stream):
        if generator.random() < 0.2:
            time.sleep(generator.random() * 5e-4)
        yield item


def streams_of(*lengths):
    return list(enumerate(lengths))


def assert_same(some, others):
    some, others = list(some), list(others)
    assert len(some) == len(others)
    for one, other in zip(some, others, strict=True):
        assert one.batch_size == other.batch_size
        assert set(one.keys()) == set(other.keys())
        assert (one == other).all()


def assert_laws(batches, streams):
    """Each stream is read once, whole, in order, and in one row without a gap."""
    seen = {name: [] for name, _ in streams}
    for number, batch in enumerate(batches):
        rows = batch["row"] if "row" in batch.keys() else torch.arange(len(batch))
        for row, item in zip(rows.tolist(), batch.unbind(0), strict=True):
            stream = item["stream_id"].item()
            if stream < 0:
                assert not item["valid"]
                assert not item["reset"]
                continue
            assert item["data"].tolist() == [stream, item["step"].item()]
            assert item["reset"].item() == (item["step"].item() == 0)
            if item["valid"]:
                seen[stream].append((row, number, item["step"].item()))
    for name, length in streams:
        assert [item for _, _, item in seen[name]] == list(range(length))
        assert len({row for row, _, _ in seen[name]}) <= 1
        starts = {number - item for _, number, item in seen[name]}
        assert len(starts) <= 1


lengths = st.lists(st.integers(0, 9), max_size=9)
modes = st.sampled_from(["zeros", "data", "none", "pack"])


@given(lengths, st.integers(1, 5), modes, st.booleans(), st.booleans())
def test_streams_are_whole_and_continuous(sizes, rows, mode, shuffle, knows):
    streams = streams_of(*sizes)
    known = sizes if knows else None
    loader = StreamDataLoader(
        streams, numbers, rows, 0, None, mode, lengths=known, shuffle=shuffle, seed=3
    )
    batches = list(loader)
    assert_laws(batches, streams)
    if knows:
        loader.set_epoch(0)
        assert len(loader) == len(batches)


@settings(max_examples=RUNS)
@given(
    lengths,
    st.integers(1, 6),
    modes,
    st.booleans(),
    st.booleans(),
    st.integers(0, 4),
    st.integers(1, 5),
)
def test_workers_give_the_same_batches(
    sizes, rows, mode, shuffle, knows, workers, prefetch
):
    streams = streams_of(*sizes)
    keywords = {
        "lengths": sizes if knows else None,
        "shuffle": shuffle,
        "prefetch_factor": prefetch,
    }
    serial = StreamDataLoader(streams, numbers, rows, 0, None, mode, **keywords)
    loader = StreamDataLoader(streams, delayed, rows, workers, None, mode, **keywords)
    batches = list(loader)
    assert_laws(batches, streams)
    assert_same(batches, serial)


@given(lengths, st.integers(1, 4), modes, st.booleans())
@settings(max_examples=20)
def test_a_state_of_any_step_gives_the_rest(sizes, rows, mode, shuffle):
    streams = streams_of(*sizes)

    def loader():
        return StreamDataLoader(
            streams, numbers, rows, 0, None, mode, shuffle=shuffle, seed=1
        )

    first = loader()
    states = [first.state_dict()]
    batches = []
    for batch in first:
        batches.append(batch)
        states.append(first.state_dict())
    next_epoch = list(first)
    for step, state in enumerate(states):
        other = loader()
        other.load_state_dict(state)
        assert other.state_dict() == state
        assert_same(other, batches[step:])
        assert_same(other, next_epoch)


@pytest.mark.parametrize(("before", "after"), [(2, 0), (0, 3), (3, 2)])
def test_a_state_is_of_any_number_of_workers(before, after):
    streams = streams_of(5, 0, 9, 2, 2, 7, 1)
    first = StreamDataLoader(streams, numbers, 3, before)
    batches = list(StreamDataLoader(streams, numbers, 3))
    iterator = iter(first)
    for step in range(1, len(batches), 3):
        while first.state_dict()["lanes"]["step"] < step:
            next(iterator)
        other = StreamDataLoader(streams, numbers, 3, after)
        other.load_state_dict(first.state_dict())
        assert_same(other, batches[step:])
    iterator.close()


def test_a_state_after_break_is_of_the_last_batch():
    loader = StreamDataLoader(streams_of(4, 4, 4), numbers, 2)
    for _ in loader:
        break
    assert loader.state_dict()["lanes"]["step"] == 1
    assert loader.state_dict()["epoch"] == 0


def test_a_state_of_other_streams_is_refused():
    loader = StreamDataLoader(streams_of(4, 4, 4), numbers, 2)
    other = StreamDataLoader(streams_of(4, 4), numbers, 2)
    with pytest.raises(ValueError, match="num_streams=3"):
        other.load_state_dict(loader.state_dict())


def test_skip_is_called_by_a_loader_that_resumes():
    class Skipping:
        def __init__(self, stream):
            self.first = 0

        def skip(self, count):
            self.first = count

        def __iter__(self):
            assert self.first == 2
            return iter([torch.tensor(7)])

    first = StreamDataLoader(streams_of(4), numbers, 1)
    iterator = iter(first)
    next(iterator), next(iterator)
    other = StreamDataLoader(streams_of(4), Skipping, 1)
    other.load_state_dict(first.state_dict())
    assert [batch["data"].item() for batch in other] == [7]


def test_each_epoch_has_an_order_of_its_own():
    def order(loader):
        ids = torch.cat([batch["stream_id"] for batch in loader])
        return ids.tolist()

    streams = streams_of(*[1] * 20)
    loader = StreamDataLoader(streams, numbers, 1, shuffle=True, seed=5)
    first, second = order(loader), order(loader)
    assert sorted(first) == sorted(second) == list(range(20))
    assert first != second
    loader.set_epoch(0)
    assert order(loader) == first
    other = StreamDataLoader(streams, numbers, 1, shuffle=True, seed=6)
    assert order(other) != first


@given(lengths, st.integers(1, 4))
@settings(max_examples=20)
def test_ranks_share_the_streams(sizes, world_size):
    streams = streams_of(*sizes)
    seen = []
    for rank in range(world_size):
        loader = StreamDataLoader(
            streams, numbers, 2, 0, None, "zeros",
            shuffle=True, rank=rank, world_size=world_size,
        )  # fmt: skip
        for batch in loader:
            rows = batch[batch["valid"]]
            seen += [tuple(pair) for pair in rows["data"].tolist()]
    assert sorted(seen) == [(n, item) for n, size in streams for item in range(size)]


# --- What a batch is ------------------------------------------------------------------


def test_padding_of_each_mode():
    streams = streams_of(1, 2)
    pairs = {
        mode: [b["data"].tolist() for b in StreamDataLoader(
            streams, numbers, 2, 0, None, mode
        )]
        for mode in ("zeros", "data", "none")
    }  # fmt: skip
    assert pairs["zeros"] == [[[0, 0], [1, 0]], [[0, 0], [1, 1]]]
    assert pairs["data"] == [[[0, 0], [1, 0]], [[0, 0], [1, 1]]]
    assert pairs["none"] == [[[0, 0], [1, 0]], [[1, 1]]]
    last = list(StreamDataLoader(streams, numbers, 2, 0, None, "data"))[-1]
    assert last["valid"].tolist() == [False, True]
    assert last["stream_id"].tolist() == [0, 1]
    assert last["reset"].tolist() == [True, False]
    last = list(StreamDataLoader(streams, numbers, 2, 0, None, "none"))[-1]
    assert last["row"].tolist() == [1]


@pytest.mark.parametrize("workers", [0, 2])
def test_padding_value(workers):
    def padded(value):
        loader = StreamDataLoader(
            streams_of(1, 2), numbers, 2, workers, None, "zeros", value
        )
        return [batch["data"][0].tolist() for batch in loader][-1]

    assert padded(-1) == [-1, -1]
    assert padded(torch.tensor([7, 8])) == [7, 8]


@pytest.mark.parametrize("workers", [0, 2])
def test_fewer_streams_than_rows(workers):
    zeros = list(StreamDataLoader(streams_of(2), numbers, 3, workers, None, "zeros"))
    assert [batch["stream_id"].tolist() for batch in zeros] == [[0, -1, -1]] * 2
    again = list(StreamDataLoader(streams_of(2), numbers, 3, workers, None, "data"))
    assert [batch["valid"].tolist() for batch in again] == [[True, False, False]] * 2
    assert [batch["data"].tolist() for batch in again] == [
        [[0, 0]] * 3,
        [[0, 1]] * 3,
    ]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("mode", ["zeros", "data", "none"])
@pytest.mark.parametrize("sizes", [[], [0], [0, 0, 0]])
def test_nothing_to_read_is_an_empty_epoch(sizes, mode, workers):
    loader = StreamDataLoader(streams_of(*sizes), numbers, 2, workers, None, mode)
    assert list(loader) == []


def arranged(stream):
    name, length = stream
    for item in range(length):
        yield {
            "pixels": TensorDict(a=torch.full((2,), item), batch_size=[2]),
            "array": np.full((2, 3), item, dtype=np.float32),
            "pair": (torch.tensor(item), [item / 2, f"{name}.{item}"]),
        }


@pytest.mark.parametrize("workers", [0, 2])
def test_items_may_be_arranged(workers):
    batch = list(StreamDataLoader(streams_of(2, 2), arranged, 2, workers))[1]
    assert batch["pixels"].batch_size == torch.Size([2, 2])
    assert batch["array"].shape == torch.Size([2, 2, 3])
    assert batch["pair", "0"].tolist() == [1, 1]
    assert batch["pair", "1", "0"].tolist() == [0.5, 0.5]
    assert batch["pair", "1", "1"] == ["0.1", "1.1"]
    assert isinstance(batch.get(("pair", "1", "1")), NonTensorStack)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_collate_function_gets_the_items(workers):
    loader = StreamDataLoader(
        streams_of(1, 2), arranged, 2, workers, lambda items: items, "zeros"
    )
    first, second = loader
    assert [item["pair"][1][1] for item in first] == ["0.0", "1.0"]
    assert isinstance(second[0]["array"], np.ndarray)
    assert second[0]["pair"][1] == [0.0, ""]
    assert second[0]["pixels"].batch_size == torch.Size([2])


def ragged(stream):
    name, length = stream
    for item in range(length):
        yield torch.full((1 + (name + item) % 3, 2), item)


@pytest.mark.parametrize("workers", [0, 2])
def test_items_of_different_shapes(workers):
    streams = streams_of(3, 2)
    packed = list(StreamDataLoader(streams, ragged, 2, workers, None, "pack"))
    assert packed[0]["data"].is_nested
    assert [len(item) for item in packed[0]["data"].unbind()] == [1, 2]
    assert packed[2]["data"].shape == torch.Size([1, 3, 2])
    lists = list(StreamDataLoader(streams, ragged, 2, workers, list, "none"))
    assert [[len(item) for item in items] for items in lists] == [[1, 2], [2, 3], [3]]
    with pytest.raises(ValueError, match="padding_mode='pack'"):
        next(iter(StreamDataLoader(streams, ragged, 2, workers)))


def growing(stream):
    for size in (1, 5000, 3):
        yield torch.arange(size)


def test_slots_grow_with_the_items():
    serial = list(StreamDataLoader([0, 1], growing, 2))
    assert_same(StreamDataLoader([0, 1], growing, 2, 2), serial)


def test_batches_are_not_written_to_again():
    loader = StreamDataLoader(streams_of(40, 40), numbers, 2, 1, prefetch_factor=2)
    batches = list(loader)
    assert [batch["data"][0, 1].item() for batch in batches] == list(range(40))


KEEPING = {
    "stacks": lambda items, _: torch.stack(items),
    "keeps all": lambda items, _: items,
    "keeps some": lambda items, at: items if at % 3 == 2 else torch.stack(items),
    "keeps arrays": lambda items, at: [
        item.numpy() if at % 3 == 2 else item.numpy().copy() for item in items
    ],
    "keeps a view": lambda items, at: torch.stack(items) if at < 4 else items[1][:1],
}


@pytest.mark.parametrize("kind", KEEPING)
def test_items_that_a_collate_function_keeps_are_not_written_to_again(kind):
    def numbered():
        calls = iter(range(100))
        return lambda items: KEEPING[kind](items, next(calls))

    serial, parallel = (
        list(StreamDataLoader(streams_of(40, 40), numbers, 2, workers, numbered()))
        for workers in (0, 2)
    )
    assert len(serial) == len(parallel) == 40
    for expected, found in zip(serial, parallel, strict=True):
        assert type(found) is type(expected)
        for one, other in zip(expected, found, strict=True):
            assert np.array_equal(one, other)


def test_a_function_that_keeps_nothing_is_lent_the_slots():
    loader = StreamDataLoader(streams_of(9, 9), numbers, 2, 1, torch.stack)
    batches = iter(loader)
    next(batches)
    assert batches._workers.lends
    assert next(batches).is_shared() is False
    batches.close()


def test_own_keys_are_refused():
    loader = StreamDataLoader([0], lambda _: [{"reset": torch.zeros(1)}], 1)
    with pytest.raises(ValueError, match="'reset'"):
        next(iter(loader))


# --- The dataset alone ----------------------------------------------------------------


def test_the_dataset_in_a_plain_loader():
    streams = streams_of(3, 1, 0, 4, 2)
    dataset = StreamDataset(streams, numbers, 3, "none")
    seen = {0: [], 1: []}
    for batch, worker_id in DataLoader(dataset, batch_size=None, num_workers=2):
        assert len(batch) <= 2
        seen[worker_id] += [tuple(item.tolist()) for item in batch]
    every = [(n, item) for n, size in streams for item in range(size)]
    assert sorted(seen[0] + seen[1]) == every
    assert {name for name, _ in seen[0]} == {0, 4}


# --- Errors ---------------------------------------------------------------------------


def failing(stream):
    name, length = stream
    for item in range(length):
        if name == 1 and item == 2:
            raise KeyError("no frame")
        yield torch.tensor([name, item])


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_a_stream_that_raises_is_named(workers):
    loader = StreamDataLoader(streams_of(5, 5, 5, 5), failing, 3, workers)
    iterator = iter(loader)
    next(iterator), next(iterator)
    with pytest.raises(StreamError, match=r"stream \(1, 5\) in row 1 raised") as info:
        next(iterator)
    assert info.value.streams == ((1, 5),)
    assert isinstance(info.value.__cause__, KeyError)
    assert list(iterator) == []


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_that_cannot_be_opened_is_named(workers):
    def missing(path):
        raise FileNotFoundError(path)

    with pytest.raises(StreamError, match="'here.mp4' in row 0 raised FileNotFound"):
        list(StreamDataLoader(["here.mp4", "there.mp4"], missing, 2, workers))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("mode", ["zeros", "data"])
def test_a_stream_that_raises_is_skipped(workers, mode):
    loader = StreamDataLoader(
        streams_of(5, 5, 5, 5), failing, 2, workers, None, mode, on_error="skip"
    )
    with pytest.warns(UserWarning, match=r"\(1, 5\).*skipped"):
        batches = list(loader)
    assert_laws(batches, streams_of(5, 2, 5, 5))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("said", "word"), [(2, "more"), (4, "fewer")])
def test_a_length_that_is_wrong_is_an_error(workers, said, word):
    loader = StreamDataLoader(
        streams_of(3, 6, 1), numbers, 2, workers, lengths=[said, 6, 1]
    )
    with pytest.raises(
        StreamError, match=rf"\(0, 3\) has {word} items than the {said}"
    ):
        list(loader)


def test_a_worker_that_dies_is_an_error_with_its_streams():
    def deadly(stream):
        name, length = stream
        for item in range(length):
            if name == 3 and item == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            yield torch.tensor([name, item])

    loader = StreamDataLoader(streams_of(9, 9, 9, 9), deadly, 4, 2)
    iterator = iter(loader)
    next(iterator)
    with pytest.raises(StreamError, match=r"exit code -9 .*\(2, 9\), \(3, 9\)") as info:
        list(iterator)
    assert info.value.streams == ((2, 9), (3, 9))


def test_workers_end_with_their_iterator():
    iterator = iter(StreamDataLoader(streams_of(9, 9), numbers, 2, 2))
    next(iterator)
    processes = iterator._steps._processes
    assert all(process.is_alive() for process in processes)
    del iterator
    assert not any(process.is_alive() for process in processes)


def test_closures_go_to_workers_that_are_not_forked():
    factor = 3

    def multiples(length):
        return (torch.tensor(item * factor) for item in range(length))

    loader = StreamDataLoader([2, 3], multiples, 2, 1, multiprocessing_context=SERVER)
    assert [batch["data"].tolist() for batch in loader] == [[0, 0], [3, 3], [0, 6]]


# --- The calls, and what is refused -----------------------------------------------------


def test_both_calls_are_the_same_loader():
    streams = streams_of(3, 2, 4)
    dataset = StreamDataset(streams, numbers, 2, "data", None)
    by_files = StreamDataLoader(
        files=streams, iterator_fun=numbers, batch_size=2, num_workers=0,
        collate_fn=torch.stack, padding_mode="data", padding_value=None,
    )  # fmt: skip
    by_dataset = StreamDataLoader(dataset, 0, torch.stack)
    for one, other in zip(by_dataset, by_files, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    "keywords",
    [
        {"batch_size": 0},
        {"padding_mode": "ones"},
        {"on_error": "ignore"},
        {"rank": 1},
        {"lengths": [1]},
        {"lengths": [1, -1]},
        {"num_workers": -1},
        {"prefetch_factor": 0},
    ],
)
def test_arguments_that_make_no_sense(keywords):
    with pytest.raises(ValueError):
        StreamDataLoader(streams_of(1, 1), numbers, **{"batch_size": 2, **keywords})


def test_the_length_needs_those_of_the_streams():
    with pytest.raises(TypeError, match="lengths="):
        len(StreamDataLoader(streams_of(3), numbers, 2))


def test_picture_of_rows():
    loader = StreamDataLoader(streams_of(3, 1, 1), numbers, 2, 0, None, "none")
    assert picture_of_rows(loader) == "A a a\nB C ."


def tiny(stream):
    for item in range(stream):
        yield {
            "x": torch.full((3, 1), item, dtype=torch.int16),
            "y": torch.tensor(item / 2, dtype=torch.float64),
            "z": (torch.tensor([item % 2 == 0]), torch.zeros(0)),
        }


@pytest.mark.parametrize("known", [False, True])
def test_steps_that_are_copied_together_are_those_of_no_workers(known, monkeypatch):
    counts = []
    plain = workers.joined_steps

    def counted(parts, count):
        counts.append(count)
        return plain(parts, count)

    monkeypatch.setattr(workers, "joined_steps", counted)
    streams = [400, 150, 390, 0, 1, 240, 260]

    def made(num_workers):
        return StreamDataLoader(
            streams,
            tiny,
            4,
            num_workers,
            padding_mode="none",
            lengths=streams if known else None,
        )

    expected = list(made(0))
    loader = made(2)
    found, states = [], []
    for batch in loader:
        found.append(batch)
        states.append(loader.state_dict())
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.to_dict().keys() == other.to_dict().keys()
        assert (one == other).all()
    assert counts
    assert max(counts) <= workers._MOST_TOGETHER
    for at in (101, 103, 250):
        other = made(0)
        other.load_state_dict(states[at])
        assert_same(other, expected[at + 1 :])


WITHOUT_A_FILE = """
import torch
from tensordict.data import StreamDataLoader
def double(x):
    return torch.tensor(2 * x)
class Counted:
    def __init__(self, count):
        self.count = count
    def __iter__(self):
        return map(double, range(self.count))
loader = StreamDataLoader(
    [2, 3], Counted, 2, num_workers=1, multiprocessing_context="forkserver"
)
print([batch["data"].tolist() for batch in loader])
"""


def test_a_stream_of_a_program_without_a_file_reaches_its_workers():
    # Workers of a notebook or a prompt that are not forked cannot import its definitions.
    assert check_freshly(WITHOUT_A_FILE) == "[[0, 0], [2, 2], [0, 4]]\n"
