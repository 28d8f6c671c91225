"""Orders of rows that are found at any position, as the core gives them to Python."""

from __future__ import annotations

import pytest
import torch

from tensordict import _rust


def rows(order: _rust.RowOrder, start: int, count: int) -> list[int]:
    found = torch.empty(count, dtype=torch.int64)
    order.fill(start, found)
    return found.tolist()


def test_orders_never_change() -> None:
    assert rows(_rust.RowOrder(10, [0, 0]), 0, 10) == [0, 7, 2, 5, 9, 3, 6, 1, 4, 8]
    large = _rust.RowOrder(10**12, [42, 7])
    assert rows(large, 0, 2) == [473426901362, 414927256366]
    blocks = _rust.RowOrder(11, [1, 0], 4)
    assert rows(blocks, 0, 11) == [9, 10, 8, 5, 6, 7, 4, 0, 1, 3, 2]
    assert rows(_rust.RowOrder(3), 2, 5) == [2, 0, 1, 2, 0]


def test_a_part_is_that_of_the_whole() -> None:
    order = _rust.RowOrder(101, [5])
    assert rows(order, 90, 30) == (rows(order, 0, 101) * 2)[90:120]
    assert len(order) == 101


def test_what_cannot_be_written_is_an_error() -> None:
    order = _rust.RowOrder(10, [5])
    for wrong in (torch.empty(3), torch.empty(2, 2, dtype=torch.int64), [0, 1]):
        with pytest.raises(TypeError, match="int64"):
            order.fill(0, wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no row"):
        _rust.RowOrder(0, [5]).fill(0, torch.empty(1, dtype=torch.int64))
    with pytest.raises(ValueError, match="block"):
        _rust.RowOrder(10, [5], 0)
