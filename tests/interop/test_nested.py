"""Nested tensors of both layouts, and lazy stacks."""

import pytest
import torch

from tensordict import TensorDict, lazy_stack, to_nested

LAYOUTS = pytest.mark.parametrize("layout", [torch.jagged, torch.strided], ids=str)
ROWS = [torch.arange(2), torch.arange(3)]


def stack():
    rows = [
        TensorDict({"a": row, "b": torch.ones(2), "s": f"{len(row)}", "n": {"a": row}})
        for row in ROWS
    ]
    made = lazy_stack(rows)
    made.names = ["row"]
    return made


@LAYOUTS
def test_a_stack_and_back(layout):
    td = to_nested(stack(), layout=layout)
    assert td.batch_size == (2,)
    assert td.names == ["row"]
    for key in ("a", ("n", "a")):
        assert td[key].layout is layout
        assert all(map(torch.equal, td[key].unbind(), ROWS))
    assert td["b"].shape == (2, 2)
    assert not td["b"].is_nested
    back = td.to_lazystack(0)
    for row, other in zip(stack().unbind(0), back.unbind(0), strict=True):
        assert torch.equal(row["a"], other["a"])
        assert torch.equal(row["n", "a"], other["n", "a"])
        assert row["s"] == other["s"]


@LAYOUTS
def test_a_collection_takes_the_layout(layout):
    td = TensorDict(
        {
            "a": torch.nested.nested_tensor(ROWS, layout=torch.strided),
            "n": {"b": torch.nested.nested_tensor(ROWS, layout=torch.jagged)},
            "c": torch.ones(2),
        },
        [2],
    )
    made = to_nested(td, layout=layout)
    for key in ("a", ("n", "b")):
        assert made[key].layout is layout
        assert all(map(torch.equal, made[key].unbind(), ROWS))
    assert made["c"] is td["c"]
    assert td["a"].layout is torch.strided
    assert to_nested(made, layout=layout) is made


def test_gradients_pass():
    leaf = torch.ones(2, requires_grad=True)
    td = to_nested(lazy_stack([TensorDict(a=leaf), TensorDict(a=torch.ones(3))]))
    td["a"].values().sum().backward()
    assert leaf.grad.tolist() == [1.0, 1.0]


@LAYOUTS
def test_sizes_and_numpy(layout):
    nested = torch.nested.nested_tensor(ROWS, layout=layout)
    td = TensorDict.from_any({"a": nested}, auto_batch_size=True)
    assert td.batch_size == (2,)
    arrays = td.numpy()["a"]
    assert [array.tolist() for array in arrays] == [[0, 1], [0, 1, 2]]
    assert td.to_dict(convert_tensors=True)["a"] == [[0, 1], [0, 1, 2]]
    with pytest.raises(TypeError, match="'a'.*pad"):
        td.to_struct_array()


def test_what_is_refused():
    with pytest.raises(ValueError, match="torch.jagged or torch.strided"):
        to_nested(TensorDict(), layout=torch.sparse_coo)
    wide = lazy_stack([TensorDict(a=torch.ones(1, 2)), TensorDict(a=torch.ones(2, 3))])
    with pytest.raises(RuntimeError, match=r"'a'.*\(1, 2\)"):
        to_nested(wide)
    assert to_nested(wide, layout=torch.strided)["a"].is_nested
    other = lazy_stack([TensorDict(a=torch.ones(1)), TensorDict(b=torch.ones(1))])
    with pytest.raises(KeyError, match="'a', 'b'"):
        to_nested(other)
    with pytest.raises(TypeError, match="collection"):
        to_nested([])
