"""Gradients of the leaves."""

from __future__ import annotations

import pytest
import torch

from tensordict import TensorDict, _rust
from tensordict.primitives import copy as copy_primitives


def leaves(container):
    """Two leaves that require gradients."""
    return container(
        {"a": torch.ones(2), "n": {"b": torch.ones(2)}}, [2]
    ).requires_grad_()


def test_data_shares_memory_outside_of_the_graph(container) -> None:
    td = leaves(container)
    assert not td.data.requires_grad
    td.data.zero_()
    assert td["a"].tolist() == [0, 0]


def test_assigning_data_keeps_the_leaves(container) -> None:
    td = leaves(container)
    leaf = td["a"]
    td.data = TensorDict(a=torch.zeros(2), batch_size=[2])
    assert td["a"] is leaf
    assert leaf.tolist() == [0, 0]
    assert td["n", "b"].tolist() == [1, 1]
    with pytest.raises(KeyError, match="not in the destination"):
        td.data = TensorDict(z=torch.zeros(2), batch_size=[2])


def test_grad_has_the_entries_that_have_one(container) -> None:
    td = leaves(container)
    assert td.grad is None
    td["n", "b"].sum().backward()
    assert list(td.grad.keys(True, True)) == [("n", "b")]
    td.grad = None
    assert td.grad is None


def test_zero_grad_drops_or_zeroes(container) -> None:
    td = leaves(container)
    td.sum().backward()
    td.zero_grad(set_to_none=False)
    assert td.grad["a"].tolist() == [0, 0]
    assert td.zero_grad() is td
    assert td.grad is None


def test_requires_grad_is_all_or_nothing(container) -> None:
    td = container(a=torch.ones(2), i=torch.arange(2), batch_size=[2])
    with pytest.raises(RuntimeError, match="floating point"):
        td.requires_grad_()
    assert not td.requires_grad


def test_backward_takes_gradients_by_key(container) -> None:
    td = leaves(container)
    gradient = container({"n": {"b": torch.full((2,), 2.0)}, "a": torch.ones(2)}, [2])
    (td * 3).backward(gradient)
    assert td.grad["a"].tolist() == [3, 3]
    assert td.grad["n", "b"].tolist() == [6, 6]


def test_backward_says_what_it_misses(container) -> None:
    td = leaves(container)
    with pytest.raises(RuntimeError, match="scalar outputs.*'a'"):
        (td * 1).backward()
    with pytest.raises(TypeError, match="got Tensor"):
        (td * 1).backward(torch.ones(2))
    with pytest.raises(RuntimeError, match="Mismatch in shape"):
        (td * 1).backward(td.data[:1])
    with pytest.raises(RuntimeError, match="no leaf tensor"):
        td.data.backward()


def test_autograd_grad_gives_a_collection(container) -> None:
    td = leaves(container)
    grads = torch.autograd.grad((td * 4).sum(), td)
    assert type(grads) is container
    assert grads["n", "b"].tolist() == [4, 4]
    other = leaves(container)
    unused = torch.autograd.grad((td * 4).sum(), other, allow_unused=True)
    assert not list(unused.keys(True, True))


@pytest.mark.parametrize("copy_into", [_rust.copy_into, copy_primitives.copy_into])
@pytest.mark.parametrize("method", ["copy_", "update_"])
def test_only_copies_of_what_has_a_gradient_become_part_of_a_graph(
    copy_into, method, monkeypatch
):
    monkeypatch.setattr(_rust, "copy_into", copy_into)
    source = TensorDict(a=torch.ones(2, requires_grad=True), n={"b": torch.ones(2)})
    td = TensorDict(a=torch.zeros(2), n={"b": torch.zeros(2)})
    getattr(td, method)(source)
    assert td["a"].requires_grad
    assert not td["n", "b"].requires_grad
    assert (td == 1).all()
    with torch.no_grad():
        td = td.detach().apply(torch.zeros_like)
        getattr(td, method)(source)
    assert not td["a"].requires_grad
    assert (td == 1).all()


def test_a_copy_into_a_parameter_is_refused_before_anything_is_written():
    source = TensorDict(a=torch.ones(2, requires_grad=True), b=torch.ones(2))
    td = TensorDict(a=torch.zeros(2), b=torch.zeros(2, requires_grad=True))
    with pytest.raises(RuntimeError, match="leaf"):
        td.update_(source)
    assert (td == 0).all()
