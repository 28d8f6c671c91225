"""Directories of older releases, and metadata that is invalid."""

import json
import pickle

import pytest
import torch

from tensordict import (
    NonTensorStack,
    TensorDict,
    from_consolidated,
    from_safetensors,
    lazy_stack,
    pack_memmap,
    tensorclass,
    to_safetensors,
)

TYPE = "<class 'tensordict.tensorclass.{}'>"


def write_value(folder, value):
    """Write a value as all releases do."""
    folder.mkdir(parents=True)
    fields = {"_type": TYPE.format("NonTensorData"), "_is_non_tensor": True}
    try:
        text = json.dumps({**fields, "data": value, "_metadata": None})
    except TypeError:
        text = json.dumps({**fields, "_metadata": None})
        (folder / "other.pickle").write_bytes(pickle.dumps({"data": value}))
    (folder / "meta.json").write_text(text)


def write_stack(folder, items, **fields):
    """Write a stack of values as releases did before they put all into one file."""
    folder.mkdir(parents=True)
    meta = {"_type": TYPE.format("NonTensorStack"), "stack_dim": 0, **fields}
    (folder / "meta.json").write_text(json.dumps(meta))
    for number, item in enumerate(items):
        (write_stack if type(item) is tuple else write_value)(
            folder / str(number), item
        )


def write_root(folder, items, size=(2,), **fields):
    folder.mkdir(parents=True)
    meta = {
        "s": {"type": "NonTensorStack"},
        "shape": list(size),
        "device": "None",
        "_type": "<class 'tensordict._td.TensorDict'>",
    }
    (folder / "meta.json").write_text(json.dumps(meta))
    write_stack(folder / "s", items, **fields)
    return folder


@pytest.mark.parametrize("fields", [{}, {"device": None}, {"device": "cpu"}], ids=str)
@pytest.mark.parametrize(
    "items",
    [["x", "y"], ["x", "x"], [1, None], [[1, 2], [3, 4]], [{"k": 1}, {1, 2}]],
    ids=str,
)
def test_a_stack_of_values_with_a_directory_each(items, fields, tmp_path):
    path = write_root(tmp_path / "s", items, **fields)
    for prefix in (path, pack_memmap(path, tmp_path / "s.tdz")):
        loaded = TensorDict.load_memmap(prefix, allow_pickle=True)
        column = loaded.get("s")
        assert type(column) is NonTensorStack
        assert column.batch_size == (2,)
        assert column.tolist() == items
        assert loaded[1]["s"] == items[1]
    # It can be saved again.
    again = TensorDict.load_memmap(path, allow_pickle=True).memmap(tmp_path / "again")
    assert again.get("s").tolist() == items


def test_stacks_of_stacks_and_of_values_with_dims(tmp_path):
    items = [("a", "b"), ("c", "d")]
    loaded = TensorDict.load_memmap(write_root(tmp_path / "s", items, (2, 2)))
    assert loaded.get("s").batch_size == (2, 2)
    assert loaded["s"] == [["a", "b"], ["c", "d"]]
    # The size of a value is that of what it is in.
    loaded = TensorDict.load_memmap(write_root(tmp_path / "t", ["x", "y"], (2, 3)))
    assert loaded.get("s").batch_size == (2, 3)
    loaded = TensorDict.load_memmap(
        write_root(tmp_path / "u", ["x", "y"], (3, 2), stack_dim=1)
    )
    assert loaded["s"] == [["x", "y"]] * 3


def test_a_stack_of_values_alone(tmp_path):
    write_stack(tmp_path / "s", ["x", "y"])
    assert TensorDict.load_memmap(tmp_path / "s").tolist() == ["x", "y"]


def test_a_stack_of_another_length_is_refused(tmp_path):
    path = write_root(tmp_path / "s", ["x", "y", "z"])
    with pytest.raises(RuntimeError, match=r"'s' has shape \[3\].*batch size \[2\]"):
        TensorDict.load_memmap(path)


def column_of_release(folder, data, size):
    path = write_root(folder, [], size)
    meta = {"_type": TYPE.format("NonTensorStack"), "_format_version": 1}
    meta |= {"_class": "tensordict:NonTensorStack", "stack_dim": 0, "device": None}
    text = json.dumps({**meta, "data": data}, separators=(",", ":"))
    (path / "s" / "meta.json").write_text(text)
    return path


@pytest.mark.parametrize(
    ("data", "size", "expected"),
    [
        ([[1, 2], [3, 4]], [2], [2]),
        ([["a", "b"], ["c", "d"]], [2], [2]),
        ([["a", "b"], ["c", "d"]], [2, 2], [2, 2]),
        ([[1, 2], [3, 4]], [2, 2], [2, 2]),
        ([[[1], [2]], [[3], [4]]], [2, 2], [2, 2]),
        ([["a"], ["b", "c"]], [2], [2]),
        # Nothing tells their size: lists of numbers are no dims.
        ([[1, 2], [3, 4]], [], [2]),
        ([["a", "b"], ["c", "d"]], [], [2, 2]),
    ],
)
def test_a_column_of_lists_has_the_size_of_what_it_is_in(
    data, size, expected, tmp_path
):
    path = column_of_release(tmp_path / "s", data, size)
    column = TensorDict.load_memmap(path).get("s")
    assert column.batch_size == torch.Size(expected)
    assert column.tolist() == data


@pytest.mark.parametrize("data", [[["a", "b"], ["c", "d"]], [[1, "b"], [2, "d"]]])
def test_our_columns_keep_their_size_in_a_smaller_one(data, tmp_path):
    rows = [NonTensorStack(*row) for row in data]
    td = TensorDict(s=NonTensorStack(*rows), batch_size=[2])
    td["l"] = NonTensorStack(*data)
    td.memmap(tmp_path / "s")
    loaded = TensorDict.load_memmap(tmp_path / "s")
    assert loaded.get("s").batch_size == (2, 2)
    assert loaded.get("l").batch_size == (2,)


@tensorclass
class Sample:
    a: torch.Tensor


SHAPES = [([3, 2], [2]), ([3], [3, 1]), ([4], [3]), ([], [1])]


@pytest.mark.parametrize(("shape", "size"), SHAPES, ids=str)
@pytest.mark.parametrize("kind", ["root", "nested", "class", "stack"])
@pytest.mark.parametrize("mode", [None, "r", "meta"])
def test_a_shape_that_does_not_begin_with_the_batch_size(
    shape, size, kind, mode, tmp_path
):
    a = torch.zeros(shape)
    td = {
        "root": lambda: TensorDict(a=a),
        "nested": lambda: TensorDict(n=TensorDict(a=a)),
        "class": lambda: TensorDict(c=Sample(a)),
        "stack": lambda: lazy_stack([TensorDict(a=a)]),
    }[kind]()
    folder = tmp_path / "s"
    td.memmap(folder)
    for file in folder.rglob("meta.json"):
        meta = json.loads(file.read_text())
        if "a" in meta:
            meta["shape"] = size
            file.write_text(json.dumps(meta))
    options = {"device": "meta"} if mode == "meta" else {"mode": mode}
    for path in (folder, pack_memmap(folder, tmp_path / "s.tdz")):
        with pytest.raises(RuntimeError, match="'a' has shape.*the batch size"):
            TensorDict.load_memmap(path, **options)


def test_a_nested_batch_size_that_does_not_begin_with_that_around(tmp_path):
    TensorDict(n=TensorDict(a=torch.zeros(3, 2), batch_size=[3])).memmap(tmp_path)
    meta = json.loads((tmp_path / "meta.json").read_text())
    meta["shape"] = [2]
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(RuntimeError, match=r"'n' has shape \[3\].*batch size \[2\]"):
        TensorDict.load_memmap(tmp_path)


@pytest.mark.parametrize("way", ["consolidated", "safetensors"])
def test_a_batch_size_of_another_layout(way, tmp_path):
    path = tmp_path / "s.safetensors"
    td = TensorDict(a=torch.zeros(3, 2), batch_size=[3])
    if way == "safetensors":
        pytest.importorskip("safetensors")
        to_safetensors(td, path)
        old, new = rb"\"batch_size\": [3]", rb"\"batch_size\": [2]"
        load = from_safetensors
    else:
        td.consolidate(path)
        old, new = b'"batch_size": [3]', b'"batch_size": [2]'
        load = from_consolidated
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new))
    with pytest.raises((RuntimeError, ValueError), match=r"'a'.*\[3, 2\].*\[2\]"):
        load(path)
