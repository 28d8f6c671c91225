"""The class of what a load by a tensorclass gives."""

import json
import pickle
import sys

import pytest
import torch

from tensordict import (
    TensorClass,
    TensorDict,
    from_safetensors,
    tensorclass,
    to_safetensors,
)


class PlaceOfTest(TensorClass):
    a: torch.Tensor
    s: str = "x"


class Other(TensorClass):
    a: torch.Tensor


@tensorclass
class Decorated:
    a: torch.Tensor


def test_a_class_takes_a_plain_save_as_its_fields(tmp_path):
    point = PlaceOfTest(torch.arange(2), "hi", batch_size=[2]).memmap(tmp_path)
    # The path of an instance is that of the collection inside.
    loaded = PlaceOfTest.load_memmap(point.saved_path)
    assert type(loaded) is PlaceOfTest
    assert loaded.s == "hi"
    assert loaded.a.tolist() == [0, 1]
    assert type(PlaceOfTest.load(point.saved_path)) is PlaceOfTest
    assert type(TensorDict.load_memmap(point.saved_path)) is TensorDict


def test_a_plain_save_with_other_keys_is_refused(tmp_path):
    TensorDict(z=torch.ones(2)).memmap(tmp_path)
    with pytest.raises(ValueError, match="must correspond to the class attributes"):
        PlaceOfTest.load_memmap(tmp_path)


def test_what_is_of_a_class_stays_of_that(tmp_path):
    point = PlaceOfTest(torch.arange(2), batch_size=[2])
    point.memmap(tmp_path / "class")
    assert type(Other.load_memmap(tmp_path / "class")) is PlaceOfTest


def test_a_decorated_class_gives_what_was_saved(tmp_path):
    saved = Decorated(torch.arange(2), batch_size=[2]).memmap(tmp_path)
    assert type(Decorated.load_memmap(tmp_path)) is Decorated
    assert type(Decorated.load_memmap(saved.saved_path)) is TensorDict
    out = TensorDict(a=torch.zeros(2, dtype=torch.int64), batch_size=[2])
    assert PlaceOfTest.load_memmap(saved.saved_path, out=out) is out


def rename(directory, name):
    """Let the metadata of a saved class say another name."""
    path = directory / "meta.json"
    path.write_text(json.dumps({"_type": f"<class '{name}'>"}))


def local_class():
    class Local(TensorClass):
        a: torch.Tensor

    return Local


@pytest.mark.parametrize(
    "name", ["__main__.PlaceOfTest", "of_another_program.PlaceOfTest"]
)
def test_a_class_that_moved_is_read_by_itself(name, tmp_path):
    PlaceOfTest(torch.arange(2), batch_size=[2]).memmap(tmp_path)
    rename(tmp_path, name)
    loaded = PlaceOfTest.load_memmap(tmp_path)
    assert type(loaded) is PlaceOfTest
    assert loaded.a.tolist() == [0, 1]
    with pytest.raises(RuntimeError, match=r"call PlaceOfTest.load_memmap\(\) instead"):
        TensorDict.load_memmap(tmp_path)
    with pytest.raises(RuntimeError, match="Could not find the class"):
        Other.load_memmap(tmp_path)


def test_a_class_of_a_function_is_read_by_itself(tmp_path):
    cls = local_class()
    cls(torch.arange(2), batch_size=[2]).memmap(tmp_path / "x")
    assert type(TensorDict.load_memmap(tmp_path / "x")) is cls
    rename(tmp_path / "x", "__main__.local_class.<locals>.Local")
    assert type(cls.load_memmap(tmp_path / "x")) is cls
    rename(tmp_path / "x", "__main__.other.<locals>.Local")
    with pytest.raises(RuntimeError, match="Could not find the class"):
        cls.load_memmap(tmp_path / "x")


def test_archives_and_safetensors_find_a_class_that_moved(tmp_path, monkeypatch):
    point = PlaceOfTest(torch.arange(2), batch_size=[2])
    with monkeypatch.context() as patch:
        patch.setattr(PlaceOfTest, "__module__", "__main__")
        point.memmap(tmp_path / "x.tdz")
        to_safetensors(point, tmp_path / "x.safetensors")
    assert type(PlaceOfTest.load_memmap(tmp_path / "x.tdz")) is PlaceOfTest
    assert type(PlaceOfTest.load(tmp_path / "x.safetensors")) is PlaceOfTest
    with pytest.raises(RuntimeError, match="Could not find the tensorclass"):
        from_safetensors(tmp_path / "x.safetensors")


def test_nothing_is_imported_by_a_name_of_a_file(tmp_path, monkeypatch):
    (tmp_path / "never_imported.py").write_text("class PlaceOfTest: ...")
    monkeypatch.syspath_prepend(tmp_path)
    PlaceOfTest(torch.arange(2), batch_size=[2]).memmap(tmp_path / "x")
    rename(tmp_path / "x", "never_imported.PlaceOfTest")
    with pytest.raises(RuntimeError, match="Could not find the class"):
        TensorDict.load_memmap(tmp_path / "x")
    assert type(PlaceOfTest.load_memmap(tmp_path / "x")) is PlaceOfTest
    assert "never_imported" not in sys.modules


@pytest.mark.parametrize("is_pickled", [False, True])
def test_early_files_keep_values_beside_the_class(is_pickled, tmp_path):
    TensorDict(a=torch.arange(2), batch_size=[2]).memmap(tmp_path / "_tensordict")
    # Version 0 says neither its class nor its version.
    path = tmp_path / "_tensordict" / "meta.json"
    level = json.loads(path.read_text())
    del level["_class"], level["_format_version"]
    path.write_text(json.dumps(level))
    fields = {"_type": f"<class '{__name__}.PlaceOfTest'>"}
    if is_pickled:
        (tmp_path / "other.pickle").write_bytes(pickle.dumps({"s": "early"}))
    else:
        fields["s"] = "early"
    (tmp_path / "meta.json").write_text(json.dumps(fields))
    loaded = TensorDict.load_memmap(tmp_path, allow_pickle=True)
    assert type(loaded) is PlaceOfTest
    assert loaded.s == "early"
    assert loaded.a.tolist() == [0, 1]
    if is_pickled:
        with pytest.raises(RuntimeError, match="pass allow_pickle=True"):
            PlaceOfTest.load_memmap(tmp_path, allow_pickle=False)
