"""A batch has rows of one version of an object, or raises an error that names the object."""

import numpy as np
import obstore
import pytest
import torch

import tensordict
from object_stores import Threaded, _Ranges
from tensordict import TensorDict
from tensordict.data import BatchLoader
from tensordict.storage.remote import place_of
from tensordict.storage.remote.objects import RemoteObject
from tensordict.storage.remote.reading import read_all
from tensordict.storage.remote.segments import Segments

ROWS, WIDTH = 100, 70_000


def put_version(url, value):
    content = np.full(ROWS * WIDTH, value, np.uint8).tobytes()
    place_of(url).put("a.memmap", content)


@pytest.fixture
def saved(remote):
    td = TensorDict(a=torch.zeros(ROWS, WIDTH, dtype=torch.uint8), batch_size=[ROWS])
    td.memmap(remote)
    return remote


@pytest.fixture
def replacing(monkeypatch):
    """Have an object replaced once, before or after a call of many ranges."""

    def set_up(url, when):
        call, left = obstore.get_ranges_async, [when]

        async def get_ranges(*args, **kwargs):
            is_before = left == ["before"] and left.pop()
            if is_before:
                put_version(url, 1)
            found = await call(*args, **kwargs)
            if left and left.pop():
                put_version(url, 1)
            return found

        monkeypatch.setattr(obstore, "get_ranges_async", get_ranges)

    return set_up


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("num_rows", [30, 20])
def test_an_object_that_is_replaced_during_a_batch_is_an_error(
    when, num_rows, saved, replacing
):
    remote = tensordict.load(saved)
    rows = torch.arange(0, ROWS, 2)[-num_rows:].flip(0)
    assert not remote[rows]["a"].any()
    replacing(saved, when)
    with pytest.raises(RuntimeError, match=r"a\.memmap changed since"):
        remote[rows]
    assert bool(tensordict.load(saved)[rows]["a"].all())


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_first_batch_of_an_unknown_version_is_of_one_version(
    when, saved, replacing
):
    replacing(saved, when)
    source = RemoteObject(place_of(saved) / "a.memmap")
    rows = np.arange(0, ROWS, 2)
    out = np.zeros(len(rows) * WIDTH, np.uint8)
    with pytest.raises(RuntimeError, match=r"a\.memmap changed since"):
        read_all([Segments.of_rows(source, 0, WIDTH, rows, out)])


def test_a_loader_yields_no_batch_of_two_versions(saved, replacing):
    loader = BatchLoader(tensordict.load(saved), batch_size=40, shuffle=True, seed=1)
    replacing(saved, "after")
    with pytest.raises(RuntimeError, match=r"a\.memmap changed since"):
        list(loader)


class _NoTags(_Ranges):
    """Serves files, and tells the time of a file only."""

    def send_header(self, name, value):
        if name != "ETag":
            super().send_header(name, value)


@pytest.mark.parametrize("num_rows", [3, 30])
def test_a_server_without_tags_is_checked_by_the_times_of_files(num_rows, tmp_path):
    import os
    from functools import partial

    td = TensorDict(
        a=torch.zeros(ROWS, WIDTH, dtype=torch.uint8),
        b=torch.zeros(ROWS),
        batch_size=[ROWS],
    )
    td.memmap(tmp_path / "data")
    server = Threaded(partial(_NoTags, directory=str(tmp_path)))
    try:
        remote = tensordict.load(f"{server.endpoint}/data")
        rows = torch.arange(0, ROWS, 2)[:num_rows]
        assert not remote["b"][:3].any()
        changed = tmp_path / "data" / "a.memmap"
        changed.write_bytes(bytes([1]) * (ROWS * WIDTH))
        os.utime(changed, (1e9, 1e9))
        with pytest.raises(RuntimeError, match=r"a\.memmap changed since"):
            remote[rows]
    finally:
        server.stop()


def test_metadata_of_two_versions_is_an_error(remote, monkeypatch):
    td = TensorDict(n=TensorDict(b=torch.arange(3), batch_size=[3]), batch_size=[3])
    td.memmap(remote)
    place, listed = place_of(remote), type(place_of(remote)).list

    def list_then_replace(self, name=""):
        found = list(listed(self, name))
        place.put("n/meta.json", place.get("n/meta.json").replace(b"int64", b"int32"))
        return iter(found)

    monkeypatch.setattr(type(place), "list", list_then_replace)
    with pytest.raises(RuntimeError, match=r"n/meta\.json changed since"):
        tensordict.load(remote)
