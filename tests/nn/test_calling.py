"""The native form of calls beside the Python code that it stands for."""

import types

import pytest
import torch
from torch import nn

from tensordict import TensorDict
from tensordict.nn import (
    TensorDictModule,
    TensorDictParams,
    TensorDictSequential,
    make_functional,
    set_skip_existing,
)


def in_python(function):
    """The same function without its native form."""
    return types.FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )


FORWARD = {
    cls: in_python(cls.forward) for cls in (TensorDictModule, TensorDictSequential)
}


@pytest.fixture
def td():
    torch.manual_seed(0)
    return TensorDict(
        {"a": torch.randn(2, 3), "n": {"b": torch.randn(2, 3)}, "text": "foo"}, [2]
    )


def both(x):
    return x + 1, 2 * x


class Method(nn.Module):
    def other(self, x, scale=1):
        return x * scale


class OwnCall(TensorDictModule):
    def _call_module(self, tensors, **kwargs):
        return super()._call_module([2 * tensor for tensor in tensors], **kwargs)


class OwnWrite(TensorDictModule):
    def _write_to_tensordict(self, tensordict, tensors, *args):
        doubled = [2 * tensor for tensor in tensors]
        return super()._write_to_tensordict(tensordict, doubled, *args)


MODULES = {
    "one": lambda: TensorDictModule(torch.neg, ["a"], ["z"]),
    "nested": lambda: TensorDictModule(torch.add, ["a", ("n", "b")], [("m", "z")]),
    "module": lambda: TensorDictModule(nn.Linear(3, 2), ["a"], ["z"]),
    "onto input": lambda: TensorDictModule(torch.neg, ["a"], ["a"]),
    "two": lambda: TensorDictModule(both, ["a"], ["x", ("n", "y")]),
    "dropped": lambda: TensorDictModule(both, ["a"], ["_", "y"]),
    "dictionary": lambda: TensorDictModule(
        lambda x: {"x": x, "y": x + 1}, ["a"], ["y", "x"]
    ),
    "a collection": lambda: TensorDictModule(lambda n: n.clone(), ["n"], ["m"]),
    "no output": lambda: TensorDictModule(lambda x: None, ["a"], []),  # noqa: ARG005
    "no input": lambda: TensorDictModule(lambda: torch.ones(2), [], ["z"]),
    "a number": lambda: TensorDictModule(lambda x: 3, ["a"], ["z"]),  # noqa: ARG005
    "text": lambda: TensorDictModule(lambda t: t + "!", ["text"], ["z"]),
    "missing": lambda: TensorDictModule(lambda x: x is None, ["q"], ["z"]),
    "missing, strict": lambda: TensorDictModule(torch.neg, ["q"], ["z"], strict=True),
    "missing, failing": lambda: TensorDictModule(torch.neg, ["q"], ["z"]),
    "through a leaf": lambda: TensorDictModule(torch.neg, [("a", "q")], ["z"]),
    "failing": lambda: TensorDictModule(nn.Linear(4, 2), ["a"], ["z"]),
    "too many": lambda: TensorDictModule(both, ["a"], ["z"]),
    "too few": lambda: TensorDictModule(both, ["a"], ["x", "y", "z"]),
    "bad shape": lambda: TensorDictModule(torch.sum, ["a"], ["z"]),
    "elsewhere": lambda: TensorDictModule(torch.neg, ["a"], ["z"], inplace=False),
    "empty": lambda: TensorDictModule(torch.neg, ["a"], ["z"], inplace="empty"),
    "by name": lambda: TensorDictModule(torch.neg, {"input": "a"}, ["z"]),
    "method": lambda: TensorDictModule(
        Method(), ["a"], ["z"], method="other", method_kwargs={"scale": 3}
    ),
    "own call": lambda: OwnCall(torch.neg, ["a"], ["z"]),
    "own write": lambda: OwnWrite(torch.neg, ["a"], ["z"]),
    "selected": lambda: TensorDictModule(both, ["a"], ["x", "y"]).select_out_keys("y"),
    "parameters": lambda: TensorDictModule(
        lambda x: x, [("p", "w")], ["z"], inplace=True
    ),
}


def outcome(function, td):
    """Return the result of a call, and what it leaves behind."""
    try:
        result = function(td)
    except Exception as error:  # noqa: BLE001 - whichever it is, both have it
        result = (type(error), str(error), getattr(error, "__notes__", None))
    else:
        result = (result is td, type(result), result.batch_size, described(result))
    return result, described(td)


def described(td):
    return [
        (key, value.tolist() if isinstance(value, torch.Tensor) else value)
        for key, value in td.items(True, True)
    ]


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("locked", [False, True])
def test_native_call_is_that_of_the_code(td, name, locked):
    module = MODULES[name]()
    td["p"] = TensorDictParams(TensorDict(w=torch.ones(2)))
    native, python = td.copy(), td.copy()
    if locked:
        native.lock_()
        python.lock_()
    direct = types.MethodType(FORWARD[TensorDictModule], module)
    if name == "selected":
        hook = next(iter(module._forward_hooks.values()))

        def call(data):
            return hook(module, data, direct(data))
    else:
        call = direct
    assert outcome(module, native) == outcome(call, python)


@pytest.mark.parametrize("name", MODULES)
def test_native_sequence_is_that_of_the_code(td, name):
    module = MODULES[name]()
    sequence = TensorDictSequential(
        TensorDictModule(torch.abs, ["a"], ["first"]),
        module,
        TensorDictSequential(TensorDictModule(torch.abs, ["a"], ["last"])),
    )
    td["p"] = TensorDictParams(TensorDict(w=torch.ones(2)))
    direct = types.MethodType(FORWARD[TensorDictSequential], sequence)
    assert outcome(sequence, td.copy()) == outcome(direct, td.copy())


@pytest.fixture
def sequence():
    return TensorDictSequential(
        TensorDictModule(nn.Linear(3, 3), ["a"], ["x"]),
        TensorDictModule(torch.neg, ["x"], ["y"]),
    )


def test_hooks_of_parts_run(td, sequence):
    seen = []
    sequence[0].register_forward_pre_hook(lambda *_: seen.append("before"))
    sequence[1].register_forward_hook(lambda *_: seen.append("after"))
    sequence(td)
    assert seen == ["before", "after"]


def test_global_hooks_run_for_each_module(td, sequence):
    seen = []
    hook = nn.modules.module.register_module_forward_hook(
        lambda module, *_: seen.append(type(module).__name__)
    )
    with hook:
        sequence(td)
    assert seen == [
        "Linear",
        "TensorDictModule",
        "TensorDictModule",
        "TensorDictSequential",
    ]


def test_replaced_call_of_modules_is_called(td, sequence, monkeypatch):
    seen = []
    original = nn.Module.__call__

    def call(module, *args, **kwargs):
        seen.append(type(module).__name__)
        return original(module, *args, **kwargs)

    monkeypatch.setattr(nn.Module, "__call__", call)
    sequence(td)
    assert seen == [
        "TensorDictSequential",
        "TensorDictModule",
        "Linear",
        "TensorDictModule",
    ]


def test_forward_of_an_instance_is_called(td, sequence):
    sequence[1].forward = lambda td: td.set("y", "mine")
    assert sequence(td)["y"] == "mine"


def test_functional_part_takes_its_parameters(td, sequence):
    before = sequence(td.copy())["y"]
    params = make_functional(sequence[0])
    with pytest.raises(RuntimeError, match="is functional"):
        sequence(td)
    assert torch.equal(sequence[0](td, params=params)["x"], -before)


@pytest.mark.parametrize("forward", [nn.Module.__call__, FORWARD[TensorDictSequential]])
def test_parts_that_are_replaced_meanwhile_are_those_of_the_start(td, forward):
    def shrink(x):
        del sequence.module._modules["1"]
        return x

    sequence = TensorDictSequential(
        TensorDictModule(shrink, ["a"], ["x"]),
        TensorDictModule(torch.neg, ["x"], ["y"]),
    )
    assert torch.equal(forward(sequence, td)["y"], -td["a"])


def test_settings_reach_the_parts(td, sequence):
    td["x"] = torch.ones(2, 3)
    with set_skip_existing():
        assert (sequence(td)["y"] == -1).all()
    assert not (sequence(td)["y"] == -1).any()


def test_collection_that_is_freed_by_the_module_lives_on():
    def drop(x):
        del held[:]
        return x + 1

    held = [TensorDict(a=torch.zeros(2))]
    module = TensorDictModule(drop, ["a"], ["z"])
    assert module(held[0])["z"].tolist() == [1, 1]


def test_keys_that_change_during_the_call_are_those_of_the_end():
    def rename(x):
        module.out_keys = ["renamed"]
        return x

    module = TensorDictModule(rename, ["a"], ["z"])
    td = TensorDict(a=torch.zeros(2))
    native = list(module(td.copy()).keys())
    module.out_keys = ["z"]
    direct = FORWARD[TensorDictModule](module, td.copy())
    assert native == list(direct.keys()) == ["a", "renamed"]


@pytest.mark.filterwarnings("ignore:.*deprecated")
def test_traced_modules_are_recorded(td, sequence):
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = sequence

        def forward(self, a):
            return self.inner(TensorDict(a=a))["y"]

    outer = Outer()
    traced = torch.jit.trace(outer, td["a"], check_trace=False)
    assert torch.equal(traced(td["a"]), outer(td["a"]))
