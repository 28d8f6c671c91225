"""A copy of the objects of a store in a local folder is read by its manifests."""

import os
import shutil
import sys
from pathlib import Path

import obstore
import pytest
import torch

import tensordict
from tensordict import TensorDict, storage
from tensordict.checkpoint import Checkpointer
from tensordict.cli import main
from tensordict.data import BatchLoader, DatasetReader, DatasetWriter
from tensordict.storage.remote import place_of

ROWS = 6


@pytest.fixture
def td():
    return TensorDict(
        a=torch.arange(2 * ROWS).reshape(ROWS, 2),
        n=TensorDict(b=torch.arange(ROWS), batch_size=[ROWS]),
        s=list("abcdef"),
        batch_size=[ROWS],
    )


@pytest.fixture
def copies(td, tmp_path, monkeypatch):
    """Copy a save, a dataset and steps out of a store, each with a manifest."""
    store = place_of(obstore.store.LocalStore(tmp_path / "store", mkdir=True))
    td.apply(torch.zeros_like).memmap(store / "save")
    td.memmap(store / "save")
    with DatasetWriter(store / "data") as writer:
        writer.extend(td[:2])
        writer.flush()
        writer.extend(td[2:])
    with Checkpointer(store / "run", dedupe=True) as checkpointer:
        for step in range(3):
            checkpointer.save(step, model={"w": torch.ones(3)}, epoch=step)
    shutil.copytree(tmp_path / "store", tmp_path / "copies")
    shutil.rmtree(tmp_path / "store")
    monkeypatch.chdir(tmp_path / "copies")


@pytest.fixture
def unchanged(copies):
    """Compare all files before and after."""

    def files():
        return {
            os.path.join(parent, name): Path(parent, name).read_bytes()
            for parent, _, names in os.walk(".")
            for name in names
        }

    before = files()
    yield
    assert files() == before


@pytest.mark.parametrize("name", ["save", "data"])
def test_a_copy_is_loaded(name, td, unchanged):
    for loaded in (tensordict.load(name), TensorDict.load_memmap(name)):
        assert torch.equal(loaded[[4, 0]]["a"], td[[4, 0]]["a"])
        assert list(loaded.to_tensordict()["s"]) == list(td["s"])
    taken = TensorDict(batch_size=[ROWS]).load_memmap_(name)
    assert (taken["n", "b"] + 0).tolist() == list(range(ROWS))
    batches = [
        batch["n", "b"].tolist() for batch in BatchLoader(tensordict.load(name), 4)
    ]
    assert batches == [[0, 1, 2, 3], [4, 5]]


def test_a_copied_dataset_has_a_reader(td, unchanged):
    assert torch.equal(DatasetReader("data")[:]["a"], td["a"])


def test_the_latest_of_copied_steps_is_restored(unchanged):
    assert Checkpointer("run").restore()["epoch"] == 2
    assert Checkpointer("run").load(1)["epoch"] == 1


@pytest.mark.parametrize("name", ["save", "data", "run"])
@pytest.mark.parametrize("command", ["inspect", "verify", "show"])
def test_commands_read_copies(command, name, copies, capsys):
    more = ["--output", "x.html"] if command == "show" else []
    assert main([command, name, *more]) == 0
    assert "damaged" not in capsys.readouterr().out


@pytest.mark.parametrize("name", ["save", "data"])
def test_cp_makes_a_local_save(name, td, copies):
    assert main(["cp", name, "out"]) == 0
    assert main(["diff", name, "out"]) == 0
    assert torch.equal(TensorDict.load_memmap("out", mode="r+")["a"], td["a"])
    assert main(["convert", name, "out.tdz"]) == 0
    assert torch.equal(tensordict.load("out.tdz")["a"], td["a"])


@pytest.mark.parametrize("call", [storage.verify, storage.seal, DatasetWriter])
@pytest.mark.parametrize("name", ["save", "data"])
def test_calls_for_local_files_say_what_a_copy_is(call, name, unchanged):
    with pytest.raises(ValueError, match="as an object store keeps it.*tensordict cp"):
        call(name)
    with pytest.raises(ValueError, match="cannot be written to"):
        TensorDict.load_memmap(name, mode="r+")


def test_a_copy_without_an_object_names_the_object(copies):
    shutil.rmtree(next(Path("data").glob(".tensordict-*")))
    with pytest.raises(FileNotFoundError, match=r"data/\.tensordict-\w+/00000\d"):
        tensordict.load("data")[:2]


def test_a_copy_needs_the_library(copies, monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(ImportError, match=r"save.*tensordict-rs\[remote\]"):
        tensordict.load("save")
