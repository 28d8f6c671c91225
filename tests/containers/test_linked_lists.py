"""The list that a column of values is read as: how it is read, and what changes it."""

import pytest
import torch

from tensordict import LazyStackedTensorDict, TensorClass, TensorDict, lazy_stack


class Row(TensorClass):
    s: str


def column():
    return TensorDict(s=["b", "a", "c"], batch_size=[3])


def stacked():
    return lazy_stack([TensorDict(s=text) for text in "bac"])


READS = {
    "item": (column, lambda td: td["s"]),
    "nested": (
        lambda: TensorDict(n=column(), batch_size=[3]),
        lambda td: td["n", "s"],
    ),
    "rows": (column, lambda td: td[:]["s"]),
    "stack": (stacked, lambda td: td["s"]),
    "field": (lambda: Row(s=["b", "a", "c"], batch_size=[3]), lambda row: row.s),
    "field of a stack": (
        lambda: lazy_stack([Row(s=text) for text in "bac"]),
        lambda row: row.s,
    ),
    "row of two dims": (
        lambda: TensorDict(s=[["b", "a", "c"], ["d", "e", "f"]], batch_size=[2, 3]),
        lambda td: td["s"][0],
    ),
    "without a batch": (lambda: TensorDict(s=["b", "a", "c"]), lambda td: td["s"]),
}

LENGTHS = {
    "append": lambda values: values.append("x"),
    "extend": lambda values: values.extend(["x"]),
    "insert": lambda values: values.insert(0, "x"),
    "pop": lambda values: values.pop(),
    "remove": lambda values: values.remove("a"),
    "clear": lambda values: values.clear(),
    "del": lambda values: values.__delitem__(slice(0, 2)),
    "+=": lambda values: values.__iadd__(["x"]),
    "*=": lambda values: values.__imul__(2),
}


@pytest.mark.parametrize("read", READS)
def test_a_change_of_the_length_is_never_silent(read):
    make, values_of = READS[read]
    td = make()
    for name, change in LENGTHS.items():
        values = values_of(td)
        with pytest.warns(UserWarning, match="not the collection, which holds a value"):
            change(values)
        assert list(values_of(td)) == ["b", "a", "c"], name


@pytest.mark.parametrize("read", READS)
def test_values_and_their_order_are_those_of_the_collection(read):
    make, values_of = READS[read]
    td = make()
    values_of(td)[1] = "z"
    assert list(values_of(td)) == ["b", "z", "c"]
    values_of(td).sort()
    assert list(values_of(td)) == ["b", "c", "z"]
    values_of(td).reverse()
    assert list(values_of(td)) == ["z", "c", "b"]
    values_of(td)[:2] = ["x", "y"]
    assert list(values_of(td)) == ["x", "y", "b"]


def test_a_class_that_keeps_more_values_in_the_list_goes_on():
    # Trees of a search note a further parent so, with a value for each of their rows.
    rows = LazyStackedTensorDict.lazy_stack([Row(s="a"), Row(s="b")])
    with pytest.warns(UserWarning, match="append changes a list"):
        rows.s.append("c")
    assert torch.stack([rows, rows]).shape == (2, 2)
    assert list(rows.s) == ["a", "b"]


def test_a_row_that_is_set_in_a_list_of_two_dims_is_linked():
    td = TensorDict(s=[["b", "a"], ["c", "d"]], batch_size=[2, 2])
    rows = td["s"]
    rows[0] = ["x", "y"]
    rows[0][1] = "z"
    assert td["s"] == rows == [["x", "z"], ["c", "d"]]
