"""Compiled code locks and unlocks as eager code does, and knows what comes in locked."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

from compiled_together import on_each
from tensordict import LazyStackedTensorDict, TensorDict, lazy_stack


def dense() -> TensorDict:
    return TensorDict({"a": torch.rand(4), "n": {"x": torch.rand(4)}}, [4])


def lazy() -> LazyStackedTensorDict:
    return lazy_stack([dense(), dense()])


def locked_dense() -> TensorDict:
    return dense().lock_()


def locked_lazy() -> LazyStackedTensorDict:
    return lazy().lock_()


PROGRAMS: dict[str, Any] = {
    "is_locked": lambda td: 1 if td.is_locked else 2,
    "lock": lambda td: td.lock_().is_locked,
    "unlock": lambda td: td.unlock_().is_locked,
    "lock, unlock": lambda td: (td.lock_(), td.unlock_())[1].is_locked,
    "unlock, lock": lambda td: td.unlock_().lock_().is_locked,
    "unlock, lock, unlock": lambda td: td.unlock_().lock_().unlock_().is_locked,
    "unlock, set": lambda td: td.unlock_().set("z", td["a"] + 1).is_locked,
    "copy": lambda td: td.clone().is_locked,
    "copy, lock": lambda td: td.clone().lock_().is_locked,
    "copy, lock, unlock": lambda td: td.clone().lock_().unlock_().is_locked,
    "view": lambda td: td.view(-1).is_locked,
}


def locks(td: Any) -> list[bool]:
    members = getattr(td, "tensordicts", [])
    return [td.is_locked, td["n"].is_locked, *[each.is_locked for each in members]]


@pytest.mark.parametrize("make", [dense, lazy, locked_dense, locked_lazy])
def test_locks_are_those_of_eager_code(make: Any) -> None:
    torch._dynamo.reset()
    program = on_each(PROGRAMS)
    eager, compiled = [[make() for _ in PROGRAMS] for _ in range(2)]
    expected = program(eager)
    found = torch.compile(program, fullgraph=True, backend="eager")(compiled)
    assert found == expected
    for name, one, other in zip(PROGRAMS, compiled, eager, strict=True):
        assert locks(one) == locks(other), name


def test_members_of_two_locked_stacks_refer_to_both() -> None:
    torch._dynamo.reset()
    td = locked_lazy()
    part = torch.compile(lambda td: td.split(1), fullgraph=True, backend="eager")(td)
    for member, stack in zip(td.tensordicts, part, strict=True):
        assert stack.tensordicts[0] is member
        first, second = (ref() for ref in member._lock_parents_weakrefs)
        assert (first is td, second is stack) == (True, True)
        with pytest.raises(RuntimeError, match="part of a locked graph"):
            stack.unlock_()


@pytest.mark.parametrize("make", [dense, lazy])
def test_attributes_are_found_without_reading_them(make: Any) -> None:
    # The older Dynamo reads them so.
    td = make().lock_()
    assert inspect.getattr_static(td, "_batch_size") == td.batch_size
