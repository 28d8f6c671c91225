"""Values that are no tensors: one for all elements, or one for each."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch

from separate_process import check_freshly
from tensordict import (
    LazyStackedTensorDict,
    MetaData,
    NonTensorData,
    NonTensorStack,
    TensorClass,
    TensorDict,
    is_leaf_nontensor,
    is_non_tensor,
    is_tensorclass,
    set_capture_non_tensor_stack,
    set_list_to_stack,
)
from tensordict.containers.nontensor.convert import stack_of


def sample() -> TensorDict:
    return TensorDict(
        s="a",
        t=["x", "y"],
        m=MetaData("m"),
        u=torch.zeros(2),
        n={"z": "q"},
        batch_size=[2],
    )


def values(td) -> dict:
    return td.to_dict()


# Conversions -----------------------------------------------------------------------


def test_families_are_those_of_the_release():
    one, each = NonTensorData("a"), NonTensorStack("a")
    assert isinstance(one, TensorClass)
    assert is_tensorclass(one)
    assert isinstance(each, LazyStackedTensorDict)
    assert not is_tensorclass(each)
    assert is_non_tensor(one)
    assert is_non_tensor(each)
    assert not is_non_tensor("a")
    assert type(one).__module__ == type(each).__module__ == "tensordict.tensorclass"


@pytest.mark.parametrize(
    ("value", "kind", "shape"),
    [
        ("text", NonTensorData, []),
        (None, NonTensorData, []),
        ({1, 2}, NonTensorData, []),
        (1j, NonTensorData, []),
        (["a", "b"], NonTensorStack, [2]),
        ([["a", "b"], ["c", "d"]], NonTensorStack, [2, 2]),
        ([["a", "b"], ["c"]], NonTensorStack, [2, -1]),
        (["a", ["b"]], NonTensorStack, [2]),
        ([(1, 2), (3, 4)], NonTensorStack, [2]),
        ([torch.zeros(2), torch.zeros(3)], NonTensorStack, [2]),
        (("a", "b"), NonTensorData, []),
        ([1, 2], torch.Tensor, [2]),
    ],
)
def test_set_makes_an_entry_of_a_value(value, kind, shape):
    td = TensorDict()
    td["k"] = value
    assert isinstance(td.get("k"), kind)
    assert list(td.get("k").shape) == shape


def test_getitem_gives_the_value_and_get_the_entry():
    td = sample()
    assert td["s"] == "a"
    assert td["t"] == ["x", "y"]
    assert td["n", "z"] == "q"
    assert td.get("s").data == "a"
    assert td.get_non_tensor("t") == ["x", "y"]
    assert td.get_non_tensor("none", None) is None


def test_set_non_tensor_keeps_a_list_as_one_value():
    td = sample().set_non_tensor("w", ["p", "q", "r"])
    assert td["w"] == ["p", "q", "r"]
    assert isinstance(td.get("w"), NonTensorData)


def test_a_list_of_another_length_is_refused():
    td = sample()
    with pytest.raises(RuntimeError, match="batch dimension mismatch"):
        td["w"] = ["p", "q", "r"]
    assert "w" not in td


def test_set_list_to_stack_off_makes_one_array():
    td = TensorDict(batch_size=[2])
    with pytest.warns(DeprecationWarning, match="set_list_to_stack"):
        mode = set_list_to_stack(False)
    with mode:
        td["k"] = ["a", "b"]
    assert isinstance(td.get("k"), NonTensorData)
    assert td["k"].tolist() == ["a", "b"]


# Views and writes --------------------------------------------------------------------


def test_an_element_writes_to_the_stack_it_is_taken_of():
    stack = NonTensorStack("a", "b", "c")
    stack[1].data = "B"
    stack[1:][1].data = "C"
    stack.unsqueeze(0)[0, 0].data = "A"
    assert stack.tolist() == ["A", "B", "C"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (1, True),
        (1.0, 1),
        (0.0, -0.0),
        ([1, "a"], [1.0, "a"]),
        ({"k": 1}, {"k": True}),
        ({"k": 1, "m": 2}, {"m": 2, "k": 1}),
        (frozenset({1}), frozenset({True})),
        (torch.ones(2), torch.ones(2, dtype=torch.int64)),
    ],
    ids=str,
)
def test_an_equal_value_of_another_type_is_written(old, new):
    td = TensorDict(v=NonTensorData(old, batch_size=[2]), batch_size=[2])
    other = TensorDict(v=NonTensorData(new, batch_size=[1]), batch_size=[1])
    joined = torch.cat([td, other]).get("v").tolist()
    td[0] = other[0]
    assert repr(td.get("v").tolist()) == repr([new, old])
    assert repr(joined) == repr([old, old, new])
    td[:] = TensorDict(v=NonTensorData(new, batch_size=[2]), batch_size=[2])
    assert repr(td.get("v").tolist()) == repr([new, new])


def test_an_index_with_a_tensor_copies():
    stack = NonTensorStack("a", "b", "c")
    part = stack[torch.tensor([0, 0, 2])]
    part[0] = "z"
    assert part.tolist() == ["z", "a", "c"]
    assert stack.tolist() == ["a", "b", "c"]


@pytest.mark.parametrize("copied", [lambda td: td.clone(), lambda td: td.copy()])
def test_a_copy_has_values_of_its_own(copied):
    td = sample()
    other = copied(td)
    other[0] = TensorDict(s="S", t="T")
    assert td["t"] == ["x", "y"]
    assert td["s"] == "a"
    assert other["t"] == ["T", "y"]
    assert other["s"] == ["S", "a"]


def test_setitem_at_an_index_turns_one_value_into_a_stack_only_if_it_changes():
    td = sample()
    td[0] = TensorDict(s="a")
    assert isinstance(td.get("s"), NonTensorData)
    td[0] = TensorDict(s="b")
    assert isinstance(td.get("s"), NonTensorStack)
    assert td["s"] == ["b", "a"]


def test_setitem_refuses_a_value_for_a_tensor_and_changes_nothing():
    td = sample()
    with pytest.raises(AttributeError, match="cannot be written"):
        td[0] = TensorDict(s="changed", u="text")
    assert values(td)["s"] == "a"


def test_update_in_place_under_a_lock():
    td = sample().lock_()
    td.update_({"s": "b", "t": ["1", "2"]})
    assert td["s"] == "b"
    assert td["t"] == ["1", "2"]
    with pytest.raises(RuntimeError, match="locked"):
        td["s"] = "c"
    with pytest.raises(RuntimeError, match="locked"):
        td.get("t")[0].data = "c"


def test_update_in_place_of_one_value_by_several_is_refused():
    td = sample()
    with pytest.raises(RuntimeError, match="NonTensorStack"):
        td.update_({"s": ["1", "2"]})
    assert td["s"] == "a"


def test_a_wrong_length_leaves_the_stack_as_it_was():
    stack = NonTensorStack("a", "b")
    with pytest.raises(RuntimeError, match="batch size"):
        stack[:] = ["1", "2", "3"]
    assert stack.tolist() == ["a", "b"]


def test_the_list_read_by_key_writes_to_the_stack():
    td = sample()
    td["t"][0] = "w"
    assert td["t"] == ["w", "y"]


# Operations --------------------------------------------------------------------------


def test_arithmetic_leaves_values_alone():
    td = (sample() + 1) * 2
    assert td["t"] == ["x", "y"]
    assert td["u"].tolist() == [2.0, 2.0]


def test_comparison_compares_values():
    td, other = sample(), sample()
    other["t"] = ["x", "z"]
    assert (td == other)["t"].tolist() == [True, False]
    assert (td != other)["s"].tolist() == [False, False]
    assert not (td == other).all()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda td: td.flip(0), ["y", "x"]),
        (lambda td: td.roll(1, 0), ["y", "x"]),
        (lambda td: td.repeat(2), ["x", "y", "x", "y"]),
        (lambda td: td.repeat_interleave(2), ["x", "x", "y", "y"]),
        (lambda td: td[torch.tensor([False, True])], ["y"]),
        (lambda td: td.view(2, 1), [["x"], ["y"]]),
        (lambda td: td.expand(2, 2), [["x", "y"], ["x", "y"]]),
        (lambda td: td.unsqueeze(0).transpose(0, 1), [["x"], ["y"]]),
        (lambda td: torch.cat([td, td]), ["x", "y", "x", "y"]),
        (lambda td: torch.stack([td, td], 1), [["x", "x"], ["y", "y"]]),
        (lambda td: td.split(1)[1], ["y"]),
        (lambda td: td.gather(0, torch.tensor([1, 1, 0])), ["y", "y", "x"]),
    ],
)
def test_elements_move_with_those_of_tensors(change, expected):
    assert change(sample()).get("t").tolist() == expected


def test_a_stack_cannot_be_summed():
    with pytest.raises(RuntimeError, match="filter_non_tensor_data"):
        sample().sum(0)
    assert sample().filter_non_tensor_data().sum(0)["u"] == 0


def test_apply_calls_on_values_only_if_asked():
    seen = []
    sample().apply(lambda x: seen.append(x), is_leaf=is_leaf_nontensor)
    assert sum(map(is_non_tensor, seen)) == 4
    assert sample().apply(lambda x: x + 1)["t"] == ["x", "y"]


def test_where_chooses_values():
    other = sample().update({"s": "b", "t": ["1", "2"]})
    chosen = sample().where(torch.tensor([True, False]), other)
    assert chosen["s"] == ["a", "b"]
    assert chosen["t"] == ["x", "2"]
    assert chosen["m"] == "m"


def test_stacking_collapses_metadata_and_on_request_data():
    assert isinstance(torch.stack([MetaData("a"), MetaData("a")]), MetaData)
    assert isinstance(torch.stack([MetaData("a"), MetaData("b")]), NonTensorStack)
    data = [NonTensorData("a"), NonTensorData("a")]
    assert isinstance(torch.stack(data), NonTensorStack)
    with pytest.warns(DeprecationWarning, match="set_capture_non_tensor_stack"):
        mode = set_capture_non_tensor_stack(True)
    with mode:
        assert isinstance(torch.stack(data), NonTensorData)


def test_ragged_rows_stay_apart():
    td = TensorDict(batch_size=[2])
    td["l"] = [["p", "q"], ["r"]]
    assert td[0]["l"] == ["p", "q"]
    assert td.clone().get("l").tolist() == [["p", "q"], ["r"]]
    turned = td.get("l").transpose(0, 1)
    assert turned.batch_size == (-1, 2)
    assert turned.tolist() == [["p", "q"], ["r"]]
    with pytest.raises(RuntimeError, match="rows of one length"):
        td.get("l").reshape(3, 1)


def test_ragged_rows_are_written_row_by_row_or_not_at_all(tmp_path):
    td = TensorDict(a=torch.zeros(2), l=[["p", "q"], ["r"]], batch_size=[2])
    td[1] = TensorDict(a=torch.ones(()), l=NonTensorStack("s"))
    assert td["l"] == [["p", "q"], ["s"]]
    with pytest.raises(RuntimeError, match="lengths of the target's rows"):
        td[1] = TensorDict(a=torch.zeros(()), l=NonTensorStack("s", "t"))
    assert td["a"].tolist() == [0.0, 1.0]
    td.memmap_(tmp_path)
    td.get("l")[0] = NonTensorStack("t", "u")
    assert TensorDict.load_memmap(tmp_path)["l"] == [["t", "u"], ["s"]]
    with pytest.raises(RuntimeError, match="lengths of the target's rows"):
        td.get("l")[0] = NonTensorStack("v")
    assert TensorDict.load_memmap(tmp_path)["l"] == [["t", "u"], ["s"]]


def test_ragged_rows_without_values_stay_where_they_are():
    nested = [[["a"], []], [["b", "c"]], [[]]]
    stack = NonTensorStack.from_list(nested)
    assert stack.tolist() == nested
    assert [row.tolist() for row in stack.unbind(0)] == nested
    assert stack[torch.tensor([2, 0])].tolist() == [nested[2], nested[0]]
    assert torch.cat([stack, stack[1:]]).tolist() == nested + nested[1:]
    assert stack.flip(0).tolist() == nested[::-1]
    with pytest.raises(RuntimeError, match="rows of one length"):
        stack.flip(1)


MOVES_OF_ROWS = {
    "gather": lambda td: td.gather(0, torch.tensor([1, 0, 1])),
    "flip": lambda td: td.flip(0),
    "index": lambda td: td[torch.tensor([1, 1])],
    "mask": lambda td: td[torch.tensor([False, True])],
    "narrow": lambda td: td.narrow(0, 1, 1),
    "none": lambda td: td[:0],
    "repeat_interleave": lambda td: td.repeat_interleave(torch.tensor([2, 1]), 0),
    "roll": lambda td: td.roll(1, 0),
    "tile": lambda td: td.tile(2),
    "where": lambda td: td.where(torch.tensor([True, False]), td.flip(0)),
}


@pytest.mark.parametrize("name", MOVES_OF_ROWS)
def test_ragged_rows_go_where_their_collection_goes(name):
    rows = [["p", "q"], ["r"]]
    td = TensorDict(at=torch.arange(2), l=rows, batch_size=[2])
    moved = MOVES_OF_ROWS[name](td)
    assert moved.get("l").tolist() == [rows[at] for at in moved["at"]]


def test_ragged_rows_are_pickled_along_any_dim():
    stack = NonTensorStack.from_list([["a"], ["b", "c"]]).transpose(0, 1)
    loaded = pickle.loads(pickle.dumps(stack))
    assert loaded.batch_size == (-1, 2)
    assert loaded.stack_dim == 1
    assert loaded.tolist() == [["a"], ["b", "c"]]


def test_ragged_rows_are_not_compared():
    stack = NonTensorStack.from_list([["a"], ["b", "c", "d"]])
    assert (stack == "a") is False
    with pytest.raises(RuntimeError, match="Could not compare"):
        stack == stack.clone()  # noqa: B015


# Pickles and files ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "entry",
    [
        NonTensorData("a", batch_size=[2]),
        NonTensorStack("a", "b"),
        NonTensorStack([1], [2]),
        torch.stack([NonTensorStack("a", "b"), NonTensorStack("c", "d")], 1),
        NonTensorStack.from_list([["a"], ["b", "c"]]),
        MetaData({"k": (1,)}),
    ],
)
@pytest.mark.parametrize(
    "copied", [copy.deepcopy, copy.copy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_copies_and_pickles_are_alike(entry, copied):
    other = copied(entry)
    assert type(other) is type(entry)
    assert other.batch_size == entry.batch_size
    assert other.tolist() == entry.tolist()


@pytest.mark.parametrize(
    "value",
    ["x", None, float("inf"), 2**80, (1, (2, "a")), {"a": (1,)}, [(1,), [2]], True],
)
def test_files_keep_what_json_can_say_and_tuples(tmp_path, value):
    td = TensorDict(batch_size=[2]).set_non_tensor("k", value)
    td.memmap(tmp_path)
    loaded = TensorDict.load_memmap(tmp_path, allow_pickle=False)
    assert loaded["k"] == value
    assert type(loaded["k"]) is type(value)
    assert loaded.get("k").batch_size == torch.Size([2])


def test_files_of_other_values_are_pickles_that_must_be_allowed(tmp_path):
    td = TensorDict(k={1, 2}, l=[{1}, {2}], batch_size=[2])
    td.memmap(tmp_path)
    with pytest.raises(RuntimeError, match="allow_pickle"):
        TensorDict.load_memmap(tmp_path, allow_pickle=False)
    loaded = TensorDict.load_memmap(tmp_path, allow_pickle=True)
    assert loaded["k"] == {1, 2}
    assert loaded["l"] == [{1}, {2}]


def test_classes_of_pytrees_need_no_pickle(tmp_path):
    td = TensorDict.from_pytree([torch.zeros(1), {"a": torch.ones(1)}])
    td.memmap(tmp_path)
    loaded = TensorDict.load_memmap(tmp_path, allow_pickle=False)
    assert isinstance(loaded.to_pytree(), list)


@pytest.mark.parametrize(
    "stack",
    [
        NonTensorStack("a", "b"),
        NonTensorStack([1], [2]),
        NonTensorStack((1,), [2]),
        torch.stack([NonTensorStack("a", "b"), NonTensorStack("c", "d")], 1),
        NonTensorStack.from_list([["a"], ["b", "c"]]),
        NonTensorStack(),
    ],
)
def test_stacks_keep_their_shape_in_files(tmp_path, stack):
    stack.memmap(tmp_path)
    loaded = NonTensorStack.load_memmap(tmp_path)
    assert loaded.batch_size == stack.batch_size
    assert loaded.tolist() == stack.tolist()
    assert loaded.stack_dim == stack.stack_dim


def test_metadata_that_names_another_file_is_refused(tmp_path):
    NonTensorStack({1}, {2}).memmap(tmp_path)
    meta = tmp_path / "meta.json"
    meta.write_text(meta.read_text().replace("pickle.pkl", "../secret.pkl"))
    with pytest.raises(ValueError, match=r"secret\.pkl"):
        NonTensorStack.load_memmap(tmp_path, allow_pickle=True)


def test_many_values_are_one_column():
    count = 20_000
    td = TensorDict(s=[str(at) for at in range(count)], batch_size=[count])
    stack = td.get("s")
    assert len(vars(stack)["_cells"]) == count
    assert not any(isinstance(cell, NonTensorData) for cell in stack._cells)
    assert td[torch.tensor([5, -1])]["s"] == ["5", str(count - 1)]


def test_importing_the_module_by_its_path_works_alone():
    code = "from tensordict.tensorclass import NonTensorData; print(NonTensorData('a').data)"
    assert check_freshly(code) == "a\n"


@pytest.mark.parametrize(
    "rows",
    [
        (),
        ("a", "b"),
        (NonTensorStack("a", "b"), NonTensorStack("c", "d")),
        (NonTensorStack("a"), NonTensorStack("b", "c")),
        (NonTensorStack(), NonTensorStack()),
        (NonTensorData("a", batch_size=[2]), NonTensorData("b", batch_size=[2])),
        (NonTensorData("a", batch_size=[0]), NonTensorData("b", batch_size=[0])),
        (MetaData("a"), MetaData("b")),
    ],
)
def test_a_stack_takes_the_whole_state_of_what_it_is_made_as(rows):
    source = stack_of(rows, 0)
    made = NonTensorStack(*rows)
    assert type(made) is type(source)
    assert vars(made).keys() == vars(source).keys()
    assert made.tolist() == source.tolist()


def column(values=("b", "a", "c")) -> TensorDict:
    return TensorDict(s=list(values), batch_size=[len(values)])


def test_reverse_and_sort_of_a_list_write_to_the_collection():
    td = column()
    values = td["s"]
    values.reverse()
    assert list(td["s"]) == list(values) == ["c", "a", "b"]
    values.sort(key=str.upper, reverse=True)
    assert list(td["s"]) == list(values) == ["c", "b", "a"]


def test_reverse_of_nested_lists_keeps_them_linked():
    td = TensorDict(s=[["a", "b"], ["c", "d"]], batch_size=[2])
    values = td["s"]
    values.reverse()
    values[0][0] = "z"
    assert td["s"].tolist() == [["z", "d"], ["a", "b"]]


def test_reverse_of_linked_rows_of_tensors():
    td = TensorDict(x=torch.arange(3), batch_size=[3])
    td.tolist(as_linked_list=True).reverse()
    assert td["x"].tolist() == [2, 1, 0]


@pytest.mark.parametrize(
    "change",
    [
        lambda values: values.append("x"),
        lambda values: values.extend([]),
        lambda values: values.insert(0, "x"),
        lambda values: values.pop(),
        lambda values: values.remove("a"),
        lambda values: values.clear(),
        lambda values: values.__delitem__(0),
        lambda values: values.__iadd__(["x"]),
        lambda values: values.__imul__(2),
    ],
)
def test_a_change_of_the_length_of_a_list_is_one_of_the_list_alone(change):
    td = column()
    values, expected = td["s"], ["b", "a", "c"]
    change(expected)
    with pytest.warns(UserWarning, match="The list is no longer linked"):
        change(values)
    assert list(values) == expected
    values.append("y")
    values[0] = "z"
    assert list(td["s"]) == ["b", "a", "c"]


def test_a_slice_of_a_list_takes_as_many_values_as_it_has():
    td = column()
    values = td["s"]
    with pytest.raises(RuntimeError, match="number of values"):
        values[0:1] = ["x", "y"]
    assert list(td["s"]) == list(values) == ["b", "a", "c"]


def test_a_copy_of_a_list_is_linked_to_a_copy_of_the_values():
    td = column()
    other = copy.deepcopy(td["s"])
    other.sort()
    assert (list(td["s"]), list(other)) == (["b", "a", "c"], ["a", "b", "c"])


ARRAYS = [
    (np.array(["a", "b"]), ["a", "b"]),
    (np.array(["a", None], dtype=object), ["a", None]),
    (np.array([b"a", b"b"]), [b"a", b"b"]),
    (np.array([1, 2], dtype="M8[s]"), [np.datetime64(i, "s") for i in (1, 2)]),
]


@pytest.mark.parametrize(("array", "values"), ARRAYS)
@pytest.mark.parametrize(
    "store",
    [
        lambda array: TensorDict(s=array, batch_size=[2]),
        lambda array: TensorDict.from_dict({"s": array}, batch_size=[2]),
        lambda array: TensorDict.from_dict({"s": array}, auto_batch_size=True),
        lambda array: TensorDict.from_any({"s": array}, batch_size=[2]),
        lambda array: TensorDict(batch_size=[2]).set("s", array),
        lambda array: TensorDict(batch_size=[2]).update({"s": array}),
        lambda array: column("xy").update_({"s": array}),
        lambda array: column("xy").set_("s", array),
        lambda array: column("xyz").set_at_("s", array, slice(1, None))[1:],
        lambda array: column("xyz").update_at_({"s": array}, slice(1, None))[1:],
        lambda array: LazyStackedTensorDict(TensorDict(), TensorDict()).set("s", array),
    ],
)
def test_an_array_of_rows_is_a_column(store, array, values):
    td = store(array)
    assert list(td["s"]) == values
    assert [td[row]["s"] for row in range(2)] == values


def test_an_array_that_is_not_of_the_rows_is_one_value():
    array = np.array(["a", "b", "c"])
    for td in (TensorDict(s=array), TensorDict(s=array, batch_size=[2])):
        assert td["s"] is array
    td = TensorDict(batch_size=[3]).set_non_tensor("s", array)
    assert td[0]["s"] is array


def test_the_further_dims_of_an_array_are_in_its_rows():
    td = TensorDict(s=np.array([["a", "b"], ["c", "d"]]), batch_size=[2])
    assert td[1]["s"].tolist() == ["c", "d"]


def test_non_tensor_classes_take_a_type_in_brackets():
    assert NonTensorData[int](1).data == 1
    assert MetaData[str]("x").data == "x"
    assert "__orig_class__" not in vars(NonTensorData[int](1))
