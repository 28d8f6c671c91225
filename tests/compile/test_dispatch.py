"""Modules called with tensors, and modules of options: one graph, as eager, compiled once."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tensordict import TensorDict
from tensordict.nn import (
    InteractionType,
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictModuleWrapper,
    TensorDictSequential,
    dispatch,
)


class Nested(nn.Module):
    """A module of its own keys."""

    in_keys = ["a", ("n", "b")]
    out_keys = ["sum", ("m", "difference")]

    @dispatch
    def forward(self, tensordict):
        a, b = tensordict["a"], tensordict["n", "b"]
        return tensordict.set("sum", a + b).set(("m", "difference"), a - b)


class Method(nn.Module):
    """A method of its own lists of keys, without a batch size."""

    source = ["a", ("n", "b")]
    target = [("n", "c")]

    @dispatch(separator=".", source="source", dest="target", auto_batch_size=False)
    def forward(self, tensordict):
        assert not tensordict.batch_size
        return tensordict.set(("n", "c"), tensordict["a"] * tensordict["n", "b"])


@dispatch(source=["a", "b"], dest=["c"])
def function(tensordict):
    return tensordict.set("c", tensordict["a"] + tensordict["b"])


def normal(loc, out, **options):
    return ProbabilisticTensorDictModule(
        {"loc": loc, "scale": "scale"},
        [out],
        distribution_class=torch.distributions.Normal,
        default_interaction_type=InteractionType.MEAN,
        return_log_prob=True,
        **options,
    )


def spread(a, b):
    return a + b, b.exp()


def half(a):
    return a / 2


def policy(*more):
    spreads = TensorDictModule(spread, ["a", "b"], ["loc", "scale"])
    return ProbabilisticTensorDictSequential(spreads, normal("loc", "x"), *more)


torch.manual_seed(0)
linear = TensorDictModule(nn.Linear(3, 3), ["b"], ["h"])
MODULES = {
    "nested": (Nested(), "_"),
    "method": (Method(), "."),
    "function": (function, "_"),
    "sequence": (
        TensorDictSequential(linear, TensorDictModule(torch.add, ["a", "h"], ["c"])),
        "_",
    ),
    "wrapper": (TensorDictModuleWrapper(TensorDictModule(half, ["a"], ["c"])), "_"),
    "strict": (TensorDictModule(torch.add, ["a", "b"], ["c"], strict=True), "_"),
    "policy": (policy(), "_"),
    "two values": (policy(normal("x", "y")), "_"),
}
"""The modules that are called, and what is between the parts of a nested key in a
name."""


def keys_of(module) -> list:
    if module is function:
        return ["a", "b"]
    return module.source if isinstance(module, Method) else module.in_keys


def by_position(name):
    module, _ = MODULES[name]
    return lambda tensors: module(*tensors)


def by_name(name):
    module, separator = MODULES[name]
    names = [
        key if isinstance(key, str) else separator.join(key) for key in keys_of(module)
    ]
    return lambda tensors: module(**dict(zip(names, tensors, strict=True)))


def tensors_for(name, *size):
    return [torch.rand(*size) for _ in keys_of(MODULES[name][0])]


@pytest.fixture
def graphs():
    torch._dynamo.reset()
    return []


def compiled_with(graphs, called):
    def backend(graph, _inputs):
        graphs.append(graph)
        return graph.forward

    return torch.compile(called, backend=backend, fullgraph=True)


@pytest.mark.parametrize("form", [by_position, by_name])
@pytest.mark.parametrize("name", MODULES)
def test_calls_with_tensors_are_as_eager_and_compiled_once(name, form, graphs):
    called = form(name)
    compiled = compiled_with(graphs, called)
    given = [tensors_for(name, 4, 3) for _ in range(3)]
    torch.testing.assert_close(compiled(given[0]), called(given[0]))
    first = len(graphs)
    with torch.compiler.set_stance("fail_on_recompile"):
        for tensors in given[1:]:
            torch.testing.assert_close(compiled(tensors), called(tensors))
    assert len(graphs) == first == 1


@pytest.mark.parametrize("name", MODULES)
def test_calls_with_collections_are_compiled_once_for_each_structure(name, graphs):
    module, _ = MODULES[name]
    compiled = compiled_with(graphs, lambda td: module(td))

    def made(*more):
        td = TensorDict({key: torch.rand(4, 3) for key in (*more, "z")})
        for key in keys_of(MODULES[name][0]):
            td[key] = torch.rand(4, 3)
        return td

    for number, more in enumerate([(), ("o",), ("o", "p")]):
        td = made(*more)
        expected = module(td.copy())
        found = compiled(td.copy())
        torch.testing.assert_close(
            found.flatten_keys().to_dict(), expected.flatten_keys().to_dict()
        )
        assert len(graphs) <= number + 1
        with torch.compiler.set_stance("fail_on_recompile"):
            compiled(made(*more))
            compiled(made())


def test_another_form_of_a_call_is_compiled_once_more(graphs):
    module = MODULES["policy"][0]
    compiled = compiled_with(graphs, lambda *args, **kwargs: module(*args, **kwargs))
    a, b = torch.rand(4, 3), torch.rand(4, 3)
    for _ in range(2):
        for found in (compiled(a, b), compiled(a=a, b=b), compiled(a, b=b)):
            torch.testing.assert_close(found, module(a, b))
    assert len(graphs) == 3
