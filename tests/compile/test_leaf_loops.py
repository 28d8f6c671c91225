"""The loop over leaves gives the same graph by its rule as if it is interpreted."""

from __future__ import annotations

import pytest
import torch
import torch.utils._pytree
from torch._dynamo.variables.builder import VariableBuilder
from torch.fx.node import map_arg

from tensordict import TensorDict, UnbatchedTensor
from tensordict.interop import leaf_loops
from tensordict.interop.leaf_loops import install_rules, on_plain

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
}


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
    """What compiled code gives, and the calls in its graph."""
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


@pytest.mark.skipif(not install_rules(), reason="this Dynamo takes no rule")
@pytest.mark.parametrize("kind", ["flat", "nested", "unbatched", "empty"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_rule_makes_the_graph_of_the_loop(name, kind, monkeypatch):
    function, td = FUNCTIONS[name], tree(kind)
    assert is_there()
    by_rule, calls = traced(function, td)
    monkeypatch.delitem(VariableBuilder._id_dispatch(), id(on_plain))
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
    rules = dict(VariableBuilder._id_dispatch())
    monkeypatch.delattr(VariableBuilder, "_id_dispatch")
    assert not install_rules()
    monkeypatch.undo()
    assert VariableBuilder._id_dispatch() == rules


def test_others_are_left_out():
    td = tree("nested")
    nested = torch.nested.nested_tensor([torch.rand(2), torch.rand(3)])
    held = {"n": td, "a": torch.rand(3, 2), "j": nested, "p": (nested, nested)}
    found, others = on_plain(held, "view", ((3,),), leaf_loops.SHAPE_TAIL, 1)
    assert list(found) == list(held)
    assert others == ["n", "j", "p"]
    assert all(found[key] is None for key in others)
    assert found["a"].shape == (3, 2)
