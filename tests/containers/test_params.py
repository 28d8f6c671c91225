"""Collections of parameters alone."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref

import pytest
import torch
from torch import nn

from tensordict import TensorDict, from_module
from tensordict.nn import TensorDictParams


@pytest.fixture
def params():
    return TensorDictParams(
        TensorDict(
            {"a": torch.ones(2), "n": {"b": torch.zeros(1), "i": torch.tensor(3)}}
        )
    )


def names(module):
    return [name for name, _ in module.named_parameters()]


def test_floats_are_parameters_and_the_rest_buffers(params):
    assert names(params) == ["a", "n.b"]
    assert [name for name, _ in params.named_buffers()] == ["n.i"]


def test_no_convert_keeps_tensors():
    params = TensorDictParams(TensorDict(a=torch.ones(2)), no_convert=True)
    assert type(params["a"]) is torch.Tensor
    assert names(params) == []


def test_parameters_of_a_module_that_holds_it(params):
    module = nn.Module()
    module.net = nn.Linear(1, 1, bias=False)
    module.params = params
    assert names(module) == ["net.weight", "params.a", "params.n.b"]
    assert list(module.state_dict()) == [
        "net.weight", "params.a", "params.n.b", "params.n.i",
    ]  # fmt: skip


def test_state_dict_round_trip(params):
    module = nn.Module()
    module.params = params
    state = {key: value + 1 for key, value in module.state_dict().items()}
    leaf = params["n", "b"]
    module.load_state_dict(state)
    assert params["n", "b"] is leaf
    assert leaf.item() == 1
    assert params["n", "i"].item() == 4


def test_load_state_dict_names_missing_and_unknown_keys(params):
    with pytest.raises(RuntimeError, match=r"(?s)Missing.*n\.b.*Unexpected.*zz"):
        params.load_state_dict({"a": torch.zeros(2), "n.i": torch.tensor(1), "zz": 0})


def test_load_state_dict_assign(params):
    new = nn.Parameter(torch.full((1,), 7.0))
    state = {**params.state_dict(), "n.b": new}
    params.load_state_dict(state, assign=True)
    assert params["n", "b"].item() == 7
    assert isinstance(params["n", "b"], nn.Parameter)


def test_moving_the_module_moves_the_parameters_in_place(params):
    module = nn.Module()
    module.params = params
    leaf = params["a"]
    module.double()
    assert params["a"] is leaf
    assert leaf.dtype == params["n", "b"].dtype == torch.float64
    assert params["n", "i"].dtype == torch.int64


def test_set_converts(params):
    params["z"] = torch.zeros(2)
    params["n", "y"] = torch.zeros(2)
    params.update({"x": torch.zeros(1)})
    assert set(names(params)) == {"a", "n.b", "z", "n.y", "x"}


def test_results_are_plain_but_clones_and_moves_are_parameters(params):
    assert type(params.apply(lambda x: x * 2)) is TensorDict
    assert type(params.data) is TensorDict
    assert type(params.clone()) is TensorDictParams
    assert type(params.to("meta")) is TensorDictParams
    assert params.clone(recurse=False)["a"] is params["a"]
    assert params.clone()["a"].is_leaf


def test_locks(params):
    params.lock_()
    with pytest.raises(RuntimeError, match="Cannot modify locked"):
        params["z"] = torch.zeros(1)
    with pytest.raises(RuntimeError, match="part of a locked graph"):
        params["n"].unlock_()
    params.unlock_()
    params["z"] = torch.zeros(1)


def test_a_locked_content_changes_only_through_the_parameters():
    inner = TensorDict(a=torch.ones(2))
    params = TensorDictParams(inner, lock=True)
    with pytest.raises(RuntimeError, match="Cannot modify locked"):
        inner["z"] = torch.zeros(1)
    params["z"] = torch.zeros(1)
    assert names(params) == ["a", "z"]
    assert inner.is_locked


def test_tied_parameters_stay_tied():
    shared = torch.ones(2)
    params = TensorDictParams(TensorDict(a=shared, b=shared))
    assert params["a"] is params["b"]
    assert len(list(params.parameters())) == 1
    copied = copy.deepcopy(params)
    assert copied["a"] is copied["b"]


def test_pickle_and_deepcopy(params):
    for other in (pickle.loads(pickle.dumps(params)), copy.deepcopy(params)):
        assert type(other) is TensorDictParams
        assert names(other) == names(params)
        assert torch.equal(other["a"], params["a"])
        assert other["a"] is not params["a"]


def test_get_post_hook(params):
    params.register_get_post_hook(lambda _, value: value.data)
    assert not params["a"].requires_grad
    assert not params.get(("n", "b")).requires_grad
    assert params.data["a"].tolist() == [1, 1]


def test_entries_are_attributes(params):
    assert params.a is params["a"]
    with pytest.raises(AttributeError, match="nope"):
        params.nope  # noqa: B018


def test_optimizer_step(params):
    optimizer = torch.optim.SGD(params.parameters(), lr=1.0)
    params["a"].sum().backward()
    optimizer.step()
    assert params.data["a"].tolist() == [0, 0]


def test_from_module_keeps_it_and_to_module_swaps_its_content(params):
    module = nn.Module()
    module.params = params
    taken = from_module(module)
    assert taken["params"] is params
    own = params["a"]
    with taken.data.clone().zero_().to_module(module):
        assert module.params is params
        assert params["a"].sum() == 0
    assert params["a"] is own


def test_it_is_collected():
    params = TensorDictParams(TensorDict(a=torch.ones(2)))
    params.lock_()
    reference = weakref.ref(params)
    del params
    gc.collect()
    assert reference() is None


def test_pickle_keeps_the_locks_of_what_is_inside():
    params = TensorDictParams(from_module(nn.Sequential(nn.Linear(2, 2))))
    loaded = pickle.loads(pickle.dumps(params))
    assert params["0"].is_locked
    assert loaded["0"].is_locked
    assert not loaded.is_locked
