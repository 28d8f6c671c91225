"""Locks, and writing back at the end of a with block."""

from __future__ import annotations

import gc

import pytest
import torch

from tensordict import TensorDict

LOCKED = "Cannot modify locked TensorDict"
STATE = {"_tensordict", "_batch_size", "_device", "_td_dim_names"}


def make(container, **options):
    """``a``: [2, 3]; ``n/b``: [2, 3]; ``n/m/c``: [2, 3]."""
    return container(
        {
            "a": torch.zeros(2, 3),
            "n": {"b": torch.ones(2, 3), "m": {"c": torch.zeros(2, 3)}},
        },
        [2, 3],
        **options,
    )


class TestLock:
    @pytest.mark.parametrize(
        "change",
        [
            lambda td: td.set("x", torch.zeros(2, 3)),
            lambda td: td.set("a", torch.zeros(2, 3)),
            lambda td: td.set(("n", "x"), torch.zeros(2, 3)),
            lambda td: td.update({"a": torch.zeros(2, 3)}),
            lambda td: td.update({}),
            lambda td: td.del_("a"),
            lambda td: td.pop("a"),
            lambda td: td.popitem(),
            lambda td: td.clear(),
            lambda td: td.rename_key_("a", "x"),
            lambda td: td.rename_key_("a", "a"),
            lambda td: td.select("a", inplace=True),
            lambda td: td.exclude("a", inplace=True),
            lambda td: td.flatten_keys(inplace=True),
            lambda td: td.split_keys(["a"], inplace=True),
            lambda td: td.separates("a"),
            lambda td: td.setdefault("x", torch.zeros(2, 3)),
        ],
    )
    def test_a_locked_container_keeps_its_entries(self, container, change):
        td = make(container).lock_()
        before = list(td.keys(True))
        with pytest.raises(RuntimeError, match=LOCKED):
            change(td)
        assert list(td.keys(True)) == before

    @pytest.mark.parametrize(
        "change",
        [
            lambda td: td.set_("a", torch.ones(2, 3)),
            lambda td: td.set("a", torch.ones(2, 3), inplace=True),
            lambda td: td.update_({"a": torch.ones(2, 3)}),
            lambda td: td.update({"a": torch.ones(2, 3)}, inplace=True),
            lambda td: td.set_at_("a", 1, slice(None)),
            lambda td: td.update_at_({"a": torch.ones(2, 3)}, slice(None)),
            lambda td: td.fill_("a", 1),
            lambda td: td.copy_({"a": torch.ones(2, 3)}),
        ],
    )
    def test_a_locked_container_takes_writes_in_place(self, container, change):
        td = make(container).lock_()
        change(td)
        assert td["a"].sum() == 6

    def test_lock_reaches_all_that_is_nested(self, container):
        td = make(container).lock_()
        assert td["n", "m"].is_locked
        assert not td.unlock_()["n", "m"].is_locked

    def test_a_child_cannot_be_unlocked_under_a_locked_parent(self, container):
        td = make(container).lock_()
        with pytest.raises(RuntimeError, match="part of a locked graph"):
            td["n"].unlock_()
        assert td["n", "m"].is_locked

    def test_a_parent_that_is_gone_locks_nothing(self, container):
        td = make(container).lock_()
        nested = td["n"]
        del td
        gc.collect()
        assert not nested.unlock_().is_locked

    def test_a_failed_unlock_leaves_all_locked(self, container):
        td = make(container)
        other = TensorDict({"n": td["n"]}, [2, 3]).lock_()
        td.lock_()
        with pytest.raises(RuntimeError, match="part of a locked graph"):
            td.unlock_()
        assert td.is_locked
        assert other.is_locked

    def test_a_locked_child_stays_locked_where_it_is_set(self, container):
        child = TensorDict({"q": torch.zeros(2, 3)}, [2, 3]).lock_()
        td = make(container).set("x", child)
        assert td["x"].is_locked
        assert not td.is_locked
        td.lock_()
        with pytest.raises(RuntimeError, match="part of a locked graph"):
            child.unlock_()

    def test_unlock_removes_what_lock_added(self, container):
        td = make(container).lock_().unlock_()
        assert set(vars(td)) <= STATE | {"_last_op"}
        assert set(vars(td["n"])) == STATE

    def test_is_locked_can_be_set(self, container):
        td = make(container)
        td.is_locked = True
        assert td["n"].is_locked
        td.is_locked = False
        assert not td["n"].is_locked

    def test_a_failed_lock_message_says_what_can_be_done(self, container):
        with pytest.raises(RuntimeError, match=r"`set_\(\)`"):
            make(container).lock_()["x"] = torch.zeros(2, 3)


class TestWith:
    @pytest.mark.parametrize(
        ("change", "shape"),
        [
            (lambda td: td.view(6), [6]),
            (lambda td: td.permute(1, 0), [3, 2]),
            (lambda td: td.transpose(0, 1), [3, 2]),
            (lambda td: td.swapaxes(0, 1), [3, 2]),
            (lambda td: td.movedim(0, 1), [3, 2]),
            (lambda td: td.unsqueeze(1), [2, 1, 3]),
            (lambda td: td.unsqueeze(-1), [2, 3, 1]),
            (lambda td: td.flatten(0, 1), [6]),
            (lambda td: td.unflatten(1, (3, 1)), [2, 3, 1]),
            (lambda td: td.roll(1, 0), [2, 3]),
            (lambda td: td.flip(0), [2, 3]),
        ],
    )
    def test_changes_are_written_back(self, container, change, shape):
        td = make(container)
        nested = td["n"]
        value = torch.arange(6.0).view(2, 3)
        expected = change(TensorDict({"x": value}, [2, 3]))["x"]
        with change(td) as changed:
            assert changed.batch_size == torch.Size(shape)
            changed["x"] = expected
            changed["n", "x"] = expected
        assert td["x"].equal(value)
        assert td["n", "x"].equal(value)
        assert td["n"] is nested

    def test_squeeze_is_written_back(self, container):
        td = container({"a": torch.zeros(1, 3)}, [1, 3])
        with td.squeeze(0) as squeezed:
            squeezed["x"] = torch.ones(3)
        assert td["x"].shape == (1, 3)

    def test_squeeze_without_a_dim_cannot_be_undone(self, container):
        td = container({"a": torch.zeros(1, 3)}, [1, 3])
        with pytest.raises(RuntimeError, match="implicit"), td.squeeze():
            pass

    def test_keys_are_written_back(self, container):
        td = make(container)
        with td.flatten_keys("_") as flat:
            flat["n_x"] = torch.ones(2, 3)
        assert td["n", "x"].sum() == 6
        with td.flatten_keys(".", inplace=True) as flat:
            flat["n.y"] = torch.ones(2, 3)
        assert td["n", "y"].sum() == 6

    def test_removed_entries_are_not_removed_from_the_source(self, container):
        td = make(container)
        with td.view(6) as flat:
            flat.del_("a")
        assert "a" in td

    def test_nothing_is_written_back_after_an_error(self, container):
        td = make(container)
        with pytest.raises(ZeroDivisionError), td.view(6) as flat:
            flat["x"] = torch.zeros(6)
            _ = 1 / 0
        assert "x" not in td

    @pytest.mark.parametrize("locked", [True, False])
    def test_locks_are_restored_after_an_error(self, container, locked):
        td = make(container)
        if locked:
            td.lock_()
        with (
            pytest.raises(ZeroDivisionError),
            td.unlock_() if locked else td.lock_(),
        ):
            _ = 1 / 0
        assert td.is_locked is locked

    def test_a_block_on_what_was_locked_before_does_not_unlock_it(self, container):
        td = make(container).lock_()
        with td.lock_():
            pass
        assert td.is_locked

    def test_unlock_block_locks_what_it_added(self, container):
        td = make(container).lock_()
        with td.unlock_():
            td["x"] = {"y": torch.zeros(2, 3)}
        assert td["x"].is_locked

    def test_writes_to_a_locked_source_are_in_place(self, container):
        td = make(container).lock_()
        leaf = td["a"]
        with td.flatten_keys() as flat:
            flat["a"] = torch.ones(2, 3)
        assert td["a"] is leaf
        assert leaf.sum() == 6

    def test_blocks_nest(self, container):
        td = make(container)
        with td.lock_():
            with td.unlock_():
                td["x"] = torch.zeros(2, 3)
            assert td.is_locked
        assert not td.is_locked
        assert td._last_op_queue is None

    def test_a_source_that_is_gone_takes_nothing_back(self, container):
        with make(container).view(6) as flat:
            flat["x"] = torch.zeros(6)
        assert "x" in flat

    def test_names_are_kept(self, container):
        td = make(container, names=["p", "q"])
        with td.permute(1, 0) as swapped:
            assert swapped.names == ["q", "p"]
            swapped["x"] = torch.zeros(3, 2)
        assert td.names == ["p", "q"]
        assert td["x"].shape == (2, 3)
