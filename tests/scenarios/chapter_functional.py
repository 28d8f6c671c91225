"""Functional use: modules whose parameters are arguments, swapped, trained and mapped."""

from __future__ import annotations

import torch
from scenario import scenario
from torch import nn
from torch.func import functional_call, grad, jacrev, vmap

from tensordict import TensorDict, TensorDictParams, from_module, from_modules
from tensordict.nn import TensorDictModule, TensorDictSequential


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))


X = torch.tensor([[1.0, 2.0], [0.5, -1.0]])


@scenario
def a_block_with_other_parameters():
    module = net()
    params = from_module(module).data.clone().zero_()
    with params.to_module(module) as inside:
        zero = module(X)
    return zero, module(X), type(inside).__name__


@scenario
def a_swap_and_its_way_back():
    module = net()
    other = from_module(net()).apply(lambda x: nn.Parameter(x.data * 0))
    before = other.to_module(module)
    swapped = module(X)
    before.to_module(module)
    return swapped, module(X), sorted(before.keys(True, True))


@scenario
def a_swap_without_a_result():
    module = nn.Linear(2, 1)
    params = TensorDict(weight=nn.Parameter(torch.zeros(1, 2)))
    result = params.to_module(module, return_swap=False)
    return result, module.weight is params["weight"]


@scenario
def a_swap_into_a_collection():
    module, dest = nn.Linear(2, 1, bias=False), TensorDict()
    before = module.weight
    result = TensorDict(weight=torch.zeros(1, 2)).to_module(module, swap_dest=dest)
    return result is dest, dest["weight"] is before


@scenario
def a_swap_in_place():
    module = nn.Linear(2, 1, bias=False)
    weight, before = module.weight, module.weight.detach().clone()
    swapped = TensorDict(weight=torch.zeros(1, 2)).to_module(module, inplace=True)
    return (
        module.weight is weight,
        module.weight,
        torch.equal(swapped["weight"], before),
    )


@scenario
def a_block_in_place():
    module = nn.Linear(2, 1, bias=False)
    weight, before = module.weight, module.weight.detach().clone()
    with TensorDict(weight=torch.zeros(1, 2)).to_module(module, inplace=True):
        inside = module.weight.detach().clone()
    return inside, module.weight is weight, torch.equal(weight, before)


@scenario
def a_swap_through_the_state():
    module = nn.Linear(2, 1)
    values = from_module(module).data.clone().apply(torch.ones_like)
    values.to_module(module, use_state_dict=True)
    return module.weight, module.bias


@scenario
def plain_tensors_become_parameters():
    module = nn.Linear(2, 1, bias=False)
    values = TensorDict(weight=torch.zeros(1, 2))
    with values.to_module(module):
        first = type(module.weight).__name__, module(X).requires_grad
    with values.to_module(module, preserve_module_state=False):
        second = type(module.weight).__name__, module(X).requires_grad
    return first, second, [name for name, _ in module.named_parameters()]


@scenario
def tensors_of_a_graph_stay_in_it():
    module = nn.Linear(2, 1, bias=False)
    scale = torch.ones((), requires_grad=True)
    with TensorDict(weight=torch.ones(1, 2) * scale).to_module(module):
        module(X).sum().backward()
    return scale.grad, module.weight.grad


@scenario
def buffers_are_swapped_too():
    module = nn.BatchNorm1d(2)
    state = from_module(module).data.clone()
    with state.to_module(module):
        module(X)
    return state["num_batches_tracked"], module.num_batches_tracked


@scenario
def an_entry_that_the_module_lacks():
    TensorDict(weight=torch.zeros(1, 2), other=torch.zeros(1)).to_module(
        nn.Linear(2, 1)
    )


@scenario
def some_entries_only():
    module = net()
    with TensorDict({"0": {"bias": torch.zeros(3)}}).to_module(module):
        inside = module[0].bias.detach().clone(), module[0].weight.shape
    return inside, bool((module[0].bias == 0).all())


@scenario(
    reason="the release makes a module of tensors that do not fit it",
    ours=lambda error: (
        isinstance(error, RuntimeError)
        and "0.weight [4, 2] in place of [3, 2]" in str(error)
    ),
)
def parameters_of_another_shape():
    other = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
    module = net()
    from_module(other).to_module(module)
    return module[0].weight.shape, module[0].out_features


@scenario
def stacked_parameters_of_a_module():
    module = nn.Linear(2, 1)
    params = from_modules(module, nn.Linear(2, 1))
    with params.to_module(module):
        return module.weight.shape, module.bias.shape


@scenario
def a_module_by_name_is_swapped():
    module = net()
    params = from_module(module)
    with params["0"].data.clone().zero_().to_module(module[0]):
        return module[0](X)


@scenario
def a_parameter_that_the_block_replaces():
    module = nn.Linear(2, 1, bias=False)
    before = module.weight
    params = TensorDict(weight=nn.Parameter(torch.zeros(1, 2)))
    with params.to_module(module):
        module.weight = nn.Parameter(torch.ones(1, 2))
    return params["weight"], module.weight is before


@scenario
def gradients_by_torch_func():
    module = net()
    params = from_module(module).data.clone()

    def loss(params):
        with params.to_module(module):
            return module(X).pow(2).mean()

    found = grad(loss)(params)
    return found, type(found).__name__


@scenario
def gradients_for_each_sample():
    module = nn.Linear(2, 1)
    with torch.no_grad():
        module.weight.fill_(1.0), module.bias.fill_(0.0)
    params = TensorDict.from_module(module).data.clone()

    def loss(params, x):
        with params.to_module(module):
            return module(x).sum()

    return vmap(grad(loss), (None, 0))(params, X)


@scenario
def a_step_that_is_functional():
    module = net()
    params = from_module(module).data.clone().requires_grad_()
    for _ in range(3):
        with params.to_module(module):
            loss = module(X).pow(2).mean()
        grads = torch.autograd.grad(loss, tuple(params.values(True, True)))
        step = params.data.clone()
        for leaf, change in zip(step.values(True, True), grads, strict=True):
            leaf.sub_(change, alpha=0.1)
        params = step.requires_grad_()
    return params, module(X)


@scenario
def an_optimizer_of_parameters():
    module = net()
    params = TensorDictParams(from_module(module).data.clone())
    optimizer = torch.optim.SGD(params.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        with params.to_module(module):
            loss = module(X).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return params, module[0].weight.grad


@scenario
def an_average_of_parameters():
    online, target = net(), net()
    source = from_module(online)
    average = from_module(target).data
    with torch.no_grad():
        online[0].weight.add_(1.0)
    average.lerp_(source.data, 0.5)
    return target[0].weight, average["0", "weight"].data_ptr() == (
        target[0].weight.data_ptr()
    )


@scenario
def arithmetic_of_parameters():
    params = from_module(nn.Linear(2, 1))
    delta = params.data * 0 + 1
    moved = params + delta
    return moved.requires_grad, (moved - params).data.norm()["weight"].shape


@scenario
def a_jacobian_of_parameters():
    module = nn.Linear(2, 1, bias=False)
    params = TensorDict(weight=torch.ones(1, 2))

    def call(params):
        with params.to_module(module):
            return module(X)

    return jacrev(call)(params)["weight"]


@scenario
def torch_functional_call_of_a_module():
    module = nn.Linear(2, 1)
    values = from_module(module).data.clone().apply(torch.ones_like)
    flat = dict(values.flatten_keys(".").items())
    return functional_call(module, flat, (X,)), module.weight.requires_grad


@scenario
def a_module_of_collections_with_other_parameters():
    module = TensorDictSequential(
        TensorDictModule(nn.Linear(2, 1), ["x"], ["y"]),
        TensorDictModule(nn.Linear(1, 1), ["y"], ["z"]),
    )
    params = TensorDict.from_module(module).data.clone().apply(torch.ones_like)
    with params.to_module(module):
        td = module(TensorDict(x=X, batch_size=[2]))
    return td["z"], sorted(map(str, params.keys(True, True)))


@scenario
def a_block_that_fails_gives_the_parameters_back():
    module = nn.Linear(2, 1)
    before = module.weight
    try:
        with from_module(nn.Linear(2, 1)).to_module(module):
            {}["nothing"]
    except KeyError:
        return module.weight is before
    return None


@scenario
def blocks_in_blocks():
    module = nn.Linear(2, 1, bias=False)
    first = TensorDict(weight=torch.ones(1, 2))
    second = TensorDict(weight=torch.zeros(1, 2))
    before = module.weight
    with first.to_module(module):
        with second.to_module(module):
            inner = module(X)
        outer = module(X)
    return inner, outer, module.weight is before


@scenario
def parameters_that_are_frozen():
    module = nn.Linear(2, 1)
    params = from_module(module).requires_grad_(False)
    copied = from_module(module).data.clone().requires_grad_()
    return module.weight.requires_grad, params.requires_grad, copied.requires_grad


@scenario
def what_is_no_module():
    from_module(nn.Linear(2, 1)).to_module(torch.relu)


@scenario
def a_memo_that_is_given():
    from_module(nn.Linear(2, 1)).to_module(nn.Linear(2, 1), memo={})


@scenario
def gradients_as_a_collection():
    module = nn.Linear(2, 1)
    params = from_module(module, as_module=True)
    before = params.grad
    module(X).sum().backward()
    found = params.grad
    params.zero_grad()
    return before, found, module.weight.grad
