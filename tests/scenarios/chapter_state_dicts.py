"""State dicts of collections and modules: new and old ones, strict, nested, assigned."""

from __future__ import annotations

from collections import OrderedDict

import torch
from scenario import scenario
from torch import nn

from tensordict import (
    NonTensorStack,
    TensorDict,
    TensorDictParams,
    TypedTensorDict,
    lazy_stack,
    tensorclass,
)
from tensordict.nn import TensorDictModule


@tensorclass
class Pair:
    x: torch.Tensor
    y: torch.Tensor | None = None


@tensorclass
class Labelled:
    x: torch.Tensor
    label: str = "none"


class State(TypedTensorDict):
    position: torch.Tensor


def zeros():
    inner = TensorDict(b=torch.zeros(3, 2), batch_size=[3])
    return TensorDict(a=torch.zeros(3), n=inner, batch_size=[3])


def old_level(size, **entries):
    """A level as releases 0.2 to 0.8 wrote it."""
    return OrderedDict(entries, __batch_size=torch.Size(size), __device=None)


def old_ones():
    return old_level([3], a=torch.ones(3), n=old_level([3], b=torch.ones(3, 2)))


@scenario
def names_and_metadata():
    state = zeros().state_dict()
    return list(state), dict(state._metadata), state["a"].requires_grad


@scenario
def nested_and_with_prefix():
    nested = zeros().state_dict(flatten=False)
    prefixed = zeros().state_dict(prefix="p.")
    return list(nested), list(nested["n"]), list(prefixed)


@scenario
def into_a_destination():
    out = OrderedDict(z=torch.ones(1))
    state = zeros().state_dict(destination=out, prefix="td.")
    return state is out, list(out)


@scenario
def values_share_memory():
    td = zeros()
    td.state_dict()["a"].fill_(5)
    return td["a"]


@scenario
def gradients_are_cut_unless_kept():
    td = TensorDict(a=torch.ones(2, requires_grad=True))
    kept = td.state_dict(keep_vars=True)["a"]
    return td.state_dict()["a"].requires_grad, kept is td["a"]


@scenario
def loading_copies_in_place():
    td, other = zeros(), zeros() + 1
    before = td["a"]
    result = td.load_state_dict(other.state_dict())
    return result is td, td, td["a"] is before, before


@scenario
def assigning_takes_the_tensors():
    td, state = zeros(), (zeros() + 1).state_dict()
    before = td["a"]
    td.load_state_dict(state, assign=True)
    return td, td["a"] is before, td["a"].data_ptr() == state["a"].data_ptr()


@scenario
def an_unknown_key():
    zeros().load_state_dict({**zeros().state_dict(flatten=False), "z": torch.ones(3)})


@scenario
def an_unknown_key_that_is_allowed():
    state = {**zeros().state_dict(flatten=False), "z": torch.ones(3)}
    return zeros().load_state_dict(state, strict=False)


@scenario
def a_missing_key():
    zeros().load_state_dict({"a": torch.ones(3)})


@scenario
def a_missing_key_that_is_allowed():
    return zeros().load_state_dict({"a": torch.ones(3)}, strict=False)


@scenario
def a_flat_state_and_from_flatten():
    state = dict((zeros() + 1).state_dict())
    return zeros().load_state_dict(state, from_flatten=True)


@scenario
def a_plain_nested_dictionary():
    state = {"a": torch.ones(3), "n": {"b": torch.ones(3, 2)}}
    return zeros().load_state_dict(state)


@scenario
def another_batch_size_is_taken():
    td = TensorDict(a=torch.zeros(3))
    td.load_state_dict(zeros().select("a").state_dict())
    return td.batch_size


@scenario
def into_an_empty_one():
    td = TensorDict()
    td.load_state_dict((zeros() + 1).state_dict(), strict=False)
    return td, td["n"].batch_size


@scenario
def a_value():
    td = TensorDict(a=torch.zeros(2), s="new", batch_size=[2])
    state = TensorDict(a=torch.ones(2), s="saved", batch_size=[2]).state_dict()
    return list(state), td.load_state_dict(state), td["s"]


@scenario(
    reason="the release loses stacks of values",
    ours=lambda found: found == ["a", "b"],
)
def a_stack_of_values():
    td = TensorDict(s=NonTensorStack("x", "y"), batch_size=[2])
    td.load_state_dict(TensorDict(s=["a", "b"], batch_size=[2]).state_dict())
    return td["s"]


@scenario
def a_tensorclass():
    pair = Pair(torch.zeros(2), torch.zeros(2), batch_size=[2])
    state = (pair + 1).state_dict()
    return list(state), pair.load_state_dict(state)


@scenario
def a_tensorclass_with_an_unset_field():
    pair = Pair(torch.zeros(2), batch_size=[2])
    state = (pair + 1).state_dict()
    return list(state), pair.load_state_dict(state).x, pair.y


@scenario
def a_tensorclass_with_text():
    state = Labelled(torch.ones(2), label="saved", batch_size=[2]).state_dict()
    held = Labelled(torch.zeros(2), batch_size=[2])
    held.load_state_dict(state)
    return held.x, held.label


@scenario
def a_lazy_stack():
    stack = lazy_stack([zeros(), zeros()])
    state = (stack + 1).state_dict()
    stack.load_state_dict(state)
    return list(state), stack, stack.tensordicts[1]["a"]


@scenario
def a_typed_container():
    state = State(position=torch.zeros(2))
    state.load_state_dict(State(position=torch.ones(2)).state_dict())
    return state.position, type(state) is State


@scenario
def parameters():
    params = TensorDictParams(zeros())
    weight = params["a"]
    params.load_state_dict((zeros() + 1).state_dict())
    return list(params.state_dict()), params["a"] is weight, weight


@scenario(message=False)
def parameters_of_other_names():
    TensorDictParams(zeros()).load_state_dict({"a": torch.ones(3), "z": torch.ones(3)})


@scenario
def a_module_with_parameters():
    module = nn.ModuleDict({"p": TensorDictParams(zeros()), "l": nn.Linear(1, 1)})
    state = {name: value + 1 for name, value in module.state_dict().items()}
    result = module.load_state_dict(state)
    return sorted(state), result.missing_keys, module["p"]["n", "b"]


@scenario(
    reason="in the release parameters are strict where the module is not",
    ours=lambda found: found[0] == ["p.n.b"] and found[2].tolist() == [1, 1, 1],
)
def a_module_that_lacks_some():
    module = nn.ModuleDict({"p": TensorDictParams(zeros())})
    result = module.load_state_dict({"p.a": torch.ones(3)}, strict=False)
    return result.missing_keys, result.unexpected_keys, module["p"]["a"]


@scenario
def a_tensordict_module():
    module = TensorDictModule(nn.Linear(2, 1), in_keys=["x"], out_keys=["y"])
    state = {name: value * 0 for name, value in module.state_dict().items()}
    module.load_state_dict(state)
    return sorted(state), module(TensorDict(x=torch.ones(2)))["y"]


@scenario
def parameters_of_a_module_as_a_collection():
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    params = TensorDict.from_module(module)
    state = {name: value.clone() * 0 for name, value in module.state_dict().items()}
    params.data.load_state_dict(state, from_flatten=True)
    return sorted(params.flatten_keys(".").keys()), module[0].weight.sum()


@scenario
def an_old_state():
    td = zeros()
    before = td["a"]
    return td.load_state_dict(old_ones()), td["a"] is before


@scenario
def an_old_state_assigned():
    td = zeros()
    before = td["a"]
    return td.load_state_dict(old_ones(), assign=True), td["a"] is before


@scenario
def an_old_state_that_is_not_strict():
    return zeros().load_state_dict({**old_ones(), "z": torch.ones(3)}, strict=False)


@scenario
def an_old_state_with_an_unknown_key():
    zeros().load_state_dict({**old_ones(), "z": torch.ones(3)})


@scenario
def an_old_state_without_a_key():
    zeros().load_state_dict(old_level([3], a=torch.ones(3)))


@scenario
def an_old_state_into_an_empty_one():
    td = TensorDict()
    td.load_state_dict(old_ones(), strict=False)
    return td, td.batch_size, td["n"].batch_size


@scenario
def an_old_state_of_another_nested_size():
    state = old_level([3], a=torch.ones(3), n=old_level([3, 2], b=torch.ones(3, 2)))
    return zeros().load_state_dict(state)["n"].batch_size


@scenario
def an_old_state_of_a_tensorclass():
    tensors = old_level([2], x=torch.ones(2), y=torch.ones(2))
    state = OrderedDict(_tensordict=tensors, _non_tensordict={})
    return Pair(torch.zeros(2), torch.zeros(2), batch_size=[2]).load_state_dict(state)


@scenario(
    reason="the release keeps the text that was there",
    ours=lambda found: found[0].tolist() == [1, 1] and found[1] == "old",
)
def an_old_state_of_a_tensorclass_with_text_that_is_not_strict():
    tensors = old_level([2], x=torch.ones(2))
    state = OrderedDict(_tensordict=tensors, _non_tensordict={"label": "old"})
    held = Labelled(torch.zeros(2), batch_size=[2])
    held.load_state_dict(state, strict=False)
    return held.x, held.label


@scenario(
    reason="the release refuses the text for lack of the same text",
    ours=lambda found: found[0].tolist() == [1, 1] and found[1] == "old",
)
def an_old_state_of_a_tensorclass_with_text():
    tensors = old_level([2], x=torch.ones(2))
    state = OrderedDict(_tensordict=tensors, _non_tensordict={"label": "old"})
    held = Labelled(torch.zeros(2), batch_size=[2])
    held.load_state_dict(state)
    return held.x, held.label


@scenario
def an_old_state_of_a_nested_tensorclass():
    inner = old_level([2], x=torch.ones(2), y=torch.ones(2))
    state = old_level([2], p=OrderedDict(_tensordict=inner, _non_tensordict={}))
    pair = Pair(torch.zeros(2), torch.zeros(2), batch_size=[2])
    return TensorDict(p=pair, batch_size=[2]).load_state_dict(state)["p"].x


@scenario
def an_old_state_of_a_value():
    td = TensorDict(a=torch.zeros(2), s="new", batch_size=[2])
    value = OrderedDict(_tensordict=old_level([2]), _non_tensordict={"data": "old"})
    td.load_state_dict(old_level([2], a=torch.ones(2), s=value))
    return td, td["s"]


@scenario
def an_old_state_of_a_lazy_stack():
    stack = lazy_stack([zeros(), zeros()])
    inner = old_level([2, 3], b=torch.ones(2, 3, 2))
    stack.load_state_dict(old_level([2, 3], a=torch.ones(2, 3), n=inner))
    return stack


@scenario
def an_old_state_of_parameters():
    params = TensorDictParams(zeros())
    params.load_state_dict(old_ones())
    return params["a"], params["n", "b"]


@scenario(
    reason="the release takes the batch size for a parameter",
    ours=lambda found: found.tolist() == [1, 1, 1],
)
def an_old_state_of_a_module():
    module = nn.ModuleDict({"p": TensorDictParams(zeros())})
    module.load_state_dict(
        {
            "p.a": torch.ones(3),
            "p.n.b": torch.ones(3, 2),
            "p.__batch_size": torch.Size([3]),
            "p.__device": None,
        }
    )
    return module["p"]["a"]


@scenario(
    reason="in the release the entry is taken for the batch size",
    ours=lambda td: td["__batch_size"].tolist() == [1, 1],
)
def an_entry_with_the_name_of_an_old_field():
    td = TensorDict({"__batch_size": torch.zeros(2)}, [2])
    return td.load_state_dict({"__batch_size": torch.ones(2)})
