"""Batches of a loader whose rows are in the cache are copied by native code."""

import os

import pytest
import torch

import tensordict
from tensordict import TensorDict, _rust
from tensordict.containers.remote.row_filler import RowFiller
from tensordict.data import BatchLoader, DatasetWriter
from tensordict.storage.remote import mapped_rows, place_of
from tensordict.storage.remote.cache import BLOCK, cache_of
from tensordict.storage.remote.mapped_rows import MappedRows, RowCopy
from tensordict.storage.remote.objects import PiecedObject

ROWS, WIDTH = 300, 2000
LIMIT = 10 * BLOCK


@pytest.fixture
def local():
    td = TensorDict(
        a=torch.arange(ROWS * WIDTH, dtype=torch.float32).reshape(ROWS, WIDTH),
        n=TensorDict(b=torch.arange(ROWS) % 3 == 0, batch_size=[ROWS]),
        batch_size=[ROWS],
    )
    assert td["a"].nbytes > 2 * BLOCK
    return td


@pytest.fixture(params=["save", "dataset"])
def remote(local, tmp_path, request):
    url = f"memory:///{request.node.name}"
    if request.param == "save":
        local.memmap(url)
    else:
        # Rows in three objects.
        with DatasetWriter(url) as writer:
            for start, stop in ((0, 10), (10, 200), (200, ROWS)):
                writer.extend(local[start:stop])
                writer.flush()
    return tensordict.load(url, cache_dir=tmp_path, cache_limit=LIMIT)


@pytest.fixture
def cache(remote, tmp_path):
    # The first read brings the blocks, the second one maps them.
    remote.to_tensordict()
    remote.to_tensordict()
    return cache_of(tmp_path, LIMIT)


def blocks(cache):
    return [path for path in cache.folder.rglob("*") if len(path.name) == 49]


def begin(remote, rows):
    """Begin to copy rows; return the copy, and the memory that they come to."""
    filler = RowFiller.of(remote._template)
    out = filler.row.expand(len(rows)).clone()
    copy = filler.submit(_rust.GatherPrefetcher(0), torch.tensor(rows), out)
    return copy, out


@pytest.mark.parametrize("batch_size", [3, 64])
def test_an_epoch_out_of_the_cache_makes_no_batch_in_python(
    batch_size, remote, cache, local, monkeypatch
):
    def never(*args):
        raise AssertionError("a batch was made in Python")

    monkeypatch.setattr(RowFiller, "fill", never)
    monkeypatch.setattr(mapped_rows, "_NOTED_TOGETHER", 2)
    kept = cache.hits
    how = {"shuffle": True, "seed": 1}
    found = list(BatchLoader(remote, batch_size, **how))
    expected = list(BatchLoader(local, batch_size, **how))
    assert len(found) == len(expected)
    for batch, other in zip(found, expected, strict=True):
        assert (batch == other).all()
    assert cache.hits > kept


@pytest.mark.parametrize("remote", ["save"], indirect=True)
def test_rows_that_are_not_in_the_cache_are_left_to_others(remote, local):
    assert begin(remote, [0])[0] is None
    remote[:10]
    # The blocks were brought, and nobody has compared their checksums yet.
    assert begin(remote, [0])[0] is None
    remote[:10]
    copy, out = begin(remote, [3, 0])
    assert isinstance(copy, RowCopy)
    copy.result()
    assert (out == local[[3, 0]]).all()
    assert begin(remote, [3, ROWS - 1])[0] is None


@pytest.mark.parametrize("change", ["damaged", "cut", "gone", "evicted", "unmapped"])
def test_a_block_that_changes_during_a_copy_is_read_again(
    change, remote, cache, local, monkeypatch
):
    rows = [ROWS - 1, 0]
    copy, out = begin(remote, rows)
    assert isinstance(copy, RowCopy)
    # As if the copy had seen the blocks as they are from now on.
    out["a"].zero_()
    for path in blocks(cache):
        if change == "damaged":
            content = bytearray(path.read_bytes())
            content[5] ^= 1
            path.write_bytes(content)
        elif change == "cut":
            os.truncate(path, 100)
        elif change == "gone":
            path.unlink()
    if change == "evicted":
        cache._evict(0)
    elif change == "unmapped":
        monkeypatch.setattr(tensordict.storage.remote.cache, "_MAPPED", 0)
        place_of("memory:///other").put("x", b"1")
        cache._mapped_of("other", 1)
    copy.result()
    assert (out == local[rows]).all()


def test_a_block_that_is_unchanged_is_not_read_again(remote, cache, local):
    copy, out = begin(remote, [5])
    out["a"].zero_()
    copy.result()
    assert not out["a"].any()


def test_a_folder_that_is_not_watched_is_left_to_others(
    remote, local, tmp_path, monkeypatch
):
    def none(self):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(tensordict.storage.remote.cache.Watch, "__init__", none)
    remote.to_tensordict()
    assert (remote.to_tensordict() == local).all()
    assert begin(remote, [0])[0] is None


def test_a_loader_over_a_cache_that_is_too_small_is_right(local, tmp_path, request):
    url = f"memory:///{request.node.name}"
    local.memmap(url)
    small = tensordict.load(url, cache_dir=tmp_path, cache_limit=2 * BLOCK)
    how = {"shuffle": True, "seed": 1}
    for _ in range(2):
        found = list(BatchLoader(small, 20, **how))
        for batch, other in zip(found, BatchLoader(local, 20, **how), strict=True):
            assert (batch == other).all()


def test_rows_of_several_objects_come_to_their_places(remote, cache, local):
    rows = [5, 205, 9, 10, 11, 12, 199, 200, 201, 0, 0, ROWS - 1]
    copy, out = begin(remote, rows)
    copy.result()
    assert (out == local[rows]).all()


def test_a_row_in_two_objects_is_left_to_python(local, tmp_path, request):
    url = f"memory:///{request.node.name}"
    local.memmap(url)
    remote = tensordict.load(url, cache_dir=tmp_path, cache_limit=LIMIT)
    leaf = remote.get("a")
    half = WIDTH * 4 * 10 + 4
    pieces = [(leaf._object, 0, half), (leaf._object, half, leaf.num_bytes - half)]
    leaf._object = PiecedObject(leaf._object.place, pieces)
    assert MappedRows.of([leaf]) is None
    assert torch.equal(leaf[[9, 10, 11]], local["a"][[9, 10, 11]])
