"""Rows of other lengths that change places: flip, roll, repeat, gather and new dims."""

from __future__ import annotations

import pytest
import torch

from jagged_collections import ROWS, jagged, nested, outer, ragged
from tensordict import lazy_stack


def twice():
    """A stack of such stacks."""
    return lazy_stack([ragged(), ragged() * 2], 1)


def strided():
    """A collection whose entry is a nested tensor of the strided layout."""
    return ragged().densify()


STACKS = {each.__name__: each for each in (ragged, twice, nested, outer)}
KINDS = {**STACKS, "jagged": jagged, "strided": strided}


def rows_of(td):
    """The rows of the entry, as lists of lists along the batch dims."""
    if not td.batch_dims:
        return td["a"].tolist()
    return [rows_of(part) for part in td.unbind(0)]


def along(function, rows, dim):
    """``function`` of the list at each place of a dim."""
    if not dim:
        return function(rows)
    return [along(function, row, dim - 1) for row in rows]


def dims_of(kinds):
    return [
        pytest.param(make, dim, id=f"{name}-{dim}")
        for name, make in kinds.items()
        for dim in range(make().batch_dims)
    ]


@pytest.mark.parametrize(("make", "dim"), dims_of(KINDS))
class TestMoves:
    def test_flip(self, make, dim):
        td = make()
        expected = along(lambda rows: rows[::-1], rows_of(td), dim)
        assert rows_of(td.flip(dim)) == expected
        assert rows_of(torch.flip(td, [dim])) == expected

    @pytest.mark.parametrize("shift", [1, -1, 4])
    def test_roll(self, make, dim, shift):
        td = make()

        def rolled(rows):
            start = -shift % len(rows)
            return rows[start:] + rows[:start]

        assert rows_of(td.roll(shift, dim)) == along(rolled, rows_of(td), dim)

    def test_repeat(self, make, dim):
        td = make()
        times = [1] * td.batch_dims
        times[dim] = 2
        expected = along(lambda rows: rows * 2, rows_of(td), dim)
        assert rows_of(td.repeat(*times)) == expected

    def test_repeat_interleave(self, make, dim):
        td = make()
        expected = along(
            lambda rows: [row for row in rows for _ in range(2)], rows_of(td), dim
        )
        assert rows_of(td.repeat_interleave(2, dim=dim)) == expected
        counts = torch.full((td.batch_size[dim],), 2)
        assert rows_of(td.repeat_interleave(counts, dim=dim)) == expected


@pytest.mark.parametrize("make", [ragged, jagged, strided])
@pytest.mark.parametrize("index", [[2, 0], [1, 1, 1, 0]])
def test_gather_of_rows(make, index):
    found = make().gather(0, torch.tensor(index))
    assert rows_of(found) == [ROWS[at] for at in index]


@pytest.mark.parametrize("make", [twice, nested, outer])
def test_gather_of_several_dims(make):
    td = make()
    rows = rows_of(td)
    first = torch.tensor([[2, 0], [1, 1]])
    expected = [[rows[2][0], rows[0][1]], [rows[1][0], rows[1][1]]]
    assert rows_of(td.gather(0, first)) == expected
    second = torch.tensor([[1, 0, 0], [0, 0, 1]])
    expected = [[rows[at][i] for i in row] for at, row in enumerate(second.tolist())]
    assert rows_of(td.gather(1, second)) == expected


@pytest.mark.parametrize("make", STACKS.values(), ids=STACKS)
def test_new_dims_at_any_place_of_an_index(make):
    td = make()
    rows = rows_of(td)
    some = torch.tensor([1, 0])
    assert rows_of(td[None, some]) == [[rows[1], rows[0]]]
    assert rows_of(td[some, None]) == [[rows[1]], [rows[0]]]
    assert rows_of(td[1, None]) == [rows[1]]
    assert rows_of(td[None, 1:]) == [rows[1:]]
    assert rows_of(td[1:, None]) == [[row] for row in rows[1:]]
    assert td[..., None].batch_size == torch.Size([*td.batch_size, 1])
    assert td[None, :, None].batch_size[:3] == (1, 3, 1)


def test_what_was_moved_is_a_copy_and_keeps_the_names():
    td = ragged()
    td.names = ["t"]
    for moved in (td.flip(0), td.roll(1, 0), td.gather(0, torch.tensor([0, 1]))):
        moved.zero_()
        assert moved.names == ["t"]
    assert rows_of(td) == ROWS


@pytest.mark.parametrize("dim", [1, -2])
def test_dims_that_are_not_there_are_errors(dim):
    with pytest.raises((IndexError, RuntimeError), match="(?i)dim"):
        ragged().flip(dim)
    with pytest.raises((IndexError, RuntimeError), match="(?i)dim"):
        ragged().gather(dim, torch.tensor([0]))


def test_a_row_that_is_not_there_is_an_error():
    with pytest.raises(RuntimeError):
        ragged().gather(0, torch.tensor([3]))
    with pytest.raises(RuntimeError):
        ragged().gather(0, torch.tensor([-1]))
