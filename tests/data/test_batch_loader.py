"""The loader of batches: which rows come, in which order, from what, and to whom."""

from __future__ import annotations

import gc
import inspect
import os
import pickle
import re
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import (
    DataLoader,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from separate_process import check_freshly
from tensordict import (
    LazyStackedTensorDict,
    MemoryMappedTensor,
    NonTensorData,
    TensorDict,
    _rust,
    lazy_stack,
    tensorclass,
)
from tensordict.data import BatchLoader, DatasetWriter, WeightedSampler, gather
from tensordict.data.loader.arguments import NAMES_OF_DATA_LOADER
from tensordict.data.loader.pipelines import NativePipeline, ThreadsPipeline
from tensordict.parallel import ChunkError


@tensorclass
class Picture:
    pixels: torch.Tensor
    label: torch.Tensor


@tensorclass
class Named:
    x: torch.Tensor
    picture: Picture
    name: str
    missing: str | None = None


needs_shortcuts = pytest.mark.skipif(
    not _rust.shortcuts()["tensors"],
    reason="without the shortcuts torch copies the rows",
)


def numbers(count: int = 20) -> TensorDict:
    rest = TensorDict(y=torch.randn(count, 3), batch_size=[count])
    return TensorDict(x=torch.arange(count), rest=rest, batch_size=[count])


def rows_of(loader: Any, key: str = "x") -> list[list[int]]:
    return [batch[key].tolist() for batch in loader]


def flat(batches: list[list[int]]) -> list[int]:
    return [row for batch in batches for row in batch]


# The order -----------------------------------------------------------------------------


def test_batches_are_the_rows_in_turn() -> None:
    td = numbers(10)
    batches = list(BatchLoader(td, 4))
    assert rows_of(batches) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert [batch.batch_size for batch in batches] == [(4,), (4,), (2,)]
    assert (torch.cat(batches) == td).all()


def test_a_seed_and_an_epoch_have_one_order_for_ever() -> None:
    loader = BatchLoader(numbers(10), 4, shuffle=True, seed=0)
    assert rows_of(loader) == [[0, 7, 2, 5], [9, 3, 6, 1], [4, 8]]
    assert rows_of(loader) == [[1, 7, 2, 0], [4, 8, 6, 3], [5, 9]]
    loader.set_epoch(0)
    assert rows_of(loader) == [[0, 7, 2, 5], [9, 3, 6, 1], [4, 8]]


@pytest.mark.parametrize("prefetch", [0, 1, 7])
@pytest.mark.parametrize("workers", [0, 2])
def test_the_order_is_the_same_however_batches_are_made(
    prefetch: int, workers: int
) -> None:
    td = numbers(101)
    loader = BatchLoader(
        td, 8, shuffle=True, seed=3, prefetch=prefetch, workers=workers
    )
    assert rows_of(loader) == rows_of(BatchLoader(td, 8, shuffle=True, seed=3))


def test_an_epoch_has_each_row_once() -> None:
    for shuffle in (True, "blocks"):
        loader = BatchLoader(numbers(201), 16, shuffle=shuffle, seed=1)
        first, second = flat(rows_of(loader)), flat(rows_of(loader))
        assert sorted(first) == sorted(second) == list(range(201))
        assert first != second


def test_blocks_of_neighbours_stay_together() -> None:
    loader = BatchLoader(numbers(40), 8, shuffle="blocks", block_size=4, seed=0)
    for batch in rows_of(loader):
        blocks = {row // 4 for row in batch}
        assert len(blocks) == 2


def test_the_last_batch_is_left_out_if_it_is_not_whole() -> None:
    loader = BatchLoader(numbers(10), 4, drop_last=True)
    assert rows_of(loader) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert len(loader) == 2


def test_the_seed_is_drawn_from_a_generator() -> None:
    td = numbers(30)
    seeds = [
        BatchLoader(td, 4, shuffle=True, generator=torch.Generator().manual_seed(5))
        for _ in range(2)
    ]
    assert rows_of(seeds[0]) == rows_of(seeds[1])
    torch.manual_seed(1)
    first = BatchLoader(td, 4, shuffle=True).seed
    torch.manual_seed(1)
    assert BatchLoader(td, 4, shuffle=True).seed == first
    before = torch.get_rng_state()
    BatchLoader(td, 4)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_loader_says_where_it_is() -> None:
    loader = BatchLoader(numbers(10), 4, shuffle=True, seed=0)
    assert (loader.epoch, loader.progress, len(loader)) == (0, (0, 3), 3)
    batches = iter(loader)
    next(batches)
    assert (loader.epoch, loader.progress) == (0, (1, 3))
    assert "batch=1 of 3" in repr(loader)
    list(batches)
    assert (loader.epoch, loader.progress) == (1, (0, 3))


def test_a_source_without_rows_has_no_batch() -> None:
    loader = BatchLoader(numbers(0), 4, shuffle=True)
    assert (list(loader), len(loader)) == ([], 0)


# Rows read -----------------------------------------------------------------------------


def ragged(tmp_path: Any) -> Any:
    with DatasetWriter(tmp_path / "ragged") as writer:
        for row in range(20):
            writer.append({"x": torch.tensor(row), "tokens": torch.arange(row % 5)})
    return TensorDict.load_memmap(tmp_path / "ragged")


def pictures() -> Picture:
    return Picture(torch.randn(20, 2), torch.arange(20), batch_size=[20])


def named(_: Any) -> Any:
    names = [f"name {row}" for row in range(20)]
    td = TensorDict(x=torch.arange(20), picture=pictures(), batch_size=[20])
    td["name"] = names
    return Named.from_tensordict(td)


def texts_inside(tmp_path: Any) -> Any:
    inner = TensorDict(text=texts(tmp_path), z=torch.arange(20), batch_size=[20])
    return TensorDict(inner=inner, x=torch.arange(20), batch_size=[20])


def texts(tmp_path: Any) -> Any:
    td = numbers()
    td["text"] = [f"text {row}" for row in range(20)]
    td["constant"] = NonTensorData("same", batch_size=[20])
    return td


SOURCES = {
    "dense": lambda _: numbers(),
    "two batch dims": lambda _: numbers(60).reshape(20, 3),
    "names": lambda _: TensorDict(x=torch.arange(20), batch_size=[20], names=["time"]),
    "mapped": lambda path: TensorDict.load_memmap(
        numbers().memmap(path / "m").saved_path
    ),
    "lazy": lambda _: lazy_stack(list(numbers().unbind(0))),
    "lazy along dim 1": lambda _: lazy_stack([numbers(), numbers()], 1),
    "tensorclass": lambda _: pictures(),
    "tensorclass inside": lambda _: TensorDict(
        x=torch.arange(20), picture=pictures(), batch_size=[20]
    ),
    "tensorclasses and texts": named,
    "texts inside": texts_inside,
    "view": lambda _: numbers(40)._get_sub_tensordict(slice(0, 40, 2)),
    "texts": texts,
    "ragged": ragged,
    "empty leaf": lambda _: TensorDict(
        x=torch.arange(20), none=torch.zeros(20, 0), batch_size=[20]
    ),
    "gradients": lambda _: TensorDict(
        x=torch.randn(20, 2, requires_grad=True), batch_size=[20]
    ),
    "strided": lambda _: TensorDict(x=torch.arange(40).view(2, 20).T, batch_size=[20]),
}


def assert_same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    assert found.batch_size == expected.batch_size
    assert list(found.keys(True)) == list(expected.keys(True))
    if isinstance(expected, LazyStackedTensorDict) and expected.stack_dim == 0:
        pairs = zip(found.unbind(0), expected.unbind(0), strict=True)
    else:
        assert found.names == expected.names
        pairs = iter([(found, expected)])
    for one, other in pairs:
        for key in other.keys(True):
            if not isinstance(other.get(key), torch.Tensor):
                assert type(one.get(key)) is type(other.get(key))
        for key, value in other.items(True, True):
            if isinstance(value, torch.Tensor):
                assert torch.equal(one.get(key), value)
            else:
                assert one[key] == other[key]


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_batch_is_what_an_index_gives(
    kind: str, prefetch: int, tmp_path: Any
) -> None:
    td = SOURCES[kind](tmp_path)
    order = list(range(20))[::-1]
    loader = BatchLoader(td, 8, sampler=order, prefetch=prefetch)
    for at, batch in enumerate(loader):
        assert_same(batch, gather(td, order[8 * at : 8 * at + 8]))


@needs_shortcuts
@pytest.mark.parametrize(
    "kind",
    [
        "dense",
        "two batch dims",
        "names",
        "mapped",
        "tensorclass",
        "tensorclass inside",
        "tensorclasses and texts",
        "texts",
        "texts inside",
    ],
)
def test_tensors_of_dense_collections_are_copied_natively(
    kind: str, tmp_path: Any
) -> None:
    loader = BatchLoader(SOURCES[kind](tmp_path), 8)
    batches = iter(loader)
    next(batches)
    assert isinstance(batches._pipeline, NativePipeline)


def test_only_chosen_entries_are_read() -> None:
    (batch,) = BatchLoader(numbers(4), 4, keys=["x", ("rest", "y")])
    assert set(batch.keys(True, True)) == {"x", ("rest", "y")}
    (batch,) = BatchLoader(numbers(4), 4, keys=["x"])
    assert set(batch.keys()) == {"x"}
    with pytest.raises(KeyError):
        BatchLoader(numbers(4), 4, keys=["z"])


def test_rows_that_differ_in_shape_are_padded(tmp_path: Any) -> None:
    td = ragged(tmp_path)
    loader = BatchLoader(td, 5, ragged="padded", padding_value=-1)
    first = next(iter(loader))
    assert first["tokens"].tolist()[2] == [0, 1, -1, -1]
    jagged = next(iter(BatchLoader(td, 5, ragged="jagged")))
    assert jagged["tokens"].offsets().tolist() == [0, 0, 1, 3, 6, 10]


def test_a_thousand_million_rows_need_no_memory(tmp_path: Any) -> None:
    path = tmp_path / "x.memmap"
    path.touch()
    count = 10**9
    os.truncate(path, count * 4)
    x = MemoryMappedTensor.from_filename(path, dtype=torch.float32, shape=(count,))
    loader = BatchLoader(TensorDict(x=x, batch_size=[count]), 256, shuffle=True, seed=0)
    batches = iter(loader)
    assert next(batches)["x"].shape == (256,)
    state = loader.state_dict()
    assert (state["position"], len(loader)) == (256, 3906250)


@needs_shortcuts
def test_a_file_that_was_cut_is_an_error(tmp_path: Any) -> None:
    numbers(4000).memmap(tmp_path / "td")
    td = TensorDict.load_memmap(tmp_path / "td")
    os.truncate(tmp_path / "td" / "x.memmap", 100)
    for options in ({"prefetch": 0}, {"prefetch": 3}, {"workers": 1}):
        loader = BatchLoader(td, 256, shuffle=True, seed=0, **options)
        with pytest.raises(RuntimeError, match=r"x\.memmap"):
            list(loader)


# Memory that is used again -------------------------------------------------------------


def test_batches_that_are_kept_stay_as_they_are() -> None:
    td = numbers(100)
    kept = list(BatchLoader(td, 7, shuffle=True, seed=0))
    assert sorted(flat(rows_of(kept))) == list(range(100))
    parts = [batch["rest", "y"][1:3].T for batch in BatchLoader(td, 10)]
    for at, part in enumerate(parts):
        assert torch.equal(part.T, td["rest", "y"][10 * at + 1 : 10 * at + 3])


@needs_shortcuts
def test_memory_that_nobody_has_is_used_again() -> None:
    td = numbers(1000)
    places = {batch["x"].data_ptr() for batch in BatchLoader(td, 10, prefetch=2)}
    assert len(places) <= 6
    fresh = [batch["x"] for batch in BatchLoader(td, 10, recycle=False)]
    assert len({tensor.data_ptr() for tensor in fresh}) == 100


def test_memory_that_a_graph_needs_is_not_used_again() -> None:
    td = TensorDict(x=torch.randn(400, 3), batch_size=[400])
    weight = torch.randn(3, requires_grad=True)
    losses = [(batch["x"] @ weight).sum() for batch in BatchLoader(td, 10)]
    torch.stack(losses).sum().backward()
    torch.testing.assert_close(weight.grad, td["x"].sum(0))


def test_what_is_done_to_a_batch_stays_in_it() -> None:
    td = numbers(100)
    for at, batch in enumerate(BatchLoader(td, 10)):
        assert batch["x"].tolist() == list(range(10 * at, 10 * at + 10))
        assert set(batch.keys()) == {"x", "rest"}
        batch["x"].zero_()
        batch["more"] = torch.zeros(10)
        del batch["rest"]
    assert td["x"].tolist() == list(range(100))


# Samplers ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda: RandomSampler(range(20)),
        lambda: RandomSampler(range(20), generator=torch.Generator().manual_seed(1)),
        lambda: SubsetRandomSampler(range(0, 20, 2)),
        lambda: WeightedRandomSampler(torch.arange(20.0), 30),
        lambda: range(19, -1, -1),
        lambda: WeightedSampler(torch.arange(20.0), 30, seed=4),
    ],
)
def test_samplers_choose_the_rows(make: Any) -> None:
    td = numbers(20)
    before = torch.get_rng_state()
    loader = BatchLoader(td, 8, sampler=make(), seed=0)
    batches = rows_of(loader)
    assert len(flat(batches)) == len(loader.sampler)
    assert len(batches) == len(loader)
    assert torch.equal(torch.get_rng_state(), before)
    assert batches == rows_of(BatchLoader(numbers(20), 8, sampler=make(), seed=0))


def test_a_sampler_without_a_length_works() -> None:
    loader = BatchLoader(numbers(), 4, sampler=(row for row in [3, -1, 5]))
    with pytest.raises(TypeError):
        len(loader)
    assert loader.progress == (0, None)
    assert rows_of(loader) == [[3, 19, 5]]


def test_a_sampler_is_told_the_epoch() -> None:
    class Told:
        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __iter__(self) -> Any:
            return iter([self.epoch] * 2)

    loader = BatchLoader(numbers(), 2, sampler=Told())
    assert [rows_of(loader), rows_of(loader)] == [[[0, 0]], [[1, 1]]]


def test_wrong_rows_of_a_sampler_are_errors() -> None:
    with pytest.raises(IndexError, match="row 20, but there are 20 rows"):
        list(BatchLoader(numbers(), 4, sampler=[1, 20]))
    with pytest.raises(TypeError, match="no batch sampler"):
        list(BatchLoader(numbers(), 4, sampler=[[1, 2], [3]]))
    batches = iter(BatchLoader(numbers(), 2, sampler=[1, 2, 3, 4, 20], prefetch=5))
    assert [next(batches)["x"].tolist(), next(batches)["x"].tolist()] == [
        [1, 2],
        [3, 4],
    ]
    with pytest.raises(IndexError, match="row 20"):
        next(batches)


def test_weights_are_followed_and_may_change() -> None:
    weights = torch.tensor([0.0, 1.0, 3.0, 0.0])
    sampler = WeightedSampler(weights, 8000, seed=0)
    loader = BatchLoader(numbers(4), 4000, sampler=sampler, prefetch=0)
    first, second = None, None
    for batch in loader:
        if first is None:
            first = torch.bincount(batch["x"], minlength=4).tolist()
            sampler.weights[:] = torch.tensor([1.0, 0.0, 0.0, 1.0])
        else:
            second = torch.bincount(batch["x"], minlength=4).tolist()
    assert first is not None
    assert second is not None
    assert first[0] == first[3] == second[1] == second[2] == 0
    assert abs(first[1] - 1000) < 120
    assert abs(second[0] - 2000) < 150


def test_wrong_weights_are_errors_and_change_nothing() -> None:
    sampler = WeightedSampler([1.0, 2.0])
    for wrong in ([-1.0, 2.0], [0.0, 0.0], [float("nan"), 1.0], [float("inf"), 1.0]):
        with pytest.raises(ValueError, match="finite"):
            sampler.update(wrong)
        with pytest.raises(ValueError, match="finite"):
            WeightedSampler(wrong)
        assert sampler.weights.tolist() == [1.0, 2.0]
    with pytest.raises(ValueError, match="one dim"):
        WeightedSampler(torch.ones(2, 2))


# Ranks ---------------------------------------------------------------------------------


def of_ranks(td: Any, world_size: int, **options: Any) -> list[list[list[int]]]:
    return [
        rows_of(BatchLoader(td, 4, rank=rank, world_size=world_size, **options))
        for rank in range(world_size)
    ]


@pytest.mark.parametrize("count", [3, 12, 37, 48, 50])
@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
@pytest.mark.parametrize("kind", ["shuffle", "sampler"])
def test_ranks_have_equally_many_batches(
    count: int, world_size: int, kind: str
) -> None:
    td = numbers(count)
    order = {"shuffle": True, "seed": 0}
    if kind == "sampler":
        order = {"sampler": RandomSampler(range(count)), "seed": 0}
    for uneven in ("pad", "drop"):
        found = of_ranks(td, world_size, uneven=uneven, **order)
        sizes = [[len(batch) for batch in batches] for batches in found]
        assert all(one == sizes[0] for one in sizes)
        loader = BatchLoader(td, 4, rank=0, world_size=world_size, uneven=uneven)
        assert len(sizes[0]) == len(loader)
        rows = [row for batches in found for row in flat(batches)]
        if uneven == "pad":
            assert set(rows) == set(range(count))
            assert len(rows) - count < world_size
        else:
            assert len(set(rows)) == len(rows) > count - world_size
    whole = of_ranks(td, world_size, drop_last=True, **order)
    assert {len(batch) for batches in whole for batch in batches} <= {4}


def test_ranks_without_a_seed_have_one_order() -> None:
    found = of_ranks(numbers(40), 2, shuffle=True)
    rows = [row for batches in found for row in flat(batches)]
    assert sorted(rows) == list(range(40))


# Uses of a batch -----------------------------------------------------------------------


def doubled(batch: Any) -> Any:
    return batch.set("double", batch["x"] * 2)


def failing(batch: Any) -> Any:
    if 5 in batch["x"].tolist():
        raise ValueError("no fives")
    return batch["x"].tolist()


WORKERS = [
    {},
    {"workers": 2},
    {"workers": 2, "backend": "processes", "mp_start_method": "fork"},
]


@pytest.mark.parametrize("options", WORKERS)
def test_batches_are_transformed(options: Any) -> None:
    loader = BatchLoader(numbers(), 6, transform=doubled, **options)
    for _ in range(2):
        batches = list(loader)
        assert flat(rows_of(batches)) == list(range(20))
        assert flat(rows_of(batches, "double")) == list(range(0, 40, 2))


@pytest.mark.parametrize("options", WORKERS)
def test_iterations_do_not_wait_for_each_other(options: Any) -> None:
    loader = BatchLoader(numbers(), 6, shuffle=True, seed=0, **options)
    expected = [rows_of(loader), rows_of(loader)]
    loader.set_epoch(0)
    pairs = zip(iter(loader), iter(loader), strict=True)
    found = [[batch["x"].tolist() for batch in pair] for pair in pairs]
    assert [list(rows) for rows in zip(*found, strict=True)] == expected
    # One that is left in the middle ends its workers.
    next(iter(loader))
    assert len(rows_of(loader)) == 4


@pytest.mark.parametrize("options", WORKERS)
def test_an_error_of_the_function_arrives_with_its_traceback(options: Any) -> None:
    loader = BatchLoader(numbers(), 2, transform=failing, **options)
    batches = iter(loader)
    assert [next(batches), next(batches)] == [[0, 1], [2, 3]]
    with pytest.raises(ValueError, match="no fives") as caught:
        next(batches)
    shown = "".join(getattr(caught.value, "__notes__", []))
    names = [entry.name for entry in caught.traceback]
    assert "failing" in names or "in failing" in shown
    assert list(batches) == []
    # The batch is tried again by who goes on.
    assert loader.state_dict()["position"] == 4


def test_a_worker_that_dies_is_an_error() -> None:
    def dies(batch: Any) -> Any:
        if batch["x"][0] == 4:
            os._exit(3)
        return batch

    loader = BatchLoader(
        numbers(),
        2,
        transform=dies,
        workers=1,
        backend="processes",
        mp_start_method="fork",
    )
    with pytest.raises(ChunkError, match=r"exit code 3 .* batch 2 \(rows 4, 5\)"):
        list(loader)


def test_a_dropped_epoch_waits_for_no_thread():
    # The garbage collector may drop it while this thread holds a lock of `threading`
    # that a thread needs to end.
    calls = []

    class Pipeline:
        def close(self):
            calls.append("close")

        def abandon(self):
            calls.append("abandon")

    loader = BatchLoader(numbers(), 2)
    epoch = iter(loader)
    epoch._pipeline = Pipeline()
    del epoch, loader
    gc.collect()
    assert calls == ["abandon"]


def test_abandoned_threads_end_with_their_batch():
    is_busy, may_go_on = threading.Event(), threading.Event()

    def make(rows):
        is_busy.set()
        assert may_go_on.wait(60)
        return threading.current_thread(), rows

    pipeline = ThreadsPipeline(make, 1)
    pipeline.put(torch.arange(2))
    (batch,) = pipeline._begun
    is_busy.wait()
    pipeline.abandon()
    assert not batch.done()
    may_go_on.set()
    thread, rows = batch.result()
    assert rows.tolist() == [0, 1]
    thread.join()


def noisy(batch: Any) -> Any:
    return torch.rand(2).tolist() + batch["x"].tolist()


def test_processes_draw_the_same_however_many_they_are() -> None:
    def all_of(workers: int) -> list[Any]:
        loader = BatchLoader(
            numbers(),
            3,
            shuffle=True,
            seed=0,
            transform=noisy,
            workers=workers,
            backend="processes",
            mp_start_method="fork",
        )
        return list(loader)

    assert all_of(1) == all_of(3)


def test_workers_take_what_a_sampler_chooses_meanwhile() -> None:
    loader = BatchLoader(
        numbers(),
        3,
        sampler=(row for row in range(20)),
        transform=doubled,
        workers=2,
        backend="processes",
        mp_start_method="fork",
    )
    assert flat(rows_of(loader)) == list(range(20))


def test_batches_go_to_a_device() -> None:
    (batch,) = BatchLoader(numbers(4), 4, device="meta")
    assert batch["x"].device.type == "meta"
    (batch,) = BatchLoader(numbers(4), 4, device="cpu")
    assert batch["x"].tolist() == [0, 1, 2, 3]


@pytest.mark.skipif(torch.cuda.is_available(), reason="memory can be pinned here")
def test_pinning_without_cuda_is_a_warning() -> None:
    with pytest.warns(UserWarning, match="CUDA"):
        loader = BatchLoader(numbers(4), 4, pin_memory=True)
    assert rows_of(loader) == [[0, 1, 2, 3]]


# Other processes -----------------------------------------------------------------------


def test_a_loader_is_pickled_where_it_is() -> None:
    loader = BatchLoader(numbers(), 3, shuffle=True, seed=0)
    batches = iter(loader)
    next(batches)
    other = pickle.loads(pickle.dumps(loader))  # noqa: S301
    assert rows_of(other) == rows_of(batches)


def test_an_interpreter_that_ends_waits_for_nothing() -> None:
    program = """
        import torch
        from tensordict import TensorDict
        from tensordict.data import BatchLoader
        td = TensorDict(x=torch.arange(1000), batch_size=[1000])
        texts = td.copy()
        texts["text"] = ["a"] * 1000
        loaders = [
            BatchLoader(td, 4, prefetch=3),
            BatchLoader(td, 4, workers=2),
            BatchLoader(texts, 4),
        ]
        batches = [iter(loader) for loader in loaders]
        print([next(one)["x"].tolist() for one in batches])
    """
    assert check_freshly(program) == f"{[[0, 1, 2, 3]] * 3}\n"


# Arguments -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"batch_size": 0}, ValueError, "batch_size must be at least 1"),
        ({"batch_size": 2.5}, TypeError, "batch_size must be an int"),
        ({"prefetch": -1}, ValueError, "prefetch"),
        ({"workers": -1}, ValueError, "workers"),
        ({"rank": 0}, ValueError, "belong together"),
        ({"rank": 2, "world_size": 2}, ValueError, "below world_size"),
        ({"uneven": "mix"}, ValueError, "uneven"),
        ({"shuffle": "rows"}, ValueError, "shuffle"),
        ({"block_size": 3}, ValueError, "shuffle='blocks'"),
        ({"shuffle": True, "block_size": 0}, ValueError, "block_size"),
        ({"shuffle": True, "sampler": [1]}, ValueError, "leave out shuffle="),
        ({"seed": 1, "generator": torch.Generator()}, ValueError, "not both"),
        ({"transform": 3}, TypeError, "callable"),
        ({"backend": "fibres"}, ValueError, "backend"),
        ({"ragged": "pad"}, ValueError, "'padded' or 'jagged', got 'pad'"),
        ({"sampler": 3}, TypeError, "sampler must be .*got int"),
        ({"num_workers": 2}, TypeError, "num_workers= .*`workers=`"),
        ({"collate_fn": list}, TypeError, "collate_fn= .*`transform=`"),
        ({"prefetch_factor": 2}, TypeError, "prefetch_factor= .*`prefetch=`"),
        ({"bath_size": 2}, TypeError, "unexpected keyword argument 'bath_size'"),
    ],
)
def test_wrong_arguments_are_errors(options: Any, error: Any, text: str) -> None:
    options = {"batch_size": 4, **options}
    with pytest.raises(error, match=text):
        BatchLoader(numbers(), options.pop("batch_size"), **options)


def test_what_has_no_rows_is_an_error() -> None:
    with pytest.raises(ValueError, match="auto_batch_size_"):
        BatchLoader(TensorDict(x=torch.zeros(3)), 4)
    for options in ({}, {"keys": ["x"]}):
        with pytest.raises(TypeError, match="got list"):
            BatchLoader([1, 2], 4, **options)
        with pytest.raises(TypeError, match=r"TensorDict.load_memmap\('data'\)"):
            BatchLoader("data", 4, **options)


def test_names_of_a_data_loader_are_in_the_guide() -> None:
    guide = Path(__file__).parents[2] / "docs" / "guide" / "loader.md"
    rows = re.findall(r"^\| `(\w+)=`.* \|", guide.read_text(), re.MULTILINE)
    known = set(inspect.signature(DataLoader).parameters)
    own = set(inspect.signature(BatchLoader).parameters)
    assert set(NAMES_OF_DATA_LOADER) == known - own - {"generator"}
    # Arguments of the same name have rows too.
    assert set(rows) - own == set(NAMES_OF_DATA_LOADER)
