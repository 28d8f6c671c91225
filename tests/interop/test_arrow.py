"""Tables of Apache Arrow: answers of the release are in ``tests/parity/cases_arrow.py``."""

import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nested import nested_tensor

from tensordict import LazyStackedTensorDict, TensorDict, from_arrow, to_arrow

pa = pytest.importorskip("pyarrow")

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.float32,
    torch.float64,
]


@given(
    rows=st.integers(0, 4),
    shape=st.lists(st.integers(1, 3), max_size=2),
    dtype=st.sampled_from(DTYPES),
    is_transposed=st.booleans(),
)
def test_a_table_gives_back_what_it_was_made_of(rows, shape, dtype, is_transposed):
    leaf = (
        torch.arange(rows * torch.Size(shape).numel()).reshape(rows, *shape).to(dtype)
    )
    if is_transposed:
        leaf = leaf.transpose(0, -1).contiguous().transpose(0, -1)
    td = TensorDict(
        {"a": leaf, "n": {"b": leaf, "m": {}}, "s": [str(i) for i in range(rows)]}
        if rows
        else {"a": leaf, "n": {"b": leaf}},
        batch_size=[rows],
    )
    back = from_arrow(to_arrow(td))
    assert back.batch_size == td.batch_size
    assert list(back.keys(True)) == list(td.keys(True))
    for key in ("a", ("n", "b")):
        assert back[key].dtype == dtype
        assert torch.equal(back[key], td[key])
    if rows:
        assert back["s"] == td["s"]


def test_ragged_leaves_are_lists():
    rows = [torch.arange(2.0), torch.arange(0.0), torch.arange(3.0)]
    td = TensorDict(a=nested_tensor(rows, layout=torch.jagged), batch_size=[3])
    table = to_arrow(td)
    assert table.column("a").to_pylist() == [row.tolist() for row in rows]
    back = from_arrow(table.slice(1, 2))["a"]
    assert [row.tolist() for row in back.unbind()] == [row.tolist() for row in rows[1:]]


def test_ragged_leaves_with_holes_between_their_rows():
    whole = torch.arange(8.0).view(2, 4)
    narrow = torch.nested.narrow(
        whole, 1, torch.tensor([1, 0]), torch.tensor([2, 3]), layout=torch.jagged
    )
    table = to_arrow(TensorDict(a=narrow, batch_size=[2]))
    assert table.column("a").to_pylist() == [[1.0, 2.0], [4.0, 5.0, 6.0]]


def test_memory_is_shared_unless_a_copy_is_asked_for():
    leaf = torch.arange(3)
    table = to_arrow(TensorDict(a=leaf, batch_size=[3]))
    assert from_arrow(table)["a"].data_ptr() == leaf.data_ptr()
    assert from_arrow(table, copy=True)["a"].data_ptr() != leaf.data_ptr()


def test_a_tensor_keeps_the_memory_of_its_table_alive():
    td = from_arrow(pa.table({"a": pa.array(range(1000), pa.int64())}))
    assert td["a"].sum() == 499500


def test_reading_warns_of_nothing(recwarn):
    from_arrow(pa.table({"a": [1, 2]}))
    assert not [warning for warning in recwarn if "writable" in str(warning.message)]


def test_columns_of_one_name_are_refused():
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(ValueError, match=r"several columns of the names \['a'\]"):
        from_arrow(table)


def test_keys_that_some_members_lack_are_refused():
    stack = LazyStackedTensorDict(TensorDict(a=1, b=2), TensorDict(a=1, c=2))
    with pytest.raises(ValueError, match=r"only some members have \['b', 'c'\]"):
        to_arrow(stack)


def test_what_is_no_collection_is_refused():
    with pytest.raises(TypeError, match="expects a tensor collection, got a dict"):
        to_arrow({"a": 1})


@pytest.mark.parametrize("call", [to_arrow, from_arrow])
def test_without_pyarrow_the_error_says_what_to_install(call, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(
        ImportError, match=f"{call.__name__} needs .*pip install pyarrow"
    ):
        call(TensorDict(a=torch.zeros(2), batch_size=[2]))


@pytest.mark.parametrize(
    "column",
    [
        pa.array([[("k", None)]], pa.map_(pa.string(), pa.int64())),
        pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array(["x", None])),
        pa.array([[1, None]], pa.list_view(pa.int64())),
    ],
    ids=["map", "dictionary", "view"],
)
def test_a_null_inside_a_value_is_warned_of(column):
    table = pa.table({"a": column})
    with pytest.warns(FutureWarning, match="got a null inside a map"):
        values = from_arrow(table).get("a").tolist()
    assert from_arrow(table, nulls="fill").get("a").tolist() == values
