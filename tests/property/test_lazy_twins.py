"""The primitives of lazy stacks against their twins in Python."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tensordict import TensorDict, _rust, lazy_stack
from tensordict.primitives import lazy as lazy_primitives

KEYS = ["a", "b", "n"]


@st.composite
def members(draw):
    """Members of batch size [2, N], some with fewer keys, some nested, some stacks."""
    made = []
    for _ in range(draw(st.integers(1, 4))):
        size = [2, draw(st.integers(1, 2))]
        td = TensorDict(batch_size=size)
        for key in draw(st.lists(st.sampled_from(KEYS), unique=True)):
            value = torch.rand(*size, draw(st.integers(1, 2)))
            td[key] = {"c": value} if key == "n" else value
        if draw(st.booleans()) and draw(st.booleans()):
            td = lazy_stack(list(td.unbind(0)), 0)
        made.append(td)
    return made


def told(value):
    """Return what can be compared of a result."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, list):
        return [told(each) for each in value]
    if hasattr(value, "batch_size"):
        leaves = {key: told(value[key]) for key in value.keys(True, True)}
        return type(value).__name__, tuple(value.batch_size), leaves
    return value


@pytest.mark.parametrize("name", lazy_primitives.__all__)
def test_every_primitive_has_its_twin(name):
    assert callable(getattr(_rust, name))


@given(tds=members(), dim=st.integers(0, 3))
def test_what_members_are_asked(tds, dim):
    for name, args in (
        ("member_values", (("a",),)),
        ("member_values", (("n", "c"),)),
        ("member_values", (("a", "c"),)),
        ("stacked_values", (("a",), 1)),
        ("stacked_values", (("n", "c"), 0)),
        ("common_keys", ()),
        ("merged_size", (dim,)),
        ("map_members", ("exp", (), None, True, 0, 1)),
        ("cloned_members", ()),
    ):
        native = told(getattr(_rust, name)(tds, *args))
        assert native == told(getattr(lazy_primitives, name)(tds, *args)), name


@given(tds=members())
def test_leaves_taken_and_given_back(tds):
    leaves, expected = [], []
    _rust.member_leaves(tds, leaves)
    lazy_primitives.member_leaves(tds, expected)
    assert told(leaves) == told(expected)
    for cls in (None, TensorDict):
        native = _rust.rebuilt_members(tds, list(leaves), cls)
        twin = lazy_primitives.rebuilt_members(tds, list(leaves), cls)
        assert told(native) == told(twin)


@given(tds=members())
def test_members_without_what_is_empty(tds):
    copies = [td.copy() for td in tds]
    for copy in copies:
        copy.update({"empty": {"inner": {}}, "value": "text"})
        copy.update({"full": {"empty": {}, "value": "text"}})
    lazy_primitives.drop_empty_of_members(copies)
    results = [sorted(map(str, copy.keys(True))) for copy in copies]
    assert not any("empty" in key for keys in results for key in keys)
    assert all("full" in keys for keys in results)


@given(tds=members(), dim=st.integers(0, 2))
def test_members_stacked_densely(tds, dim):
    native = _rust.stacked_members(tds, dim, TensorDict)
    twin = lazy_primitives.stacked_members(tds, dim, TensorDict)
    assert told(native) == told(twin)


def test_a_member_on_another_device_is_a_misfit():
    tds = [TensorDict(device="cpu"), TensorDict(device="cpu"), TensorDict()]
    assert lazy_primitives.first_misfit(tds) == 2
    assert lazy_primitives.first_misfit([tds[0], 1]) == 1
