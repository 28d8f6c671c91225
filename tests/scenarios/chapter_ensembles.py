"""Ensembles: copies of a module, stacked parameters, and modules that start lazily."""

from __future__ import annotations

import torch
from scenario import scenario
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

from tensordict import TensorDict, TensorDictParams, from_modules, lazy_stack
from tensordict.nn import (
    EnsembleModule,
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictModuleBase,
    TensorDictModuleWrapper,
    TensorDictSequential,
)
from tensordict.nn.distributions import Delta


class Counted(nn.Module):
    """A module that counts how often it is started."""

    calls = 0

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.reset_parameters()

    def reset_parameters(self):
        Counted.calls += 1
        with torch.no_grad():
            self.weight.fill_(Counted.calls)

    def forward(self, x):
        return x * self.weight


def counted(in_key="a", out_key="b"):
    return TensorDictModule(Counted(), [in_key], [out_key])


def rows_differ(params):
    """Return per entry whether the rows differ, and its shape."""
    return {
        key: (bool((leaf[0] != leaf[1]).any()), tuple(leaf.shape))
        for key, leaf in params.data.items(True, True)
    }


def started(make, x, randomness="same", count=3, as_module=True):
    """Call the stacked parameters of lazy modules."""
    modules = [make() for _ in range(count)]
    params = from_modules(*modules, as_module=as_module)

    def call(x, params):
        with params.to_module(modules[0]):
            return modules[0](x)

    y = vmap(call, (None, 0), randomness=randomness)(x, params)
    return y, params


@scenario
def an_ensemble_of_a_linear_module():
    module = TensorDictModule(nn.Linear(3, 2), ["x"], ["y"])
    ensemble = EnsembleModule(module, num_copies=4)
    td = ensemble(TensorDict(x=torch.ones(5, 3), batch_size=[5]))
    return td["y"].shape, td.batch_size, rows_differ(ensemble.params_td)


@scenario
def an_ensemble_with_an_input_for_each_copy():
    module = TensorDictModule(nn.Linear(3, 2), ["x"], ["y"])
    ensemble = EnsembleModule(module, num_copies=2, expand_input=False)
    td = ensemble(TensorDict(x=torch.ones(2, 5, 3), batch_size=[2, 5]))
    return td["y"].shape, td.batch_size


@scenario
def the_copies_of_an_ensemble_are_started():
    Counted.calls = 0
    ensemble = EnsembleModule(counted(), 3)
    return Counted.calls, ensemble.params_td["module", "weight"]


@scenario
def nested_modules_of_an_ensemble_are_started():
    Counted.calls = 0
    deep = TensorDictModule(
        nn.Sequential(nn.Sequential(Counted()), Counted()), ["a"], ["b"]
    )
    ensemble = EnsembleModule(deep, 2)
    return Counted.calls, ensemble.params_td


@scenario
def a_sequence_in_an_ensemble_is_started():
    Counted.calls = 0
    ensemble = EnsembleModule(TensorDictSequential(counted(), counted("b", "c")), 2)
    td = ensemble(TensorDict(a=torch.ones(2)))
    return Counted.calls, ensemble.params_td, td


@scenario
def a_wrapper_in_an_ensemble_is_started():
    Counted.calls = 0
    ensemble = EnsembleModule(TensorDictModuleWrapper(counted()), 2)
    return Counted.calls, ensemble.params_td


@scenario
def an_ensemble_inside_a_module_is_started():
    Counted.calls = 0

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.ensemble = EnsembleModule(counted(), 2)
            self.head = Counted()

    outer = Outer()
    names = [name for name, _ in outer.named_parameters()]
    return Counted.calls, names, outer.ensemble.params_td


@scenario
def a_module_of_collections_in_an_ensemble():
    class Net(TensorDictModuleBase):
        in_keys, out_keys = ["a"], ["b"]

        def __init__(self):
            super().__init__()
            self.inner = Counted()

        def forward(self, td):
            return td.set("b", self.inner(td["a"]))

    Counted.calls = 0
    ensemble = EnsembleModule(TensorDictSequential(Net()), 2)
    return Counted.calls, ensemble(TensorDict(a=torch.ones(2)))


@scenario
def a_distribution_in_an_ensemble():
    Counted.calls = 0
    module = ProbabilisticTensorDictSequential(
        counted("a", "param"),
        ProbabilisticTensorDictModule(["param"], ["x"], distribution_class=Delta),
    )
    ensemble = EnsembleModule(module, 2)
    return ensemble(TensorDict(a=torch.ones(2))), ensemble.in_keys, ensemble.out_keys


@scenario
def the_parameters_of_an_ensemble_are_drawn_again():
    Counted.calls = 0
    ensemble = EnsembleModule(counted(), 3)
    result = ensemble.reset_parameters_recursive(ensemble.params_td)
    return Counted.calls, ensemble.params_td, type(result).__name__


@scenario
def an_ensemble_without_parameters_to_draw():
    EnsembleModule(counted(), 3).reset_parameters_recursive()


@scenario
def an_ensemble_of_no_copies():
    EnsembleModule(counted(), 0)


@scenario
def training_of_an_ensemble():
    module = TensorDictModule(nn.Linear(2, 1, bias=False), ["x"], ["y"])
    ensemble = EnsembleModule(module, 2)
    optimizer = torch.optim.SGD(ensemble.parameters(), lr=0.1)
    before = ensemble.params_td.data.clone()
    ensemble(TensorDict(x=torch.ones(3, 2), batch_size=[3]))["y"].sum().backward()
    optimizer.step()
    return (ensemble.params_td.data - before)["module", "weight"]


@scenario
def ensembles_one_after_the_other():
    first = EnsembleModule(TensorDictModule(nn.Linear(3, 2), ["x"], ["y"]), 2)
    second = EnsembleModule(
        TensorDictModule(nn.Linear(2, 1), ["y"], ["z"]), 2, expand_input=False
    )
    module = TensorDictSequential(first, second)
    td = module(TensorDict(x=torch.ones(4, 3), batch_size=[4]))
    return td["z"].shape, td.batch_size, module.in_keys, module.out_keys


@scenario
def an_ensemble_in_a_state():
    Counted.calls = 0
    first, second = EnsembleModule(counted(), 2), EnsembleModule(counted(), 2)
    second.load_state_dict(first.state_dict())
    return sorted(first.state_dict()), second.params_td


# Stacked parameters under vmap -----------------------------------------------------------


@scenario
def stacked_parameters_under_vmap():
    modules = [nn.Linear(3, 2) for _ in range(4)]
    params = from_modules(*modules, as_module=True)

    def call(params, x):
        with params.to_module(modules[0]):
            return modules[0](x)

    x = torch.ones(5, 3)
    y = vmap(call, (0, None))(params, x)
    each = torch.stack([module(x) for module in modules])
    return torch.allclose(y, each), y.shape, params.batch_size


@scenario
def parameters_and_inputs_are_mapped_together():
    modules = [nn.Linear(3, 2) for _ in range(2)]
    params = from_modules(*modules)

    def call(params, x):
        with params.to_module(modules[0]):
            return modules[0](x)

    x = torch.randn(2, 5, 3)
    y = vmap(call, (0, 0), chunk_size=1)(params, x)
    return torch.allclose(y[1], modules[1](x[1])), y.shape


@scenario
def a_lazy_stack_of_parameters_under_vmap():
    modules = [nn.Linear(3, 2) for _ in range(2)]
    params = from_modules(*modules, lazy_stack=True)

    def call(params, x):
        with params.to_module(modules[0]):
            return modules[0](x)

    y = vmap(call, (0, None))(params, torch.ones(3))
    return torch.allclose(y[0], modules[0](torch.ones(3))), type(params).__name__


@scenario
def gradients_of_stacked_parameters():
    modules = [nn.Linear(2, 1, bias=False) for _ in range(3)]
    params = from_modules(*modules, as_module=True)

    def call(params, x):
        with params.to_module(modules[0]):
            return modules[0](x)

    vmap(call, (0, None))(params, torch.ones(2)).sum().backward()
    return params.grad, modules[0].weight.grad


@scenario
def an_ensemble_of_torch_and_ours():
    modules = [nn.Linear(2, 1) for _ in range(2)]
    params, buffers = stack_module_state(modules)
    ours = TensorDict.from_modules(*modules)

    def call(params, x):
        return functional_call(modules[0], params, (x,))

    y = vmap(call, (0, None))(params, torch.ones(2))
    same = vmap(call, (0, None))(dict(ours.items()), torch.ones(2))
    return torch.equal(y, same), buffers


@scenario
def one_member_of_stacked_parameters():
    modules = [nn.Linear(2, 1) for _ in range(3)]
    params = from_modules(*modules, as_module=True)
    row = params[1]
    with row.to_module(modules[0]):
        same = torch.equal(modules[0](torch.ones(2)), modules[1](torch.ones(2)))
    return same, type(row).__name__, row.batch_size


@scenario
def modules_of_other_shapes():
    from_modules(nn.Linear(2, 1), nn.Linear(3, 1))


@scenario
def a_stack_of_parameters_becomes_parameters():
    rows = [TensorDict(a=torch.full((2,), float(i))) for i in range(2)]
    dense = TensorDictParams(torch.stack(rows))
    TensorDictParams(lazy_stack(rows))
    return dense


# Lazy modules ----------------------------------------------------------------------------


@scenario
def lazy_linear_modules_differ():
    y, params = started(lambda: nn.LazyLinear(4), torch.ones(2, 3))
    return rows_differ(params), bool((y[0] == y[1]).all()), y.shape


@scenario
def lazy_modules_without_a_module_around():
    _, params = started(lambda: nn.LazyLinear(4), torch.ones(2, 3), as_module=False)
    return rows_differ(params), params.is_locked


@scenario
def lazy_convolutions_differ():
    found = []
    for make, shape in (
        (lambda: nn.LazyConv1d(4, 2), (1, 2, 5)),
        (lambda: nn.LazyConv2d(4, 2), (1, 2, 5, 5)),
        (lambda: nn.LazyConvTranspose1d(4, 2), (1, 2, 5)),
    ):
        _, params = started(make, torch.ones(shape))
        found.append(rows_differ(params))
    return found


@scenario
def lazy_modules_in_a_sequence_differ():
    y, params = started(
        lambda: nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.LazyLinear(2)),
        torch.ones(2, 3),
    )
    return rows_differ(params), y.shape


@scenario
def lazy_parameters_of_ones_own():
    class Net(nn.modules.lazy.LazyModuleMixin, nn.Module):
        cls_to_become = None

        def __init__(self):
            super().__init__()
            self.weight = nn.UninitializedParameter()

        def initialize_parameters(self, x):
            if self.has_uninitialized_params():
                with torch.no_grad():
                    self.weight.materialize((x.shape[-1], 2))
                    self.weight.data.normal_()

        def forward(self, x):
            return x @ self.weight

    _, params = started(Net, torch.ones(2, 3))
    return rows_differ(params)


@scenario
def lazy_modules_that_may_draw_nothing():
    started(lambda: nn.LazyLinear(4), torch.ones(2, 3), randomness="error")


@scenario(
    reason="the release draws nothing for each member where random numbers differ",
    ours=lambda result: result == {"weight": (True, (3, 4, 3)), "bias": (True, (3, 4))},
)
def lazy_modules_with_different_random_numbers():
    _, params = started(lambda: nn.LazyLinear(4), torch.ones(2, 3), "different")
    return rows_differ(params)


@scenario(
    reason="the release does not run norms that start lazily",
    ours=lambda result: all(shape[0] == 3 for _, shape in result.values()),
)
def lazy_norms():
    _, params = started(nn.LazyBatchNorm1d, torch.randn(4, 3))
    return rows_differ(params)


@scenario(
    reason="the release draws the members as one tensor, with bounds that are too small",
    ours=lambda bound: 0.45 < bound < 0.578,
)
def the_bounds_of_lazy_modules():
    _, params = started(lambda: nn.LazyLinear(50), torch.ones(2, 3))
    return params["weight"].abs().max().item()


@scenario(
    reason="the release refuses an ensemble of modules that start lazily",
    ours=lambda result: result["module", "weight"][0],
)
def a_lazy_module_in_an_ensemble():
    ensemble = EnsembleModule(TensorDictModule(nn.LazyLinear(4), ["a"], ["b"]), 3)
    ensemble(TensorDict(a=torch.ones(2, 3), batch_size=[2]))
    return rows_differ(ensemble.params_td)


@scenario(message=False)
def lazy_modules_in_a_lazy_stack():
    from_modules(nn.LazyLinear(4), nn.LazyLinear(4), lazy_stack=True)


@scenario(message=False)
def modules_some_of_which_are_started():
    first = nn.LazyLinear(4)
    first(torch.ones(2, 3))
    from_modules(first, nn.LazyLinear(4))
