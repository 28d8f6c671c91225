"""Turning a collection into plain Python objects and numpy arrays."""

from __future__ import annotations

import collections

import numpy as np
import pytest
import torch

from tensordict import TensorDict, UnbatchedTensor, from_struct_array

Pair = collections.namedtuple("Pair", "a b")  # noqa: PYI024


def nested(container):
    """A container of two rows with a nested one."""
    return container({"a": torch.arange(2), "n": {"b": torch.ones(2, 1)}}, [2])


def test_to_dict_gives_the_very_tensors(container):
    td = nested(container)
    data = td.to_dict()
    assert data["n"]["b"] is td["n", "b"]
    assert type(data["n"]) is dict


def test_to_dict_converts_the_leaves(container):
    td = nested(container)
    assert td.to_dict(convert_tensors=True) == {"a": [0, 1], "n": {"b": [[1.0], [1.0]]}}
    assert isinstance(td.to_dict(convert_tensors="numpy")["a"], np.ndarray)


def test_to_dict_with_tolist_first_goes_over_the_batch_of_nested_ones(container):
    data = nested(container).to_dict(tolist_first=True, convert_tensors=True)
    assert data == {"a": [0, 1], "n": [{"b": [1.0]}, {"b": [1.0]}]}


def test_tolist_nests_lists_over_the_batch_dims(container):
    td = container({"a": torch.arange(6).view(2, 3)}, [2, 3])
    assert td.tolist(convert_tensors=True)[1][2] == {"a": 5}
    assert td[:0].tolist() == []
    assert td[0, 0].tolist(convert_tensors=True) == {"a": 0}


def test_tolist_without_nodes_gives_containers(container):
    first, _ = nested(container).tolist(convert_nodes=False)
    assert type(first) is container


def test_numpy_shares_the_memory(container):
    td = nested(container)
    td.numpy()["a"][0] = 7
    assert td["a"][0] == 7


def test_numpy_of_leaves_with_gradients_fails(container):
    td = container({"a": torch.zeros(2, requires_grad=True)}, [2])
    with pytest.raises(RuntimeError, match="requires grad"):
        td.numpy()


def test_to_namedtuple_takes_a_class(container):
    td = container({"a": 1, "b": {"a": 2, "b": 3}})
    assert td.to_namedtuple(Pair) == Pair(1, Pair(2, 3))
    assert td.to_namedtuple().b.a == 2


def test_struct_arrays_come_back(container):
    td = nested(container)
    back = from_struct_array(td.to_struct_array())
    assert (back == td).all()
    assert back.batch_size == td.batch_size


def test_to_struct_array_needs_a_field(container):
    with pytest.raises(ValueError, match="at least one field"):
        container({}, [2]).to_struct_array()


def test_to_tensordict_makes_plain_containers(container):
    td = container({"n": container({"a": torch.zeros(2)}, [2])}, [2]).lock_()
    made = td.to_tensordict()
    assert type(made) is type(made["n"]) is TensorDict
    assert made["n", "a"] is not td["n", "a"]
    assert not made.is_locked


def test_to_pytree_gives_other_collections_back(container):
    td = nested(container)
    assert td.to_pytree() is td


TABLE = np.array(
    [
        ("ab", b"x", {"k": 1}, "2020-01-01", 3, ("p", "q"), ("in", 1.0)),
        ("cd", b"y", None, "2021-01-01", 4, ("r", "s"), ("out", 2.0)),
    ],
    dtype=[
        ("text", "U4"),
        ("raw", "S2"),
        ("thing", "O"),
        ("day", "M8[D]"),
        ("span", "m8[s]"),
        ("tags", "U1", (2,)),
        ("inner", [("word", "U4"), ("x", "f4")]),
    ],
)


@pytest.mark.parametrize("array", [TABLE, np.rec.array(TABLE)])
def test_each_row_of_a_struct_array_has_its_own_values(array):
    td = from_struct_array(array)
    assert [td[row]["text"] for row in range(2)] == ["ab", "cd"]
    assert td[1]["raw"] == b"y"
    assert td[0]["thing"] == {"k": 1}
    assert td[1]["thing"] is None
    assert td[1]["day"] == np.datetime64("2021-01-01")
    assert td[0]["span"] == np.timedelta64(3, "s")
    assert td[1]["tags"].tolist() == ["r", "s"]
    assert td[1]["inner", "word"] == "out"


def test_struct_arrays_come_back_with_their_columns():
    back = from_struct_array(TABLE).to_struct_array()
    assert back.dtype.names == TABLE.dtype.names
    for name in TABLE.dtype.names:
        assert back[name].tolist() == TABLE[name].tolist()
        assert back[name].dtype.kind == TABLE[name].dtype.kind


def test_struct_arrays_of_two_dims():
    array = np.array([[("a",), ("b",)], [("c",), ("d",)]], dtype=[("t", "U1")])
    td = from_struct_array(array)
    assert td[1, 0]["t"] == "c"
    assert td.to_struct_array()["t"].tolist() == array["t"].tolist()


def test_an_array_that_is_one_value_is_a_column_of_a_struct_array():
    td = TensorDict(batch_size=[2]).set_non_tensor("s", np.array(["a", "b"]))
    assert td.to_struct_array()["s"].tolist() == ["a", "b"]


@pytest.mark.parametrize("shape", [(2,), (4,), (2, 3)], ids=str)
def test_a_struct_array_does_not_drop_that_rows_share_an_entry(shape):
    td = TensorDict(
        a=torch.zeros(2), b=UnbatchedTensor(torch.zeros(shape)), batch_size=[2]
    )
    with pytest.raises(TypeError, match="'b' is a UnbatchedTensor"):
        td.to_struct_array()
