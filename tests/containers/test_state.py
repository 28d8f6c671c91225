"""The state of a dense container is four ordinary attributes, however they are kept."""

from __future__ import annotations

import gc
import sys
import weakref
from typing import Any

import pytest
import torch

from tensordict import TensorDict, TensorDictBase

STATE = ["_tensordict", "_batch_size", "_device", "_td_dim_names"]


class Early(TensorDict):
    """Has an attribute before the state is there."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.early = "early"
        super().__init__(*args, **kwargs)


class Watched(TensorDict):
    """Answers for its attributes itself."""

    def __getattribute__(self, name: str) -> Any:
        if name == "_device":
            return torch.device("meta")
        return super().__getattribute__(name)


class Slotted(TensorDict):
    """Has a place that is not in its dictionary."""

    __slots__ = ("extra",)


class Own(TensorDict):
    """Has a size of its own making."""

    @property
    def batch_size(self) -> torch.Size:
        return torch.Size([7])


def make(cls: type[TensorDict] = TensorDict, **kwargs: Any) -> TensorDict:
    return cls({"a": torch.zeros(3), "n": {"b": torch.ones(3)}}, [3], **kwargs)


@pytest.mark.parametrize("cls", [TensorDict, Early, Slotted])
@pytest.mark.parametrize("asked", [False, True])
def test_results_have_the_four_attributes(cls, asked):
    td = make(cls)
    if asked:
        assert [name for name in vars(td) if name in STATE] == STATE
    for result in (td.clone(False), td + 1, td[0:2], td.clone(False)["n"]):
        assert list(vars(result)) == STATE
        assert result._tensordict.keys() <= {"a", "b", "n"}
        assert result.batch_size == result._batch_size


def test_an_early_attribute_is_found_by_name():
    td = make(Early)
    assert list(vars(td)) == ["early", *STATE]
    assert td.clone(False)["a"] is td["a"]
    assert td.set("c", torch.zeros(3)).select("c").batch_size == (3,)


def test_a_class_that_answers_itself_is_asked():
    td = make(Watched)
    assert td.device == torch.device("meta")
    assert td.clone(False).device == torch.device("meta")


def test_an_overridden_property_is_used():
    td = Own(batch_size=[3])
    assert td.shape == td.size() == (7,)
    assert td.ndim == 1
    assert len(td) == 7


@pytest.mark.parametrize("asked", [False, True])
def test_attributes_come_in_the_order_in_which_they_were_set(asked):
    td = make()
    td.further = 1
    td.more = 2
    del td.further
    if asked:
        vars(td)
    td.further = 3
    assert list(vars(td)) == [*STATE, "more", "further"]


@pytest.mark.parametrize("further", [0, 2, 40])
def test_a_lock_is_seen_beside_any_other_attributes(further):
    td = make()
    for number in range(further):
        setattr(td, f"further_{number}", number)
    assert not td.is_locked
    td.lock_()
    assert td.is_locked
    assert td["n"].is_locked
    with pytest.raises(RuntimeError, match="locked"):
        td["c"] = torch.zeros(3)
    td.unlock_()
    td["c"] = torch.zeros(3)
    assert not td.is_locked


def test_a_missing_attribute_is_an_error():
    td = TensorDict.__new__(TensorDict)
    with pytest.raises(AttributeError, match="_batch_size"):
        _ = td.batch_size
    with pytest.raises(AttributeError, match="_tensordict"):
        td.clone(False)


def test_containers_hold_and_free_what_they_are_made_of():
    leaf = torch.zeros(3)
    td = TensorDict({"a": leaf}, [3])
    counts = sys.getrefcount(leaf), sys.getrefcount(td.batch_size)
    copies = [td.clone(False) for _ in range(100)]
    gone = weakref.ref(copies[0])
    cycle = copies[1]
    cycle.itself = cycle
    gone_too = weakref.ref(cycle)
    del copies, cycle
    gc.collect()
    assert gone() is None
    assert gone_too() is None
    assert (sys.getrefcount(leaf), sys.getrefcount(td.batch_size)) == counts


def test_natively_called_functions_are_those_of_python():
    """Signature, name and code are there for the compiler, for tools and for ``super``."""
    for name in ("__len__", "__contains__", "__setitem__"):
        assert getattr(TensorDict, name).__code__.co_name == name
    assert TensorDict.batch_size.fget.__name__ == "batch_size"
    td = make()
    with pytest.raises(TypeError):
        TensorDict.__len__(td, 1)
    with pytest.raises(TypeError):
        TensorDict.batch_size.fget()
    assert TensorDict.__contains__(td, key="a")
    TensorDict.__setitem__(td, index="c", value=torch.zeros(3))
    assert "c" in td


def test_natively_called_functions_leave_what_is_not_plain_to_their_code():
    class Noting(TensorDict):
        def __setitem__(self, index: Any, value: Any) -> None:
            noted.append(index)
            super().__setitem__(index, value)

        def __contains__(self, key: Any) -> bool:
            return key == "always" or super().__contains__(key)

    noted: list[Any] = []
    td = make(Noting)
    td["c"] = torch.zeros(3)
    td[0] = td[1]
    assert noted == ["c", 0]
    assert "always" in td
    assert ("n", "b") in td
    plain = make()
    plain["n", "c"] = torch.ones(3)
    plain["d"] = 1.0 * torch.ones(3).numpy()
    plain[0] = plain[1]
    assert ("n", "c") in plain
    with pytest.raises(RuntimeError, match="batch dimension mismatch"):
        plain["e"] = torch.zeros(4)
    with pytest.raises(RuntimeError, match="NestedKey"):
        _ = 1 in plain


def test_a_method_replaced_on_the_base_class_is_that_of_containers(monkeypatch):
    monkeypatch.setattr(TensorDictBase, "neg", lambda self: "replaced")
    assert TensorDict(a=1).neg() == "replaced"
