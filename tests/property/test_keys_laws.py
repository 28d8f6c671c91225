"""Laws of keys: regrouping loses nothing, and what is not asked for is left alone."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tensordict import TensorDict, unravel_key_to_tuple

sys.path.insert(0, str(Path(__file__).parent))
import trees  # noqa: E402

relaxed = settings(deadline=None)
dense = trees.containers(foreign=False)


def leaves_of(td):
    """The leaves by path: the same objects, in order."""
    return [(unravel_key_to_tuple(key), id(leaf)) for key, leaf in td.items(True, True)]


def some_keys(draw, td):
    """Some of the nested keys of a container."""
    keys = list(td.keys(True))
    return draw(st.lists(st.sampled_from(keys), unique=True)) if keys else []


@relaxed
@given(dense)
def test_unflatten_undoes_flatten(td):
    flat = td.flatten_keys("/")
    assert sorted(leaves_of(flat.unflatten_keys("/"))) == sorted(leaves_of(td))
    assert [key for key, _ in flat.items()] == [
        "/".join(path) for path, _ in leaves_of(td)
    ]


@relaxed
@given(dense)
def test_flatten_and_unflatten_in_place_do_what_they_do_otherwise(td):
    flat, nested = td.clone(False), td.flatten_keys("/")
    flat.flatten_keys("/", inplace=True)
    assert sorted(leaves_of(flat)) == sorted(leaves_of(nested))
    flat.unflatten_keys("/", inplace=True)
    assert sorted(leaves_of(flat)) == sorted(leaves_of(td))


@relaxed
@given(dense, st.data())
def test_select_and_exclude_part_the_leaves(td, data):
    keys = some_keys(data.draw, td)
    # A key below another one narrows a selection, so only outermost keys are law-abiding.
    paths = [unravel_key_to_tuple(key) for key in keys]
    outer = [
        path
        for path in paths
        if not any(path != other and path[: len(other)] == other for other in paths)
    ]
    selected, rest = td.select(*outer), td.exclude(*outer)
    assert sorted(leaves_of(selected) + leaves_of(rest)) == sorted(leaves_of(td))


@relaxed
@given(dense, st.data())
def test_split_keys_deals_every_leaf_out_once(td, data):
    keys = [key for key in td.keys() if data.draw(st.booleans())]
    parts = td.split_keys(keys)
    assert sorted(sum((leaves_of(part) for part in parts), [])) == sorted(leaves_of(td))


@relaxed
@given(dense, st.data())
def test_separates_is_split_keys_that_keeps_the_rest(td, data):
    keys = [key for key in td.keys(True, True) if data.draw(st.booleans())]
    before, rest = leaves_of(td), td.clone(False)
    taken = rest.separates(*keys)
    assert sorted(leaves_of(taken) + leaves_of(rest)) == sorted(before)
    assert leaves_of(td) == before


@relaxed
@given(dense)
def test_selecting_everything_changes_nothing(td):
    assert leaves_of(td.select(*td.keys())) == leaves_of(td)
    assert leaves_of(td.exclude()) == leaves_of(td)


@relaxed
@given(dense)
def test_update_is_idempotent(td):
    source = td.clone()
    once = td.clone(False).update(source)
    again = once.clone(False).update(source)
    assert leaves_of(again) == leaves_of(once)
    assert sorted(leaves_of(once)) == sorted(leaves_of(source))


@relaxed
@given(dense)
def test_update_of_an_empty_container_takes_every_leaf(td):
    empty = TensorDict(batch_size=td.batch_size)
    assert leaves_of(empty.update(td)) == leaves_of(td)


@relaxed
@given(dense)
def test_update_in_place_keeps_the_leaves(td):
    plain = td.apply(lambda leaf: leaf.detach())
    before = leaves_of(plain)
    source = plain.apply(lambda leaf: leaf + 1)
    plain.update(source, inplace=True)
    assert leaves_of(plain) == before
    assert all(leaf.equal(source[key]) for key, leaf in plain.items(True, True))


@relaxed
@given(dense, st.data())
def test_a_failed_update_leaves_no_trace(td, data):
    if not td.batch_size:
        return
    bad = torch.zeros(7, *td.batch_size)
    good = {
        f"new{i}": torch.zeros(td.batch_size)
        for i in range(data.draw(st.integers(0, 3)))
    }
    before = leaves_of(td), list(td.keys(True))
    for source in (
        {**good, "z": bad},
        {**good, ("n1", "z"): bad},
        {"n2": {**good, "z": bad}},
    ):
        try:
            td.update(source)
        except RuntimeError:
            pass
        else:
            raise AssertionError(source)
        assert (leaves_of(td), list(td.keys(True))) == before


@relaxed
@given(dense, st.data())
def test_renaming_there_and_back_moves_an_entry_to_the_end(td, data):
    keys = list(td.keys())
    if not keys:
        return
    key = data.draw(st.sampled_from(keys))
    copy = td.clone(False)
    copy.rename_key_(key, "elsewhere").rename_key_("elsewhere", key)
    assert list(copy.keys()) == [*(other for other in keys if other != key), key]
    assert sorted(leaves_of(copy)) == sorted(leaves_of(td))


@relaxed
@given(dense)
def test_every_listed_key_is_an_entry(td):
    for key, value in td.items(True):
        assert key in td
        assert td.get(key) is value
    assert len(td.keys(True)) == len(list(td.keys(True)))
    assert set(td.keys(True, sort=True)) == {key for key, _ in td.items(True)}


@relaxed
@given(dense)
def test_unlock_undoes_lock(td):
    states = {id(container): dict(vars(container)) for container in all_containers(td)}
    td.lock_()
    assert all(container.is_locked for container in all_containers(td))
    td.unlock_()
    for container in all_containers(td):
        after = {k: v for k, v in vars(container).items() if k != "_last_op"}
        assert after == states[id(container)]


def all_containers(td):
    """A container and all that it holds."""
    nested = [value for value in td.values(True) if isinstance(value, TensorDict)]
    return [td, *nested]
