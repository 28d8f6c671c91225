"""Turning a collection into plain Python objects and numpy arrays."""

from __future__ import annotations

import collections

import numpy as np
import pytest
import torch

from tensordict import TensorDict, from_struct_array

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
