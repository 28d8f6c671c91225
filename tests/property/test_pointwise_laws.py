"""Laws of arithmetic and reductions: the same as leaf by leaf."""

from __future__ import annotations

import operator

import torch
from hypothesis import given
from hypothesis import strategies as st

from tensordict import TensorDict, assert_close

KEYS = ("a", "b", "c", "d")


@st.composite
def pairs(draw: st.DrawFn) -> tuple[TensorDict, TensorDict]:
    """Two trees with the same keys, in different orders, of small whole numbers."""
    batch = draw(st.lists(st.integers(0, 3), max_size=2))
    keys = draw(st.lists(st.sampled_from(KEYS), unique=True, max_size=4))
    features = {key: draw(st.sampled_from([(), (1,), (2, 3)])) for key in keys}
    nested = draw(st.sets(st.sampled_from(KEYS)))
    dtype = draw(st.sampled_from([torch.float64, torch.int64]))

    def tree(order: list[str]) -> TensorDict:
        td = TensorDict({}, batch)
        for key in order:
            shape = (*batch, *features[key])
            offset = draw(st.integers(-3, 3))
            count = torch.Size(shape).numel()
            leaf = (torch.arange(count) * 7 + offset) % 11 - 3
            path = ("n", key) if key in nested else key
            td[path] = leaf.reshape(shape).to(dtype)
        return td

    return tree(keys), tree(draw(st.permutations(keys)))


def leafwise(function, *tds: TensorDict) -> dict:
    """Apply ``function`` to the leaves of the same key."""
    return {
        key: function(leaf, *(td.get(key) for td in tds[1:]))
        for key, leaf in tds[0].items(True, True)
    }


def same(td: TensorDict, expected: dict) -> bool:
    """Return whether ``td`` holds exactly these leaves."""
    found = dict(td.items(True, True))
    return found.keys() == expected.keys() and all(
        found[key].dtype == expected[key].dtype
        and torch.equal(found[key], expected[key])
        for key in found
    )


@given(
    pairs(),
    st.sampled_from([operator.add, operator.sub, operator.mul, torch.maximum]),
)
def test_binary_is_leaf_by_leaf(tds, function) -> None:
    td, other = tds
    assert same(function(td, other), leafwise(function, td, other))


@given(pairs(), st.sampled_from([1, 2.5, True, -3]))
def test_numbers_are_leaf_by_leaf(tds, number) -> None:
    td, _ = tds
    for function in (operator.add, operator.mul, operator.truediv, operator.gt):
        expected = leafwise(lambda leaf, f=function: f(leaf, number), td)
        assert same(function(td, number), expected)
    if number is True:
        return  # torch subtracts no bool
    assert same(number - td, leafwise(lambda leaf: leaf.neg() + number, td)) or any(
        leaf.dtype == torch.int64 for leaf in td.values(True, True)
    )


@given(pairs())
def test_comparison_is_leaf_by_leaf(tds) -> None:
    td, other = tds
    for function in (operator.eq, operator.ne, operator.lt, operator.ge):
        assert same(function(td, other), leafwise(function, td, other))


@given(pairs())
def test_a_collection_equals_itself_and_its_clone(tds) -> None:
    td, _ = tds
    assert (td == td).all()
    assert (td == td.clone()).all()
    assert not (td != td).any()


@given(pairs())
def test_what_undoes_what(tds) -> None:
    td, other = tds
    assert (td.neg().neg() == td).all()
    assert ((td + other) - other == td).all()
    assert (td + other == other + td).all()
    assert_close(td.abs(), (-td).abs())


@given(pairs())
def test_inplace_is_out_of_place(tds) -> None:
    td, other = tds
    expected = td.add(other, alpha=2).mul(3).clamp(-5, 5)
    found = td.clone().add_(other, alpha=2).mul_(3).clamp_min_(-5).clamp_max_(5)
    assert (found == expected).all()


@given(pairs(), st.booleans())
def test_sums_are_leaf_by_leaf(tds, keepdim) -> None:
    td, _ = tds
    assert same(td.sum(), leafwise(torch.sum, td))
    for dim in range(-td.ndim, td.ndim):
        own = dim % td.ndim
        result = td.sum(dim, keepdim=keepdim)
        assert same(result, leafwise(lambda leaf, d=own: leaf.sum(d, keepdim), td))
        assert result.batch_size == torch.empty(td.shape).sum(dim, keepdim).shape
    total = sum(leaf.sum() for leaf in td.values(True, True))
    if not td.is_empty():
        assert td.sum(reduce=True) == total


@given(pairs())
def test_reducing_twice_is_reducing_both(tds) -> None:
    td, _ = tds
    if td.ndim == 2:
        for name in ("sum", "prod"):
            both = getattr(td, name)((0, 1))
            assert (both == getattr(getattr(td, name)(1), name)(0)).all()


@given(pairs())
def test_a_tensor_of_the_batch_shape_is_the_same_for_all_leaves(tds) -> None:
    td, _ = tds
    operand = torch.arange(torch.Size(td.shape).numel()).reshape(td.shape)
    if not td.ndim:
        return

    def spread(leaf: torch.Tensor) -> torch.Tensor:
        return leaf + operand.reshape(*operand.shape, *[1] * (leaf.ndim - td.ndim))

    assert same(td + operand, leafwise(spread, td))
    assert same(operand + td, leafwise(spread, td))


@given(pairs())
def test_default_zero_is_the_union_of_the_keys(tds) -> None:
    td, other = tds
    keys = list(td.keys())
    if not keys:
        return
    part = td.exclude(keys[0])
    total = part.add(other, default=0)
    assert set(total.keys(True, True)) == set(td.keys(True, True))
    for key, leaf in total.items(True, True):
        mine = part.get(key)
        assert torch.equal(leaf, other[key] if mine is None else mine + other[key])
