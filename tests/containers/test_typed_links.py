"""Typed containers over lazy stacks, views and parameters: one with their source."""

from __future__ import annotations

import copy
import gc
import inspect
import pickle
import weakref
from typing import NotRequired

import pytest
import torch

from tensordict import TensorDict, TensorDictParams, TypedTensorDict, lazy_stack


class State(TypedTensorDict):
    position: torch.Tensor
    velocity: NotRequired[torch.Tensor]
    label: str = "none"


class Deeper(State):
    """A class with a text of its own."""

    height: NotRequired[torch.Tensor]


def stack():
    return lazy_stack([TensorDict(position=torch.full((2,), i)) for i in range(3)])


def view():
    whole = TensorDict(position=torch.arange(8).view(4, 2), batch_size=[4])
    return whole._get_sub_tensordict(slice(0, 3))


def params():
    position = torch.nn.Parameter(torch.zeros(3, 2))
    return TensorDictParams(TensorDict(position=position, batch_size=[3]))


@pytest.mark.parametrize("make", [stack, view])
def test_what_is_set_is_set_in_the_source(make):
    source = make()
    state = State.from_tensordict(source)
    state.velocity = torch.ones(3)
    state["n", "x"] = torch.zeros(3)
    state.update({"position": torch.zeros(3, 2, dtype=torch.int64)}, inplace=True)
    assert source["velocity"].tolist() == [1, 1, 1]
    assert source["n", "x"].shape == (3,)
    assert not source["position"].any()
    del state["velocity"]
    assert "velocity" not in source.keys()


@pytest.mark.parametrize("make", [stack, view])
def test_what_is_set_in_the_source_is_seen(make):
    source = make()
    state = State.from_tensordict(source)
    source["velocity"] = torch.ones(3)
    assert state.velocity.tolist() == [1, 1, 1]
    assert state.label == "none"


@pytest.mark.parametrize("make", [stack, view, params])
def test_it_is_one_of_the_class_around_the_very_source(make):
    source = make()
    state = State.from_tensordict(source)
    assert isinstance(state, State)
    assert state._source is source
    assert state.batch_size == source.batch_size == (3,)
    assert State.from_tensordict(state)._source is source


def test_a_dense_source_is_the_very_one():
    source = TensorDict(position=torch.zeros(3), batch_size=[3])
    assert State.from_tensordict(source)._source is source
    made = State(position=torch.zeros(3), batch_size=[3])
    assert made._source is made._source
    made._source["velocity"] = torch.ones(3)
    assert made.velocity.tolist() == [1, 1, 1]
    assert list(vars(made)) == list(vars(made._source))


def test_the_state_of_a_dense_one_is_that_of_a_plain_container():
    made = State.from_tensordict(TensorDict(position=torch.zeros(3)))
    assert set(vars(made)) == {"_tensordict", "_batch_size", "_device", "_td_dim_names"}


@pytest.mark.parametrize("make", [stack, view])
def test_results_are_of_the_class(make):
    state = Deeper.from_tensordict(make())
    results = [state[0], state[:2], state.clone(), state + 1, state.contiguous()]
    results += [*state, torch.stack([state, state]), torch.cat([state, state])]
    assert all(isinstance(each, Deeper) for each in results)
    assert not isinstance(state.to_tensordict(), State)
    assert not isinstance(state == state, State)


def test_rows_of_a_linked_stack_write_to_its_members():
    source = stack()
    next(iter(State.from_tensordict(source))).velocity = torch.ones(())
    assert "velocity" in source.tensordicts[0].keys()


def test_a_nested_one_is_walked_into():
    source = stack()
    td = TensorDict(state=State.from_tensordict(source), batch_size=[3])
    assert type(td[0]["state"]) is State
    assert (td + 1)["state", "position"][0].tolist() == [1, 1]
    td.apply_(lambda leaf: leaf.zero_())
    assert not source["position"].any()
    td["state", "velocity"] = torch.ones(3)
    assert "velocity" in source.keys()


def test_locks_are_those_of_the_source():
    source = stack()
    state = State.from_tensordict(source)
    state.lock_()
    assert source.is_locked
    with pytest.raises(RuntimeError, match="locked"):
        state.velocity = torch.ones(3)
    source.unlock_()
    assert not state.is_locked


def test_methods_that_only_the_source_has():
    source = stack()
    state = State.from_tensordict(source)
    state.append(TensorDict(position=torch.zeros(2)))
    assert (len(source), state.batch_size, state.stack_dim) == (4, (4,), 0)
    with pytest.raises(AttributeError, match="'State' object has no attribute 'nope'"):
        _ = state.nope
    with pytest.raises(AttributeError, match="declared but not set"):
        _ = state.velocity


def test_copies_and_pickles_are_around_a_source_of_their_own():
    state = State.from_tensordict(stack())
    for other in (copy.deepcopy(state), pickle.loads(pickle.dumps(state))):
        assert isinstance(other, State)
        other.position = torch.full((3, 2), 7)
    assert state.position[:, 0].tolist() == [0, 1, 2]


def test_pytrees_and_vmap():
    state = State.from_tensordict(stack())
    mapped = torch.utils._pytree.tree_map(lambda leaf: leaf + 1, state)
    assert isinstance(mapped, State)
    assert mapped.position[:, 0].tolist() == [1, 2, 3]
    sums = torch.vmap(lambda row: row.position.sum())(state)
    assert sums.tolist() == [0, 2, 4]


def test_a_linked_one_keeps_nothing_alive():
    source = stack()
    state = State.from_tensordict(source)
    known = weakref.ref(source)
    del source, state
    gc.collect()
    assert known() is None


def test_signatures_name_the_keys():
    signature = inspect.signature(Deeper)
    assert list(signature.parameters)[:5] == [
        "_source",
        "position",
        "velocity",
        "label",
        "height",
    ]
    assert signature.parameters["position"].default is inspect.Parameter.empty
    assert signature.parameters["label"].default == "none"
    assert signature.parameters["batch_size"].default is None
    assert State.__doc__.startswith("State(")
    assert Deeper.__doc__ == "A class with a text of its own."
