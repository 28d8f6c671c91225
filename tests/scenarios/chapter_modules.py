"""Modules that read and write collections: every parameter of every constructor."""

from __future__ import annotations

import collections
import copy
import functools
import pickle

import torch
from scenario import scenario
from torch import nn

from tensordict import (
    LazyStackedTensorDict,
    TensorClass,
    TensorDict,
    lazy_stack,
    tensorclass,
)
from tensordict.nn import (
    CudaGraphModule,
    TensorClassModuleBase,
    TensorDictModule,
    TensorDictModuleBase,
    TensorDictModuleWrapper,
    TensorDictSequential,
    WrapModule,
    add_custom_mapping,
    as_tensordict_module,
    biased_softplus,
    dispatch,
    inv_softplus,
    make_tensordict,
    mappings,
    set_skip_existing,
    skip_existing,
)
from tensordict.prototype import symbolic_trace
from tensordict.utils import unravel_key_list


def double(x):
    return x * 2


def sequence(**options):
    return TensorDictSequential(
        TensorDictModule(double, ["a"], ["b"]),
        TensorDictModule(lambda b: (b + 1, b + 2), ["b"], [("n", "c"), "d"]),
        **options,
    )


def data(**entries):
    return TensorDict(a=torch.arange(2.0), **entries)


# A module of tensors -------------------------------------------------------------------


@scenario
def a_module_with_nested_keys():
    module = TensorDictModule(torch.add, ["a", ("n", "b")], [("n", "sum")])
    td = data(n={"b": torch.ones(2)})
    return module(td) is td, td, module.in_keys, module.out_keys


@scenario
def keys_in_any_mutable_sequence():
    found = []
    for kind in (list, collections.UserList, collections.deque):
        module = TensorDictModule(torch.add, kind(["a", "b"]), kind(["c"]))
        found += [module.in_keys, module.out_keys, module(data(b=torch.ones(2)))["c"]]
    return found


@scenario
def keys_of_functions_in_a_mutable_sequence():
    @as_tensordict_module(
        in_keys=collections.UserList(["a"]), out_keys=collections.UserList(["b"])
    )
    def function(a):
        return a + 1

    return function(data())


@scenario
def one_key_alone():
    module = TensorDictModule(double, "a", ("n", "b"))
    return module.in_keys, module.out_keys, module(data())


@scenario
def keys_that_are_none():
    TensorDictModule(double, {"a"}, ["b"])


@scenario
def out_keys_that_are_none():
    TensorDictModule(double, ["a"], {"b": 1})


@scenario(message=True)
def a_list_of_keys_that_is_a_text():
    unravel_key_list("abc")


@scenario
def inputs_by_the_names_of_parameters():
    def function(x, *, scale):
        return x * scale

    first = TensorDictModule(function, {"x": "a", "scale": "b"}, ["c"])
    second = TensorDictModule(
        function, {"a": "x", "b": "scale"}, ["c"], out_to_in_map=False
    )
    td = data(b=torch.tensor(3.0))
    return first(td.copy()), second(td.copy()), first.in_keys


@scenario(warned=True)
def a_map_that_is_not_needed():
    return TensorDictModule(double, ["a"], ["b"], out_to_in_map=True).in_keys


@scenario
def where_a_module_writes():
    found = []
    for inplace in (True, False, None, "empty"):
        module = TensorDictModule(double, ["a"], ["b"], inplace=inplace)
        td = TensorDict(a=torch.ones(2), batch_size=[2])
        result = module(td)
        found += [result is td, result, result.batch_size]
    return found


@scenario
def a_method_of_a_module():
    class Net(nn.Module):
        def encode(self, x, shift=0.0, scale=1.0):
            return x * scale + shift

    module = TensorDictModule(
        Net(), ["a"], ["b"], method="encode", method_kwargs={"shift": 1.0}
    )
    return module(data()), module(data(), scale=3.0)


@scenario
def a_missing_input():
    module = TensorDictModule(lambda a, b=None: a, ["a", "b"], ["c"])
    return module(data())


@scenario
def a_missing_input_of_a_strict_module():
    TensorDictModule(lambda a, b: a, ["a", "b"], ["c"], strict=True)(data())


@scenario
def ragged_inputs_that_are_padded():
    module = TensorDictModule(
        lambda x: x.sum(-1),
        ["x"],
        ["y"],
        get_kwargs={"as_padded_tensor": True, "padding_value": 0.0},
    )
    td = lazy_stack([TensorDict(x=torch.ones(2)), TensorDict(x=torch.ones(3))])
    return module(td)["y"]


@scenario
def outputs_that_are_dropped_or_structured():
    dropped = TensorDictModule(lambda a: (a, a + 1), ["a"], ["_", "b"])
    named = TensorDictModule(lambda a: {"b": a, "c": a + 1}, ["a"], ["b", "c"])
    whole = TensorDictModule(lambda a: {"x": a, "y": a + 1}, ["a"], ["s"])
    return dropped(data()), named(data()), whole(data())


@scenario
def more_outputs_than_keys():
    TensorDictModule(lambda a: (a, a), ["a"], ["b"])(data())


@scenario
def fewer_outputs_than_keys():
    TensorDictModule(lambda a: (a,), ["a"], ["b", "c"])(data())


@scenario
def outputs_elsewhere():
    module, td, out = sequence()[0], data(), TensorDict()
    return module(td, tensordict_out=out) is out, out, td


@scenario
def what_cannot_be_called():
    TensorDictModule(nn.Linear, ["a"], ["b"])


@scenario
def an_option_that_does_not_exist():
    TensorDictModule(double, ["a"], ["b"], inplace="maybe")


@scenario
def attributes_of_the_module_inside():
    module = TensorDictModule(nn.Linear(2, 3), ["a"], ["b"])
    names = [name for name, _ in module.named_parameters()]
    return module.in_features, names, module.module.out_features


@scenario
def copies_of_a_module():
    module = TensorDictModule(functools.partial(torch.add, other=1), ["a"], ["b"])
    first, second = pickle.loads(pickle.dumps(module)), copy.deepcopy(module)
    return first(data()), second(data()), first.in_keys


@scenario
def hooks_of_a_module():
    module, seen = sequence()[0], []
    module.register_forward_pre_hook(lambda module, args: seen.append(len(args)))
    module.register_forward_hook(
        lambda module, args, result: result.set("hooked", torch.ones(1))
    )
    return module(data()), seen


# Tensors in place of a collection --------------------------------------------------------


@scenario
def tensors_in_place_of_a_collection():
    module = TensorDictModule(torch.add, ["a", ("n", "b")], ["c"])
    x = torch.ones(2)
    return module(x, x), module(a=x, n_b=x), module(x, n_b=x)


@scenario
def an_input_that_is_given_twice():
    TensorDictModule(torch.add, ["a", "b"], ["c"])(torch.ones(2), a=torch.ones(2))


@scenario
def dispatch_with_other_names():
    class Net(nn.Module):
        @dispatch(separator=".", source=["a", ("n", "b")], dest=["c"])
        def forward(self, tensordict):
            total = tensordict["a"] + tensordict["n", "b"]
            return tensordict.set("c", total)

    class Named(nn.Module):
        sources, results = ["a"], ["b"]

        @dispatch(source="sources", dest="results", auto_batch_size=False)
        def forward(self, tensordict):
            dims = torch.tensor(tensordict.batch_dims)
            return tensordict.set("b", dims)

    x = torch.ones(2)
    return Net()(x, **{"n.b": x}), Named()(x), Named()(data())


@scenario
def a_module_of_collections():
    class Net(TensorDictModuleBase):
        in_keys, out_keys = ["a"], ["b", "c"]

        @dispatch
        def forward(self, tensordict):
            a = tensordict["a"]
            return tensordict.set("b", a + 1).set("c", a + 2)

    module = Net()
    selected = Net().select_out_keys("c")
    return module(torch.ones(2)), selected(data()), selected(torch.ones(2))


@scenario
def a_module_without_keys():
    class Net(TensorDictModuleBase):
        def forward(self, td):
            return td

    return Net().in_keys


# Selected outputs --------------------------------------------------------------------------


@scenario
def outputs_that_are_selected():
    module = TensorDictModule(lambda a: (a, a + 1), ["a"], ["b", "c"])
    module.select_out_keys("c")
    first = module.out_keys, module.out_keys_source, module(data())
    module.reset_out_keys()
    return first, module.out_keys, module(data())


@scenario
def an_output_that_is_none_is_selected():
    sequence().select_out_keys("z")


@scenario
def selected_outputs_of_a_sequence():
    module = sequence(selected_out_keys=["d"])
    td = data()
    return module(td), module.out_keys, module._complete_out_keys, module(td) is td


@scenario
def selected_outputs_that_a_sequence_lacks():
    sequence(selected_out_keys=["z"])


# Sequences -----------------------------------------------------------------------------------


@scenario
def a_sequence_and_its_keys():
    module = sequence()
    return module(data()), module.in_keys, module.out_keys, len(module)


@scenario
def where_a_sequence_writes():
    found = []
    for inplace in (True, False, None, "empty"):
        td = data()
        result = sequence(inplace=inplace)(td)
        found += [result is td, result, td]
    return found


@scenario
def named_modules_of_a_sequence():
    parts = {"first": sequence()[0], "second": sequence()[1]}
    module = TensorDictSequential(collections.OrderedDict(parts))
    module["first"] = TensorDictModule(torch.neg, ["a"], ["b"])
    return module(data()), module["second"].out_keys, len(module)


@scenario
def a_sequence_of_functions():
    module = TensorDictSequential(lambda td: td.set("b", td["a"] + 1), sequence()[1])
    return module(data()), module.in_keys, module.out_keys


@scenario
def a_sequence_from_a_list():
    module = TensorDictSequential(list(sequence()))
    del module[1]
    return len(module), module.out_keys, module[:1].out_keys


@scenario
def a_part_of_a_sequence():
    module = sequence()
    first = module.select_subsequence(out_keys=["b"])
    second = module.select_subsequence(in_keys=["b"])
    return len(first), first.out_keys, len(second), second.in_keys


@scenario
def a_part_that_is_empty():
    sequence().select_subsequence(in_keys=["z"])


@scenario
def a_sequence_with_another_constructor():
    class Checked(TensorDictSequential):
        def __init__(self, *modules):
            in_keys, out_keys = self._compute_in_and_out_keys(list(modules))
            TensorDictModule.__init__(self, nn.ModuleList(modules), in_keys, out_keys)
            self.partial_tolerant = False

    module = Checked(*sequence())
    part = module.select_subsequence(out_keys=["b"])
    names = type(part).__name__, type(module[:1]).__name__
    return module(data()), module._complete_out_keys, part.out_keys, names


@scenario
def modules_without_their_inputs():
    module = sequence(partial_tolerant=True)
    td = lazy_stack([data(), TensorDict(b=torch.ones(2))])
    result = module(td)
    return [sorted(member.keys()) for member in result.tensordicts]


@scenario
def a_sequence_without_its_inputs():
    sequence()(TensorDict(z=torch.ones(2)))


# Results that exist ----------------------------------------------------------------------------


@scenario
def outputs_that_are_there_already():
    module, td = sequence(), data(b=torch.zeros(2))
    with set_skip_existing(True):
        skipped = module(td.copy()), skip_existing()
    with set_skip_existing(["d"]):
        listed = module(td.copy())
    return skipped, listed, module(td.copy()), skip_existing()


@scenario
def a_method_that_is_skipped():
    class Net(TensorDictModuleBase):
        in_keys, out_keys, calls = ["a"], ["b"], 0

        @set_skip_existing(True, in_key_attr="in_keys", out_key_attr="out_keys")
        def forward(self, tensordict):
            type(self).calls += 1
            return tensordict.set("b", tensordict["a"])

    module, td = Net(), data()
    module(module(td))
    return td, Net.calls


@scenario
def skipping_none():
    with set_skip_existing(None):
        pass


# Wrappers and functions -----------------------------------------------------------------------


@scenario
def a_wrapper_of_a_module():
    wrapper = TensorDictModuleWrapper(TensorDictModule(nn.Linear(2, 1), ["a"], ["b"]))
    td = wrapper(data())
    return td["b"].shape, wrapper.in_keys, wrapper.out_keys, wrapper.in_features


@scenario
def a_function_of_a_collection():
    new = WrapModule(lambda td: td.select("a"), in_keys=["a"], out_keys=["a"])
    own = WrapModule(lambda td: TensorDict(b=td["a"] + 1), inplace=True)
    td = data()
    return new(td) is td, own(td) is td, td, new.in_keys, own.in_keys


@scenario
def a_method_of_tensors():
    class Net:
        scale = 3

        @as_tensordict_module(in_keys=["a"], out_keys=[("n", "b")])
        def call(self, a):
            return a * self.scale

    return Net().call(data()), Net().call(torch.ones(2))


@scenario
def modules_of_tensorclasses():
    class Point(TensorClass):
        x: torch.Tensor
        y: torch.Tensor

    class Norm(TensorClass):
        value: torch.Tensor

    class Length(TensorClassModuleBase[Point, Norm]):
        def forward(self, x):
            return Norm((x.x**2 + x.y**2).sqrt(), batch_size=x.batch_size)

    module = Length().as_td_module()
    td = TensorDict(x=torch.tensor([3.0]), y=torch.tensor([4.0]), batch_size=[1])
    point = Point(torch.tensor(3.0), torch.tensor(4.0))
    return module(td)["value"], module.in_keys, module.out_keys, Length()(point).value


@scenario
def a_tensorclass_through_a_module():
    @tensorclass
    class Data:
        a: torch.Tensor
        b: torch.Tensor = None

    value = Data(a=torch.ones(2), batch_size=[2])
    result = sequence()[0](value)
    return type(result).__name__, result.b, result is value


@scenario
def a_module_without_a_graph_on_the_cpu():
    module = CudaGraphModule(sequence(), warmup=2)
    function = CudaGraphModule(double, warmup=1, in_keys=None, out_keys=None)
    keyed = CudaGraphModule(
        lambda td: td.set("b", td["a"]), in_keys=["a"], out_keys=["b"], device=None
    )
    kinds = [one._is_tensordict_module for one in (module, function, keyed)]
    return module(data()), function(torch.ones(2)), keyed(data()), kinds


@scenario
def a_graph_without_warmup():
    CudaGraphModule(double, warmup=0)


@scenario
def a_traced_module():
    module = TensorDictSequential(
        TensorDictModule(nn.Identity(), ["a"], ["b"]),
        TensorDictModule(nn.Identity(), ["b"], ["c"]),
    )
    traced, out, td = symbolic_trace(module), TensorDict(), data()
    return traced(td, tensordict_out=out) is out, out, td, traced(data())


@scenario
def parameters_are_drawn_again():
    module = TensorDictSequential(
        TensorDictModule(nn.Linear(2, 2), ["a"], ["b"]),
        TensorDictModule(nn.Sequential(nn.Linear(2, 1)), ["b"], ["c"]),
    )
    before = TensorDict.from_module(module).data.clone()
    module.reset_parameters_recursive()
    after = TensorDict.from_module(module).data
    drawn = module.reset_parameters_recursive(before.clone())
    kept = TensorDict.from_module(module).data
    same = [bool((one != before).all()) for one in (after, drawn.data)]
    return same, bool((kept == after).all()), drawn.requires_grad


@scenario(warned=True)
def nothing_to_draw():
    sequence().reset_parameters_recursive()


@scenario
def names_of_functions():
    add_custom_mapping("square", torch.square)
    soft = biased_softplus(bias=1.0, min_val=0.1)
    return (
        mappings("square")(torch.full((1,), 3.0)),
        [mappings(name)(torch.ones(1)) for name in ("exp", "relu", "expln", "none")],
        mappings("biased_softplus_0.5_0.1")(torch.zeros(1)),
        soft(torch.zeros(1)),
        inv_softplus(1.0),
    )


@scenario
def a_function_without_a_name():
    mappings("nothing")


@scenario
def a_collection_from_keywords():
    td = make_tensordict(a=torch.ones(2, 3), auto_batch_size=True)
    other = make_tensordict({"a": torch.ones(2)}, batch_size=[2], device="cpu")
    return td, other, isinstance(td, LazyStackedTensorDict)
