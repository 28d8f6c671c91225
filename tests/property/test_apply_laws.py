"""Laws of apply, pytrees and pickles that hold for any container."""

from __future__ import annotations

import pickle

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

from tensordict import TensorDict, set_printoptions

KEYS = st.sampled_from(["a", "b", "c", "n", "m", "a.b", ""])
SIZES = st.lists(st.integers(0, 3), max_size=3)

relaxed = settings(deadline=None)


@st.composite
def trees(draw, depth=2, size=None):
    """A tree of dense containers with integer leaves, empty ones among them."""
    if size is None:
        size = draw(SIZES)
    entries = {}
    for key in draw(st.lists(KEYS, max_size=3, unique=True)):
        if depth and draw(st.booleans()):
            more = draw(st.lists(st.integers(1, 2), max_size=1))
            entries[key] = draw(trees(depth=depth - 1, size=[*size, *more]))
        else:
            shape = [*size, *draw(st.lists(st.integers(1, 2), max_size=2))]
            entries[key] = torch.arange(torch.Size(shape).numel()).view(shape)
    return TensorDict(entries, size)


def described(td):
    """Everything that a copy must share with its original."""
    return (
        type(td),
        td.batch_size,
        td.names,
        td.device,
        td.is_locked,
        [
            (key, described(v) if isinstance(v, TensorDict) else (v.dtype, v.tolist()))
            for key, v in td.items()
        ],
    )


@relaxed
@given(trees())
def test_apply_of_the_identity_is_a_copy_that_shares_its_leaves(td):
    result = td.apply(lambda x: x)
    if result is None:
        assert not td.is_empty()
        return
    assert described(result) == described(td)
    pairs = zip(result.values(True, True), td.values(True, True), strict=True)
    assert all(mine is theirs for mine, theirs in pairs)


@relaxed
@given(trees())
def test_apply_composes(td):
    twice = td.apply(lambda x: (x + 1) * 2, filter_empty=False)
    parts = td.apply(lambda x: x + 1, filter_empty=False)
    parts = parts.apply(lambda x: x * 2, filter_empty=False)
    assert described(parts) == described(twice)


@relaxed
@given(trees())
def test_named_apply_visits_the_leaves_in_key_order(td):
    visited = []
    td.named_apply(lambda key, x: visited.append((key, x)), nested_keys=True)
    expected = []

    def walk(container, prefix):
        for key, value in container.items():
            path = (*prefix, key)
            if isinstance(value, TensorDict):
                walk(value, path)
            else:
                expected.append((path if prefix else key, value))

    walk(td, ())
    assert [key for key, _ in visited] == [key for key, _ in expected]
    assert all(a is b for (_, a), (_, b) in zip(visited, expected, strict=True))


@relaxed
@given(trees())
def test_apply_inplace_is_apply_into_the_same_memory(td):
    expected = td.apply(lambda x: x + 3, filter_empty=False)
    leaves = list(td.values(True, True))
    td.apply(lambda x: x + 3, inplace=True)
    assert described(td) == described(expected)
    pairs = zip(leaves, td.values(True, True), strict=True)
    assert all(a is b for a, b in pairs)


@relaxed
@given(trees())
def test_pytrees_round_trip(td):
    leaves, spec = pytree.tree_flatten(td)
    assert described(pytree.tree_unflatten(leaves, spec)) == described(td)


@relaxed
@given(trees(), st.booleans())
def test_pickles_round_trip(td, locked):
    if locked:
        td.lock_()
    assert described(pickle.loads(pickle.dumps(td))) == described(td)


@relaxed
@given(trees())
def test_both_printed_forms_name_every_key(td):
    keys = [key if isinstance(key, str) else key[-1] for key in td.keys(True)]
    for compact in (True, False):
        with set_printoptions(compact=compact):
            text = repr(td)
        assert all(f"{key}: " in text for key in keys)
