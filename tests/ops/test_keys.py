"""Choosing, renaming and regrouping entries."""

from __future__ import annotations

from collections.abc import KeysView

import pytest
import torch

from tensordict import TensorDict


def make(container):
    """``b``: [3]; ``n/c``: [3, 2]; ``n/m/d``: [3]; ``a``: [3]."""
    return container(
        {
            "b": torch.zeros(3),
            "n": {"c": torch.ones(3, 2), "m": {"d": torch.zeros(3)}},
            "a": torch.ones(3),
        },
        [3],
    )


class TestViews:
    def test_keys_are_a_live_view(self, container):
        td = make(container)
        keys = td.keys()
        td["x"] = torch.zeros(3)
        assert isinstance(keys, KeysView)
        assert list(keys) == ["b", "n", "a", "x"]
        assert keys & {"a", "q"} == {"a"}

    def test_nested_keys_list_a_container_after_its_entries(self, container):
        assert list(make(container).keys(True)) == [
            "b",
            ("n", "c"),
            ("n", "m", "d"),
            ("n", "m"),
            "n",
            "a",
        ]

    def test_leaves_only_leaves_out_containers(self, container):
        td = make(container)
        assert list(td.keys(False, True)) == ["b", "a"]
        assert list(td.keys(True, True)) == ["b", ("n", "c"), ("n", "m", "d"), "a"]

    def test_nested_items_list_a_container_before_its_entries(self, container):
        keys = [key for key, _ in make(container).items(True)]
        assert keys == ["b", "n", ("n", "c"), ("n", "m"), ("n", "m", "d"), "a"]

    def test_sort_orders_by_the_joined_path(self, container):
        td = make(container)
        assert list(td.keys(sort=True)) == ["a", "b", "n"]
        assert list(td.keys(True, True, sort=True)) == [
            "a",
            "b",
            ("n", "c"),
            ("n", "m", "d"),
        ]

    def test_is_leaf_is_asked_about_every_type(self, container):
        td = make(container)
        assert list(td.keys(True, True, is_leaf=lambda cls: False)) == []
        assert len(td.keys(True, True, is_leaf=lambda cls: True)) == 6

    def test_membership_of_the_views(self, container):
        td = make(container)
        assert ("n", "c") in td.keys(True)
        assert ("n", "c") not in td.keys()
        with pytest.raises(TypeError, match="always strings"):
            _ = 1 in td.keys()

    def test_entries_may_be_set_while_nested_items_are_used(self, container):
        td = make(container)
        for key, value in td.items(True, True):
            td.set(("copy", key), value)
        assert td["copy", "n", "m", "d"] is td["n", "m", "d"]


class TestSelect:
    def test_select_keeps_the_order_given(self, container):
        assert list(make(container).select("a", "b").keys()) == ["a", "b"]

    def test_select_shares_what_is_kept_whole(self, container):
        td = make(container)
        selected = td.select("n", "a")
        assert type(selected) is container
        assert selected["n"] is td["n"]

    def test_select_a_nested_key_makes_a_new_container(self, container):
        td = make(container)
        selected = td.select(("n", "m", "d"))
        assert list(selected.keys(True, True)) == [("n", "m", "d")]
        assert ("n", "c") in td

    def test_select_a_longer_key_narrows_a_shorter_one(self, container):
        selected = make(container).select("n", ("n", "c"))
        assert list(selected.keys(True, True)) == [("n", "c")]

    def test_select_missing_is_an_error_if_strict(self, container):
        td = make(container)
        with pytest.raises(KeyError, match="not found"):
            td.select("x")
        assert list(td.select("x", "a", strict=False).keys()) == ["a"]

    def test_select_in_place_keeps_the_objects(self, container):
        td = make(container)
        nested = td["n"]
        assert td.select(("n", "c"), inplace=True) is td
        assert td["n"] is nested
        assert list(td.keys(True)) == [("n", "c"), "n"]

    def test_select_in_place_fails_whole(self, container):
        td = make(container)
        with pytest.raises(KeyError):
            td.select(("n", "c"), "x", inplace=True)
        assert len(td.keys(True)) == 6

    def test_exclude_ignores_what_is_missing(self, container):
        td = make(container)
        assert list(td.exclude("a", "x", ("n", "x")).keys()) == ["b", "n"]

    def test_exclude_a_nested_key_leaves_the_source(self, container):
        td = make(container)
        assert list(td.exclude(("n", "m"))["n"].keys()) == ["c"]
        assert ("n", "m") in td

    @pytest.mark.parametrize("method", ["select", "exclude"])
    def test_what_is_no_key_is_refused(self, container, method):
        with pytest.raises(RuntimeError, match="Sequence<NestedKey>"):
            getattr(make(container), method)(1)

    def test_split_keys_deals_all_entries_out(self, container):
        first, second, rest = make(container).split_keys(["a"], [("n", "c")])
        assert list(first.keys(True)) == ["a"]
        assert list(second.keys(True, True)) == [("n", "c")]
        assert list(rest.keys(True, True)) == ["b", ("n", "m", "d")]

    def test_split_keys_in_place_fails_whole(self, container):
        td = make(container)
        with pytest.raises(KeyError):
            td.split_keys(["a"], ["x"], inplace=True)
        assert "a" in td

    def test_separates_moves_entries(self, container):
        td = make(container)
        moved = td.separates("a", ("n", "m", "d"))
        assert list(moved.keys(True, True)) == [("n", "m", "d"), "a"]
        assert list(td.keys(True)) == ["b", ("n", "c"), "n"]

    def test_separates_fails_whole(self, container):
        td = make(container)
        with pytest.raises(KeyError):
            td.separates("a", "x")
        assert "a" in td

    def test_filter_empty__drops_containers_without_leaves(self, container):
        td = container({"a": 1, "n": {"m": {}}, "k": {"l": {}, "x": 1}})
        assert list(td.filter_empty_().keys(True)) == ["a", ("k", "x"), "k"]


class TestFlatten:
    def test_flatten_joins_paths_in_order(self, container):
        flat = make(container).flatten_keys("/")
        assert list(flat.keys()) == ["b", "n/c", "n/m/d", "a"]

    def test_flatten_in_place_puts_direct_leaves_first(self, container):
        td = make(container)
        assert td.flatten_keys(inplace=True) is td
        assert list(td.keys()) == ["b", "a", "n.c", "n.m.d"]

    def test_flatten_refuses_keys_that_collide(self, container):
        td = container({"n": {"b": 1}, "n.b": 2})
        with pytest.raises(KeyError, match="to collide"):
            td.flatten_keys(inplace=True)
        assert ("n", "b") in td

    def test_unflatten_makes_containers_of_the_same_type(self, container):
        td = container({"n.b": torch.zeros(3), "a": torch.zeros(3)}, [3])
        nested = td.unflatten_keys()
        assert list(nested.keys(True)) == ["a", ("n", "b"), "n"]
        assert type(nested["n"]) is container

    def test_unflatten_joins_a_container_that_is_there(self, container):
        td = container({"n.b": 1, "n": {"c": 2}})
        nested = td["n"]
        assert list(td.unflatten_keys()["n"].keys()) == ["c", "b"]
        assert list(nested.keys()) == ["c"]
        td.unflatten_keys(inplace=True)
        assert td["n"] is nested
        assert list(nested.keys()) == ["c", "b"]

    @pytest.mark.parametrize(
        "entries",
        [
            {"n.b": 1, "n": 2},
            {"n": {"b": 1}, "n.b": 2},
            {"n.b": 1, "n.b.c": 2},
            {"x": {"y": 1}, "x.z": 1, "n.b": 1, "n": 2},
        ],
    )
    def test_unflatten_in_place_fails_whole(self, container, entries):
        td = container(entries)
        before = list(td.keys(True))
        with pytest.raises(KeyError, match="will override an existing"):
            td.unflatten_keys(inplace=True)
        assert list(td.keys(True)) == before


class TestRename:
    def test_rename_puts_the_entry_last(self, container):
        td = make(container)
        leaf = td["b"]
        assert td.rename_key_("b", "z") is td
        assert list(td.keys()) == ["n", "a", "z"]
        assert td["z"] is leaf

    def test_rename_replaces_unless_safe(self, container):
        td = make(container)
        with pytest.raises(KeyError, match="already present"):
            td.rename_key_("b", "a", safe=True)
        assert list(td.rename_key_("b", "a").keys()) == ["n", "a"]

    def test_rename_moves_below_its_own_key(self, container):
        td = make(container).rename_key_("n", ("n", "old"))
        assert ("n", "old", "c") in td

    def test_rename_into_a_leaf_changes_nothing(self, container):
        td = make(container)
        with pytest.raises(KeyError, match="already present"):
            td.rename_key_("b", ("a", "x"))
        assert list(td.keys()) == ["b", "n", "a"]

    def test_rename_checks_the_batch_size_of_the_new_container(self, container):
        nested = TensorDict({"q": torch.zeros(3, 4)}, [3, 4])
        td = container({"a": torch.zeros(3), "n": nested}, [3])
        with pytest.raises(RuntimeError, match="batch dimension mismatch"):
            td.rename_key_("a", ("n", "a"))
        assert "a" in td

    def test_rename_keys_swaps(self, container):
        td = make(container)
        swapped = td.rename_keys({"a": "b", "b": "a"})
        assert swapped["a"] is td["b"]
        assert swapped["b"] is td["a"]

    def test_rename_keys_refuses_to_lose_entries(self, container):
        td = make(container)
        with pytest.raises(ValueError, match="already present"):
            td.rename_keys({"a": "b"})
        with pytest.raises(ValueError, match="more than once"):
            td.rename_keys({"a": "x", "b": "x"})
        with pytest.raises(ValueError, match="inside one another"):
            td.rename_keys({"n": "x", ("n", "c"): "y"})
