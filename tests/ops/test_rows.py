"""One row written to many, copies into graphs, and other arguments of writes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tensordict import TensorDict, lazy_stack, tensorclass

INDICES = {
    "all": slice(None),
    "slice of one": slice(1, 2),
    "slice": slice(1, 3),
    "ellipsis": ...,
    "mask": torch.tensor([True, False, True]),
    "list": [0, 2],
    "positions": torch.tensor([0, 1]),
    "square": torch.tensor([[0, 1]]),
    "array": np.array([0, 1]),
    "range": range(2),
    "none": None,
    "number": 1,
}


@tensorclass
class Row:
    a: torch.Tensor
    n: TensorDict


def of_size(kind, size):
    nested = TensorDict(b=torch.zeros(*size, 2, 1), batch_size=[*size, 2])
    td = TensorDict(a=torch.zeros(*size, 2), n=nested, batch_size=size)
    if kind == "class":
        return Row(a=td["a"], n=td["n"], batch_size=size)
    if kind == "stack":
        return lazy_stack([of_size("dense", size[1:]) for _ in range(size[0])])
    if kind == "view":
        return TensorDict(td, batch_size=size)._get_sub_tensordict(slice(None))
    return td


@pytest.mark.parametrize("kind", ["dense", "class", "stack", "view"])
@pytest.mark.parametrize("size", [(), (1,), (1, 1)])
@pytest.mark.parametrize("name", INDICES)
def test_a_row_is_written_to_all_that_an_index_means(name, size, kind):
    td, expected = of_size(kind, (3,)), torch.zeros(3, 2)
    row = of_size("class" if kind == "class" else "dense", size)
    row.get("a").add_(torch.tensor([1.0, 2.0]))
    row.get("n")["b"].add_(torch.tensor([[3.0], [4.0]]))
    index = INDICES[name]
    expected[index] = row.get("a")
    td[index] = row
    assert torch.equal(td.get("a"), expected)
    assert torch.equal(td.get("n")["b"][..., 0], expected + 2 * (expected > 0))


def test_what_does_not_broadcast_is_no_row():
    td = of_size("dense", (3,))
    for size in ((2,), (2, 3)):
        with pytest.raises(RuntimeError, match="indexed destination"):
            td[:] = of_size("dense", size)
    assert not td["a"].any()


def test_a_row_of_values_is_written():
    td = TensorDict(a=torch.zeros(3), s="x", batch_size=[3])
    td[:2] = TensorDict(a=1.0, s="y")
    assert td["s"] == ["y", "y", "x"]
    assert td["a"].tolist() == [1.0, 1.0, 0.0]


# Graphs -----------------------------------------------------------------------------


def in_graph(kind):
    def one():
        weight = torch.ones(2, requires_grad=True)
        td = TensorDict(a=weight * 1, b=torch.ones(2), done=torch.zeros(2).bool())
        td["n"] = TensorDict(i=torch.zeros(2, dtype=torch.int32))
        return td

    if kind == "stack":
        return lazy_stack([one(), one()])
    return one()


@pytest.mark.parametrize("kind", ["dense", "stack"])
@pytest.mark.parametrize("method", ["update_", "copy_"])
def test_a_copy_joins_only_its_own_graph(method, kind):
    td = in_graph(kind)
    getattr(td, method)(in_graph(kind))
    requires = [leaf.requires_grad for leaf in td.values(True, True)]
    assert requires == [True, False, False, False]
    td.clone()["a"].sum().backward()


def test_a_copy_into_another_dtype_is_in_no_graph():
    weight = torch.ones(2, requires_grad=True)
    td = TensorDict(a=torch.zeros(2), i=torch.zeros(2, dtype=torch.int64))
    td.update_(TensorDict(a=weight * 2, i=weight * 3))
    assert td["a"].requires_grad
    assert not td["i"].requires_grad
    assert td["i"].tolist() == [3, 3]


def test_a_leaf_that_refuses_copies_keeps_all_as_they_were():
    td = TensorDict(b=torch.zeros(2), a=torch.zeros(2, requires_grad=True))
    source = TensorDict(b=torch.ones(2), a=torch.ones(2, requires_grad=True) * 1)
    with pytest.raises(RuntimeError, match="leaf Variable"):
        td.update_(source)
    assert td["b"].tolist() == [0.0, 0.0]


# Arguments --------------------------------------------------------------------------


@pytest.mark.parametrize("keys", ["a", {"a"}, ["a"], ("a",)])
def test_update_takes_one_key(keys):
    td = TensorDict(a=0, aa=0)
    td.update_(TensorDict(a=1, aa=1), keys_to_update=keys)
    assert (td["a"], td["aa"]) == (1, 0)


def test_to_another_collection_takes_its_dtype():
    td = TensorDict(a=torch.zeros(2), n=TensorDict(i=torch.zeros(2).int()))
    other = TensorDict(x=torch.zeros(1, dtype=torch.float64))
    assert td.to(other=other).dtype is torch.float64
    assert lazy_stack([td, td]).to(other=other).dtype is torch.float64
    other["y"] = torch.zeros(1)
    assert td.to(other=other) is td
    assert td.to(torch.float16, other=other).dtype is torch.float16
