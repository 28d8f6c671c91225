"""Arrays that nobody may write to: read-only, mapped, masked, those of other libraries."""

import dataclasses
import warnings
from typing import NamedTuple

import numpy as np
import pytest
import torch

from tensordict import (
    MemoryMappedTensor,
    TensorClass,
    TensorDict,
    TensorDictParams,
    TypedTensorDict,
    UnbatchedTensor,
    from_dlpack,
    lazy_stack,
    tensorclass,
)
from tensordict.data import DatasetWriter
from tensordict.nn import TensorDictModule
from tensordict.primitives import arrays


def rows():
    array = np.arange(6.0).reshape(3, 2)
    array.flags.writeable = False
    return array


def stack():
    return lazy_stack([TensorDict(b=torch.ones(2)) for _ in range(3)])


@tensorclass
class Decorated:
    a: torch.Tensor


class Derived(TensorClass):
    a: torch.Tensor


class Casting(TensorClass["autocast"]):
    a: torch.Tensor


class Typed(TypedTensorDict):
    a: torch.Tensor


class Pair(NamedTuple):
    a: object


@dataclasses.dataclass
class Plain:
    a: object


def stored(td, array, key="a"):
    td[key] = array
    return td


def assigned(td, array):
    td.a = array
    return td


def empty():
    return TensorDict({}, [3])


def structured(array):
    made = np.zeros(3, [("a", "f8", (2,))])
    made["a"] = array
    made.flags.writeable = False
    return made


DOORS = {
    "constructor": lambda a: TensorDict({"a": a}, [3]),
    "keywords": lambda a: TensorDict(a=a),
    "device": lambda a: TensorDict({"a": a}, [3], device="cpu"),
    "nested": lambda a: TensorDict({"n": {"a": a}}, [3])["n"],
    "set": lambda a: empty().set("a", a),
    "set nested": lambda a: empty().set(("n", "a"), a)["n"],
    "item": lambda a: stored(empty(), a),
    "item nested": lambda a: stored(empty(), a, ("n", "a"))["n"],
    "update": lambda a: empty().update({"a": a}),
    "replace": lambda a: empty().replace({"a": a}),
    "from_dict": lambda a: TensorDict.from_dict({"a": a}),
    "from_any": lambda a: TensorDict.from_any({"a": a}),
    "from_namedtuple": lambda a: TensorDict.from_namedtuple(Pair(a)),
    "from_dataclass": lambda a: TensorDict.from_dataclass(Plain(a)),
    "from_pytree": lambda a: TensorDict.from_pytree({"a": a}),
    "from_struct_array": lambda a: TensorDict.from_struct_array(structured(a)),
    "from_dlpack": lambda a: from_dlpack({"a": a}),
    "decorated": lambda a: Decorated(a=a, batch_size=[3]),
    "field": lambda a: assigned(Decorated(a=torch.ones(3, 2), batch_size=[3]), a),
    "derived": lambda a: Derived(a=a, batch_size=[3]),
    "derived field": lambda a: assigned(Derived(a=rows() + 1, batch_size=[3]), a),
    "casting": lambda a: Casting(a=a, batch_size=[3]),
    "class of a dict": lambda a: Derived.from_dict({"a": a}),
    "typed": lambda a: Typed(a=a, batch_size=[3]),
    "module": lambda a: TensorDictModule(lambda _: a, ["x"], ["a"])(TensorDict(x=1.0)),
    "stack": lambda a: stack().set("a", a),
    "member": lambda a: lazy_stack([TensorDict(a=row) for row in a])[0],
    "named_apply": lambda a: TensorDict(a=torch.ones(3)).named_apply(lambda *_: a),
    "parameters": lambda a: TensorDictParams(TensorDict(a=a)).data,
    "unbatched": lambda a: TensorDict(a=UnbatchedTensor(a)),
    "mapped tensor": lambda a: TensorDict(a=MemoryMappedTensor(a)),
}


@pytest.mark.parametrize("door", DOORS)
def test_a_write_does_not_reach_a_read_only_array(door):
    array = rows()
    td = DOORS[door](array)
    leaf = td.get("a")
    leaf[:] = 7.0
    assert array.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert leaf.unique().tolist() == [7.0]


def test_writes_at_an_index_and_indices_take_read_only_arrays():
    array = rows()
    td = TensorDict(a=torch.zeros(3, 2, dtype=torch.float64), batch_size=[3])
    places = np.array([2, 0])
    places.flags.writeable = False
    # torch says of the first read-only array of a process that it is one.
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            TensorDict(a=array)
            td.set_("a", array)
            td.set_at_("a", array[:2], slice(2))
            td.update_({"a": array})
            td.copy_(TensorDict(a=array, batch_size=[3]))
            assert td[places]["a"].tolist() == [[4, 5], [0, 1]]
            td[places] = TensorDict(a=array[:2], batch_size=[2])
            td._get_sub_tensordict(slice(1))["a"] = array[2:]
    finally:
        torch.set_warn_always(False)
    assert td["a"].tolist() == [[4, 5], [2, 3], [0, 1]]


def test_writable_arrays_are_shared():
    array = np.zeros((3, 2))
    assert TensorDict(a=array)["a"].data_ptr() == array.ctypes.data
    assert TensorDict(a=array[:, 1])["a"].stride() == (2,)
    masked = np.ma.masked_array(array)
    assert TensorDict(a=masked)["a"].data_ptr() == array.ctypes.data


def test_the_bytes_under_an_array_stay():
    content = bytes(range(8))
    td = TensorDict(a=np.frombuffer(content, np.uint8))
    td["a"].zero_()
    assert content == bytes(range(8))


def test_rows_that_share_memory_become_rows_of_their_own():
    td = TensorDict(a=np.broadcast_to(np.ones(2), (3, 2)), batch_size=[3])
    td["a"][0] = 7.0
    assert td["a"].tolist() == [[7, 7], [1, 1], [1, 1]]


@pytest.fixture(params=[0, 2**24], ids=["mapped", "copied"])
def limit(request, monkeypatch):
    monkeypatch.setattr(arrays, "_LARGE", request.param)
    return request.param


def test_a_file_that_is_mapped_to_be_read_can_be_written_in_memory(tmp_path, limit):
    path = tmp_path / "rows of a file.npy"
    np.save(path, np.arange(6.0).reshape(3, 2))
    array = np.load(path, mmap_mode="r")
    td = TensorDict(a=array, b=array[1:, 1], c=array.T[::-1], batch_size=[])
    assert td["b"].tolist() == [3, 5]
    assert td["c"].tolist() == [[1, 3, 5], [0, 2, 4]]
    td["a"][0] = 7.0
    td["b"].zero_()
    assert td["a"].tolist() == [[7, 7], [2, 3], [4, 5]]
    assert array.tolist() == np.load(path).tolist() == [[0, 1], [2, 3], [4, 5]]
    del array
    assert td["a"].tolist() == [[7, 7], [2, 3], [4, 5]]


def test_a_large_mapped_file_is_not_copied(tmp_path, monkeypatch):
    monkeypatch.setattr(arrays, "_LARGE", 0)
    path = tmp_path / "rows.bin"
    np.arange(100, dtype=np.int64).tofile(path)
    array = np.memmap(path, np.int64, "r", offset=8, shape=(30, 3))
    td = TensorDict(a=array)
    # Later writes to the file are seen, as they are in the array.
    with path.open("r+b") as file:
        file.seek(8)
        file.write(np.int64(-5).tobytes())
    assert td["a"][0].tolist() == [-5, 2, 3]
    td["a"][0, 0] = 9
    assert array[0].tolist() == [-5, 2, 3]
    # Without the file, or with another one in its place, there is its memory only.
    other = tmp_path / "other.bin"
    np.zeros(100, np.int64).tofile(other)
    other.replace(path)
    assert TensorDict(a=array)["a"][0].tolist() == [-5, 2, 3]
    path.unlink()
    assert TensorDict(a=array)["a"][0].tolist() == [-5, 2, 3]
    shared = np.broadcast_to(array[0], (2, 3))
    assert TensorDict(a=shared)["a"].is_contiguous()


def test_a_masked_array_does_not_lose_its_mask(tmp_path):
    masked = np.ma.masked_array([1.0, 2.0, 3.0], mask=[0, 1, 0])
    for door in ("constructor", "set", "item", "from_dict", "from_any", "decorated"):
        with pytest.raises(ValueError, match=r"1 elements .* masked.*filled.*~array"):
            DOORS[door](masked)
    td = TensorDict(a=torch.ones(3))
    with pytest.raises(ValueError, match="masked array of shape"):
        td.set_("a", masked)
    with pytest.raises(ValueError, match="masked array of shape"):
        td.update({"b": masked})
    for rows in ((masked, masked), ((masked,), (masked,)), (masked[1], masked[0])):
        with pytest.raises(ValueError, match="1 elements of a masked array"):
            TensorDict(a=rows)
    with pytest.raises(ValueError, match="1 elements of a masked array"):
        TensorDict(a=torch.zeros(2, 1, 3), batch_size=[2])[0] = {"a": (masked,)}
    fields = np.ma.masked_array(np.zeros(2, [("x", "f4")]), mask=[(True,), (False,)])
    with pytest.raises(ValueError, match="masked"):
        TensorDict.from_struct_array(fields)
    with DatasetWriter(tmp_path / "d") as writer:
        with pytest.raises(ValueError, match="masked"):
            writer.append({"a": masked})
    assert list(td.keys()) == ["a"]
    assert td["a"].tolist() == [1, 1, 1]
    assert TensorDict(a=masked.filled(0))["a"].tolist() == [1, 0, 3]
