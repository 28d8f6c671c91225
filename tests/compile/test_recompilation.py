"""Calls with other values, or with other keys, are compiled at most once each."""

from __future__ import annotations

import pytest
import torch

from tensordict import (
    LazyStackedTensorDict,
    TensorDict,
    TensorDictParams,
    lazy_stack,
    tensorclass,
)
from tensordict.nn import (
    NormalParamExtractor,
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictSequential,
)


@tensorclass
class Point:
    x: torch.Tensor
    y: torch.Tensor
    label: str = "none"


def dense(*more: str) -> TensorDict:
    entries = {key: torch.rand(4, 3) for key in ("a", "b", *more)}
    return TensorDict({**entries, "n": {"x": torch.rand(4, 2)}}, [4])


def lazy(*more: str) -> LazyStackedTensorDict:
    return lazy_stack([dense(*more), dense(*more)])


def point(*more: str) -> Point:
    return Point(torch.rand(4), torch.rand(4), *more, batch_size=[4])


module = TensorDictModule(torch.nn.Linear(3, 3), ["a"], ["out"])
sequence = TensorDictSequential(
    module, TensorDictModule(torch.nn.Tanh(), ["out"], [("n", "out")])
)
net = torch.nn.Sequential(torch.nn.Linear(3, 6), NormalParamExtractor())
probabilistic = ProbabilisticTensorDictSequential(
    TensorDictModule(net, ["a"], ["loc", "scale"]),
    ProbabilisticTensorDictModule(
        ["loc", "scale"],
        ["sample"],
        distribution_class=torch.distributions.Normal,
        return_log_prob=True,
    ),
)


def doubled(leaf):
    return leaf * 2


CASES = {
    "module": (dense, lambda td: module(td)),
    "sequence": (dense, lambda td: sequence(td)),
    "probabilistic": (dense, lambda td: probabilistic(td)),
    "arithmetic": (dense, lambda td: td * 2 + td),
    "apply": (dense, lambda td: td.apply(doubled)),
    "apply of two": (dense, lambda td: td.apply(torch.add, td)),
    "index": (dense, lambda td: (td[0], td[1:], td[torch.tensor([0, 2])])),
    "write": (dense, lambda td: td.clone(False).update({"a": td["a"] * 2})),
    "lock": (dense, lambda td: td.lock_().unlock_()),
    "truth": (dense, lambda td: ((td == td).all(), (td != td).any())),
    "lazy index": (lazy, lambda td: (td[0], td[:, 1])),
    "lazy arithmetic": (lazy, lambda td: td * 2 + td),
    "lazy entry": (lazy, lambda td: td["a"] + td["n", "x"].sum()),
    "lazy removal": (lazy, lambda td: (td.popitem(), td.rename_key_("a", "z"))),
    "lock of a nested stack": (
        lambda *more: TensorDict({"n": lazy(*more)}, [2]),
        lambda td: td.lock_().is_locked,
    ),
    "lazy write": (lazy, lambda td: td.set("a", td["b"] + 1)),
    "class fields": (point, lambda data: (data.x + data.y, data.label)),
    "class index": (point, lambda data: data[1:]),
    "class": (point, lambda data: Point(data.x, data.y, batch_size=[4]) + 1),
}


@pytest.mark.parametrize("name", CASES)
def test_other_values_are_not_compiled_again_and_other_keys_once(name):
    make, function = CASES[name]
    graphs = []

    def backend(graph, _inputs):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(function, backend=backend, fullgraph=True)
    compiled(make())
    first = len(graphs)
    with torch.compiler.set_stance("fail_on_recompile"):
        compiled(make())
        compiled(make())
    compiled(make("c"))
    assert len(graphs) <= first + 1
    with torch.compiler.set_stance("fail_on_recompile"):
        compiled(make("c"))
        compiled(make())


def test_the_truth_of_leaves_is_known_when_it_is_run():
    def function(td):
        return td.any(), td.all()

    torch._dynamo.reset()
    compiled = torch.compile(function, backend="eager", fullgraph=True)
    zeros = TensorDict({"a": torch.zeros(3), "n": {"x": torch.zeros(3, 2)}}, [3])
    some = zeros.clone().set(("n", "x"), torch.eye(3)[:, :2])
    for td in (zeros, some, zeros + 1, zeros, zeros.empty()):
        assert compiled(td) == function(td)


@pytest.mark.parametrize("kind", ["values", "parameters"])
def test_other_parameters_are_put_in_without_compiling_again(kind):
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 2))
    graphs = []

    def backend(graph, _inputs):
        graphs.append(graph)
        return graph.forward

    def made():
        params = TensorDict.from_module(net).data.apply(torch.rand_like)
        return TensorDictParams(params) if kind == "parameters" else params

    def function(params, x):
        with params.to_module(net):
            return net(x)

    torch._dynamo.reset()
    compiled = torch.compile(function, backend=backend, fullgraph=True)
    held, x = [made() for _ in range(4)], torch.rand(5, 3)
    for params in held[:2]:
        torch.testing.assert_close(compiled(params, x), function(params, x))
    assert len(graphs) == 1
    with torch.compiler.set_stance("fail_on_recompile"):
        for params in held:
            torch.testing.assert_close(compiled(params, x), function(params, x))
    params = held[0].select(("0", "weight"))
    torch.testing.assert_close(compiled(params, x), function(params, x))
    assert len(graphs) == 2
