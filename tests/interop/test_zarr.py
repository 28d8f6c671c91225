"""Stores of Zarr alone."""

import numpy as np
import pytest
import torch

from tensordict import PersistentTensorDict, TensorDict, from_zarr

zarr = pytest.importorskip("zarr")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "data.zarr"


def some():
    return TensorDict(
        a=torch.arange(12.0).reshape(6, 2), b=torch.arange(6), batch_size=[6]
    )


def test_rows_of_one_plain_chunk_are_read_alone(path, monkeypatch):
    sizes = []
    some().to_zarr(path).close()
    store = zarr.storage.LocalStore
    get = store.get

    async def counted(self, key, *args, **kwargs):
        found = await get(self, key, *args, **kwargs)
        if found is not None and "/c/" in key:
            sizes.append(len(found))
        return found

    monkeypatch.setattr(store, "get", counted)
    with from_zarr(path) as td:
        assert td[2:4]["a"].tolist() == [[4, 5], [6, 7]]
        assert sizes == [2 * 2 * 4]
        assert td[3]["b"] == 3
        assert sizes == [16, 8]
        assert td[1:6:2]["b"].tolist() == [1, 3, 5]


def test_rows_of_a_chunk_that_is_not_stored_are_the_fill_value(path):
    TensorDict(a=torch.zeros(6, 2), batch_size=[6]).to_zarr(path).close()
    with from_zarr(path) as td:
        assert td[1:3]["a"].tolist() == [[0, 0], [0, 0]]


def test_options_are_those_of_zarr(path):
    compressors = zarr.codecs.ZstdCodec(level=1)
    options = {"chunks": (2,), "shards": (4,), "compressors": compressors}
    with some().to_zarr(path, **options) as td:
        assert td.file["a"].chunks == (2, 2)
        assert td.file["a"].shards == (4, 2)
        assert td.file["a"].compressors
        assert td[3]["a"].tolist() == [6, 7]
        assert torch.equal(td["a"], some()["a"])


def test_a_store_in_place_of_a_path(path):
    store = zarr.storage.MemoryStore()
    td = some().to_zarr(store)
    td["n", "c"] = torch.ones(6)
    td.rename_key_("a", ("n", "a"))
    found = from_zarr(store)
    assert torch.equal(found["n", "a"], some()["a"])
    assert found["n", "c"].sum() == 6
    with pytest.raises(TypeError, match="no path"):
        found.__getstate__()


def test_a_zip_file_is_read(path):
    with zarr.storage.ZipStore(path.with_suffix(".zip"), mode="w") as store:
        some().to_zarr(store)
    with zarr.storage.ZipStore(path.with_suffix(".zip"), mode="r") as store:
        td = from_zarr(store)
        assert torch.equal(td["a"], some()["a"])
        assert td[2]["a"].tolist() == [4, 5]
    with pytest.raises(OSError, match="zip.*it is a file"):
        from_zarr(path.with_suffix(".zip"))


def test_what_is_no_store_is_not_overwritten(path):
    path.mkdir()
    (path / "mine.txt").write_text("mine")
    for write in (
        lambda: some().to_zarr(path),
        lambda: PersistentTensorDict(filename=path, mode="w", backend="zarr"),
    ):
        with pytest.raises(FileExistsError, match="not a Zarr store"):
            write()
    with pytest.raises(FileNotFoundError, match="no Zarr group"):
        from_zarr(path)
    assert (path / "mine.txt").read_text() == "mine"


def test_metadata_that_is_cut_is_named(path):
    some().to_zarr(path).close()
    (path / "zarr.json").write_text('{"zarr_format": 3, "node')
    with pytest.raises(OSError, match="data.zarr"):
        from_zarr(path)


def test_a_chunk_that_is_cut_is_named(path):
    some().to_zarr(path, chunks=(3,)).close()
    chunk = path / "a" / "c" / "0" / "0"
    chunk.write_bytes(chunk.read_bytes()[:10])
    with from_zarr(path) as td:
        assert td["b"].tolist() == [0, 1, 2, 3, 4, 5]
        with pytest.raises(OSError, match="'/?a' of .*data.zarr"):
            td["a"]


def test_a_plain_chunk_that_is_cut_is_named(path):
    some().to_zarr(path).close()
    chunk = path / "a" / "c" / "0" / "0"
    chunk.write_bytes(chunk.read_bytes()[:10])
    with from_zarr(path) as td, pytest.raises(OSError, match="data.zarr"):
        td[1:3]["a"]


def test_a_store_of_others(path):
    group = zarr.open_group(path, mode="w")
    group.create_array("a", data=np.arange(8).reshape(4, 2), chunks=(3, 2))
    group.create_group("g").create_array("b", data=np.zeros((4, 2, 3), dtype="f4"))
    with from_zarr(path) as td:
        assert td.batch_size == (4, 2)
        assert td["g"].batch_size == (4, 2, 3)
        assert td[1:, 0]["a"].tolist() == [2, 4, 6]
    with PersistentTensorDict(group=group["g"], backend="zarr", batch_size=[4]) as td:
        assert td["b"].shape == (4, 2, 3)
