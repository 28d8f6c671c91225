"""Laws of copies and conversions: what is taken apart and put together is the same."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tensordict import (
    TensorDict,
    from_struct_array,
    merge_tensordicts,
    pad,
    pad_sequence,
    unravel_key_to_tuple,
)

sys.path.insert(0, str(Path(__file__).parent))
import trees  # noqa: E402

relaxed = settings(deadline=None)
dense = trees.containers(foreign=False)


def shape_of(td):
    """The kinds of containers, the dtypes of leaves, and all shapes."""
    return {
        unravel_key_to_tuple(key): (
            value.dtype if isinstance(value, torch.Tensor) else type(value),
            tuple(value.shape),
        )
        for key, value in td.items(True)
    }


def same_values(left, right):
    """Return whether two containers have the same leaves, element by element."""
    pairs = zip(left.items(True, True), right.items(True, True), strict=True)
    return all(
        one == other and torch.equal(first, second)
        for (one, first), (other, second) in pairs
    )


@relaxed
@given(dense)
def test_a_clone_is_equal_and_shares_nothing(td):
    made = td.clone()
    assert shape_of(made) == shape_of(td)
    assert same_values(made, td)
    assert not any(leaf is td[key] for key, leaf in made.items(True, True))


@relaxed
@given(dense)
def test_from_dict_undoes_to_dict(td):
    made = TensorDict.from_dict(td.to_dict(), batch_size=td.batch_size)
    assert same_values(made, td)
    assert all(leaf is td[key] for key, leaf in made.items(True, True))


@relaxed
@given(dense)
def test_unnamed_new_containers_have_the_structure(td):
    made = td.new_zeros(td.batch_size)
    assert shape_of(made) == shape_of(td.clone())
    assert all((leaf == 0).all() for leaf in made.values(True, True))


@relaxed
@given(st.integers(0, 4), st.integers(0, 3), st.integers(0, 3))
def test_what_is_padded_is_cut_again(length, before, after):
    td = TensorDict(
        a=torch.arange(length), n={"b": torch.ones(length, 2)}, batch_size=[length]
    )
    padded = pad(td, [before, after], value=7)
    assert padded.batch_size == (before + length + after,)
    assert same_values(pad(padded, [-before, -after]), td)


@relaxed
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
    st.sampled_from(["left", "right"]),
)
def test_masks_say_where_the_values_are(lengths, side):
    tds = [TensorDict(a=torch.full((n,), float(n)), batch_size=[n]) for n in lengths]
    made = pad_sequence(tds, padding_value=-1.0, return_mask=True, padding_side=side)
    mask = made["masks", "a"]
    assert mask.sum(1).tolist() == lengths
    for row, valid, td in zip(made["a"], mask, tds, strict=True):
        assert torch.equal(row[valid], td["a"])
        assert (row[~valid] == -1).all()


@relaxed
@given(dense)
def test_merging_with_itself_changes_nothing(td):
    made = merge_tensordicts(td, td)
    for key, leaf in made.items(True, True):
        assert leaf is td[key]


@relaxed
@given(dense)
def test_struct_arrays_keep_the_values(td):
    plain = td.to_tensordict()
    names = ["".join(key) for key in plain.keys() if isinstance(key, str)]
    leaves = list(plain.values(True, True))
    numeric = all(leaf.dtype is not torch.bfloat16 for leaf in leaves)
    if not leaves or not numeric or not all(names):
        return
    if any(
        not list(value.keys()) for value in plain.values(True) if hasattr(value, "keys")
    ):
        return
    back = from_struct_array(plain.to_struct_array())
    assert same_values(back, plain)
