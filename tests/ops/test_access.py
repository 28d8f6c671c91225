"""Reading and writing entries."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tensordict import TensorDict, lazy_stack
from tensordict.base import _InplaceWriteError, _KeyThroughLeafError

CPU_ONLY_DTYPES = [(3, torch.int64), (2.5, torch.float32), (True, torch.bool)]


def make(container, **options):
    """``a``: [3, 2]; ``n/b``: [3]; ``n/m/c``: [3, 4]."""
    return container(
        {
            "a": torch.zeros(3, 2),
            "n": {"b": torch.ones(3), "m": {"c": torch.zeros(3, 4)}},
        },
        [3],
        **options,
    )


def paths(td):
    """All nested keys, in order."""
    return list(td.keys(include_nested=True))


class TestRead:
    def test_getitem_takes_nested_tuples_anywhere(self, container):
        td = make(container)
        assert td["n", "m", "c"] is td["n"]["m"]["c"]
        assert td["n", ("m", ("c",))] is td["n"]["m"]["c"]

    def test_getitem_missing_names_the_key_and_what_there_is(self, container):
        with pytest.raises(KeyError, match=r"b2.* not found in"):
            make(container)["n", "b2"]

    def test_getitem_through_a_leaf_is_a_value_error(self, container):
        with pytest.raises(_KeyThroughLeafError, match="'a' is a Tensor"):
            make(container)["a", "b"]

    def test_get_missing_is_none_or_the_default(self, container):
        td = make(container)
        assert td.get("x") is None
        assert td.get(("n", "x"), 5) == 5
        assert td.get("x", default=6) == 6

    def test_get_through_a_leaf_needs_a_default(self, container):
        td = make(container)
        assert td.get(("a", "b"), None) is None
        with pytest.raises(ValueError, match="no entry 'b'"):
            td.get(("a", "b"))

    @pytest.mark.parametrize("key", [1, (), ("a", 1), None, b"a"])
    def test_get_refuses_what_is_no_nested_key(self, container, key):
        with pytest.raises(KeyError, match="Only NestedKeys are supported"):
            make(container).get(key)

    def test_contains_follows_paths(self, container):
        td = make(container)
        assert ("n", "b") in td
        assert "b" not in td
        assert ("a", "b") not in td
        with pytest.raises(RuntimeError, match="key must be a NestedKey"):
            _ = 1 in td

    def test_len_is_the_first_batch_dim(self, container):
        assert len(make(container)) == 3
        assert len(container({"a": 1})) == 0

    def test_iter_without_batch_dims_is_an_error(self, container):
        with pytest.raises(TypeError, match="iteration over a 0-d tensordict"):
            iter(container({"a": 1}))

    def test_is_empty_looks_for_leaves(self, container):
        assert container({"n": {"m": {}}}).is_empty()
        assert not make(container).is_empty()


class TestSet:
    def test_set_keeps_the_identity_of_what_fits(self, container):
        td = make(container)
        leaf, nested = torch.zeros(3), TensorDict({"q": torch.zeros(3)}, [3])
        td.set("x", leaf).set("y", nested)
        assert td["x"] is leaf
        assert td["y"] is nested

    def test_set_gives_a_nested_container_the_batch_size(self, container):
        nested = TensorDict({"q": torch.zeros(3)})
        td = make(container).set("y", nested)
        assert td["y"].batch_size == torch.Size([3])
        assert nested.batch_size == torch.Size([])

    def test_set_makes_the_containers_on_the_way(self, container):
        td = make(container).set(("x", "y"), torch.zeros(3))
        assert type(td["x"]) is container

    def test_a_dictionary_becomes_a_plain_container(self, container):
        td = make(container).set("x", {"y": torch.zeros(3)})
        assert type(td["x"]) is TensorDict

    @pytest.mark.parametrize(("value", "dtype"), CPU_ONLY_DTYPES)
    def test_numbers_become_tensors(self, container, value, dtype):
        assert container({"x": value})["x"].dtype == dtype

    def test_numpy_keeps_its_dtype_and_memory(self, container):
        array = np.zeros(3)
        td = make(container).set("x", array)
        array[0] = 5
        assert td["x"].dtype == torch.float64
        assert td["x"][0] == 5

    def test_lists_become_tensors(self, container):
        td = container({"x": [[1, 2], [3, 4]], "y": [torch.zeros(2), torch.ones(2)]})
        assert td["x"].tolist() == [[1, 2], [3, 4]]
        assert td["y"].shape == (2, 2)

    def test_an_integer_beyond_int64_is_refused(self, container):
        with pytest.raises(ValueError, match="only supports"):
            container({"x": 2**63})

    def test_names_of_the_container_are_given_to_what_is_nested(self, container):
        nested = TensorDict({"q": torch.zeros(3, 2)}, [3, 2])
        td = make(container, names=["t"]).set("x", nested)
        assert td["x"].names == ["t", None]
        assert not nested._has_names()

    def test_names_of_a_nested_container_are_taken_on(self, container):
        nested = TensorDict({"q": torch.zeros(3, 2)}, [3, 2], names=["t", "u"])
        td = make(container).set("x", nested)
        assert td.names == ["t"]

    def test_other_names_are_refused(self, container):
        nested = TensorDict({"q": torch.zeros(3)}, [3], names=["u"])
        with pytest.raises(RuntimeError, match="cannot coerce"):
            make(container, names=["t"]).set("x", nested)

    def test_a_container_cannot_hold_itself(self, container):
        td = make(container)
        with pytest.raises(ValueError, match="inside itself"):
            td["x"] = td
        with pytest.raises(ValueError, match="inside itself"):
            td["n"]["x"] = TensorDict({"deep": td}, [3])

    @pytest.mark.parametrize("stacked", [False, True])
    @pytest.mark.parametrize(
        "write",
        [
            lambda td: td.set("x", {"deep": td}),
            lambda td: td.set(("n", "x", "y"), td),
            lambda td: td.set(("n", "m"), td["n"]),
            lambda td: td.set(("x", "y"), {"deep": td}),
            lambda td: td.update({"n": {"x": {"deep": td}}}),
            lambda td: td.update({("n", "x", "y"): td}),
            lambda td: td.update({("x", "y", "z"): {"deep": td}}),
            lambda td: td.setdefault(("n", "x", "y"), td),
        ],
    )
    def test_nor_below_what_a_call_makes(self, container, stacked, write):
        td = make(container)
        if stacked:
            td = lazy_stack([td, make(container)])
        before = paths(td)
        with pytest.raises(ValueError, match="inside itself"):
            write(td)
        assert paths(td) == before

    def test_nor_can_the_members_of_a_stack(self, container):
        first, second = make(container), make(container)
        td = lazy_stack([first, second])
        swapped = lazy_stack([second, first])
        for key, value in ((("n", "m"), td), ("x", swapped), ("x", {"deep": swapped})):
            with pytest.raises(ValueError, match="inside itself"):
                td[key] = value
        assert paths(td) == paths(first)

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("x", torch.zeros(4)),
            (("x", "y"), torch.zeros(4)),
            ("x", {"y": torch.zeros(3), "z": torch.zeros(4)}),
            ("x", TensorDict({"y": torch.zeros(4)}, [4])),
            (("a", "x"), torch.zeros(3)),
        ],
    )
    def test_a_failed_set_changes_nothing(self, container, key, value):
        td = make(container)
        before = paths(td)
        with pytest.raises((RuntimeError, KeyError)):
            td.set(key, value)
        assert paths(td) == before

    def test_set_in_place_writes_into_the_entry(self, container):
        td = make(container)
        leaf = td["a"]
        td.set("a", torch.ones(3, 2), inplace=True)
        assert td["a"] is leaf
        assert leaf.sum() == 6

    def test_set_in_place_refuses_another_shape(self, container):
        with pytest.raises(_InplaceWriteError, match="does not fit the entry of shape"):
            make(container).set("a", torch.ones(3, 5), inplace=True)

    def test_inplace_write_error_is_both_kinds(self):
        assert issubclass(_InplaceWriteError, ValueError)
        assert issubclass(_InplaceWriteError, RuntimeError)

    def test_set__needs_an_entry(self, container):
        with pytest.raises(KeyError, match="not found"):
            make(container).set_("x", torch.zeros(3))

    def test_setdefault_keeps_what_is_there(self, container):
        td = make(container)
        leaf = td["a"]
        assert td.setdefault("a", torch.ones(3)) is leaf
        assert td.setdefault(("n", "x"), torch.ones(3)) is td["n", "x"]


class TestRemove:
    def test_del_removes_one_entry(self, container):
        td = make(container)
        del td["n", "b"]
        assert paths(td) == ["a", ("n", "m", "c"), ("n", "m"), "n"]

    def test_pop_returns_what_it_removes(self, container):
        td = make(container)
        leaf = td["n", "b"]
        assert td.pop(("n", "b")) is leaf
        assert td.pop(("n", "b"), 3) == 3
        with pytest.raises(KeyError, match="not found"):
            td.pop("x")

    def test_popitem_takes_the_last(self, container):
        td = make(container)
        key, value = td.popitem()
        assert key == "n"
        assert paths(td) == ["a"]
        assert value["b"].sum() == 3

    def test_clear_leaves_nested_containers_alone(self, container):
        td = make(container)
        nested = td["n"]
        assert td.clear() is td
        assert not paths(td)
        assert "b" in nested


class TestUpdate:
    def test_update_merges_nested_containers(self, container):
        td = make(container)
        nested = td["n"]
        td.update({"n": {"x": torch.zeros(3)}})
        assert td["n"] is nested
        assert list(nested.keys()) == ["b", "m", "x"]

    def test_update_replaces_where_is_leaf_says_so(self, container):
        td = make(container)
        td.update({"n": {"x": torch.zeros(3)}}, is_leaf=lambda cls: True)
        assert list(td["n"].keys()) == ["x"]

    def test_update_takes_nested_keys(self, container):
        td = make(container).update({("x", "y"): torch.zeros(3)}, z=torch.zeros(3))
        assert td["x", "y"].shape == (3,)
        assert "z" in td

    def test_update_clone_copies(self, container):
        leaf, nested = torch.zeros(3), TensorDict({"q": torch.zeros(3)}, [3])
        td = make(container).update({"x": leaf, "y": nested}, clone=True)
        assert td["x"] is not leaf
        assert td["y"] is not nested

    def test_update_is_all_or_nothing(self, container):
        td = make(container)
        before, leaf = paths(td), td["a"]
        bad = {"a": torch.ones(3), "n": {"x": torch.zeros(3), "y": torch.zeros(4)}}
        with pytest.raises(RuntimeError, match="batch dimension mismatch"):
            td.update(bad)
        assert paths(td) == before
        assert td["a"] is leaf

    def test_update_in_place_is_all_or_nothing(self, container):
        td = make(container)
        with pytest.raises(_InplaceWriteError):
            td.update(
                {"a": torch.ones(3, 2), ("n", "b"): torch.ones(3, 7)}, inplace=True
            )
        assert td["a"].sum() == 0

    def test_update_keys_to_update_filters(self, container):
        td = make(container)
        td.update(
            {"x": torch.zeros(3), "n": {"y": torch.zeros(3), "z": torch.zeros(3)}},
            keys_to_update=[("n", "y")],
        )
        assert "x" not in td
        assert ("n", "y") in td
        assert ("n", "z") not in td

    def test_update_of_another_batch_size_is_refused(self, container):
        with pytest.raises(RuntimeError, match="update_batch_size=True"):
            make(container).update(TensorDict({"x": torch.zeros(4)}, [4]))

    def test_update_batch_size_needs_all_leaves(self, container):
        td = container({"a": torch.zeros(3), "b": torch.zeros(3)}, [3])
        with pytest.raises(RuntimeError, match="not present in the source"):
            td.update(TensorDict({"a": torch.zeros(4)}, [4]), update_batch_size=True)
        assert td.batch_size == (3,)
        full = TensorDict({"a": torch.zeros(4), "b": torch.zeros(4)}, [4])
        assert td.update(full, update_batch_size=True).batch_size == (4,)

    def test_update_batch_size_restores_after_an_error(self, container):
        td = container({"a": torch.zeros(3), "n": {"b": torch.zeros(3)}}, [3])
        source = TensorDict({"a": torch.zeros(4), "n": {"b": torch.zeros(4)}}, [4])
        source._tensordict["a"] = torch.zeros(5)
        with pytest.raises(RuntimeError):
            td.update(source, update_batch_size=True)
        assert td.batch_size == (3,)
        assert td["a"].shape == (3,)
        assert td["n"].batch_size == (3,)

    def test_update_ignore_lock_writes_to_a_locked_container(self, container):
        td = make(container).lock_()
        td.update({"x": torch.zeros(3)}, ignore_lock=True)
        assert "x" in td

    def test_update__copies_into_the_entries(self, container):
        td = make(container).lock_()
        leaf = td["a"]
        td.update_({"a": torch.ones(3, 2), "missing": torch.ones(3)})
        assert td["a"] is leaf
        assert leaf.sum() == 6

    def test_update__of_nothing_known_is_an_error(self, container):
        with pytest.raises(KeyError, match="not found in the dest"):
            make(container).update_({"missing": torch.ones(3)})

    def test_update__is_all_or_nothing(self, container):
        td = make(container)
        with pytest.raises(RuntimeError, match="cannot copy the value"):
            td.update_({"a": torch.ones(3, 2), "n": {"b": torch.ones(3, 9)}})
        assert td["a"].sum() == 0

    def test_update_at__is_all_or_nothing(self, container):
        td = make(container)
        with pytest.raises(RuntimeError):
            td.update_at_({"a": torch.ones(2), "n": {"b": torch.ones(9)}}, 0)
        assert td["a"].sum() == 0

    def test_set_at__casts(self, container):
        td = container({"x": torch.zeros(3, dtype=torch.int64)}, [3])
        td.set_at_("x", torch.tensor([1.5]), torch.tensor([True, False, False]))
        assert td["x"].tolist() == [1, 0, 0]

    def test_fill__fills_a_nested_container(self, container):
        td = make(container).fill_("n", 2)
        assert td["n", "m", "c"].unique().tolist() == [2]
        assert td["a"].sum() == 0

    def test_zero__is_in_place(self, container):
        td = make(container)
        leaf = td["n", "b"]
        td.zero_()
        assert leaf.sum() == 0
