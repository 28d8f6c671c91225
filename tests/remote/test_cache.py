"""Blocks of objects on the local disk: they save requests, and never give wrong bytes."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

import tensordict
from tensordict import TensorDict
from tensordict.storage.remote import cache, place_of
from tensordict.storage.remote.cache import BLOCK, BlockCache, cache_of
from tensordict.storage.remote.objects import RemoteObject
from tensordict.storage.remote.segments import Segments

SIZE = 3 * BLOCK + 1000


@pytest.fixture
def content():
    return np.random.default_rng(0).integers(0, 255, SIZE, np.uint8)


@pytest.fixture
def place(request, content):
    place = place_of(f"memory:///{request.node.name}")
    place.put("", content.tobytes())
    return place


def read(place, held, ranges=((0, 10), (BLOCK - 5, 20), (3 * BLOCK, 1000))):
    """Read ranges through a cache, as an object that was just described."""
    found = place.head()
    starts = np.array([start for start, _ in ranges])
    lengths = np.array([length for _, length in ranges])
    places = np.cumsum(lengths) - lengths
    out = np.zeros(lengths.sum(), np.uint8)
    source = RemoteObject(place, found.size, found.e_tag, held)
    assert held.read(Segments(source, starts, lengths, out, places)) == []
    return out


def expected(content, ranges=((0, 10), (BLOCK - 5, 20), (3 * BLOCK, 1000))):
    return np.concatenate([content[start : start + length] for start, length in ranges])


def blocks(folder):
    return sorted(path for path in folder.rglob("*") if len(path.name) == 49)


def test_a_block_that_was_read_is_not_read_again(place, content, tmp_path):
    held = BlockCache(tmp_path, 10 * BLOCK)
    assert (read(place, held) == expected(content)).all()
    assert (held.hits, held.misses) == (0, 3)
    assert (read(place, held) == expected(content)).all()
    assert (held.hits, held.misses) == (3, 3)
    # Another process has the same folder, and nothing in its memory.
    other = BlockCache(tmp_path, 10 * BLOCK)
    assert (read(place, other) == expected(content)).all()
    assert (other.hits, other.misses) == (3, 0)


@pytest.mark.parametrize("is_in_use", [False, True])
@pytest.mark.parametrize("damage", ["a bit", "cut", "empty", "gone"])
def test_a_block_that_is_damaged_is_a_miss(damage, is_in_use, place, content, tmp_path):
    held = BlockCache(tmp_path, 10 * BLOCK)
    read(place, held)
    if not is_in_use:
        held = BlockCache(tmp_path, 10 * BLOCK)
    for path in blocks(tmp_path):
        if damage == "a bit":
            whole = bytearray(path.read_bytes())
            whole[500] ^= 1
            path.write_bytes(whole)
        elif damage == "gone":
            path.unlink()
        else:
            os.truncate(path, 0 if damage == "empty" else 300)
    again = read(place, held)
    assert (again == expected(content)).all()
    assert (read(place, BlockCache(tmp_path, 10 * BLOCK)) == expected(content)).all()


def test_the_bound_holds_for_all_processes_and_the_oldest_go(place, content, tmp_path):
    limit = 2 * BLOCK + 100
    for at in (0, 1, 2, 0):
        # Each a process of its own.
        held = BlockCache(tmp_path, limit)
        ranges = ((at * BLOCK, 50),)
        assert (read(place, held, ranges) == expected(content, ranges)).all()
        assert sum(path.stat().st_size for path in blocks(tmp_path)) <= limit
    last = BlockCache(tmp_path, limit)
    read(place, last, ((0, 50),))
    assert last.hits == 1


def test_what_is_not_its_own_stays(place, tmp_path):
    held = BlockCache(tmp_path, BLOCK + 100)
    read(place, held)
    own = held.folder
    others = [tmp_path / "mine", own / "mine", next(own.glob("??")) / "mine"]
    for path in others:
        path.write_bytes(b"1" * 100)
    for at in (0, 1, 2):
        read(place, held, ((at * BLOCK, 50),))
    assert all(path.read_bytes() == b"1" * 100 for path in others)


def test_a_disk_that_is_full_keeps_nothing(place, content, tmp_path, monkeypatch):
    held = BlockCache(tmp_path, 10 * BLOCK)

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache, "tail_of", full)
    assert (read(place, held) == expected(content)).all()
    assert not blocks(tmp_path)
    assert not list(tmp_path.rglob("*.writing"))


def test_a_folder_that_cannot_be_written_is_no_error(place, content, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    held = BlockCache(tmp_path / "file", 10 * BLOCK)
    assert (read(place, held) == expected(content)).all()


def test_another_version_is_another_block(place, content, tmp_path):
    held = BlockCache(tmp_path, 10 * BLOCK)
    read(place, held)
    place.put("", content[::-1].tobytes())
    assert (read(place, held) == expected(content[::-1])).all()


@pytest.mark.parametrize("limit", [0, -1, 100, "1GB", True])
def test_a_bound_that_is_none_is_refused(limit, tmp_path):
    with pytest.raises(ValueError, match="cache_limit is a number of bytes"):
        cache_of(tmp_path, limit)


def test_a_second_epoch_asks_the_store_for_nothing(tmp_path, request):
    td = TensorDict(a=torch.randn(40, 30), b=torch.arange(40), batch_size=[40])
    url = f"memory:///{request.node.name}"
    td.memmap(tmp_path / "data")
    for file in (tmp_path / "data").iterdir():
        place_of(url).put(file.name, file.read_bytes())
    remote = tensordict.load(url, cache_dir=tmp_path / "cache", cache_limit=10 * BLOCK)
    rows = torch.randperm(40)
    assert (remote[rows] == td[rows]).all()
    assert (remote["a"][3:5] == td["a"][3:5]).all()
    # The blocks have all of it: the objects are not needed any more.
    place_of(url).delete(["a.memmap", "b.memmap"])
    assert (remote[rows] == td[rows]).all()
    assert (remote.to_tensordict() == td).all()


@pytest.mark.parametrize("is_watched", [True, False])
def test_rows_across_blocks_come_out_of_the_mapped_ones(
    is_watched, place, content, tmp_path, monkeypatch
):
    if not is_watched:

        def none(self):
            raise OSError(24, "Too many open files")

        monkeypatch.setattr(cache.Watch, "__init__", none)
    held = BlockCache(tmp_path, 10 * BLOCK)
    size = BLOCK // 3 - 7
    rows = np.array([5, 2, 2, 8, 0, 6])
    found = place.head()
    source = RemoteObject(place, found.size, found.e_tag, held)
    expect = content[4 : 4 + 9 * size].reshape(9, size)[rows]
    for _ in range(2):
        out = np.zeros((len(rows), size), np.uint8)
        held.read(Segments.of_rows(source, 4, size, rows, out.reshape(-1)))
        assert (out == expect).all()
    assert held.misses == held.hits == 3
    for path in blocks(tmp_path):
        os.truncate(path, 5000)
    out = np.zeros((len(rows), size), np.uint8)
    held.read(Segments.of_rows(source, 4, size, rows, out.reshape(-1)))
    assert (out == expect).all()
    assert held.misses == 6


def test_the_block_that_was_used_last_stays(place, tmp_path):
    held = BlockCache(tmp_path, 3 * BLOCK + 100)
    for at in (0, 1, 2, 0):
        read(place, held, ((at * BLOCK, 50),))
    assert held.hits == 1
    read(place, held, ((3 * BLOCK, 50),))
    for at, hits in ((0, 2), (1, 2)):
        read(place, held, ((at * BLOCK, 50),))
        assert held.hits == hits


def test_a_block_that_threads_want_at_the_same_time_is_read_once(
    place, content, tmp_path, monkeypatch
):
    held = BlockCache(tmp_path, 10 * BLOCK)
    fetched, together = [], threading.Barrier(2)
    fetch, bring = held._fetch, held._bring

    def noted(wanted, name, numbers):
        fetched.extend(numbers)
        fetch(wanted, name, numbers)

    def at_once(*args):
        together.wait()
        return bring(*args)

    monkeypatch.setattr(held, "_fetch", noted)
    monkeypatch.setattr(held, "_bring", at_once)
    with ThreadPoolExecutor(2) as pool:
        for found in pool.map(lambda _: read(place, held), range(2)):
            assert (found == expected(content)).all()
    assert sorted(fetched) == [0, 1, 3]


def test_two_stores_in_memory_share_no_block(tmp_path):
    from obstore.store import MemoryStore

    for value in (1, 2):
        store = MemoryStore()
        place_of(store).put("data", bytes([value]) * 1000)
        held = cache_of(tmp_path, BLOCK)
        assert set(read(place_of(store) / "data", held, ((0, 9),))) == {value}


def test_a_writer_that_was_killed_is_no_excuse_to_exceed_the_bound(place, tmp_path):
    held = BlockCache(tmp_path, 2 * BLOCK + 100)
    read(place, held, ((0, 50), (BLOCK, 50)))
    # Whoever writes says that nobody knows how much there is.
    (held.folder / "bytes").write_bytes((-1).to_bytes(8, "little", signed=True))
    read(place, held, ((2 * BLOCK, 50),))
    assert sum(path.stat().st_size for path in blocks(tmp_path)) <= 2 * BLOCK + 100
