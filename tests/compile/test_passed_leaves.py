"""Leaves that a compiled function only passes on: no inputs of its graph, and the same objects."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.variables.builder import VariableBuilder

from tensordict import TensorDict, UnbatchedTensor
from tensordict.compile import rules
from tensordict.primitives.leaf_loops import special_keys


def tree() -> TensorDict:
    entries = {
        "a": torch.arange(3.0),
        "b": torch.ones(3, 2),
        "c": torch.nn.Parameter(torch.zeros(3)),
        "n": {"x": torch.zeros(3), "y": torch.ones(3)},
    }
    return TensorDict(entries, [3])


def swapped(td):
    new = td.clone(False)
    td["a"] = td["b"]
    td["b"] = new["a"]
    return new


def replaced_below(td):
    new = td.clone(False)
    td.set("a", new["n", "x"])
    td["n", "x"] = td["n", "y"]
    return new, td.flatten_keys(".")


def written_in_place(td):
    new = td.clone(False)
    new["a"].add_(1)
    return new.select("a", "b"), new["a"] + td["a"]


def popped(td):
    new = td.clone(False)
    del td["a"]
    new["n"].pop("x")
    return new


def locked(td):
    return td.lock_().clone(False).update({"a": td["a"]})


def listed(td):
    return list(td.keys(True, True)), [*td.values()][0], dict(td.items()), td.to_dict()


FUNCTIONS = [swapped, replaced_below, written_in_place, popped, locked, listed]


def described(value, known):
    """Describe a value, with the name of each tensor that is an object of ``known``."""
    if isinstance(value, TensorDict):
        rest = {key: described(entry, known) for key, entry in value.items()}
        return list(value.batch_size), value.is_locked, rest
    if isinstance(value, dict):
        return {key: described(entry, known) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [described(entry, known) for entry in value]
    if isinstance(value, torch.Tensor):
        names = [name for name, tensor in known.items() if tensor is value]
        return type(value), names, value.tolist()
    return value


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_they_are_those_of_the_plain_call(function):
    torch._dynamo.reset()
    answers = []
    for call in (function, torch.compile(function, backend="eager", fullgraph=True)):
        td = tree()
        known = dict(td.items(True, True))
        answers.append((described(call(td), known), described(td, known)))
    assert answers[0] == answers[1]


@pytest.mark.skipif(
    not rules.install("leaf_loop_rules"), reason="this Dynamo takes no rule"
)
@pytest.mark.parametrize(
    "function",
    [
        lambda td: td.clone(False).set("new", td["a"] + 1),
        lambda td: td.flatten_keys(".").update({"a": td["a"] + 1}),
    ],
)
def test_they_are_no_inputs(function):
    inputs = []

    def backend(graph, examples):
        inputs.append(len(examples))
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(function, backend=backend, fullgraph=True)
    compiled(tree())
    assert inputs == [1]
    other = tree()
    other["b"] = torch.rand(3, 5)
    other["n", "y"] = torch.rand(3, 5, dtype=torch.float64)
    with torch.compiler.set_stance("fail_on_recompile"):
        found = compiled(other)
    assert found["b"] is other["b"]


@pytest.mark.parametrize(
    "value",
    [
        torch.nn.Parameter(torch.ones(3)),
        TensorDict({"z": torch.rand(3)}, [3]),
        UnbatchedTensor(torch.rand(7)),
    ],
    ids=["parameter", "nested", "unbatched"],
)
def test_another_kind_of_entry_is_another_program(value):
    def function(td):
        return td.clone(False)

    torch._dynamo.reset()
    compiled = torch.compile(function, backend="eager", fullgraph=True)
    compiled(tree())
    td = tree().set("b", value)
    found = compiled(td)
    assert type(found["b"]) is type(td["b"])
    assert (found["b"] is td["b"]) is not isinstance(value, TensorDict)


def test_special_keys_are_those_of_no_plain_tensor():
    td = tree()
    held = {"n": td, "a": td["a"], "u": UnbatchedTensor(torch.rand(2)), "c": td["c"]}
    assert special_keys(held) == ["n", "u"]
    assert special_keys({"a": td["a"]}) == []


def test_without_its_rule_the_loop_is_interpreted(monkeypatch):
    torch._dynamo.reset()
    expected = torch.compile(locked, backend="eager", fullgraph=True)(tree())
    monkeypatch.delitem(VariableBuilder._id_dispatch(), id(special_keys))
    torch._dynamo.reset()
    found = torch.compile(locked, backend="eager", fullgraph=True)(tree())
    assert described(found, {}) == described(expected, {})
