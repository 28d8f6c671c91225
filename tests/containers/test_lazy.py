"""Lazy stacks alone: members, ragged entries, exclusive keys."""

import pickle

import pytest
import torch

from tensordict import (
    LazyStackedTensorDict,
    MetaData,
    TensorDict,
    UnbatchedTensor,
    assert_close,
    lazy_stack,
    set_lazy_legacy,
    tensorclass,
)


def ragged(*lengths, batch_size=()):
    return lazy_stack(
        [
            TensorDict(a=torch.ones(*batch_size, n), batch_size=batch_size)
            for n in lengths
        ]
    )


def test_index_gives_the_member_itself():
    members = [TensorDict(a=torch.zeros(2)), TensorDict(a=torch.ones(2))]
    stack = lazy_stack(members)
    assert stack[0] is members[0]
    assert stack[-1] is members[1]
    assert all(each is member for each, member in zip(stack, members, strict=True))


def test_set_writes_the_members():
    members = [TensorDict(batch_size=[3]) for _ in range(2)]
    stack = lazy_stack(members, 1)
    stack["a"] = torch.arange(6).view(3, 2)
    assert members[1]["a"].tolist() == [1, 3, 5]


def test_get_of_a_ragged_entry():
    stack = ragged(1, 3)
    assert stack.get_item_shape("a") == torch.Size([2, -1])
    with pytest.raises(RuntimeError, match="Failed to stack tensors"):
        stack["a"]
    assert [each.shape[0] for each in stack.get("a", as_list=True)] == [1, 3]
    padded = stack.get("a", as_padded_tensor=True, padding_side="left")
    assert padded.tolist() == [[0, 0, 1], [1, 1, 1]]
    nested = stack.get("a", as_nested_tensor=True)
    assert nested.layout is torch.jagged


def test_a_key_that_not_all_have_is_hidden():
    stack = lazy_stack([TensorDict(a=torch.ones(1), b=2), TensorDict(b=3)])
    assert list(stack.keys()) == ["b"]
    assert stack.get("a") is None
    assert "0 ->\n            a: Tensor(" in repr(stack)
    assert list(stack.densify().keys()) == ["a", "b"]
    stack = lazy_stack([TensorDict(a=1), TensorDict()])
    with pytest.raises(RuntimeError, match="Cannot densify a tensordict with values"):
        stack.densify()


def test_an_entry_that_only_some_have_is_written_where_it_is():
    stack = lazy_stack([TensorDict(a=torch.ones(2)), TensorDict(b=torch.ones(2))])
    stack.set_at_("b", 5.0, 1)
    assert stack[1]["b"].tolist() == [5, 5]
    stack.update_at_({"b": torch.zeros(1, 2)}, slice(1, None))
    assert stack[1]["b"].tolist() == [0, 0]
    with pytest.raises(KeyError, match='key "b" not found'):
        stack.update_at_(TensorDict(b=torch.ones(2, 2), batch_size=[2]), slice(None))
    assert stack[1]["b"].tolist() == [0, 0]


def test_a_tensor_of_where_belongs_to_the_members():
    stack = lazy_stack([TensorDict(a=torch.ones(3), batch_size=[3])] * 2)
    chosen = stack.where(torch.tensor([True, False]), torch.tensor([5.0, 6.0]))
    assert chosen["a"].tolist() == [[1, 1, 1], [6, 6, 6]]
    with pytest.raises(ValueError, match="must be 0-dim or start with the batch shape"):
        stack.where(torch.tensor([True, False]), torch.zeros(3))


def test_append_to_an_empty_stack():
    stack = LazyStackedTensorDict(stack_dim=0)
    stack.append(TensorDict(a=torch.zeros(2)))
    stack.extend([TensorDict(a=torch.ones(2))])
    assert stack.batch_size == torch.Size([2])
    assert stack["a"].sum() == 2
    with pytest.raises(ValueError, match="Batch sizes in tensordicts differs"):
        stack.insert(0, TensorDict(batch_size=[3]))


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_every_index_is_that_of_the_dense_container(dim):
    torch.manual_seed(0)
    members = [TensorDict(a=torch.randn(3, 2, 5), batch_size=[3, 2]) for _ in range(4)]
    stack = lazy_stack(members, dim)
    dense = stack.contiguous()
    size = dense.batch_size
    mask = torch.zeros(size, dtype=torch.bool)
    mask[1, 1, 1] = mask[0, 0, 0] = True
    pair = torch.tensor([1, 0])
    for index in (
        1, -1, slice(1, None), slice(None, None, 2), None, ..., True, False,
        (slice(None), 1), (..., 0), (0, slice(None), 1), (None, 0), (0, None, 1),
        pair, (slice(None), pair), (..., pair), (pair, pair), (pair, slice(None), pair),
        (pair[:, None], slice(None), pair), (slice(None), pair, pair), (pair, 0),
        (0, pair), (0, slice(None), pair), (pair, None, pair), pair.view(1, 2),
        (slice(None), pair.view(2, 1)), mask, mask[0, 0, : size[0]].new_ones(size[0]),
        (slice(None), mask[0].new_ones(size[1:])), [0, 1], range(2), (slice(1, 1),),
        (..., slice(0, 0)),
    ):  # fmt: skip
        found, expected = stack[index], dense[index]
        assert found.batch_size == expected.batch_size, index
        if found.numel() and found.batch_size.numel():
            assert (found["a"] == expected["a"]).all(), index


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_every_write_at_an_index_is_that_of_the_dense_container(dim):
    members = [TensorDict(a=torch.zeros(3, 2, 5), batch_size=[3, 2]) for _ in range(4)]
    pair = torch.tensor([1, 0])
    for index in (
        1, slice(1, None), None, ..., (slice(None), 1), (..., 0), (0, None, 1),
        pair, (slice(None), pair), (pair, slice(None), pair), (pair, pair),
        (slice(None), pair, pair), pair.view(1, 2),
    ):  # fmt: skip
        stack = lazy_stack(members, dim).clone()
        dense = stack.contiguous()
        size = dense[index].batch_size
        value = TensorDict(a=torch.randn(*size, 5), batch_size=size)
        stack[index] = value
        dense[index] = value
        assert (stack["a"] == dense["a"]).all(), index
        stack[index] = 7
        dense[index] = 7
        assert (stack["a"] == dense["a"]).all(), index


def test_pickle_keeps_members_and_lock():
    stack = ragged(1, 2).lock_()
    other = pickle.loads(pickle.dumps(stack))
    assert other.is_locked
    assert [each.shape[0] for each in other.get("a", as_list=True)] == [1, 2]


def test_a_subclass_is_built_by_appending():
    class Stream(LazyStackedTensorDict):
        @classmethod
        def of(cls, values):
            stack = cls(stack_dim=0)
            for value in values:
                stack.append(TensorDict(a=value))
            return stack

    stack = Stream.of([[1, 2], [3]])
    assert type(stack + 1) is Stream
    assert stack.densify(layout=torch.strided)["a"].values().tolist() == [1, 2, 3]


def stack_of_ragged_stacks():
    return lazy_stack([ragged(1, 3), ragged(2, 2)])


def test_stack_of_ragged_stacks_can_be_looked_at():
    stack = stack_of_ragged_stacks()
    assert stack.get_item_shape("a") == torch.Size([2, 2, -1])
    assert "a" in stack.keys()
    assert list(stack.keys()) == ["a"]
    assert "a: Tensor(shape=torch.Size([2, 2, -1])" in repr(stack)
    assert stack.entry_class("a") is torch.Tensor


def test_stack_of_ragged_stacks_in_other_formats():
    stack = stack_of_ragged_stacks()
    rows = stack.get("a", as_list=True)
    assert [[len(leaf) for leaf in row] for row in rows] == [[1, 3], [2, 2]]
    with pytest.raises(ValueError, match="Cannot build a nested tensor"):
        stack.get("a", as_nested_tensor=True)


def test_update_and_replace_with_a_ragged_stack_do_not_stack():
    stack = ragged(1, 3)
    stack.update(ragged(1, 3) + 1, keys_to_update=["a"])
    assert [member["a"].tolist() for member in stack] == [[2.0], [2.0] * 3]
    replaced = stack.replace(ragged(2, 4))
    assert [len(member["a"]) for member in replaced] == [2, 4]
    assert [len(member["a"]) for member in stack] == [1, 3]


def test_split_keys_takes_a_key_from_the_members_that_have_it():
    stack = lazy_stack([TensorDict(a=torch.zeros(1)), TensorDict(b=torch.zeros(2))])
    part, rest = stack.split_keys(["b"])
    assert [list(member.keys()) for member in part] == [[], ["b"]]
    assert [list(member.keys()) for member in rest] == [["a"], []]
    with pytest.raises(KeyError, match="missing"):
        stack.split_keys(["missing"], inplace=True)
    assert [list(member.keys()) for member in stack] == [["a"], ["b"]]


def test_separates_takes_ragged_entries_out_of_members():
    stack = ragged(1, 3)
    stack["c"] = torch.ones(2)
    taken = stack.separates("a")
    assert [len(member["a"]) for member in taken] == [1, 3]
    assert list(stack.keys()) == ["c"]
    with pytest.raises(KeyError, match="missing"):
        stack.separates("c", "missing")
    assert list(stack.keys()) == ["c"]


def test_reshape_of_a_ragged_batch_dim():
    stack = lazy_stack([TensorDict(a=torch.arange(n), batch_size=[n]) for n in (1, 2)])
    assert stack.batch_size == torch.Size([2, -1])
    assert stack.reshape(-1)["a"].tolist() == [0, 0, 1]
    assert stack.flatten(0, 1).batch_size == torch.Size([3])
    assert stack.reshape(2, 1, -1).batch_size == torch.Size([2, 1, -1])
    assert stack.unflatten(0, (1, 2)).batch_size == torch.Size([1, 2, -1])
    with pytest.raises(RuntimeError, match="reshape"):
        stack.view(-1)


def test_index_tensors_along_two_dims_give_copies():
    stack = lazy_stack([TensorDict(a=torch.ones(2), batch_size=[2]) for _ in range(2)])
    stack[torch.tensor([0, 1]), torch.tensor([1, 0])].zero_()
    assert stack["a"].tolist() == [[1.0, 1.0], [1.0, 1.0]]


def test_members_with_other_names_can_be_worked_with():
    named = lazy_stack(
        [TensorDict(a=torch.ones(3), batch_size=[3])] * 2, stack_dim_name="t"
    )
    stack = lazy_stack([named, TensorDict(a=torch.ones(2, 3), batch_size=[2, 3])])
    with pytest.raises(ValueError, match="Not all dim names match"):
        _ = stack.names
    assert stack.contiguous().names == [None, None, None]
    index = torch.ones(1, 2, 3, dtype=torch.long)
    assert stack.gather(0, index).batch_size == (1, 2, 3)
    assert stack.empty(batch_size=[2]).batch_size == (2,)


def test_what_has_no_batch_dims_is_written_in_the_members_that_an_index_touches():
    members = [
        TensorDict(scale=UnbatchedTensor(torch.zeros(5)), a=torch.zeros(3))
        for _ in range(2)
    ]
    stack = lazy_stack(members)
    stack.set_at_("scale", 1.0, 0)
    stack.update_at_(stack[1:] + 2.0, slice(1, None))
    assert [member["scale"].tolist() for member in members] == [[1.0] * 5, [2.0] * 5]
    stack.fill_("scale", 3.0)
    assert [member["scale"].tolist() for member in members] == [[3.0] * 5] * 2


def test_the_name_of_the_stack_dim_alone_stays_while_members_are_kept_apart():
    members = [TensorDict(a=torch.zeros(3), batch_size=[3]) for _ in range(2)]
    stack = lazy_stack(members, stack_dim_name="time")
    assert stack[:1].names == ["time", None]
    assert stack.contiguous().names == [None, None]
    assert torch.stack([stack, stack]).names == [None, "time", None]
    assert torch.cat([stack, stack]).names == ["time", None]
    assert stack.unbind(1)[0].names == ["time"]
    mask = torch.tensor([True, False])
    assert stack.masked_select(mask).names == ["time", None]
    stack.names = ["time", "x"]
    assert stack.contiguous().names == ["time", "x"]


@pytest.mark.parametrize("name", ["repeat", "repeat_interleave"])
def test_a_repeated_stack_has_copies_of_its_members(name):
    stack = lazy_stack([TensorDict(a=torch.tensor(n)) for n in (0, 1)])
    repeated = getattr(stack, name)(2)
    repeated[0].fill_("a", 7)
    assert sorted(repeated["a"].tolist()) == [0, 1, 1, 7]
    assert stack["a"].tolist() == [0, 1]


def test_a_named_tuple_leaves_nothing_out():
    stack = lazy_stack([TensorDict(a=1, b=2), TensorDict(a=1)])
    with pytest.raises(RuntimeError, match="exclusive keys"):
        stack.to_namedtuple()


def test_rows_that_are_not_those_of_the_members_are_a_value_error():
    stack = lazy_stack([TensorDict(a=torch.zeros(2)) for _ in range(2)])
    with pytest.raises(ValueError, match="batch dimension mismatch"):
        stack[:] = {"a": torch.ones(3, 2)}
    with pytest.raises(IndexError, match="batch dimension mismatch"):
        stack[:1] = {"a": torch.tensor(1.0)}
    assert not stack["a"].any()


def test_names_that_do_not_reach_the_stack_dim_are_an_index_error():
    stack = lazy_stack([TensorDict(batch_size=[3]) for _ in range(2)], 1)
    with pytest.raises(IndexError, match="dimension names"):
        stack.names = ["x"]
    assert stack.names == [None, None]


def test_view_of_minus_one_is_a_new_stack():
    stack = lazy_stack([TensorDict(a=n) for n in (1, 2)])
    flat = stack.view(-1)
    assert flat is not stack
    assert flat[0] is stack[0]
    assert stack.view(2) is stack


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_lazy_view_refuses_a_permutation_as_torch_does():
    td = TensorDict(batch_size=[2, 3])
    with set_lazy_legacy(True), pytest.raises(RuntimeError, match="permut"):
        td.permute(0, 0)
    with set_lazy_legacy(True), pytest.raises(IndexError):
        td.permute(0, 4)


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_densify_takes_no_dtype_from_empty_members(layout):
    """Empty members say nothing about the dtype of those that hold numbers."""
    members = [TensorDict(a=torch.zeros(0)), TensorDict(a=torch.tensor([1, 2]))]
    for stack in (lazy_stack(members), lazy_stack(members[::-1])):
        assert stack.densify(layout=layout)["a"].dtype is torch.int64


def test_an_entry_of_a_ragged_stack_has_the_batch_size_of_each_member():
    stack = lazy_stack([TensorDict(batch_size=[n]) for n in (1, 2)])
    stack["text"] = "x"
    stack["meta"] = MetaData("m")
    stack["nested", "text"] = "y"
    stack.create_nested(("empty", "inner"))
    for member, length in zip(stack.tensordicts, (1, 2), strict=True):
        for key in ("text", "meta", "nested", ("nested", "text"), ("empty", "inner")):
            assert member.get(key).batch_size == torch.Size([length])
    assert stack["text"] == [["x"], ["x", "x"]]
    assert stack["nested", "text"] == [["y"], ["y", "y"]]
    assert stack.get("meta").batch_size == torch.Size([2, -1])


def test_members_put_into_the_list_count_when_another_is_added():
    stack = ragged(2, 2)
    stack.tensordicts.append(TensorDict(a=torch.zeros(2)))
    stack.append(TensorDict(a=torch.zeros(2)))
    assert stack.batch_size == torch.Size([4])


@pytest.mark.parametrize("dim", [0, 1])
def test_update_gives_each_member_its_row_of_a_tensor(dim):
    """Also where it would broadcast to the whole entry."""
    rows = torch.arange(9.0).view(3, 3)
    members = [TensorDict(a=torch.zeros(3, 3), batch_size=[3]) for _ in range(3)]
    stack = lazy_stack(members, dim)
    stack.update_({"a": rows})
    for member, row in zip(stack.tensordicts, rows.unbind(dim), strict=True):
        assert member["a"].tolist() == [row.tolist()] * 3


def test_update_of_a_ragged_entry_broadcasts_to_each_member():
    stack = ragged(1, 3)
    stack.update_({"a": torch.tensor([4.0, 5.0])})
    assert stack.get("a", as_list=True)[1].tolist() == [5.0, 5.0, 5.0]
    stack.update_({"a": 6})
    assert stack.get("a", as_list=True)[0].tolist() == [6.0]
    with pytest.raises(RuntimeError, match=r"cannot copy .* 'a'"):
        stack.update_({"a": torch.zeros(2, 3)})


def test_apply_in_place_broadcasts_results():
    stack = lazy_stack(
        [TensorDict(a=torch.ones(3, 2), batch_size=[3]) for _ in range(2)]
    )
    leaf = stack[1]["a"]
    stack.apply_(torch.sum)
    assert leaf.tolist() == [[6.0, 6.0]] * 3


@pytest.mark.parametrize("other", [None, TensorDict(q=torch.zeros(2), batch_size=[2])])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_stack_of_tensors_and_others_prints_and_lists_its_keys(other, is_first):
    members = [
        TensorDict(s=torch.ones(2), batch_size=[2]),
        TensorDict({"s": other}, [2]),
    ]
    stack = lazy_stack(members[:: 1 if is_first else -1])
    nested = lazy_stack([stack, stack.clone()], -1)
    for each in (stack, nested):
        assert list(each.keys(True, True)) == ["s"]
        assert "s" in str(each)
        assert each.entry_class("s") is torch.Tensor
    with pytest.raises((TypeError, AttributeError)):
        stack["s"]


def test_fields_of_ragged_classes_are_chosen_member_by_member():
    @tensorclass
    class Point:
        a: torch.Tensor
        b: torch.Tensor

    stack = lazy_stack(
        [Point(a=torch.ones(n), b=torch.ones(1), batch_size=[]) for n in (1, 2)]
    )
    assert not stack.is_empty()
    stack.update(stack + 1, keys_to_update=["a"])
    assert stack[1].a.tolist() == [2.0, 2.0]
    assert stack[1].b.tolist() == [1.0]


@pytest.mark.parametrize("way", ["contiguous", "densify", "to_tensordict"])
def test_a_dense_copy_does_not_write_to_the_members(way):
    """Its values may also differ where a member has one for all of its elements."""
    td = TensorDict({"n": {"s": "a"}, "s": "a", "x": torch.zeros(3)}, [3])
    stack = lazy_stack([td.clone(), td.clone()])
    copy = getattr(stack, way)()
    new = TensorDict({"n": {"s": "b"}, "s": "b", "x": torch.ones(3)}, [3])
    copy[0] = new
    copy[1, 0] = new[0]
    assert copy["s"] == copy["n", "s"] == [["b", "b", "b"], ["b", "a", "a"]]
    for member in stack:
        assert member["s"] == member["n", "s"] == "a"


@pytest.mark.parametrize("way", ["contiguous", "densify", "to_tensordict"])
def test_a_dense_copy_has_its_own_fields_of_classes(way):
    @tensorclass
    class Point:
        a: torch.Tensor

    member = TensorDict(p=Point(a=torch.ones(3), batch_size=[3]), batch_size=[3])
    stack = lazy_stack([member, member.clone()])
    copy = getattr(stack, way)()
    copy["p"].set_("a", torch.zeros(2, 3))
    assert copy["p", "a"].sum() == 0
    assert stack["p", "a"].sum() == 6


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_entries_of_a_locked_view_are_locked():
    td = TensorDict({"n": {"q": torch.zeros(1, 3)}, "s": "x"}, [1, 3])
    with set_lazy_legacy(True):
        view = td.view(-1).lock_()
    assert view.get("n").is_locked
    assert view.get("s").is_locked


@pytest.mark.parametrize("write", ["set_at_", "setitem"])
@pytest.mark.parametrize("index", [1, (slice(None), 1), ([1, 0], 1)])
def test_a_write_leaves_what_another_dtype_does_not_hold(write, index):
    """Entries of several dtypes are read as one of them, and written each in its own."""
    big = 2**24 + 1
    stack = lazy_stack(
        [
            TensorDict(a=torch.ones(2), batch_size=[2]),
            TensorDict(a=torch.tensor([big, 5]), batch_size=[2]),
        ]
    )
    value = torch.full((2,), 7)
    if write == "set_at_":
        stack.set_at_("a", value, index)
    else:
        stack[index] = value
    expected = [7, 7] if index == 1 else [big, 7]
    assert stack[1]["a"].tolist() == expected
    assert stack[0]["a"].tolist() == ([1, 1] if index == 1 else [1, 7])


@pytest.mark.parametrize("value", [5, torch.tensor(5), torch.tensor([5])])
def test_a_number_is_written_at_index_tensors_of_a_stack_of_stacks(value):
    rows = [TensorDict(a=torch.zeros(2, 3), batch_size=[2, 3]) for _ in range(2)]
    wide = TensorDict(a=torch.zeros(2, 2, 3, 2), batch_size=[2, 2, 3])
    stack = lazy_stack([lazy_stack(rows), wide])
    stack.set_at_("a", value, torch.tensor([[1], [1]]))
    assert (wide["a"] == 5).all()
    assert all((row["a"] == 0).all() for row in rows)


@pytest.mark.parametrize(
    "index", [slice(1, None), slice(0, 3), torch.tensor([3, 0, 1])]
)
def test_rows_of_the_members_themselves_are_written(index):
    rows = torch.arange(8.0).reshape(4, 2)
    expected = rows.clone()
    expected[index] = rows[:3].clone()
    stack = lazy_stack([TensorDict(a=row) for row in rows])
    stack.set_at_("a", rows[:3], index)
    assert (stack["a"] == expected).all()
    assert (rows == expected).all()


def test_a_mask_that_one_member_refuses_changes_none():
    members = [TensorDict(a=torch.zeros(2, n), batch_size=[2]) for n in (3, 4)]
    with pytest.raises(RuntimeError):
        lazy_stack(members).masked_fill_(torch.ones(2, 2, 3, dtype=torch.bool), 1.0)
    assert not any(member["a"].any() for member in members)


@pytest.mark.parametrize(
    ("value", "index", "error"),
    [
        (torch.zeros(3), 1, RuntimeError),
        (torch.zeros(2, 3), slice(1, 3), RuntimeError),
        (torch.zeros(2), 9, IndexError),
    ],
)
def test_rows_that_do_not_fit_change_nothing(value, index, error):
    stack = lazy_stack([TensorDict(a=torch.ones(2)) for _ in range(3)])
    with pytest.raises(error):
        stack.set_at_("a", value, index)
    assert (stack["a"] == 1).all()


def test_a_write_to_features_reaches_members_of_several_dtypes():
    members = [
        TensorDict(a=torch.zeros(2, 3, dtype=dtype), batch_size=[2])
        for dtype in (torch.float32, torch.int64)
    ]
    stack = lazy_stack(members, 1)
    stack.set_at_("a", torch.tensor([4, 5]), (0, slice(None), 2))
    stack.set_at_("a", 6, (1, 1, 0))
    assert members[0]["a"].tolist() == [[0, 0, 4], [0, 0, 0]]
    assert members[1]["a"].tolist() == [[0, 0, 5], [6, 0, 0]]


def test_masked_select_keeps_what_has_no_batch_dims():
    td = TensorDict(u=UnbatchedTensor(torch.ones(5)), a=torch.zeros(3), batch_size=[3])
    chosen = lazy_stack([td]).masked_select(torch.tensor([[True, False, True]]))
    assert chosen["u"].tolist() == [1.0] * 5
    assert chosen["a"].shape == (2,)


def test_members_of_which_nothing_is_left_have_the_names_of_the_others():
    members = [
        TensorDict(a=torch.zeros(2), batch_size=[2]),
        TensorDict(a=torch.zeros(2), s="x", batch_size=[2]),
    ]
    left = lazy_stack(members, 1).apply(lambda _: None, names=["x", "t"])
    assert left.names == ["x", "t"]


@pytest.mark.parametrize("index", [([1, 0], 1), ([1, 0],), 1])
def test_update_at_casts_where_members_are_written_without_index_tensors(index):
    stack = lazy_stack(
        [
            TensorDict(a=torch.zeros(2, dtype=dtype), batch_size=[2])
            for dtype in (torch.float32, torch.int64)
        ]
    )
    value = torch.ones(stack[index].batch_size, dtype=torch.int32)
    stack.update_at_({"a": value}, index)
    assert stack[index]["a"].tolist() == value.tolist()
    assert stack[0]["a"].dtype == torch.float32


def test_update_at_refuses_what_index_tensors_of_members_do_not_cast():
    stack = lazy_stack([TensorDict(a=torch.zeros(2), batch_size=[2])] * 2)
    with pytest.raises(RuntimeError, match="dtypes match"):
        stack.update_at_({"a": torch.ones(2, dtype=torch.int64)}, ([0, 1], [0, 1]))


def test_a_write_to_an_expanded_stack_shows_in_all_rows():
    members = [
        TensorDict(a=torch.zeros(1), b=torch.zeros(1), batch_size=[1]),
        TensorDict(a=torch.zeros(1), batch_size=[1]),
    ]
    stack = lazy_stack(members, 1).expand([3, 2])
    stack.set_at_("a", torch.tensor([1.0, 2.0]), 0)
    assert stack["a"].tolist() == [[1.0, 2.0]] * 3


def test_copy_of_a_number_into_entries_of_several_numbers_of_dims():
    stack = lazy_stack([TensorDict(a=torch.zeros(())), TensorDict(a=torch.zeros(2))])
    stack.copy_(TensorDict(a=3.0))
    assert [member["a"].tolist() for member in stack] == [3.0, [3.0, 3.0]]


def test_a_locked_nested_collection_can_be_taken_out_as_a_whole():
    members = [
        TensorDict(n=TensorDict(a=torch.zeros(2), batch_size=[2]), batch_size=[2])
        for _ in range(2)
    ]
    stack = lazy_stack(members)
    stack["n"].lock_()
    with pytest.raises(RuntimeError, match="locked"):
        stack.separates(("n", "a"))
    assert stack.separates("n")["n", "a"].shape == (2, 2)
    assert stack.is_empty()


def test_a_key_through_a_leaf_is_told_without_stacking_it():
    stack = ragged(1, 2)
    for read in (
        lambda: stack.get(("a", "b"), as_list=True),
        lambda: stack.del_(("a", "b")),
    ):
        with pytest.raises(ValueError, match="'a' is a Tensor"):
            read()
    assert stack.get(("a", "b"), 1, as_list=True) == 1


@pytest.mark.filterwarnings("ignore:The legacy lazy mode")
def test_rows_of_lazy_views_make_a_nested_tensor():
    with set_lazy_legacy(True):
        views = [
            TensorDict(a=torch.ones(n), batch_size=[n]).view(-1, 1) for n in (1, 2)
        ]
    rows = lazy_stack(views).get("a", as_nested_tensor=True, layout=torch.jagged)
    assert [row.tolist() for row in rows.unbind()] == [[[1.0]], [[1.0], [1.0]]]


def test_apply_to_strided_nested_tensors():
    td = lazy_stack(
        [TensorDict(a=torch.zeros(n), batch_size=[n]) for n in (1, 2)]
    ).densify(torch.strided)
    assert [row.tolist() for row in td.apply(lambda x: x + 1)["a"].unbind()] == [
        [1.0],
        [1.0, 1.0],
    ]
    held = td["a"]
    td.apply_(lambda x: x + 2)
    assert [row.tolist() for row in held.unbind()] == [[2.0], [2.0, 2.0]]
    uneven = torch.nested.nested_tensor([torch.ones(2), torch.ones(2), torch.ones(1)])
    with pytest.raises(RuntimeError, match="batch dimension mismatch"):
        td["b"] = uneven


def test_a_number_is_written_to_members_that_are_ragged_stacks():
    plain = TensorDict(a=torch.zeros(2, 2), z=torch.zeros(2), batch_size=[2])
    lazy_stack([ragged(1, 2), plain])[:, 0] = 5
    assert plain["a"].tolist() == [[5.0, 5.0], [0.0, 0.0]]
    assert plain["z"].tolist() == [0.0, 0.0]


def test_values_of_ragged_rows_at_an_index_of_nothing():
    stack = lazy_stack([TensorDict(s="x", batch_size=[n]) for n in (1, 2)])
    nothing = stack[False]
    assert nothing.batch_size == (0, 2, -1)
    stack.update_at_(nothing, False)
    assert stack[1]["s"] == "x"


def test_a_tensor_is_written_at_an_ellipsis_of_batch_dims():
    """An ellipsis stands for batch dims, whether entries differ in shape or not."""
    td = lazy_stack(
        [
            TensorDict(b=torch.zeros(3, 2), r=torch.zeros(3, 1 + i), batch_size=[3])
            for i in (0, 1)
        ]
    )
    td[..., 0] = torch.tensor([5.0])
    for member in td.tensordicts:
        assert (member["b"][0] == 5).all()
        assert (member["r"][0] == 5).all()
        assert not member["b"][1:].any()
        assert not member["r"][1:].any()


def test_each_ragged_member_gets_its_row_of_a_tensor():
    td = lazy_stack(
        [TensorDict(r=torch.zeros(3, 1 + i), batch_size=[3]) for i in (0, 1)]
    )
    td[:, 0] = torch.tensor([[5.0], [6.0]])
    first, second = (member["r"].tolist() for member in td.tensordicts)
    assert first == [[5.0], [0.0], [0.0]]
    assert second == [[6.0, 6.0], [0.0, 0.0], [0.0, 0.0]]


def test_a_stack_of_values_of_several_sizes_prints():
    td = lazy_stack([TensorDict(s=["p", None]), TensorDict(s=MetaData("m"))])
    assert "s: [NonTensorStack, MetaData]" in repr(td)


def test_an_unbatched_tensor_beside_a_value_cannot_be_read():
    td = lazy_stack([TensorDict(s=UnbatchedTensor(torch.zeros(5))), TensorDict(s="x")])
    for read in (
        lambda: td.get("s"),
        lambda: td.get("s", as_nested_tensor=True),
        lambda: td.get("s", as_padded_tensor=True),
        td.contiguous,
        lambda: td.densify(layout=torch.jagged),
    ):
        with pytest.raises(RuntimeError, match="a tensor in some members"):
            read()


def test_assert_close_tells_a_difference_before_an_entry_that_is_none():
    ragged = lazy_stack(
        [TensorDict(a=torch.zeros(1), r=torch.zeros(1 + i)) for i in (0, 1)]
    )
    dense = TensorDict(a=torch.ones(2, 1), r=torch.zeros(2, 1), batch_size=[2])
    with pytest.raises(AssertionError, match="'a'"):
        assert_close(ragged, dense)


def test_keys_of_stacks_of_which_an_entry_cannot_be_stacked() -> None:
    x = torch.zeros(2, 3)
    members = [
        TensorDict({"n": TensorDict(x=x, batch_size=size), "b": x[:, 0]}, [2])
        for size in ([2], [2, 3])
    ]
    td = lazy_stack([lazy_stack(members)])
    assert list(td.keys()) == ["n", "b"]


def test_what_is_locked_in_a_member_stays_so_in_another_shape() -> None:
    td = lazy_stack([TensorDict({"n": {"e": {"x": torch.zeros(3)}}}, [3])] * 2)
    td.tensordicts[0]["n", "e"].lock_()
    for other in (td.atleast_3d(), td.unsqueeze(-1)):
        member = other.tensordicts[0]
        assert member["n", "e"].is_locked
        assert not member["n"].is_locked
    assert td.narrow(1, 0, 2)["n", "e"].is_locked
    assert not (td + 1).tensordicts[0]["n", "e"].is_locked


def test_stacks_of_other_sizes_are_not_stacked() -> None:
    member = TensorDict({"a": torch.zeros(2, 1)}, [2])
    with pytest.raises(RuntimeError, match="congruent batch sizes"):
        torch.stack([lazy_stack([member], 1), lazy_stack([member], 0)])


def test_a_tensor_is_written_into_values_of_several_members() -> None:
    td = lazy_stack(
        [TensorDict({"s": "x", "a": torch.zeros(2)}, [2]) for _ in range(2)], 1
    )
    td[-1, -1:] = torch.ones(1)
    assert td["a"].tolist() == [[0, 0], [0, 1]]
    assert td["s"] == [["x", "x"], ["x", torch.ones(1)]]


def test_entries_of_other_numbers_of_dims_are_written_at_an_index() -> None:
    td = lazy_stack(
        [TensorDict({"r": torch.zeros(2, *more)}, [2]) for more in [(2,), ()]]
    )
    td.set_at_("r", 1, (0, 1))
    td[..., [0]] = torch.ones(1)
    assert td[0]["r"].tolist() == [[1, 1], [1, 1]]
    assert td[1]["r"].tolist() == [1, 0]


def test_an_index_of_tensors_does_not_cast_what_is_written() -> None:
    td = lazy_stack([TensorDict({"a": torch.zeros(2, dtype=torch.int64)}, [2])] * 2, 1)
    mask = torch.tensor([[True, False], [False, True]])
    with pytest.raises(RuntimeError, match="dtypes match"):
        td[mask] = td[mask].float()


def test_rows_with_values_are_written_at_positions_of_several_dims() -> None:
    members = [TensorDict({"a": torch.zeros(3)}, [3]) for _ in range(2)]
    td = lazy_stack([member.set_non_tensor("s", "x") for member in members])
    index = torch.tensor([[0], [0]])
    td[index] = td[index] + 1
    assert td["a"].tolist() == [[1, 1, 1], [0, 0, 0]]
    assert td["s"] == [["x"] * 3] * 2


def test_names_of_comparisons_and_of_rows_without_elements() -> None:
    member = TensorDict({"s": "x", "a": torch.zeros(2)}, [2], names=["b"])
    td = lazy_stack([member, member.clone()], 1, stack_dim_name="t")
    assert (td == td.clone()).names == [None, None]
    assert lazy_stack([td])[1:].names == [None, "b", "t"]


def test_a_consolidated_stack_of_ragged_entries_can_be_moved() -> None:
    td = lazy_stack([TensorDict({"r": torch.ones(2, n)}, [2]) for n in (1, 2)])
    moved = td.consolidate().cpu()
    assert moved.device == torch.device("cpu")
    assert [member["r"].shape[1] for member in moved.tensordicts] == [1, 2]


def test_metadata_without_dims_is_written_at_an_index() -> None:
    td = TensorDict({"s": "x"}, [2])
    td.update_at_({"s": MetaData("y")}, [0])
    td.set_at_("s", MetaData("z"), slice(1, 2))
    assert td["s"] == ["y", "z"]


@pytest.mark.filterwarnings("ignore:The legacy lazy mode")
def test_values_seen_through_a_view_in_lazy_mode_are_values():
    td = TensorDict(s="x", m=MetaData("m"), n={"s": "y"}, batch_size=[2, 1, 3])
    td["n"].batch_size = [2, 1, 3]
    with set_lazy_legacy(True):
        view = td.transpose(0, 2)
        assert (view["s"], view["m"], view["n", "s"]) == ("x", "m", "y")
        assert view.get("s").batch_size == (3, 1, 2)
        assert view.get_non_tensor("s") == "x"


@pytest.mark.filterwarnings("ignore:The legacy lazy mode")
@pytest.mark.parametrize(
    "of",
    [
        lambda td: td.transpose(0, 2).squeeze(1),
        lambda td: td.permute(2, 0, 1).unsqueeze(0),
        lambda td: td.squeeze(1).unsqueeze(0).transpose(1, 2),
    ],
)
def test_a_view_of_a_view_is_worked_on_in_place(of):
    """torch takes a tensor and itself with another stride at size 1 for an overlap."""
    td = TensorDict(a=torch.arange(6.0).reshape(2, 1, 3), batch_size=[2, 1, 3])
    with set_lazy_legacy(True):
        view = of(td)
        view.apply_(lambda leaf: leaf.add_(1))
        view.apply_(lambda leaf: leaf * 2)
    assert td["a"].flatten().tolist() == [2.0, 4.0, 6.0, 8.0, 10.0, 12.0]
