"""The parameters of modules as collections, and putting them back."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

from tensordict import TensorDict, from_module, from_modules


@pytest.fixture
def module():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.ReLU())


def test_from_module_holds_the_module_s_own_tensors(module):
    params = from_module(module)
    assert params["0", "weight"] is module[0].weight
    assert params["1", "running_mean"] is module[1].running_mean
    assert "2" not in params
    assert params.is_locked


def test_from_module_use_state_dict_is_detached(module):
    params = from_module(module, use_state_dict=True)
    assert not params["0", "weight"].requires_grad
    assert params["0", "weight"].data_ptr() == module[0].weight.data_ptr()


def test_to_module_swaps_for_the_length_of_a_block(module):
    own = module[0].weight
    zeros = from_module(module).data.clone().zero_()
    with zeros.to_module(module) as swapped:
        assert module[0].weight.sum() == 0
        assert isinstance(module[0].weight, nn.Parameter)
        assert swapped["0", "weight"] is own
    assert module[0].weight is own


def test_to_module_swaps_back_after_an_error(module):
    own = module[0].weight
    with pytest.raises(ZeroDivisionError), from_module(module).data.to_module(module):
        1 / 0  # noqa: B018
    assert module[0].weight is own


def test_to_module_swaps_back_where_nobody_holds_the_collection(module):
    own = module[0].weight
    with from_module(module).data.clone().to_module(module):
        gc.collect()
    assert module[0].weight is own


def test_to_module_takes_what_the_block_gave_the_module():
    linear = nn.Linear(3, 2)
    params = TensorDict(weight=torch.zeros(2, 3)).lock_()
    new = nn.Parameter(torch.ones(2, 3))
    with params.to_module(linear):
        linear.weight = new
    assert params["weight"] is new


def test_to_module_missing_entry_leaves_the_module_as_it_was():
    linear = nn.Linear(3, 2)
    own = linear.weight
    with pytest.raises(KeyError, match="nope"):
        TensorDict(weight=torch.zeros(2, 3), nope=torch.zeros(1)).to_module(linear)
    assert linear.weight is own


def test_to_module_tied_modules_are_visited_once():
    linear = nn.Linear(1, 1, bias=False)
    own, tied = linear.weight, nn.Sequential(linear, linear)
    params = from_module(tied).data.clone()
    with params.to_module(tied) as swapped:
        assert swapped["0", "weight"] is own
        assert swapped["1", "weight"] is own
    assert linear.weight is own


@pytest.mark.parametrize(
    "place",
    [
        nn.Parameter(torch.zeros(0)),
        nn.Parameter(torch.zeros(5, 5, device="meta")),
        torch.zeros(5, device="meta"),
        nn.UninitializedParameter(),
    ],
    ids=["empty", "meta", "meta_tensor", "uninitialized"],
)
def test_to_module_takes_any_shape_in_the_place_of_a_placeholder(place):
    layer = nn.Linear(2, 3)
    del layer.weight
    layer.register_parameter("weight", place) if isinstance(
        place, nn.Parameter
    ) else layer.register_buffer("weight", place)
    values = TensorDict(weight=torch.ones(3, 2), bias=torch.zeros(3))
    for preserve in (True, False):
        with values.to_module(layer, preserve_module_state=preserve):
            assert layer(torch.ones(2)).tolist() == [2, 2, 2]
        assert layer.weight is place

    def call(row, x):
        with row.to_module(layer):
            return layer(x)

    rows = torch.stack([values, values * 2])
    found = torch.vmap(call, (0, None))(rows, torch.ones(2))
    assert found.tolist() == [[2, 2, 2], [4, 4, 4]]
    assert layer.weight is place


def test_to_module_gradients_reach_the_collection(module):
    linear = module[0]
    params = from_module(linear).data.clone().requires_grad_()
    with params.to_module(linear):
        linear(torch.ones(4, 3)).sum().backward()
    assert params["weight"].grad is not None
    assert linear.weight.grad is None


def test_to_module_inplace_copies(module):
    own = module[0].weight
    before = own.detach().clone()
    zeros = from_module(module).data.clone().zero_()
    with zeros.to_module(module, inplace=True):
        assert module[0].weight is own
        assert own.sum() == 0
    assert torch.equal(own, before)


def test_to_module_inside_vmap():
    linears = [nn.Linear(3, 2) for _ in range(4)]
    params = from_modules(*linears)
    shell = nn.Linear(3, 2)

    def call(one, x):
        with one.to_module(shell):
            return shell(x)

    x = torch.randn(5, 3)
    out = torch.vmap(call, (0, None))(params, x)
    expected = torch.stack([linear(x) for linear in linears])
    torch.testing.assert_close(out, expected)
    assert isinstance(shell.weight, nn.Parameter)


def test_from_modules_parameters_are_new_leaves():
    a, b = nn.Linear(3, 2), nn.Linear(3, 2)
    params = from_modules(a, b)
    assert params.batch_size == torch.Size([2])
    assert isinstance(params["weight"], nn.Parameter)
    assert torch.equal(params["weight"][1], b.weight)
    params["weight"].sum().backward()
    assert a.weight.grad is None


def test_from_modules_of_different_shapes_names_the_key():
    with pytest.raises(RuntimeError, match="weight"):
        from_modules(nn.Linear(3, 2), nn.Linear(3, 5))
