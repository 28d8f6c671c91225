"""Compiled calls of modules do what eager ones do, by the rules and where there is none."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._dynamo.variables.builder import VariableBuilder

from compiled_together import in_groups, on_each
from tensordict import NonTensorData, TensorDict, UnbatchedTensor, lazy_stack
from tensordict.nn import (
    InteractionType,
    NormalParamExtractor,
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictModuleWrapper,
    TensorDictSequential,
    set_interaction_type,
    set_skip_existing,
)
from tensordict.primitives import module_calls

RULES = (
    module_calls.plain_inputs,
    module_calls.plain_parameters,
    module_calls.plain_outputs,
    module_calls.is_plain_sequence,
)


class Loud(TensorDictModule):
    """A class with a step of its own."""

    def _write_to_tensordict(self, tensordict, tensors, *args, **kwargs):
        doubled = tuple(tensor * 2 for tensor in tensors)
        return super()._write_to_tensordict(tensordict, doubled, *args, **kwargs)


class Below(TensorDictModule):
    """A class that calls the ``forward`` above it."""

    def forward(self, tensordict):
        return (
            super()
            .forward(tensordict.clone(recurse=False))
            .set("below", tensordict["a"])
        )


def linear(*out_keys, in_key="a", **options):
    torch.manual_seed(0)
    return TensorDictModule(nn.Linear(3, 3), [in_key], [*out_keys], **options)


def normal(**options):
    return ProbabilisticTensorDictModule(
        ["loc", "scale"],
        ["x"],
        distribution_class=torch.distributions.Normal,
        **{"default_interaction_type": InteractionType.MEAN, **options},
    )


def policy(**options):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 6), NormalParamExtractor())
    return ProbabilisticTensorDictSequential(
        TensorDictModule(net, ["a"], ["loc", "scale"]), normal(**options)
    )


def two(a):
    return a + 1, a - 1


MODULES = {
    "linear": linear("out"),
    "over its input": linear("a"),
    "nested input": linear("out", in_key=("n", "a")),
    "nested output": linear(("n", "out")),
    "new nested output": linear(("m", "out")),
    "function": TensorDictModule(two, ["a"], ["x", "y"]),
    "dropped": TensorDictModule(two, ["a"], ["_", "y"]),
    "a collection": TensorDictModule(lambda n: n["a"] + 1, ["n"], ["x"]),
    "gives a collection": TensorDictModule(lambda n: n * 2, ["n"], ["x"]),
    "gives a dictionary": TensorDictModule(lambda a: {"x": a}, ["a"], ["x"]),
    "gives the input": TensorDictModule(nn.Identity(), ["a"], ["x"]),
    "gives a view": TensorDictModule(lambda a: a.view(4, 3, 1), ["a"], ["x"]),
    "no input": TensorDictModule(lambda: torch.ones(4), [], ["x"]),
    "method": TensorDictModule(nn.Linear(3, 3), ["a"], ["x"], method="forward"),
    "arguments": TensorDictModule(
        torch.sum, ["a"], ["x"], method_kwargs={"dim": 1, "keepdim": True}
    ),
    "by name": TensorDictModule(torch.add, {"input": "a", "other": "b"}, ["x"]),
    "strict": linear("x", strict=True),
    "not in place": linear("x", inplace=False),
    "empty": linear("x", inplace="empty"),
    "missing": TensorDictModule(lambda a, b: a if b is None else b, ["a", "?"], ["x"]),
    "own step": Loud(nn.Identity(), ["a"], ["x"]),
    "own forward": Below(nn.Identity(), ["a"], ["x"]),
    "selected": TensorDictModule(two, ["a"], ["x", "y"]).select_out_keys("y"),
    "wrapped": TensorDictModuleWrapper(linear("x")),
    "sequence": TensorDictSequential(linear("b"), linear("c", in_key="b")),
    "named": TensorDictSequential({"one": linear("b"), "two": linear("c", in_key="b")}),
    "nested sequence": TensorDictSequential(
        TensorDictSequential(linear("b")), linear("b")
    ),
    "with a function": TensorDictSequential(linear("b"), lambda td: td.exclude("b")),
    "partial": TensorDictSequential(
        linear("b"), linear("c", in_key="?"), partial_tolerant=True
    ),
    "selecting": TensorDictSequential(
        linear("b"), linear("c", in_key="b"), selected_out_keys=["c"]
    ),
    "sequence not in place": TensorDictSequential(linear("c"), inplace=False),
    "no modules": TensorDictSequential(),
    "policy": policy(),
    "policy and density": policy(return_log_prob=True),
    "policy of samples": policy(num_samples=2),
    "policy of options": policy(distribution_kwargs={"validate_args": False}),
    "to the sink": ProbabilisticTensorDictModule(
        {"loc": "a", "scale": ("n", "a")},
        ["_"],
        distribution_class=torch.distributions.Normal,
    ),
}


def dense() -> TensorDict:
    torch.manual_seed(1)
    nested = TensorDict(a=torch.rand(4, 3), batch_size=[4])
    return TensorDict(a=torch.rand(4, 3), b=torch.rand(4, 3), n=nested, batch_size=[4])


INPUTS = {
    "dense": dense,
    "device": lambda: dense().to("cpu"),
    "no batch size": lambda: dense().auto_batch_size_(0),
    "unbatched": lambda: dense().set("u", UnbatchedTensor(torch.rand(7))),
    "text": lambda: dense().set("t", NonTensorData("t", batch_size=[4])),
    "has the outputs": lambda: dense().update(
        {"x": torch.ones(4), "out": torch.ones(4)}
    ),
    "lazy": lambda: lazy_stack([dense(), dense()]),
}


def assert_same(found, expected):
    assert type(found) is type(expected)
    assert found.batch_size == expected.batch_size
    assert found.device == expected.device
    assert list(found.keys(True)) == list(expected.keys(True))
    for key, value in expected.items(True, True):
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(found[key], value)
        else:
            assert (found.get(key) == value).all()


@pytest.fixture(params=["rules", "no rules"])
def rules(request, monkeypatch):
    if request.param == "no rules":
        known = VariableBuilder._id_dispatch()
        for function in RULES:
            monkeypatch.delitem(known, id(function), raising=False)
    torch._dynamo.reset()
    yield request.param == "rules"
    torch._dynamo.reset()


@pytest.mark.parametrize("modules", in_groups(MODULES, 8))
def test_compiled_calls_are_as_eager_ones(modules, rules):
    program = on_each(modules)
    compiled = torch.compile(program, backend="eager", fullgraph=True)
    tds, others = [[dense() for _ in modules] for _ in range(2)]
    results, all_expected = compiled(tds), program(others)
    for name, td, other in zip(modules, tds, others, strict=True):
        result, expected = results[name], all_expected[name]
        assert_same(result, expected)
        assert_same(td, other)
        assert (result is td) == (expected is other), name
    with torch.compiler.set_stance("fail_on_recompile"):
        again = compiled([dense() for _ in modules])
    for name, module in modules.items():
        assert_same(again[name], module(dense()))


@pytest.mark.parametrize("kind", INPUTS)
def test_compiled_calls_with_all_containers(kind, rules):
    names = ("linear", "function", "sequence", "policy")
    program = on_each({name: MODULES[name] for name in names})
    compiled = torch.compile(program, backend="eager", fullgraph=True)
    tds, others = [[INPUTS[kind]() for _ in names] for _ in range(2)]
    results, expected = compiled(tds), program(others)
    for name, td, other in zip(names, tds, others, strict=True):
        assert_same(results[name], expected[name])
        assert_same(td, other)


def code_followed(function, *args) -> set[str]:
    """The names of the functions that were interpreted."""
    from torch._dynamo.symbolic_convert import InliningInstructionTranslator

    names: set[str] = set()
    original = InliningInstructionTranslator.inline_call_

    def noting(self, *arguments, **options):
        names.add(self.f_code.co_qualname)
        return original(self, *arguments, **options)

    InliningInstructionTranslator.inline_call_ = noting
    try:
        torch._dynamo.reset()
        torch.compile(function, backend="eager", fullgraph=True)(*args)
    finally:
        InliningInstructionTranslator.inline_call_ = original
    return names


@pytest.mark.parametrize(
    "name",
    ["linear", "over its input", "nested input", "function", "sequence", "policy"],
)
def test_plain_calls_are_not_interpreted(name):
    module = MODULES[name]
    followed = code_followed(lambda td: module(td), dense())
    code = {each for each in followed if each.startswith(("TensorDict", "_Dispatch."))}
    assert not code
    assert not {each for each in followed if each.endswith((".get_dist", "set_entry"))}


@pytest.mark.parametrize(
    "name", ["own step", "missing", "strict", "selecting", "policy of samples"]
)
def test_other_calls_are_interpreted(name):
    module = MODULES[name]
    followed = code_followed(lambda td: module(td), dense())
    assert {each for each in followed if each.startswith("_Dispatch.")}


def compiles(function, *calls) -> int:
    """Count how many times a function is compiled for some calls."""
    count = 0

    def backend(graph, _inputs):
        nonlocal count
        count += 1
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(function, backend=backend, fullgraph=True)
    for call in calls:
        call(compiled)
    return count


def changed_in_keys(module):
    module.in_keys = ["b"]


def mutated_in_keys(module):
    module._in_keys[0] = "b"


def changed_out_keys(module):
    module.out_keys = ["y"]


def mutated_out_keys(module):
    module._out_keys[0] = "y"


def not_in_place(module):
    module.inplace = False


def with_arguments(module):
    module.method_kwargs["alpha"] = 3


def other_module(module):
    module.module = torch.sub


@pytest.mark.parametrize(
    "change",
    [
        changed_in_keys,
        mutated_in_keys,
        changed_out_keys,
        mutated_out_keys,
        not_in_place,
        with_arguments,
        other_module,
    ],
)
@pytest.mark.parametrize("inside", [False, True])
def test_changed_modules_are_seen(change, inside, rules):
    def made():
        module = TensorDictModule(torch.add, ["a", "b"], ["x"])
        return module if not inside else TensorDictSequential(module)

    module, other = made(), made()
    compiled = torch.compile(lambda td: module(td), backend="eager", fullgraph=True)
    assert_same(compiled(dense()), other(dense()))
    for each in (module, other):
        change(each.module[0] if inside else each)
    if change is changed_in_keys:
        for each in (module, other):
            (each.module[0] if inside else each).module = torch.neg
    assert_same(compiled(dense()), other(dense()))


def test_a_module_that_is_changed_in_the_program(rules):
    module = TensorDictModule(torch.neg, ["a"], ["x"])

    def function(td):
        module(td)
        module.inplace = False
        result = module(td)
        module.inplace = True
        return td, result

    compiled = torch.compile(function, backend="eager", fullgraph=True)
    (td, result), (other, expected) = compiled(dense()), function(dense())
    assert_same(td, other)
    assert_same(result, expected)


def test_settings_are_followed(rules):
    module = policy()

    def function(td):
        with set_skip_existing():
            module(td)
        with set_interaction_type("mode"):
            return module(td)

    compiled = torch.compile(function, backend="eager", fullgraph=True)
    assert_same(compiled(dense()), function(dense()))
    called = torch.compile(lambda td: module(td), backend="eager", fullgraph=True)
    assert_same(called(dense()), module(dense()))
    full = (
        module(dense())
        .detach()
        .update({"x": torch.ones(4, 3), "loc": torch.ones(4, 3)})
    )
    with set_skip_existing():
        assert_same(called(full.clone()), module(full.clone()))
    assert_same(called(full.clone()), module(full.clone()))


def test_locked_collections_are_refused(rules):
    module = linear("out")
    td = dense().lock_()
    compiled = torch.compile(lambda td: module(td), backend="eager")
    assert list(compiled(dense()).keys()) == ["a", "b", "n", "out"]
    with pytest.raises(RuntimeError, match="locked"), torch.no_grad():
        compiled(td)
    assert "out" not in td


def test_a_lock_in_the_program_is_seen(rules):
    module = linear("out")

    def function(td):
        result = module(td.clone(False).lock_().unlock_())
        return result.lock_()

    compiled = torch.compile(function, backend="eager", fullgraph=True)
    result = compiled(dense())
    assert result.is_locked
    assert_same(result, function(dense()))


def test_outputs_that_do_not_fit_are_refused(rules):
    module = TensorDictModule(lambda a: a[0], ["a"], ["x"])
    compiled = torch.compile(lambda td: module(td), backend="eager")
    with pytest.raises(RuntimeError, match="batch dimension mismatch"):
        compiled(dense())


def test_one_compilation_for_each_structure():
    module = MODULES["sequence"]
    more = dense().set("more", torch.rand(4))
    calls = [dense(), dense(), more, more.clone(), dense()]
    count = compiles(
        lambda td: module(td), *[lambda f, td=td: f(td.clone()) for td in calls]
    )
    assert count == 2


def test_modules_of_one_kind_share_their_code():
    def function(module, td):
        return module(td)

    calls = [lambda f: f(linear("out"), dense()) for _ in range(3)]
    assert compiles(function, *calls) == 1


def test_gradients_pass(rules):
    module = TensorDictSequential(linear("b"), linear("c", in_key="b"))
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    compiled(dense())["c"].sum().backward()
    found = [parameter.grad.clone() for parameter in module.parameters()]
    module.zero_grad()
    module(dense())["c"].sum().backward()
    torch.testing.assert_close(found, [p.grad for p in module.parameters()])


def test_sizes_that_are_not_known(rules):
    module = policy()
    compiled = torch.compile(lambda td: module(td), backend="eager", dynamic=True)
    for size in (4, 7):
        td = TensorDict(a=torch.rand(size, 3), batch_size=[size])
        assert_same(compiled(td.clone()), module(td.clone()))
