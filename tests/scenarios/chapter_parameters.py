"""Parameters: modules as collections of their parameters, tying, and swapping."""

from __future__ import annotations

import copy
import io
import pickle

import torch
from scenario import scenario
from torch import nn

from tensordict import TensorDict, TensorDictParams, from_module, from_modules


def params(value=1.0, **options):
    entries = {"a": torch.full((2,), value), "b": {"c": torch.full((1,), value)}}
    return TensorDictParams(TensorDict(entries), **options)


def tied():
    """Return parameters two of which are the same object."""
    weight = nn.Parameter(torch.ones(2))
    return TensorDictParams(TensorDict(a=weight, b={"c": weight, "d": torch.zeros(1)}))


def is_tied(td):
    first, second = td["a"], td["b", "c"]
    return first is second, first.data_ptr() == second.data_ptr(), type(first).__name__


class TiedNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.b(self.a(x))


def net_is_tied(td):
    return td["a", "weight"] is td["b", "weight"]


@scenario
def parameters_of_a_module_are_its_own():
    module = nn.Linear(2, 3)
    params = TensorDict.from_module(module)
    params["bias"].data.fill_(1)
    return params["weight"] is module.weight, module.bias.detach().clone(), params


# Tying -------------------------------------------------------------------------------


@scenario
def a_clone_of_tied_parameters_stays_tied():
    weight = nn.Parameter(torch.ones(2))
    params = TensorDictParams(TensorDict(a=weight, b=weight))
    clone = params.clone()
    return clone["a"] is clone["b"], clone["a"] is params["a"]


@scenario
def copies_of_tied_parameters():
    td = tied()
    copies = (
        td.clone(),
        td.clone(False),
        td.copy(),
        copy.copy(td),
        copy.deepcopy(td),
        pickle.loads(pickle.dumps(td)),
        td.lock_().clone(),
    )
    return [is_tied(one) for one in copies]


@scenario
def tied_parameters_saved_by_torch():
    buffer = io.BytesIO()
    torch.save(tied(), buffer)
    buffer.seek(0)
    return is_tied(torch.load(buffer, weights_only=False))


@scenario
def casts_of_tied_parameters():
    td = tied()
    return [is_tied(one) for one in (td.double(), td.to(torch.float16), td.cpu())]


@scenario
def functions_of_tied_parameters():
    td = tied()
    results = (td.apply(torch.clone), td.apply(lambda x: x), td.data, td.detach())
    return [is_tied(one) for one in results]


@scenario
def gradients_of_tied_parameters():
    td = tied()
    sum(leaf.sum() for leaf in td.values(True, True)).backward()
    return td.grad, td["a"].grad is td["b", "c"].grad


@scenario
def the_state_of_tied_parameters():
    td, other = tied(), tied()
    other.data.mul_(3)
    td.load_state_dict(other.state_dict())
    names = [name for name, _ in td.named_parameters()]
    return is_tied(td), td, list(td.state_dict()), names, len(list(td.parameters()))


@scenario
def a_module_with_tied_parameters_that_is_moved():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.params = tied()

    net = Net().double()
    return is_tied(net.params), [name for name, _ in net.named_parameters()]


@scenario
def parameters_of_a_tied_module():
    net = TiedNet()
    return [
        net_is_tied(td)
        for td in (
            TensorDict.from_module(net),
            TensorDict.from_module(net, as_module=True),
            TensorDict.from_module(net, as_module=True).clone(),
            TensorDict.from_modules(net, TiedNet(), as_module=True),
        )
    ]


@scenario
def parameters_that_are_swapped_into_a_tied_module():
    net, found = TiedNet(), []
    values = TensorDict.from_module(TiedNet())
    with values.to_module(net):
        found.append((net.a.weight is net.b.weight, net.a.weight is net.b.weight))
    found.append(net.a.weight is net.b.weight)
    swapped = values.to_module(net)
    return found, net.a.weight is net.b.weight, net_is_tied(swapped)


@scenario
def other_values_for_two_tied_parameters():
    net = TiedNet()
    values = TensorDict.from_module(net).data.clone()
    values["b", "weight"] = torch.zeros(2, 2)
    with values.to_module(net):
        inside = net.a.weight is net.b.weight, net.b.weight.detach().clone()
    return inside, net.a.weight is net.b.weight


@scenario
def a_module_at_two_places():
    layer = nn.Linear(2, 2)
    net = nn.Sequential(layer, layer)
    values = TensorDict.from_module(net).data.clone().zero_()
    with values.to_module(net):
        inside = net(torch.ones(1, 2))
    return inside, net[0].weight is layer.weight


# Swapping into parameters --------------------------------------------------------------


@scenario
def parameters_swapped_for_others():
    source, target = params(1.0), params(2.0)
    swapped = source.to_module(target)
    return swapped, target, target["a"] is source["a"], type(swapped).__name__


@scenario
def parameters_swapped_in_a_block():
    source, target = params(1.0), params(2.0)
    before = target["a"]
    with source.to_module(target):
        inside = target["a"] is source["a"], target["b", "c"].detach().clone()
        (target["a"].sum() * 2).backward()
    return inside, target["a"] is before, source["a"].grad, target["a"].grad


@scenario
def stacked_parameters_swapped_under_vmap():
    target = params(2.0)
    rows = TensorDict(
        a=torch.arange(4.0).view(2, 2), b={"c": torch.ones(2, 1)}, batch_size=[2]
    )

    def call(row, x):
        with row.to_module(target):
            return target["a"] * x + target["b", "c"]

    return torch.vmap(call, (0, None))(rows, torch.ones(2)), target


@scenario(
    reason="the release replaces all entries, so that those which are not given are gone",
    ours=lambda result: sorted(result.keys()) == ["a", "b"] and result["a"].sum() == 0,
)
def some_parameters_swapped_for_others():
    target = params(2.0)
    TensorDict(a=torch.zeros(2)).to_module(target)
    return target


@scenario(
    reason="the release replaces all entries by those of other names",
    ours=lambda error: isinstance(error, KeyError) and "z" in str(error),
)
def a_parameter_that_the_others_lack():
    TensorDict(z=torch.zeros(2)).to_module(params(2.0))


@scenario(
    reason="the release puts plain tensors among the parameters: nothing trains them",
    ours=lambda result: isinstance(result["a"], nn.Parameter),
)
def plain_tensors_swapped_for_parameters():
    target = params(2.0)
    params(1.0).data.clone().to_module(target)
    return target


@scenario
def the_parameters_of_parameters():
    td = params()
    found = TensorDict.from_module(td)
    rows = TensorDict.from_modules(params(1.0), params(2.0))
    return found is td, TensorDict.from_module(td, lock=True).is_locked, rows


@scenario
def parameters_inside_a_module_are_swapped():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.params, self.layer = params(2.0), nn.Linear(1, 1)

        def forward(self, x):
            return self.params["a"] * x

    net, other = Net(), TensorDict.from_module(Net(), as_module=True)
    other.data.zero_()
    with other.to_module(net):
        inside = net(torch.ones(2))
    return inside, net(torch.ones(2)), sorted(TensorDict.from_module(net).keys())


# In place ------------------------------------------------------------------------------


@scenario(message=False)
def a_function_in_place_while_gradients_are_recorded():
    params().apply(lambda x: x * 2, inplace=True)


@scenario
def a_function_in_place_that_fails_changes_nothing():
    td = params()
    try:
        td.apply(lambda x: x.data * 2, inplace=True)
    except RuntimeError as error:
        return td, "Failed to update 'a'" in str(error)
    return None


@scenario
def a_function_in_place_without_gradients():
    td = params()
    before = td["a"]
    with torch.no_grad():
        result = td.apply(lambda x: x * 2, inplace=True)
        td.named_apply(lambda name, x: x + len(name), inplace=True)
    return result is td, td["a"] is before, td


@scenario(message=False)
def a_function_in_place_of_another_shape():
    with torch.no_grad():
        params().apply(lambda x: torch.zeros(5), inplace=True)


@scenario
def a_function_of_the_data_in_place():
    td = params()
    return td.apply_(lambda x: x.mul_(3)) is td, td


@scenario
def a_function_into_other_parameters():
    out = params(0.0)
    result = params(2.0).apply(lambda x: x.data * 2, out=out)
    kinds = [type(leaf).__name__ for leaf in out.values(True, True)]
    return result is out, out, kinds


@scenario
def parameters_and_buffers():
    entries = {"a": torch.ones(2), "n": {"i": torch.arange(2)}, "s": "text"}
    td = TensorDictParams(TensorDict(entries))
    plain = TensorDictParams(TensorDict(a=torch.ones(2)), no_convert=True)
    named = [name for name, _ in td.named_parameters()]
    buffers = [name for name, _ in td.named_buffers()]
    return named, buffers, [name for name, _ in plain.named_buffers()], td["s"]


@scenario
def a_tensor_of_a_graph_stays_in_it():
    weight = nn.Parameter(torch.ones(2))
    td = TensorDictParams(TensorDict(a=weight * 2), no_convert=True)
    td["a"].sum().backward()
    return weight.grad, td["a"].is_leaf, [name for name, _ in td.named_buffers()]


@scenario
def locked_parameters():
    td = params(lock=True)
    td["d"] = torch.zeros(1)
    return td, td._param_td.is_locked


@scenario
def parameters_from_entries():
    td = TensorDictParams(weight=torch.zeros(2), n={"step": torch.tensor(3)})
    td.register_get_post_hook(lambda td, value: value * 2)
    return td.get(("n", "step")), td["weight"]


# Several modules -----------------------------------------------------------------------


@scenario
def parameters_of_several_modules():
    nets = [nn.Linear(2, 1) for _ in range(3)]
    td = from_modules(*nets)
    lazy = from_modules(*nets, lazy_stack=True)
    free = from_modules(*nets, lock=False, as_module=True)
    return td, td.is_locked, type(lazy).__name__, free.is_locked, type(free).__name__


@scenario
def identical_parameters_are_expanded():
    shared = nn.Linear(2, 2)
    nets = [nn.Sequential(shared, nn.Linear(2, 2)) for _ in range(2)]
    td = from_modules(*nets, expand_identical=True)
    module = from_modules(*nets, expand_identical=True, as_module=True)
    td["0", "weight"].sum().backward()
    return (
        [
            (leaf.stride(), type(leaf).__name__, leaf.is_leaf)
            for leaf in td.values(1, 1)
        ],
        [name for name, _ in module.named_parameters()],
        [name for name, _ in module.named_buffers()],
        module["0", "weight"].is_leaf,
        shared.weight.grad,
    )


@scenario
def expanded_parameters_of_other_names():
    from_modules(nn.Linear(2, 2), nn.Linear(2, 2, bias=False), expand_identical=True)


@scenario
def parameters_by_the_state_of_a_module():
    net = nn.BatchNorm1d(2)
    net.register_buffer("passing", torch.ones(1), persistent=False)
    state = from_module(net, use_state_dict=True)
    return sorted(state.keys()), sorted(from_module(net).keys()), state.is_locked


@scenario
def modules_without_parameters():
    net = nn.Sequential(nn.ReLU(), nn.Linear(1, 1))
    full = TensorDict.from_module(net, filter_empty=False)
    return sorted(TensorDict.from_module(net).keys()), sorted(full.keys())
