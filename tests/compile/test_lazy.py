"""``torch.compile(fullgraph=True)`` of lazy stacks: results are those of eager calls."""

from __future__ import annotations

import pytest
import torch

from compiled_together import in_groups, on_one
from tensordict import LazyStackedTensorDict, TensorDict, lazy_stack

FUNCTIONS = {
    "get": lambda td: td.get("a") + 1,
    "get_nested": lambda td: td["n", "b"],
    "get_missing": lambda td: td.get("missing") is None,
    "get_list": lambda td: td.get("a", as_list=True),
    "get_padded": lambda td: td.get("a", as_padded_tensor=True),
    "batch_size": lambda td: td.batch_size,
    "keys": lambda td: list(td.keys(True, True)),
    "items": lambda td: [value.sum() for _, value in td.items(True, True)],
    "iterate": lambda td: [member["a"] for member in td],
    "index_member": lambda td: td[1],
    "index_slice": lambda td: td[1:],
    "index_list": lambda td: td[[2, 0]],
    "index_inner": lambda td: td[:, 0],
    "set_index": lambda td: (copy := td.clone(), copy.__setitem__(0, copy[1]))[0],
    "lazy_stack": lambda td: lazy_stack([td[0], td[1]]),
    "lazy_stack_last": lambda td: lazy_stack([td[0], td[1]], 1),
    "stack": lambda td: torch.stack([td, td + 1]),
    "cat": lambda td: torch.cat([td, td + 1]),
    "maybe_dense_stack": lambda td: TensorDict.maybe_dense_stack([td[0], td[1]]),
    "contiguous": lambda td: td.contiguous(),
    "densify": lambda td: td.densify(),
    "to_dict": lambda td: td.to_dict(),
    "apply": lambda td: td.apply(lambda x: x + 1),
    "named_apply": lambda td: td.named_apply(lambda key, x: x + len(key)),
    "add": lambda td: td + 1,
    "arithmetic": lambda td: (td * td - 2) / 3,
    "in_place": lambda td: td.clone().mul_(2),
    "compare": lambda td: td == td,
    "where": lambda td: td.where(torch.tensor([True, False, True]), td + 1),
    "sum": lambda td: td.sum(),
    "clone": lambda td: td.clone(),
    "clone_structure": lambda td: td.clone(False),
    "to_dtype": lambda td: td.to(torch.float64),
    "set": lambda td: td.clone().set("z", td["a"] * 2),
    "update": lambda td: td.clone().update({"a": td["a"] + 1}),
    "select": lambda td: td.select("a"),
    "exclude": lambda td: td.exclude("a"),
    "flatten_keys": lambda td: td.flatten_keys("."),
    "append": lambda td: (copy := td.clone(), copy.append(td[0] + 1))[0],
    "unbind": lambda td: td.unbind(0),
    "unbind_inner": lambda td: td.unbind(1),
    "split": lambda td: td.split(2),
    "permute": lambda td: td.permute(1, 0),
    "unsqueeze": lambda td: td.unsqueeze(0),
    "reshape": lambda td: td.reshape(-1),
    "expand": lambda td: td.expand(2, 3, 2),
}


def make(stack_dim: int = 0) -> LazyStackedTensorDict:
    members = [
        TensorDict(
            {"a": torch.arange(2.0) + at, "n": {"b": torch.full((2, 3), float(at))}},
            [2],
        )
        for at in range(3)
    ]
    return lazy_stack(members, stack_dim)


def assert_same(result, expected):
    assert type(result) is type(expected)
    if isinstance(expected, (list, tuple)):
        assert len(result) == len(expected)
        for ours, eager in zip(result, expected, strict=True):
            assert_same(ours, eager)
    elif isinstance(expected, dict):
        assert list(result) == list(expected)
        assert_same(list(result.values()), list(expected.values()))
    elif isinstance(expected, (TensorDict, LazyStackedTensorDict)):
        assert result.batch_size == expected.batch_size
        assert list(result.keys(True)) == list(expected.keys(True))
        assert (result == expected).all()
    elif isinstance(expected, torch.Tensor):
        torch.testing.assert_close(result, expected)
    else:
        assert result == expected


@pytest.mark.parametrize("functions", in_groups(FUNCTIONS))
def test_compiled_stack_agrees_with_eager(functions):
    torch._dynamo.reset()
    function = on_one(functions)
    compiled = torch.compile(function, fullgraph=True, backend="eager")
    assert_same(compiled(make()), function(make()))


@pytest.mark.parametrize("name", ["get", "contiguous", "add", "clone", "apply"])
def test_compiled_stack_along_an_inner_dim(name):
    torch._dynamo.reset()
    function = FUNCTIONS[name]
    compiled = torch.compile(function, fullgraph=True, backend="eager")
    assert_same(compiled(make(1)), function(make(1)))
