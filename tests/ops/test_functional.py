"""Functions of several collections: padding, merging, grouping, collating."""

from __future__ import annotations

import pytest
import torch

from tensordict import (
    TensorDict,
    collate,
    group_by,
    merge_tensordicts,
    pad,
    pad_sequence,
)


def rows(*lengths):
    """One container per length."""
    return [
        TensorDict(a=torch.ones(n), n={"b": torch.ones(n, 2)}, batch_size=[n])
        for n in lengths
    ]


def test_pad_counts_from_the_first_batch_dim(container):
    td = container({"a": torch.ones(2, 3, 4)}, [2, 3])
    made = pad(td, [1, 0, 0, 2], value=5)
    assert made.batch_size == (3, 5)
    assert (made["a"][0] == 5).all()
    assert (made["a"][:, 3:] == 5).all()
    assert td["a"].shape == (2, 3, 4)


def test_pad_in_place_keeps_the_container(container):
    td = container({"a": torch.ones(2)}, [2])
    assert td.pad([0, 1], inplace=True) is td
    assert td["a"].tolist() == [1.0, 1.0, 0.0]


def test_pad_that_fails_changes_nothing(container):
    td = container({"a": torch.ones(2)}, [2]).lock_()
    with pytest.raises(RuntimeError, match="locked"):
        td.pad([0, 1], inplace=True)
    assert td.batch_size == (2,)


def test_pad_sequence_pads_to_the_longest():
    made = pad_sequence(rows(1, 3), padding_value={"a": -1.0}, return_mask="valid")
    assert made.batch_size == made["n"].batch_size == (2, 3)
    assert made["a"].tolist() == [[1.0, -1.0, -1.0], [1.0, 1.0, 1.0]]
    assert (made["n", "b"][0, 1:] == 0).all()
    assert made["valid", "n", "b"].sum() == 4


def test_pad_sequence_on_the_left():
    made = pad_sequence(rows(1, 2), padding_side="left")
    assert made["a"].tolist() == [[0.0, 1.0], [1.0, 1.0]]


def test_pad_sequence_keeps_the_order_of_the_first():
    first = TensorDict(z=torch.ones(1), a=torch.ones(1), batch_size=[1])
    second = TensorDict(a=torch.ones(2), z=torch.ones(2), batch_size=[2])
    assert list(pad_sequence([first, second]).keys()) == ["z", "a"]


def test_pad_sequence_lets_gradients_through():
    first = TensorDict(a=torch.ones(1, requires_grad=True), batch_size=[1])
    pad_sequence([first, rows(2)[0]])["a"].sum().backward()
    assert first["a"].grad.tolist() == [1.0]


def test_pad_sequence_refuses_leaves_that_differ_elsewhere():
    first = TensorDict(a=torch.ones(2, 1), batch_size=[2])
    second = TensorDict(a=torch.ones(3, 2), batch_size=[3])
    with pytest.raises(RuntimeError, match="pad_sequence failed for key a"):
        pad_sequence([first, second])


def test_merge_takes_the_first_of_each(container):
    first = container({"a": torch.zeros(2), "n": {"x": torch.zeros(2)}}, [2])
    second = container({"a": torch.ones(2), "n": {"y": torch.ones(2)}}, [2])
    made = merge_tensordicts(first, second)
    assert type(made) is container
    assert made["a"] is first["a"]
    assert set(made["n"].keys()) == {"x", "y"}
    assert list(first["n"].keys()) == ["x"]


def test_merge_asks_the_callback_where_all_have_the_entry(container):
    first = container({"a": torch.ones(2), "b": torch.ones(2)}, [2])
    second = container({"a": torch.ones(2)}, [2])
    made = merge_tensordicts(first, second, callback_exist=lambda x, y: x + y)
    assert made["a"].tolist() == [2.0, 2.0]
    assert made["b"] is first["b"]


def test_groups_keep_the_order_of_their_rows(container):
    td = container({"k": torch.tensor([1, 0, 1]), "v": torch.arange(3)}, [3])
    values, groups = group_by(td, "k")
    assert values.tolist() == [0, 1]
    assert [group["v"].tolist() for group in groups] == [[1], [0, 2]]


def test_group_by_needs_a_batch_dim(container):
    with pytest.raises(ValueError, match="first batch dimension"):
        group_by(container({"k": torch.zeros(3)}), "k")


def test_collate_pads_what_it_is_told_to(container):
    samples = [container({"a": torch.ones(n), "b": torch.ones(2)}) for n in (1, 2)]
    made = collate(samples, pad_keys={"a": 0.0}, mask_key="valid")
    assert made.batch_size == (2,)
    assert made["a"].tolist() == [[1.0, 0.0], [1.0, 1.0]]
    assert made["valid", "a"].tolist() == [[True, False], [True, True]]


def test_collate_goes_into_tuples_and_dictionaries(container):
    sample = {"x": container({"a": torch.ones(2)}), "y": (1, 2.0)}
    made = collate([sample, sample])
    assert made["x"].batch_size == (2,)
    assert type(made["y"]) is tuple
    assert made["y"][0].tolist() == [1, 1]


def test_collate_makes_nested_tensors():
    samples = [TensorDict(a=torch.ones(n)) for n in (1, 2)]
    made = collate(samples, nested_keys=["a"])["a"]
    assert made.is_nested
    assert [part.numel() for part in made.unbind()] == [1, 2]
