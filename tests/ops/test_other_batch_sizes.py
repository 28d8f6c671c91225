"""Operands and sources whose batch size is not that of the collection."""

from __future__ import annotations

import pytest
import torch

from tensordict import NonTensorStack, TensorDict, lazy_stack, tensorclass


def texts(values, **entries):
    return TensorDict(r=NonTensorStack(*values), batch_size=[len(values)], **entries)


def test_update_batch_size_takes_texts_of_another_number():
    td = texts("abc")
    assert td.update(texts("ab"), update_batch_size=True) is td
    assert td.batch_size == (2,)
    assert list(td["r"]) == ["a", "b"]


def test_update_batch_size_takes_nested_texts_of_another_number():
    td = TensorDict(h=texts("abc", x=torch.zeros(3)), y=torch.zeros(()))
    source = TensorDict(h=texts("dcba", x=torch.ones(4)))
    td.update(source, update_batch_size=True)
    assert td["h"].batch_size == (4,)
    assert list(td["h", "r"]) == list("dcba")
    assert td["h", "x"].sum() == 4
    members = lazy_stack([TensorDict(h=texts("abc")) for _ in range(2)])
    members.update(
        lazy_stack([TensorDict(h=texts("ab")) for _ in range(2)]),
        update_batch_size=True,
    )
    assert members["h"].batch_size == (2, 2)


def test_update_batch_size_that_fails_keeps_the_texts():
    td = TensorDict(h=texts("abc", x=torch.zeros(3)))
    with pytest.raises(RuntimeError):
        td.update(TensorDict(h=texts("ab")), update_batch_size=True)
    assert td["h"].batch_size == (3,)
    assert list(td["h", "r"]) == ["a", "b", "c"]


@pytest.mark.parametrize("sizes", [((), (3,)), ((3,), (3, 4)), ((), (3, 4))])
@pytest.mark.parametrize(
    ("name", "args", "value"),
    [
        ("lerp_", (0.5,), 1.5),
        ("lerp_", (torch.tensor(0.5),), 1.5),
        ("maximum_", (), 2),
        ("minimum_", (), 1),
        ("clamp_max_", (), 1),
        ("clamp_min_", (), 2),
    ],
)
def test_operand_with_more_batch_dims_whose_leaves_fit(name, args, value, sizes):
    own, other = sizes
    td = TensorDict(a=torch.ones(3, 4), n={"b": torch.ones(3, 4)}, batch_size=own)
    leaf = td["a"]
    operand = TensorDict(
        a=torch.full((3, 4), 2.0), n={"b": torch.full((3, 4), 2.0)}, batch_size=other
    )
    assert getattr(td, name)(operand, *args) is td
    assert td["a"] is leaf
    assert (td == value).all()
    assert td.batch_size == own


def test_operand_with_more_batch_dims_whose_leaves_do_not_fit():
    td = TensorDict(a=torch.ones(()), b=torch.ones(3))
    operand = TensorDict(a=torch.zeros(3), b=torch.zeros(3), batch_size=[3])
    with pytest.raises(RuntimeError):
        td.maximum_(operand)
    assert td["a"] == 1
    assert td["b"].sum() == 3


def test_state_of_a_normalization_is_interpolated():
    # A running mean without batch dims, and the mean of a batch that has them.
    state = TensorDict(mean=torch.zeros(2, 3))
    state.lerp_(TensorDict(mean=torch.ones(2, 3), batch_size=[2]), 0.25)
    assert (state["mean"] == 0.25).all()


@tensorclass
class Maybe:
    a: torch.Tensor
    b: torch.Tensor | None = None


@pytest.mark.parametrize("sizes", [((3,), ()), ((), (3,)), ((3,), (3,)), ((1,), (3,))])
def test_equality_of_a_field_that_is_not_set_and_none(sizes):
    own, other = sizes
    value = Maybe(a=torch.zeros(1 if own == (1,) else 3, 3), batch_size=own)
    td = TensorDict(a=torch.zeros(3, 3), b=None, batch_size=other)
    assert (value == td).all()
    assert (td == value).all()
