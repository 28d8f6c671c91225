"""Paths: what is no path of this machine, and names that stand for other formats."""

import os
import pathlib

import pytest
import torch

import tensordict
from tensordict import MemoryMappedTensor, PersistentTensorDict, TensorDict, checkpoint
from tensordict.checkpoint.dcp import Reader, Writer
from tensordict.data import DatasetReader, DatasetWriter
from tensordict.storage import seal, verify
from tensordict.storage.growing.appending import append_memmap
from tensordict.storage.inspect import survey
from tensordict.storage.layouts import archive
from tensordict.storage.listing import print_directory_tree
from tensordict.storage.locations import new_directory, scheme_of


def some():
    return TensorDict(
        a=torch.arange(3.0),
        n=TensorDict(b=torch.ones(3), batch_size=[3]),
        batch_size=[3],
    )


def itself(rows):
    return rows


SAVING = {
    "memmap": lambda path: some().memmap(path),
    "memmap_": lambda path: some().memmap_(path),
    "memmap_like": lambda path: some().memmap_like(path),
    "save": lambda path: some().save(path),
    "later": lambda path: some().save(path, num_threads=2, return_early=True),
    "a function": lambda path: tensordict.save(some(), path),
    "an archive": lambda path: some().save(path, archive=True),
    "columns": lambda path: some().save(path, ragged="columns"),
    "consolidate": lambda path: some().consolidate(path),
    "to_safetensors": lambda path: tensordict.to_safetensors(some(), path),
    "shards": lambda path: tensordict.to_safetensors(some(), path, shards=2),
    "pack_memmap": lambda path: archive.pack_memmap("tree", path),
    "unpack_memmap": lambda path: archive.unpack_memmap("data.tdz", path),
    "a mapped tensor": lambda path: MemoryMappedTensor.from_tensor(
        torch.ones(3), filename=path
    ),
    "zeros": lambda path: MemoryMappedTensor.zeros((3,), filename=path),
    "DatasetWriter": lambda path: DatasetWriter(path),
    "a part": lambda path: DatasetWriter(path, part="a"),
    "append_memmap": lambda path: append_memmap(path, some()),
    "map": lambda path: some().map(itself, num_workers=1, out=path),
    "journal": lambda path: some().map(itself, num_workers=1, journal=path),
    "Checkpointer": lambda path: checkpoint.Checkpointer(path),
    "checkpoint.save": lambda path: checkpoint.save(path, {"a": torch.ones(2)}),
    "Writer": lambda path: Writer(path),
    "seal": seal,
}
LOADING = {
    "unpack_memmap": lambda path: archive.unpack_memmap(path, "x"),
    "pack_memmap": lambda path: archive.pack_memmap(path, "x.tdz"),
    "is_memmap_archive": archive.is_memmap_archive,
    "from_filename": lambda path: MemoryMappedTensor.from_filename(
        path, torch.float32, torch.Size([3])
    ),
    "DatasetReader": DatasetReader,
    "checkpoint.load": checkpoint.load,
    "Reader": Reader,
    "verify": verify,
    "survey": survey,
    "print_directory_tree": print_directory_tree,
}
ARRAYS = {
    "to_h5": ("h5py", lambda path: some().to_h5(path)),
    "from_h5": ("h5py", TensorDict.from_h5),
    "a new file": ("h5py", lambda path: PersistentTensorDict(filename=path, mode="w")),
    "to_zarr": ("zarr", lambda path: some().to_zarr(path)),
}
URLS = [
    "s3://bucket/a", "gs://bucket/a", "az://container/a", "https://host/a",
    "memory://a", "file://host/a", "s3://bucket/a.tdz", "gs://bucket/a.safetensors",
    pathlib.Path("s3://bucket/a"), pathlib.Path("gs://bucket/a.tdz"), "s3:/bucket/a",
]  # fmt: skip


ELSEWHERE = ["hdfs://host/a", "hf://datasets/a", "file://host/a"]
REMOTE = {
    *("memmap", "memmap_", "memmap_like", "save", "later", "a function", "an archive"),
    *("columns", "consolidate", "to_safetensors", "shards", "Checkpointer"),
    *("DatasetWriter", "a part", "DatasetReader (load)"),
}
"""Doors that take URLs of object stores: they refuse those of other places."""


def refusal(url):
    scheme = scheme_of(url)
    return "of the machine" if scheme == "file" else f"a URL of the scheme '{scheme}'"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    some().save("tree")
    some().save("data.tdz")
    return tmp_path


@pytest.mark.parametrize("door", [*SAVING, *(f"{name} (load)" for name in LOADING)])
def test_a_url_is_refused_by_its_scheme(door, folder):
    call = SAVING.get(door) or LOADING[door.removesuffix(" (load)")]
    before = sorted(os.listdir(folder))
    for url in ELSEWHERE if door in REMOTE else URLS:
        with pytest.raises(ValueError, match=refusal(url)):
            call(url)
    assert sorted(os.listdir(folder)) == before


@pytest.mark.parametrize("door", ARRAYS)
def test_a_file_of_arrays_refuses_a_url(door, folder):
    library, call = ARRAYS[door]
    pytest.importorskip(library)
    before = sorted(os.listdir(folder))
    for url in URLS:
        with pytest.raises(ValueError, match=refusal(url)):
            call(url)
    assert sorted(os.listdir(folder)) == before


@pytest.mark.parametrize("method", ["parquet", "csv", "json"])
def test_tables_refuse_a_url_that_lost_a_slash(method, folder):
    pytest.importorskip("pandas")
    url = pathlib.Path("s3://bucket/a")
    rows = TensorDict(a=torch.arange(3), batch_size=[3])
    for call in (getattr(rows, f"to_{method}"), getattr(TensorDict, f"from_{method}")):
        with pytest.raises(ValueError, match="a URL of the scheme 's3'"):
            call(url)


NEED_A_SAVE = {"unpack_memmap", "append_memmap", "seal"}


@pytest.mark.parametrize("door", [door for door in SAVING if door not in NEED_A_SAVE])
def test_a_file_url_is_saved_to_as_its_path(door, folder):
    for url in (f"file://{folder}/a%20b", f"file://localhost{folder}/a%20c"):
        made = SAVING[door](url)
        if door == "later":
            made.result()
    assert "file:" not in os.listdir(folder)
    if door in ("save", "consolidate", "to_safetensors", "map"):
        assert {"a b", "a c"} <= set(os.listdir(folder))


def test_a_file_url_is_loaded_as_its_path(folder):
    for url in (f"file://{folder}/tree", pathlib.Path(f"file://{folder}/data.tdz")):
        assert TensorDict.load(url)["n", "b"].tolist() == [1, 1, 1]
        assert survey(url).entries
        assert verify(url).findings
    assert archive.is_memmap_archive(f"file://{folder}/data.tdz")
    assert "meta.json" in print_directory_tree(f"file://{folder}/tree")


@pytest.mark.parametrize("name", ["run:1", "a:b/c", "C:/x", "http", "s3", "x:/y"])
def test_a_colon_alone_makes_no_url(name, folder):
    some().save(name)
    assert TensorDict.load(name)["a"].tolist() == [0, 1, 2]


# Names of other formats ------------------------------------------------------------------

NAMES = {
    "x.pt": "torch.save", "x.pth": "torch.save", "x.parquet": "to_parquet",
    "x.csv": "to_csv", "x.json": "to_json", "x.jsonl": "to_json", "x.h5": "to_h5",
    "x.HDF5": "to_h5", "x.zarr": "to_zarr", "x.npz": "numpy.savez", "x.npy": "numpy.save",
    "x.pkl": "pickle.dump", "x.feather": "write_feather", "x.zip": "archive=True",
}  # fmt: skip
DIRECTORIES = (
    "memmap",
    "memmap_",
    "memmap_like",
    "save",
    "columns",
    "DatasetWriter",
    "map",
)


@pytest.mark.parametrize("name", NAMES)
def test_a_directory_does_not_get_the_name_of_a_file_of_others(name, folder):
    for door in DIRECTORIES:
        with pytest.raises(ValueError, match=NAMES[name]) as caught:
            SAVING[door](name)
        assert repr(name) in str(caught.value)
    assert not os.path.exists(name)


def test_a_directory_of_such_a_name_is_saved_to(folder):
    os.mkdir("x.pt")
    some().save("x.pt")
    some().memmap("x.pt")
    assert TensorDict.load("x.pt")["a"].tolist() == [0, 1, 2]
    some().save("y.pt", archive=False)
    assert os.path.isdir("y.pt")
    some().save("z.zip", archive=True)
    assert os.path.isfile("z.zip")


def test_memmap_like_makes_no_safetensors(folder):
    with pytest.raises(ValueError, match="safetensors"):
        some().memmap_like("x.safetensors")
    assert not os.path.exists("x.safetensors")


def test_what_is_no_path_is_left_to_its_owner():
    assert scheme_of(3) is None
    assert new_directory(None) is None
    assert scheme_of(b"s3://bucket") == "s3"
