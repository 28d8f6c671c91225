"""Calling a function on every leaf."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import torch

from tensordict import TensorDict


def make(container):
    """``a``: [3, 2]; ``n/b``: [3]; ``n/e``: an empty container."""
    return container({"a": torch.zeros(3, 2), "n": {"b": torch.ones(3), "e": {}}}, [3])


class TestApply:
    def test_apply_keeps_class_sizes_and_order(self, container):
        td = make(container)
        result = td.apply(lambda x: x + 1)
        assert type(result) is type(td)
        assert type(result["n"]) is type(td["n"])
        assert list(result.keys(include_nested=True)) == list(
            td.keys(include_nested=True)
        )
        assert result["n"].batch_size == td["n"].batch_size
        assert result["n", "b"].tolist() == [2, 2, 2]

    def test_apply_leaves_out_what_is_none(self, container):
        result = make(container).named_apply(lambda key, x: None if key == "a" else x)
        assert "a" not in result

    def test_apply_keeps_what_was_empty_before(self, container):
        td = make(container)
        assert list(td.apply(lambda x: None)["n"].keys()) == ["e"]
        assert td.apply(lambda x: None, filter_empty=True) is None

    def test_apply_batch_size_reaches_nested_containers(self, container):
        result = make(container).apply(lambda x: x.sum(), batch_size=[])
        assert result["n"].batch_size == torch.Size([])

    def test_apply_refuses_what_does_not_fit(self, container):
        with pytest.raises(RuntimeError, match="batch dimension mismatch"):
            make(container).apply(lambda x: x[0])

    def test_apply_result_is_unlocked_unless_asked(self, container):
        td = make(container).lock_()
        assert not td.apply(lambda x: x).is_locked
        result = td.apply(lambda x: x, propagate_lock=True)
        assert result.is_locked
        assert result["n"].is_locked

    def test_apply_others_are_matched_by_key(self, container):
        td = make(container)
        other = container({"n": {"b": torch.full((3,), 5.0)}}, [3])
        result = td.apply(lambda x, y: x if y is None else y, other, default=None)
        assert result["n", "b"].tolist() == [5, 5, 5]
        assert result["a"] is td["a"]

    def test_apply_missing_other_is_an_error_without_default(self, container):
        td = make(container)
        with pytest.raises(KeyError, match="a"):
            td.apply(lambda x, y: x, td.exclude("a"))


class TestInPlace:
    def test_apply_inplace_keeps_every_object(self, container):
        td = make(container).lock_()
        leaf, nested = td["a"], td["n"]
        assert td.apply_(lambda x: x + 1) is td
        assert td["a"] is leaf
        assert td["n"] is nested
        assert leaf.sum() == 6

    def test_apply_inplace_that_raises_changes_nothing(self, container):
        td = make(container)

        def fails_late(key, x):
            return x + 1 if key == "a" else 1 / 0

        with pytest.raises(ZeroDivisionError):
            td.named_apply(fails_late, inplace=True)
        assert td["a"].sum() == 0

    def test_apply_out_that_does_not_fit_changes_nothing(self, container):
        td = make(container)
        out = container({"a": torch.zeros(3, 2)}, [3, 2])
        with pytest.raises(RuntimeError, match="incompatible with the batch-size"):
            td.apply(lambda x: x + 1, out=out)
        assert list(out.keys()) == ["a"]
        assert out["a"].sum() == 0

    def test_apply_out_is_filled(self, container):
        td, out = make(container), container({}, [3])
        assert td.apply(lambda x: x + 1, out=out) is out
        assert out["n", "b"].tolist() == [2, 2, 2]


class TestNames:
    def test_named_apply_gives_the_last_part_or_all(self, container):
        td, short, whole = make(container), [], []
        td.named_apply(lambda key, x: short.append(key))
        td.named_apply(lambda key, x: whole.append(key), nested_keys=True)
        assert short == ["a", "b"]
        assert whole == ["a", ("n", "b")]

    def test_apply_call_on_nested_does_not_enter(self, container):
        td = make(container)
        assert td.apply(lambda x: x, call_on_nested=True)["n"] is td["n"]

    def test_apply_unknown_argument_warns(self, container):
        with pytest.warns(FutureWarning, match="ignores the keyword"):
            make(container).apply(lambda x: x, unknown=1)


class TestReentry:
    def test_apply_function_may_change_the_container(self, container):
        td = make(container)

        def grows(x):
            td[f"new{len(td.keys())}"] = x.clone()
            return x

        result = td.apply(grows)
        assert list(result.keys()) == ["a", "n"]
        assert len(td.keys()) == 4

    def test_apply_function_may_empty_the_container(self, container):
        td = make(container)

        def clears(x):
            td.clear()
            gc.collect()
            return x

        assert list(td.apply(clears).keys()) == ["a", "n"]

    def test_apply_result_is_not_held(self, container):
        reference = weakref.ref(make(container).apply(lambda x: x))
        gc.collect()
        assert reference() is None

    def test_apply_in_threads(self):
        td = TensorDict({str(i): torch.zeros(2) for i in range(20)}, [2])
        results: list[TensorDict] = []
        threads = [
            threading.Thread(
                target=lambda n=n: results.append(td.apply(lambda x: x + n))
            )
            for n in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(int(r["0"][0]) for r in results) == list(range(8))
        assert all(
            len(set(map(float, (v[0] for v in r.values())))) == 1 for r in results
        )
