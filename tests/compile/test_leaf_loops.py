"""The loop over leaves gives the same graph by its rule as if it is interpreted."""

from __future__ import annotations

import pytest
import torch
import torch.utils._pytree
from torch._dynamo.variables import ConstDictVariable
from torch._dynamo.variables.builder import VariableBuilder
from torch.fx.node import map_arg

from compiled_together import on_one
from tensordict import TensorDict, UnbatchedTensor
from tensordict.compile import rules
from tensordict.primitives.common import SHAPE_TAIL
from tensordict.primitives.leaf_loops import (
    all_begin_with,
    on_plain,
    picked,
    special_keys,
)

FUNCTIONS = {
    "index": lambda td: td[0],
    "slice": lambda td: td[1:, 0],
    "view": lambda td: td.view(-1),
    "reshape": lambda td: td.reshape(3, 4),
    "permute": lambda td: td.permute(1, 0),
    "expand": lambda td: td.expand(2, 4, 3),
    "squeeze": lambda td: td.unsqueeze(1).squeeze(1),
    "flatten": lambda td: td.flatten(0, 1).unflatten(0, (4, 3)),
    "stack": lambda td: torch.stack([td, td], 1),
    "cat": lambda td: torch.cat([td, td], 0),
    "to": lambda td: td.to(torch.float64),
    "clone": lambda td: td.clone(),
    "zeros": torch.zeros_like,
    "split": lambda td: td.split(2),
    "unbind": lambda td: td.unbind(1),
    "sum": lambda td: td.sum(dim=0),
    "max": lambda td: td.amax(dim=1),
    "apply": lambda td: td.apply(lambda leaf: leaf + 1, filter_empty=False),
    "reshaped": lambda td: td.apply(
        lambda leaf: leaf.unsqueeze(-1), filter_empty=False
    ),
    "select": lambda td: td.select(*list(td.keys())[::-1]),
}

RULES = (on_plain, special_keys, picked, all_begin_with)


def tree(kind: str) -> TensorDict:
    generator = torch.Generator().manual_seed(0)

    def leaf(*more: int) -> torch.Tensor:
        return torch.rand(4, 3, *more, generator=generator)

    entries = {"a": leaf(), "b": leaf(2, 5), "c": leaf(5)}
    if kind == "nested":
        entries = {"n": {"a": leaf(2), "m": {"b": leaf()}}, **entries, "e": {}}
    if kind == "unbatched":
        entries["u"] = UnbatchedTensor(torch.rand(7, generator=generator))
    return TensorDict({} if kind == "empty" else entries, [4, 3])


def traced(function, td):
    """Return the result of compiled code, and the calls in its graph."""
    calls = []

    def backend(graph, _inputs):
        places = {node: f"%{place}" for place, node in enumerate(graph.graph.nodes)}
        calls.extend(
            (node.op, node.target, map_arg(node.args, places.get), dict(node.kwargs))
            for node in graph.graph.nodes
            if node.op in ("call_function", "call_method")
        )
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(function, backend=backend, fullgraph=True)
    found = compiled(td)
    with torch.compiler.set_stance("fail_on_recompile"):
        compiled(td.clone())
    return found, calls


def flattened(call: tuple) -> tuple:
    """A call with its numbers alone: they may be passed as a size, or one by one."""
    op, target, args, kwargs = call
    return op, target, torch.utils._pytree.tree_leaves(args), kwargs


def agree(left, right) -> bool:
    if isinstance(left, dict):
        return list(left) == list(right) and agree([*left.values()], [*right.values()])
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(agree, left, right))
    return (
        type(left) is type(right)
        and left.batch_size == right.batch_size
        and list(left.keys(True)) == list(right.keys(True))
        and bool((left == right).all())
    )


def is_there() -> bool:
    return id(on_plain) in VariableBuilder._id_dispatch()


@pytest.mark.skipif(
    not rules.install("leaf_loop_rules"), reason="this Dynamo takes no rule"
)
@pytest.mark.parametrize("kind", ["flat", "nested", "unbatched", "empty"])
def test_the_rule_makes_the_graph_of_the_loop(kind, monkeypatch):
    function, td = on_one(FUNCTIONS), tree(kind)
    assert is_there()
    by_rule, calls = traced(function, td)
    for each in RULES:
        monkeypatch.delitem(VariableBuilder._id_dispatch(), id(each))
    interpreted, expected = traced(function, td)
    assert [*map(flattened, calls)] == [*map(flattened, expected)]
    assert agree(by_rule, interpreted)
    assert agree(by_rule, function(td))


def test_sizes_that_are_not_known_are_interpreted():
    def function(td):
        return td.view(-1)

    torch._dynamo.reset()
    compiled = torch.compile(function, backend="eager", fullgraph=True, dynamic=True)
    for length in (4, 6, 9):
        td = TensorDict({"a": torch.rand(length, 3, 2, length)}, [length, 3])
        assert agree(compiled(td), function(td))


def test_a_leaf_that_refuses_is_an_error():
    def function(td):
        return td.view(-1)

    td = TensorDict({"a": torch.rand(4, 3), "b": torch.rand(3, 4).t()}, [4, 3])
    torch._dynamo.reset()
    with pytest.raises(Exception, match="view"):
        torch.compile(function, backend="eager", fullgraph=True)(td)


def test_without_the_internals_there_is_no_rule(monkeypatch):
    before = dict(VariableBuilder._id_dispatch())
    monkeypatch.delattr(VariableBuilder, "_id_dispatch")
    assert not rules.install("leaf_loop_rules")
    monkeypatch.undo()
    assert VariableBuilder._id_dispatch() == before


def test_others_are_left_out():
    td = tree("nested")
    nested = torch.nested.nested_tensor([torch.rand(2), torch.rand(3)])
    held = {"n": td, "a": torch.rand(3, 2), "j": nested, "p": (nested, nested)}
    found, others = on_plain(held, "view", ((3,),), SHAPE_TAIL, 1)
    assert list(found) == list(held)
    assert others == ["n", "j", "p"]
    assert all(found[key] is None for key in others)
    assert found["a"].shape == (3, 2)


def test_entries_are_picked_in_order_or_not_at_all():
    held = {"a": torch.rand(2), "b": torch.rand(3)}
    assert list(picked(held, ("b", "a"))) == ["b", "a"]
    assert picked(held, ("a", "c")) is None
    assert picked(held, (("a",),)) is None


def test_plain_tensors_begin_with_a_size():
    size = torch.Size([3])
    plain = torch.rand(3, 2)
    nested = torch.nested.nested_tensor([torch.rand(2)] * 3)
    assert all_begin_with({"a": plain, "b": plain[:, 0]}, size)
    for other in (None, plain.t(), torch.nn.Parameter(plain), nested, tree("flat")):
        assert not all_begin_with({"a": plain, "b": other}, size)


def appended(td):
    """The order of the calls, and what is made of them."""
    sizes = []

    def call(leaf):
        sizes.append(leaf.shape[-1])
        return leaf * 2

    return td.apply(call), sizes


@pytest.mark.parametrize("names", [["a", "n"], ["n", "a"], ["a", "n", "b"]])
def test_apply_calls_in_the_order_of_the_keys(names):
    td = tree("nested").select(*names)
    torch._dynamo.reset()
    compiled = torch.compile(appended, backend="eager", fullgraph=True)
    (result, sizes), (expected, order) = compiled(td), appended(td)
    assert sizes == order
    assert agree(result, expected)


@pytest.mark.parametrize(
    "function",
    [
        lambda leaf: leaf if leaf.ndim == 2 else None,
        lambda leaf: None,
        lambda leaf: TensorDict({"z": leaf}, [4, 3]),
        lambda leaf: torch.nn.Parameter(leaf) if leaf.ndim == 2 else leaf,
        lambda leaf: leaf.sum(-1) if leaf.ndim > 2 else leaf,
    ],
    ids=["some", "none", "containers", "parameters", "sums"],
)
@pytest.mark.parametrize("kind", ["flat", "nested", "unbatched", "empty"])
def test_apply_of_what_is_no_plain_result(function, kind):
    td = tree(kind)

    def apply(td):
        return td.apply(function)

    torch._dynamo.reset()
    expected, found = (
        apply(td),
        torch.compile(apply, backend="eager", fullgraph=True)(td),
    )
    if expected is None:
        assert found is None
    else:
        assert agree(found, expected)


def test_apply_refuses_what_does_not_fit():
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda td: td.apply(lambda leaf: leaf.sum(0)), backend="eager", fullgraph=True
    )
    with pytest.raises(Exception, match="batch dimension mismatch"):
        compiled(tree("flat"))


@pytest.mark.skipif(
    not hasattr(ConstDictVariable, "NOT_CONTAINS_GUARD"), reason="an older Dynamo"
)
def test_select_asks_only_for_its_keys():
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda td: td.select("c", "a"), backend="eager", fullgraph=True
    )
    compiled(tree("flat"))
    td = tree("flat").set("d", torch.zeros(4, 3)).set("a", torch.zeros(4, 3, 7))
    with torch.compiler.set_stance("fail_on_recompile"):
        assert list(compiled(td).keys()) == ["c", "a"]
    del td["a"]
    with pytest.raises(Exception, match="a"):
        compiled(td)
