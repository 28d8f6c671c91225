"""Lazy stacks whose members differ, and the values of members."""

from __future__ import annotations

import pytest
import torch

from tensordict import (
    LazyStackedTensorDict,
    NonTensorData,
    NonTensorStack,
    TensorDict,
    UnbatchedTensor,
    _rust,
    lazy_stack,
)


def test_softmax_along_the_stack_dim_is_among_the_members_that_have_a_key() -> None:
    zeros = torch.zeros(2)
    stack = lazy_stack(
        [
            TensorDict(a=zeros, s="x"),
            TensorDict(a=zeros, z=zeros, n=TensorDict(b=zeros)),
            TensorDict(a=zeros, z=zeros),
        ]
    )
    result = stack.softmax(0)
    assert isinstance(result, LazyStackedTensorDict)
    assert [list(each.keys()) for each in result.tensordicts] == [
        ["a", "s"],
        ["a", "z", "n"],
        ["a", "z"],
    ]
    third = torch.full((2,), 1 / 3)
    assert all(torch.allclose(each["a"], third) for each in result.tensordicts)
    assert result.tensordicts[2]["z"].tolist() == [0.5, 0.5]
    assert result.tensordicts[1]["n", "b"].tolist() == [1.0, 1.0]
    assert result.tensordicts[0]["s"] == "x"


@pytest.mark.parametrize("held", ["x", [1, 2]])
def test_a_list_that_is_one_value_is_loaded_whole(held) -> None:
    state = TensorDict({"s": NonTensorData([3, 4])}, [2]).state_dict()
    stack = lazy_stack([TensorDict({"s": NonTensorData(held)}) for _ in range(2)])
    stack.load_state_dict(state)
    assert [each["s"] for each in stack.tensordicts] == [[3, 4], [3, 4]]
    rows = TensorDict({"s": NonTensorStack("a", "b")}, [2])
    rows.load_state_dict(state)
    assert rows.get("s").tolist() == [[3, 4], [3, 4]]


def test_elements_at_tensors_share_what_has_no_batch_dims() -> None:
    def member():
        return TensorDict(
            {"a": torch.ones(2), "u": UnbatchedTensor(torch.ones(3))}, [2]
        )

    stack = lazy_stack([member(), member()])
    stack[[1], torch.tensor([True, False])].zero_()
    first, second = stack.tensordicts
    assert second["u"].tolist() == [0.0] * 3
    assert first["u"].tolist() == [1.0] * 3
    # What has batch dims is copied.
    assert second["a"].tolist() == [1.0, 1.0]


def test_membership_where_nested_collections_cannot_be_stacked() -> None:
    def member(nested_size):
        nested = TensorDict({"q": torch.zeros(2, 3)}, nested_size)
        return TensorDict({"n": nested}, [2])

    stack = lazy_stack([member([2, 3]), member([2])], 1)
    assert "n" in stack.keys()  # noqa: SIM118
    assert ("n", "q") in stack.keys(True)
    assert ("n", "x") not in stack.keys(True)


def test_rows_of_values_in_a_stack_of_stacks_along_a_later_dim() -> None:
    rows = [TensorDict(s=text, batch_size=[n]) for n, text in ((1, "a"), (2, "b"))]
    stack = lazy_stack([lazy_stack(rows, 1)])
    values = stack.get("s")
    assert stack.batch_size == values.batch_size == (1, -1, 2)
    assert values.tolist() == [[["a"]], [["b", "b"]]]
    assert values.stack_dim == 2


def _stack(text, count=3):
    return lazy_stack(
        [TensorDict(a=torch.zeros(2), s=text, n={"t": text}) for _ in range(count)]
    )


def test_values_are_written_into_members_in_one_call() -> None:
    stack, other = _stack("x"), _stack("y")
    held = [member.get("s") for member in stack.tensordicts]
    assert _rust.write_members(stack.tensordicts[1:], [()] * 2, other.tensordicts[1:])
    assert stack.get("s").tolist() == ["x", "y", "y"]
    assert stack.get(("n", "t")).tolist() == ["x", "y", "y"]
    assert all(
        member.get("s") is value
        for member, value in zip(stack.tensordicts, held, strict=True)
    )
    # An element of several cannot take another value without becoming a stack.
    part = lazy_stack([TensorDict(s="x", batch_size=[2])])
    assert not _rust.write_members(part.tensordicts, [0], [TensorDict(s="y")])
    part[:, 0] = TensorDict(s="y", batch_size=[1])
    assert part.get("s").tolist() == [["y", "x"]]


@pytest.mark.parametrize("index", [slice(1, None), 1, [1, 2], ...])
def test_a_text_put_at_an_index_leaves_no_trace_of_earlier_ones(index) -> None:
    """Each write once made the cells of members ones that write to those before."""
    stack = _stack("x")
    for text in "abc":
        stack.set_at_("s", text, index)
        stack.update_at_(TensorDict(s=text.upper()), 0)
    taken = [member.get("s") for member in stack.tensordicts]
    assert [value.data for value in taken][1:] == (
        ["c", "x"] if index == 1 else ["c"] * 2
    )
    assert stack.tensordicts[0]["s"] == "C"
    assert all(type(value._cells) is list for value in taken)
