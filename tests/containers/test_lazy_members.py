"""Lazy stacks whose members differ, and the values of members."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
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
    # An entry with batch dims is copied.
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
    assert values.tolist() == [[["a"], ["b", "b"]]]
    assert values.stack_dim == 0


def _stack(text, count=3):
    return lazy_stack(
        [TensorDict(a=torch.zeros(2), s=text, n={"t": text}) for _ in range(count)]
    )


@pytest.mark.skipif(
    not _rust.shortcuts()["tensors"],
    reason="where shapes are not known at once, the primitive leaves this to its twin",
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


def _differing():
    return lazy_stack(
        [
            TensorDict(d=torch.zeros(3), e=torch.zeros(3)),
            TensorDict(c=torch.zeros(3), e=torch.zeros(3)),
        ]
    )


def test_update_in_place_refuses_a_member_without_any_of_the_entries() -> None:
    stack = _differing()
    with pytest.raises(KeyError, match="d was not found in the dest"):
        stack.update_(TensorDict(d=torch.ones(2, 3), batch_size=[2]))
    assert not stack.tensordicts[0]["d"].any()
    # A member that has one of them takes that, rows of a mapping as well.
    stack.update_({"d": torch.ones(2, 3), "e": torch.ones(2, 3)})
    assert stack.tensordicts[0]["d"].all()
    assert stack["e"].all()


@pytest.mark.parametrize("nested", [False, True])
def test_values_of_stacks_of_stacks_are_written_at_an_index(nested) -> None:
    def inner():
        td = TensorDict(s="a", batch_size=[3])
        return lazy_stack([TensorDict(n=td, batch_size=[3]) if nested else td])

    stack = lazy_stack([inner(), inner()])
    key = ("n", "s") if nested else "s"
    stack.set_at_(key, "b", 1)
    assert stack.get(key).tolist() == [[["a"] * 3], [["b"] * 3]]
    stack.set_at_(key, torch.tensor(2.0), torch.tensor(0))
    assert stack[0, 0].get(key).data.item() == 2.0


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
def test_a_tensor_written_at_an_index_goes_to_values_of_members_that_differ() -> None:
    stack = lazy_stack(
        [
            TensorDict(b=torch.zeros(2), s="a", n={"t": "x"}, d=torch.zeros(2)),
            TensorDict(b=torch.zeros(2), s="b", n={"t": "y"}),
        ]
    )
    stack[0] = torch.tensor(2.0)
    first, second = stack.tensordicts
    assert first["s"].item() == first["n", "t"].item() == 2.0
    assert first["b"].tolist() == [2.0, 2.0]
    assert first["d"].tolist() == [0.0, 0.0]
    assert second["s"] == "b"


def test_an_index_without_elements_keeps_what_holds_nothing() -> None:
    members = [
        TensorDict(a=torch.zeros(2), n={"e": {}, "s": "x", "c": torch.zeros(2)}, **own)
        for own in ({}, {"b": torch.zeros(2)})
    ]
    none = lazy_stack(members)[None, torch.zeros(2, dtype=torch.bool)]
    assert none.batch_size == (1, 0)
    assert list(none["n"].keys()) == ["e", "s", "c"]
    within = lazy_stack([lazy_stack(members, 0)])[:-1]
    assert within.batch_size == (0, 2)
    assert list(within.unbind(1)[1].keys()) == ["a", "n", "b"]


def test_update_at_index_tensors_does_not_cast_for_members_that_differ() -> None:
    stack = lazy_stack(
        [
            TensorDict(b=torch.zeros(3, dtype=torch.bool), batch_size=[3], **own)
            for own in ({}, {"a": torch.zeros(3)})
        ]
    )
    index = torch.tensor([0, 1]), torch.tensor([0, 1])
    with pytest.raises(RuntimeError, match="dtypes match"):
        stack.update_at_(stack[index] * 0, index)


def test_densify_of_a_collection_here_and_a_tensor_there_is_refused() -> None:
    nested = TensorDict(s={"k": torch.zeros(2)}, batch_size=[2])
    other = TensorDict({"s": UnbatchedTensor(torch.ones(3))}, [2])
    with pytest.raises(TypeError, match="Cannot densify"):
        lazy_stack([nested, other]).densify()


def test_densify_reaches_the_stacks_within_a_dense_collection() -> None:
    stack = lazy_stack([TensorDict(a=torch.zeros(2)), TensorDict(a=torch.ones(2))])
    td = TensorDict(m={"n": stack}, a=torch.zeros(2), batch_size=[2])
    dense = td.densify()
    assert type(dense["m", "n"]) is TensorDict
    assert dense["m", "n", "a"].tolist() == [[0.0, 0.0], [1.0, 1.0]]
    assert dense.densify() is dense
    assert td["m"].get("n") is stack


def test_reshape_of_dims_behind_the_stack_dim_keeps_the_members_apart() -> None:
    stack = lazy_stack([TensorDict(a=torch.zeros(1, 3), batch_size=[1, 3])] * 2)
    flat = stack.reshape(2, 3)
    assert isinstance(flat, LazyStackedTensorDict)
    assert flat.stack_dim == 0
    assert [type(each) for each in flat.tensordicts] == [TensorDict] * 2


def test_a_member_is_written_into_the_stack_as_it_was_before() -> None:
    first = TensorDict(a=torch.tensor([1.0, 2.0]), batch_size=[2])
    stack = lazy_stack([first, first.clone()], 1)
    stack[torch.ones(2, dtype=torch.bool)] = first
    assert stack["a"].tolist() == [[1.0, 2.0], [1.0, 2.0]]


def test_a_part_of_one_member_takes_what_broadcasts_to_it() -> None:
    stack = lazy_stack([TensorDict(a=torch.zeros(1), batch_size=[1]) for _ in "ab"])
    value = TensorDict(a=torch.tensor([[2.0], [3.0]]), batch_size=[2, 1])
    stack[1, torch.zeros(2, 2, dtype=torch.long)] = value
    assert stack["a"].tolist() == [[0.0], [3.0]]


def test_an_ellipsis_in_the_index_of_an_entry_stands_for_its_own_dims() -> None:
    stack = lazy_stack(
        [TensorDict(c=torch.zeros(1, 2), batch_size=[1]) for _ in "ab"], 1
    )
    stack.set_at_("c", 1.0, (..., [0, 0], 0))
    assert stack["c"].tolist() == [[[1.0, 0.0], [0.0, 0.0]]]


def test_a_number_at_a_mask_beside_the_stack_dim_is_cast() -> None:
    stack = lazy_stack(
        [
            TensorDict(c=torch.zeros(3, dtype=torch.bool), batch_size=[3])
            for _ in range(2)
        ]
    )
    stack[..., 1, torch.tensor([True, False, False])] = torch.tensor(2.0)
    assert stack["c"].tolist() == [[False] * 3, [True, False, False]]


@pytest.mark.parametrize(
    "index", [slice(1, 1), (slice(None), slice(1, 1)), (..., slice(0), slice(None))]
)
def test_an_index_that_picks_no_members_writes_nothing(index) -> None:
    stack = lazy_stack(
        [TensorDict(a=torch.zeros(3, 2), batch_size=[3]) for _ in "ab"], 1
    )
    stack.set_at_("a", torch.tensor(1.0), index)
    stack._get_sub_tensordict((slice(None), slice(1, 1))).fill_("a", 1)
    assert not stack["a"].any()


@pytest.mark.parametrize("dim", [0, 1])
def test_set_at_of_what_some_members_have_is_that_of_a_tensor(dim: int) -> None:
    shapes = [[2], [1, 2], [3, 2], [2, 3, 2], [2, 2], [2, 1, 2], [1, 2, 2], [], [3, 1]]
    own: list[Any] = [[0, 1], slice(0, 2), [0], torch.tensor([[0, 1]])]
    rest: list[Any] = [slice(None), 0, [0, 1], slice(0, 2)]
    if dim == 0:
        rest.append(None)
    for mine, other in itertools.product(own, rest):
        for shape in shapes:
            index = (mine, other) if dim == 0 else (other, mine)
            have = [TensorDict(d=torch.zeros(3, 2), batch_size=[3]) for _ in range(2)]
            stack = lazy_stack([*have, TensorDict(batch_size=[3])], dim)
            expected = torch.zeros(2, 3, 2) if dim == 0 else torch.zeros(3, 2, 2)
            value = torch.arange(1.0, math.prod(shape) + 1).reshape(shape)
            try:
                expected[index] = value
            except RuntimeError:
                with pytest.raises(RuntimeError):
                    stack.set_at_("d", value, index)
                continue
            stack.set_at_("d", value, index)
            found = torch.stack([each["d"] for each in have], dim)
            assert (found == expected).all(), (index, shape)


def test_empty_keeps_nested_stacks() -> None:
    nested = lazy_stack([TensorDict(a=torch.ones(1)), TensorDict(a=torch.ones(2))])
    td = TensorDict(n=nested, b=torch.ones(2), batch_size=[2])
    empty = td.empty(recurse=True)
    assert type(empty["n"]) is LazyStackedTensorDict
    assert empty["n"].tensordicts[0] is not nested.tensordicts[0]
    assert empty["n"].is_empty()
    _, rest = td.split_keys(["b"], reproduce_struct=True)
    assert type(rest["n"]) is LazyStackedTensorDict


def test_a_stack_without_tensors_takes_no_operand_that_has_some() -> None:
    stack = lazy_stack([TensorDict(), TensorDict()])
    with pytest.raises(KeyError, match="not found"):
        stack.sub(TensorDict(a=torch.ones(2), batch_size=[2]))
    assert (stack + lazy_stack([TensorDict(), TensorDict()])).is_empty()


def test_update_at_a_mask_that_selects_nothing_of_a_ragged_stack() -> None:
    stack = lazy_stack([TensorDict(a=torch.ones(n), batch_size=[n]) for n in (1, 2)])
    nothing = torch.zeros(2, dtype=torch.bool)
    source = TensorDict(a=torch.zeros(2, 3), batch_size=[2, 3])
    stack.update_at_(source[nothing], nothing)
    assert [each["a"].sum() for each in stack.tensordicts] == [1, 2]


def test_update_with_chosen_keys_stacks_nothing_else() -> None:
    twos = torch.full((3,), 2.0)
    ragged = lazy_stack(
        [TensorDict(b=twos, r=torch.ones(3, n), batch_size=[3]) for n in (1, 2)]
    )
    dense = TensorDict(b=torch.zeros(2, 3), batch_size=[2, 3])
    dense.update_(ragged, keys_to_update=["b"])
    assert (dense["b"] == 2).all()


@pytest.mark.parametrize("index", [slice(None), 0, slice(0, 1), [0, 1]])
def test_values_at_an_index_take_the_device(index: Any) -> None:
    td = TensorDict(batch_size=[2], device="cpu")
    td[index] = TensorDict(s="x", batch_size=torch.empty(2)[index].shape)
    assert td.get("s").device == torch.device("cpu")


def test_a_dictionary_at_an_index_of_no_ragged_members_writes_nothing() -> None:
    stack = lazy_stack([TensorDict(a=torch.ones(n), batch_size=[n]) for n in (1, 2)])
    stack[1:1] = {"a": torch.zeros(0, 3)}
    assert [each["a"].sum() for each in stack.tensordicts] == [1, 2]


def test_ragged_values_at_an_index_of_arrays() -> None:
    members = [TensorDict(s=f"{n}", batch_size=[n]) for n in (1, 2, 3)]
    values = lazy_stack(members).get("s")
    index = (None, np.array([1, -2]))
    assert values[index].tolist() == [[["2", "2"], ["2", "2"]]]
    stack = lazy_stack(members)
    stack.set_at_("s", "new", index)
    written = [each.get("s").tolist() for each in members]
    assert written == [["1"], ["new", "new"], ["3", "3", "3"]]
