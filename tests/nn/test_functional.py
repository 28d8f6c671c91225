"""Functional modules, ensembles, recorded calls and traced graphs."""

import copy
import pickle

import pytest
import torch
from torch import nn

from tensordict import TensorDict
from tensordict.nn import (
    CudaGraphModule,
    EnsembleModule,
    TensorDictModule,
    TensorDictSequential,
    get_functional,
    is_functional,
    make_functional,
    repopulate_module,
)
from tensordict.prototype import symbolic_trace


@pytest.fixture
def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


def test_functional_module_needs_its_parameters(net):
    x = torch.randn(5, 3)
    expected = net.eval()(x)
    params = make_functional(net)
    assert is_functional(net)
    assert not list(net.parameters())
    assert torch.equal(net(x, params), expected)
    assert torch.equal(net(x, params=params), expected)
    with pytest.raises(RuntimeError, match="Sequential is functional.*params"):
        net(x)
    repopulate_module(net, params)
    assert not is_functional(net)
    assert torch.equal(net(x), expected)
    assert len(list(net.parameters())) == 6


def test_functional_copy_leaves_the_module_alone(net):
    x = torch.randn(5, 3)
    functional = get_functional(net.eval())
    zeros = TensorDict.from_module(net).data.clone().zero_()
    assert torch.equal(functional(x), net(x))
    assert not functional(x, params=zeros).any()
    assert torch.equal(functional(x), net(x))


def test_functional_module_of_collections():
    module = TensorDictModule(nn.Linear(3, 2), ["x"], ["y"])
    params = make_functional(module)
    td = TensorDict(x=torch.ones(5, 3), batch_size=[5])
    stacked = torch.stack([params, params.clone().zero_()])
    result = torch.vmap(module, (None, 0))(td, stacked)
    assert result["y"].shape == (2, 5, 2)
    assert not result["y"][1].any()


def test_functional_module_after_an_error_has_no_parameters(net):
    params = make_functional(net)
    with pytest.raises(RuntimeError):
        net(torch.randn(5, 7), params)
    assert not list(net.parameters())


def test_ensemble_of_module_with_buffers(net):
    module = TensorDictModule(net, ["x"], ["y"])
    before = copy.deepcopy(net.state_dict())
    ensemble = EnsembleModule(module, 3)
    td = TensorDict(x=torch.randn(6, 3), batch_size=[6])
    result = ensemble(td)
    assert result["y"].shape == (3, 6, 2)
    assert "y" not in td
    assert ensemble.params_td["module", "1", "num_batches_tracked"].tolist() == [1] * 3
    assert all(
        torch.equal(before[key], value) for key, value in net.state_dict().items()
    )
    result["y"].sum().backward()
    assert ensemble.params_td["module", "3", "weight"].grad.shape == (3, 2, 4)
    for i in range(3):
        with ensemble.params_td.data[i].clone().to_module(module):
            torch.testing.assert_close(module(td.copy())["y"], result["y"][i])


def test_ensemble_of_rows():
    ensemble = EnsembleModule(
        TensorDictModule(nn.Linear(3, 2), ["x"], ["y"]), 4, expand_input=False
    )
    assert ensemble(torch.randn(4, 6, 3)).shape == (4, 6, 2)
    with pytest.raises(ValueError, match="same size in the mapped dimension"):
        ensemble(torch.randn(5, 6, 3))


def test_ensemble_is_reset_in_place():
    ensemble = EnsembleModule(TensorDictModule(nn.Linear(3, 2), ["x"], ["y"]), 4)
    weight = ensemble.params_td["module", "weight"]
    before = weight.detach().clone()
    ensemble.reset_parameters_recursive(ensemble.params_td)
    assert ensemble.params_td["module", "weight"] is weight
    assert not (before == weight).any()
    with pytest.raises(ValueError, match="pass params_td"):
        ensemble.reset_parameters_recursive()


@pytest.mark.skipif(torch.cuda.is_available(), reason="it would record a graph")
def test_cuda_graph_without_gpu_calls_the_module():
    with pytest.warns(UserWarning, match="without CUDA device"):
        module = CudaGraphModule(TensorDictModule(torch.neg, ["x"], ["y"]))
    assert module(TensorDict(x=torch.ones(2)))["y"].tolist() == [-1, -1]
    assert module(torch.ones(2)).tolist() == [-1, -1]
    assert module.in_keys == ["x"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="it would record a graph")
def test_cuda_graph_without_gpu_calls_a_sequence_as_it_is():
    sequence = TensorDictSequential(
        TensorDictModule(nn.Linear(3, 4), ["x"], ["h"]),
        TensorDictModule(nn.Linear(4, 2), ["h"], ["y"]),
    )
    with pytest.warns(UserWarning, match="without CUDA device"):
        module = CudaGraphModule(sequence)
    # More calls, of other sizes and structures, than a graph is recorded after.
    for size in range(1, 6):
        td = TensorDict({"x": torch.randn(size, 3), str(size): torch.ones(1)})
        expected = sequence(td.copy())
        assert module(td) is td
        assert list(td.keys()) == list(expected.keys())
        torch.testing.assert_close(td["y"], expected["y"])
        torch.testing.assert_close(module(x=td["x"]), (td["h"], td["y"]))
    td["y"].sum().backward()
    assert sequence[0].module.weight.grad is not None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_cuda_graph_replays():
    calls = []

    def count(x):
        calls.append(1)
        return x + 1

    module = CudaGraphModule(TensorDictModule(count, ["x"], ["y"]))
    function = CudaGraphModule(lambda x, scale: {"y": (x * scale).sum()})
    for i in range(6):
        x = torch.full((3,), float(i), device="cuda")
        td = module(TensorDict(x=x, z=x))
        assert list(td.keys()) == ["x", "z", "y"]
        assert td["y"].tolist() == [i + 1] * 3
        assert function(x, 2.0)["y"].item() == 6 * i
    assert len(calls) == 3
    with pytest.raises(ValueError, match="3.0 in the place of 2.0"):
        function(x, 3.0)
    with pytest.raises(ValueError, match="other arguments"):
        function(x[:2], 2.0)


def test_traced_sequence_gives_what_it_gave():
    sequence = TensorDictSequential(
        TensorDictModule(nn.Linear(3, 4), ["x"], [("n", "y")]),
        TensorDictModule(lambda y: y.chunk(2, -1), [("n", "y")], ["a", "_"]),
        TensorDictModule(torch.mul, ["a", "a"], ["z"]),
    )
    traced = symbolic_trace(sequence)
    td = TensorDict(x=torch.randn(5, 3), batch_size=[5])
    expected = sequence(td.copy())
    assert (traced(td.copy()) == expected).all()
    assert "torch.mul" in traced.code
    with pytest.raises(TypeError, match="Unsupported type"):
        symbolic_trace(nn.Linear(3, 2))


class Predicts(nn.Module):
    """A module of tensors that calls a sequence, by name or with a collection."""

    def __init__(self, by_name):
        super().__init__()
        self.by_name = by_name
        self.sequence = TensorDictSequential(
            TensorDictModule(nn.Linear(3, 4), ["x"], [("n", "h")]),
            TensorDictModule(nn.Linear(4, 2), [("n", "h")], ["y"]),
        )

    def forward(self, x):
        if self.by_name:
            return self.sequence(x=x)
        return self.sequence(TensorDict(x=x))["y"]


@pytest.mark.parametrize("by_name", [True, False])
def test_torch_traces_a_module_that_calls_a_sequence(by_name):
    module, x = Predicts(by_name), torch.randn(5, 3)
    traced = torch.fx.symbolic_trace(module)
    torch.testing.assert_close(traced(x), module(x))
    called = {node.op for node in traced.graph.nodes}
    assert called == {"placeholder", "call_module", "output"}


def test_traced_parameters_have_the_names_of_their_places():
    inner = TensorDictSequential(TensorDictModule(nn.Linear(4, 2), ["y"], ["z"]))
    sequence = TensorDictSequential(
        TensorDictModule(nn.Linear(3, 4), ["x"], ["y"]), inner
    )
    names = ["_gm.0.module.weight", "_gm.0.module.bias"]
    names += ["_gm.1.module.0.module.weight", "_gm.1.module.0.module.bias"]
    assert list(symbolic_trace(sequence).state_dict()) == names
    module = TensorDictModule(nn.Linear(3, 4), ["x"], ["y"])
    traced = symbolic_trace(module)
    assert list(traced.state_dict()) == ["_gm.weight", "_gm.bias"]
    x = torch.ones(2, 3)
    assert traced(x=x).equal(module(x=x))


def test_function_without_a_name_is_pickled_by_value():
    module = TensorDictModule(lambda x: x + 1, ["x"], ["y"])
    for copied in (pickle.loads(pickle.dumps(module)), copy.deepcopy(module)):
        assert copied(x=torch.ones(1)).item() == 2


def lazy_net():
    return nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d(), nn.LazyLinear(2))


@pytest.mark.parametrize("as_module", [False, True])
@pytest.mark.parametrize("randomness", ["same", "different"])
def test_lazy_modules_get_their_parameters_together(randomness, as_module):
    torch.manual_seed(0)
    params = TensorDict.from_modules(
        *[nn.Sequential(nn.LazyLinear(4), nn.LazyLinear(2)) for _ in range(3)],
        as_module=as_module,
    )
    assert params["0", "weight"].batch_size == (3,)
    module = nn.Sequential(nn.LazyLinear(4), nn.LazyLinear(2))
    x = torch.randn(5, 6)

    def call(params, x):
        with params.to_module(module):
            return module(x)

    first = torch.vmap(call, (0, None), randomness=randomness)(params, x)
    assert params["0", "weight"].shape == (3, 4, 6)
    assert type(params["1", "weight"]) is nn.Parameter
    # Each is drawn by itself, with the bounds of a module of its shape.
    rows = params["0", "weight"].detach().abs()
    assert not torch.equal(rows[0], rows[1])
    assert rows.amax((1, 2)).min() > 0.3
    # From now on they are parameters as all others are.
    again = torch.vmap(call, (0, None))(params, x)
    torch.testing.assert_close(again, first)
    again.sum().backward()
    assert params["0", "weight"].grad.shape == (3, 4, 6)
    row = params[1]
    with row.to_module(module):
        torch.testing.assert_close(module(x), first[1])


def test_lazy_buffers_are_stacked():
    params = TensorDict.from_modules(*[lazy_net() for _ in range(2)])
    params["1", "running_mean"].materialize((4,))
    assert params["1", "running_mean"].shape == (2, 4)
    assert params["1", "num_batches_tracked"].shape == (2,)


def test_some_lazy_modules_are_refused():
    with pytest.raises(RuntimeError, match="Only some of the modules have set"):
        TensorDict.from_modules(nn.LazyLinear(2), nn.Linear(3, 2))
    with pytest.raises(RuntimeError, match="not compatible with lazy modules"):
        TensorDict.from_modules(nn.LazyLinear(2), nn.LazyLinear(2), lazy_stack=True)


@pytest.mark.parametrize("is_replaced", [False, True])
def test_module_at_two_places_of_plain_tensors(is_replaced):
    module = nn.ModuleDict({"a": nn.Linear(2, 2)})
    module["b"] = module["a"]
    params = TensorDict.from_module(module).data.clone()
    other = nn.Parameter(torch.ones(2, 2))
    before = dict(params.items(True, True))
    with params.to_module(module):
        # The first place decides.
        torch.testing.assert_close(module["b"].weight.data, params["a", "weight"])
        if is_replaced:
            module["b"].weight = other
    for place in ("a", "b"):
        expected = other if is_replaced else before[place, "weight"]
        assert params[place, "weight"] is expected
        assert params[place, "bias"] is before[place, "bias"]


def test_loaded_state_reaches_buffers_that_are_not_part_of_it():
    module = nn.Sequential(nn.Linear(2, 2))
    module[0].register_buffer("extra", torch.zeros(2), persistent=False)
    params = TensorDict.from_module(module).data + 1
    with params.to_module(module, use_state_dict=True):
        assert torch.equal(module[0].extra, torch.ones(2))
    assert torch.equal(module[0].extra, torch.zeros(2))
    assert torch.equal(params["0", "extra"], torch.ones(2))


def test_ensemble_names_the_rows_that_it_needs():
    module = TensorDictModule(nn.Linear(3, 2), ["x"], ["y"])
    ensemble = EnsembleModule(module, 4, expand_input=False)
    with pytest.raises(ValueError, match="same size") as caught:
        ensemble(TensorDict(x=torch.randn(5, 3), batch_size=[5]))
    (note,) = caught.value.__notes__
    assert note == (
        "EnsembleModule has 4 copies and, with expand_input=False, needs an input of that "
        "many rows: its batch size is [5]."
    )
