"""Kinds of items that users register."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from tensordict.checkpoint import Checkpointer, Kind, register_kind
from tensordict.checkpoint.kinds import interface

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Table:
    def __init__(self, **rows: torch.Tensor) -> None:
        self.rows = rows


class TableKind(Kind):
    name = "table"

    def matches(self, item: Any) -> bool:
        return isinstance(item, Table)

    def state(self, item: Any) -> Any:
        return item.rows

    def set_state(self, item: Any, state: Any) -> None:
        if 7 in state:
            raise ValueError("seven")
        item.rows = state


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(interface, "_KINDS", dict(interface._KINDS))
    monkeypatch.setattr(interface, "_ORDER", list(interface._ORDER))
    register_kind(TableKind())
    return


@pytest.mark.usefixtures("registered")
def test_a_kind_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpointer = Checkpointer(tmp_path, durable=False)
    checkpointer.save(1, table=Table(a=torch.arange(3)), epoch=2)
    fresh = Table()
    assert checkpointer.restore(table=fresh) == {"epoch": 2}
    assert fresh.rows["a"].tolist() == [0, 1, 2]
    assert checkpointer.load()["table", "a"].tolist() == [0, 1, 2]
    with pytest.raises(RuntimeError, match="a table was saved, but a value"):
        checkpointer.restore(table={"a": 1})
    with pytest.raises(RuntimeError, match="a value was saved, but a table"):
        checkpointer.restore(epoch=fresh)
    monkeypatch.delitem(interface._KINDS, "table")
    with pytest.raises(RuntimeError, match="register_kind first"):
        checkpointer.restore(table=fresh)
    # Without the objects, the data is there all the same.
    assert checkpointer.load()["table", "a"].tolist() == [0, 1, 2]


@pytest.mark.usefixtures("registered")
def test_a_kind_that_fails_changes_nothing(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path, durable=False)
    table = Table()
    table.rows = {7: torch.ones(1)}  # type: ignore[dict-item]
    checkpointer.save(1, value=torch.ones(2), table=table)
    value, fresh = torch.zeros(2), Table(a=torch.zeros(1))
    with pytest.raises(ValueError, match="seven"):
        checkpointer.restore(value=value, table=fresh)
    assert value.tolist() == [0, 0]
    assert list(fresh.rows) == ["a"]


def test_a_kind_needs_a_name() -> None:
    class Nameless(TableKind):
        name = ""

    with pytest.raises(ValueError, match="Nameless has no name"):
        register_kind(Nameless())
