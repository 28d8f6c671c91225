"""Nested tensors as entries: of ordinary collections, of stacks, and what gives them."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch

from jagged_collections import ROWS, jagged, nested, outer, ragged
from tensordict import TensorDict, assert_close, lazy_stack


def deep():
    """Stacks of jagged tensors, stacked once more."""
    return lazy_stack([outer(), outer() + 1, outer() * 2], 1)


def rows_of(td):
    """The rows of the entry, as lists of lists along the batch dims."""
    if td.batch_dims == 0:
        return td["a"].tolist()
    return [rows_of(part) for part in td.unbind(0)]


MAKERS = {
    "ragged": ragged,
    "jagged": jagged,
    "nested": nested,
    "outer": outer,
    "deep": deep,
}
EXPECTED = {
    "ragged": ROWS,
    "jagged": ROWS,
    "nested": [list(pair) for pair in zip(ROWS, ROWS[::-1], strict=True)],
}


def mapped(function, rows):
    if isinstance(rows, list):
        return [mapped(function, row) for row in rows]
    return function(rows)


PAIRS = [list(pair) for pair in zip(ROWS, [*ROWS[1:], ROWS[0]], strict=True)]
EXPECTED["outer"] = PAIRS
EXPECTED["deep"] = [
    [pair, mapped(lambda x: x + 1, pair), mapped(lambda x: x * 2, pair)]
    for pair in PAIRS
]


def mask_of(td):
    """True for the first and the last part."""
    mask = torch.zeros(td.batch_size, dtype=torch.bool)
    mask[0] = mask[2] = True
    return mask


def saved(td):
    file = io.BytesIO()
    torch.save(td, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def flat(parts):
    """The rows of parts that have the same number of batch dims."""
    if isinstance(parts[0][0], list):
        return flat([row for part in parts for row in part])
    return parts


CASES = {
    "int": (lambda td: td[1], lambda rows: rows[1]),
    "slice": (lambda td: td[1:], lambda rows: rows[1:]),
    "empty slice": (lambda td: td[3:], lambda rows: []),
    "step": (lambda td: td[::2], lambda rows: rows[::2]),
    "list": (lambda td: td[[2, 0]], lambda rows: [rows[2], rows[0]]),
    "twice": (lambda td: td[torch.tensor([1, 1])], lambda rows: [rows[1], rows[1]]),
    "mask": (
        lambda td: td[torch.tensor([True, False, True])],
        lambda rows: [rows[0], rows[2]],
    ),
    "nothing": (lambda td: td[torch.zeros(3, dtype=torch.bool)], lambda rows: []),
    "no numbers": (lambda td: td[torch.zeros(0, dtype=torch.long)], lambda rows: []),
    "narrow": (lambda td: td.narrow(0, 1, 2), lambda rows: rows[1:]),
    "mask of all dims": (
        lambda td: td[mask_of(td)],
        lambda rows: flat([rows[0], rows[2]]),
    ),
    "masked_select": (
        lambda td: td.masked_select(mask_of(td)),
        lambda rows: flat([rows[0], rows[2]]),
    ),
    "where": (
        lambda td: td.where(mask_of(td), td + 1),
        lambda rows: [rows[0], mapped(lambda x: x + 1, rows[1]), rows[2]],
    ),
    "where a number": (
        lambda td: td.where(~mask_of(td), 9.0),
        lambda r: [mapped(lambda x: 9.0, r[0]), r[1], mapped(lambda x: 9.0, r[2])],
    ),
    "masked_fill_": (
        lambda td: td.masked_fill_(~mask_of(td), 9.0),
        lambda rows: [rows[0], mapped(lambda x: 9.0, rows[1]), rows[2]],
    ),
    "add_ a multiple": (
        lambda td: td.add_(td.clone(), alpha=2),
        lambda rows: mapped(lambda x: 3 * x, rows),
    ),
    "addcmul_": (
        lambda td: td.addcmul_(td.clone(), td.clone(), value=2),
        lambda rows: mapped(lambda x: x + 2 * x * x, rows),
    ),
    "add a multiple": (
        lambda td: td.add(td, alpha=2),
        lambda rows: mapped(lambda x: 3 * x, rows),
    ),
    "addcmul": (
        lambda td: td.addcmul(td, td, value=2),
        lambda rows: mapped(lambda x: x + 2 * x * x, rows),
    ),
    "ellipsis": (lambda td: td[...], lambda rows: rows),
    "cat": (lambda td: torch.cat([td, td[:1]]), lambda rows: [*rows, rows[0]]),
    "lazy_stack": (lambda td: lazy_stack([td, td]), lambda rows: [rows, rows]),
    "add": (lambda td: td + 1, lambda rows: mapped(lambda x: x + 1, rows)),
    "add itself": (lambda td: td + td, lambda rows: mapped(lambda x: 2 * x, rows)),
    "negate": (lambda td: -td, lambda rows: mapped(lambda x: -x, rows)),
    "clamp": (lambda td: td.clamp(min=3), lambda r: mapped(lambda x: max(x, 3.0), r)),
    "zero_": (lambda td: td.zero_(), lambda rows: mapped(lambda x: 0.0, rows)),
    "add_": (lambda td: td.add_(1), lambda rows: mapped(lambda x: x + 1, rows)),
    "clone": (lambda td: td.clone(), lambda rows: rows),
    "update_": (
        lambda td: td.update_(td.clone() + 1),
        lambda rows: mapped(lambda x: x + 1, rows),
    ),
    "deepcopy": (copy.deepcopy, lambda rows: rows),
    "pickle": (lambda td: pickle.loads(pickle.dumps(td)), lambda rows: rows),
    "torch.save": (saved, lambda rows: rows),
    "to": (lambda td: td.double(), lambda rows: rows),
    "apply": (
        lambda td: td.apply(lambda x: x * 2),
        lambda rows: mapped(lambda x: 2 * x, rows),
    ),
    "equal": (lambda td: td == td.clone(), lambda r: mapped(lambda x: True, r)),
    "compare": (lambda td: td > 2, lambda rows: mapped(lambda x: x > 2, rows)),
    "unbind": (lambda td: list(td.unbind(0)), lambda rows: rows),
    "split": (
        lambda td: list(td.split([1, 2])),
        lambda rows: [rows[:1], rows[1:]],
    ),
    "chunk": (lambda td: list(td.chunk(2)), lambda rows: [rows[:2], rows[2:]]),
    "tensor_split": (
        lambda td: list(td.tensor_split([2])),
        lambda rows: [rows[:2], rows[2:]],
    ),
    "select": (lambda td: td.select("a"), lambda rows: rows),
    "set a row": (
        lambda td: (td.__setitem__(0, td[0].clone() * 0), td)[1],
        lambda rows: [mapped(lambda x: 0.0, rows[0]), *rows[1:]],
    ),
    "fill rows": (
        lambda td: (td.__setitem__(slice(1, None), 7.0), td)[1],
        lambda rows: [rows[0], *mapped(lambda x: 7.0, rows[1:])],
    ),
}


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("name", CASES)
def test_rows_stay_together(kind, name):
    operation, expected = CASES[name]
    result = operation(MAKERS[kind]())
    found = (
        [rows_of(part) for part in result]
        if isinstance(result, list)
        else rows_of(result)
    )
    assert found == expected(EXPECTED[kind])


@pytest.mark.parametrize("kind", ["ragged", "nested", "outer", "deep"])
def test_a_new_dim_of_a_stack(kind):
    stack, rows = MAKERS[kind](), EXPECTED[kind]
    for new in (stack.unsqueeze(0), stack[None]):
        assert new.batch_size == (1, *stack.batch_size)
        assert rows_of(new) == [rows]
        assert rows_of(new.squeeze(0)) == rows
    for dim in range(-1, stack.ndim):
        assert rows_of(stack.unsqueeze(dim).squeeze(dim)) == rows


def test_a_dim_of_one_of_a_jagged_tensor_goes():
    td = jagged().unsqueeze(-1)
    assert rows_of(td.squeeze(-1)) == ROWS
    assert rows_of((td + 1).squeeze(-1) - 1) == ROWS


def test_a_stack_of_stacks_keeps_them_apart():
    stack = torch.stack([nested(), nested()])
    assert stack.batch_size == (2, 3, 2)
    assert rows_of(stack) == [EXPECTED["nested"]] * 2


def test_no_jagged_tensor_has_two_ragged_dims():
    with pytest.raises(RuntimeError, match="would need a second ragged dim"):
        torch.stack([jagged(), jagged()])
    assert TensorDict.maybe_dense_stack([jagged(), jagged()]).batch_size == (2, 3)


def test_rows_that_follow_one_another_are_a_view():
    td = jagged()
    td[1:].zero_()
    assert rows_of(td) == [[1, 2], [0, 0, 0], [0]]


def test_gradients_reach_the_rows_that_were_taken():
    td = jagged()
    td["a"].requires_grad_()
    td[[1, 1, 0]]["a"].values().sum().backward()
    assert [row.tolist() for row in td["a"].grad.unbind()] == [[1, 1], [2, 2, 2], [0]]


def test_a_write_that_does_not_fit_changes_nothing():
    td = jagged()
    with pytest.raises(RuntimeError, match="cannot write a row of shape"):
        td[:2] = td[1:].clone()
    assert rows_of(td) == ROWS


def test_rows_with_holes_and_other_ragged_dims():
    whole = torch.arange(12.0).view(3, 4)
    holes = torch.nested.narrow(
        whole, 1, torch.tensor([0, 1, 2]), torch.tensor([1, 2, 2]), layout=torch.jagged
    )
    td = TensorDict(a=holes, batch_size=[3])
    assert rows_of(td[[2, 0]]) == [[10, 11], [0]]
    assert rows_of(torch.cat([td, td[:1]])) == [[0], [5, 6], [10, 11], [0]]
    last = torch.nested.nested_tensor_from_jagged(
        torch.arange(12.0).view(2, 6), offsets=torch.tensor([0, 2, 6]), jagged_dim=2
    )
    td = TensorDict(a=last, batch_size=[2])
    assert rows_of(td[[1]]) == [[[2, 3, 4, 5], [8, 9, 10, 11]]]


def test_padding_fills_the_rows_up():
    padded = jagged().to_padded_tensor(padding=-1)
    assert padded["a"].tolist() == [[1, 2, -1], [3, 4, 5], [6, -1, -1]]


def test_bytes_count_what_tells_rows_apart():
    assert jagged().bytes() == 6 * 4 + 4 * 8


def test_the_strided_layout_is_taken_apart_too():
    td = ragged().densify()
    assert rows_of(td[1:]) == ROWS[1:]
    assert rows_of(td[[2, 0]]) == [ROWS[2], ROWS[0]]
    assert rows_of(torch.cat([td, td[:1]])) == [*ROWS, ROWS[0]]
    assert rows_of(td + 1) == mapped(lambda x: x + 1, ROWS)
    assert td.to_padded_tensor()["a"].shape == (3, 3)


def test_rows_of_rows_are_no_nested_tensor():
    with pytest.raises(ValueError, match="nested tensors themselves"):
        nested().get("a", as_nested_tensor=True)


def test_rows_of_one_shape_are_copied_though_they_were_made_apart():
    def jagged(*rows):
        return torch.nested.as_nested_tensor(
            [torch.tensor(row) for row in rows], layout=torch.jagged
        )

    td = TensorDict(a=jagged([1.0], [2.0, 3.0]), batch_size=[2])
    held = td["a"]
    td.update_(TensorDict(a=jagged([4.0], [5.0, 6.0]), batch_size=[2]))
    assert [row.tolist() for row in held.unbind()] == [[4.0], [5.0, 6.0]]
    td.set_("a", jagged([7.0], [8.0, 9.0]))
    assert [row.tolist() for row in held.unbind()] == [[7.0], [8.0, 9.0]]
    with pytest.raises(RuntimeError):
        td.set_("a", jagged([7.0, 8.0], [9.0]))
    assert [row.tolist() for row in held.unbind()] == [[7.0], [8.0, 9.0]]


def test_entries_of_the_same_rows_with_offsets_of_their_own():
    rows = [torch.ones(2), torch.arange(3.0)]
    whole = torch.nested.nested_tensor(rows, layout=torch.jagged)
    td = TensorDict(j=whole, k=whole * 2, batch_size=[2])
    for other in (td.consolidate(), td.apply(lambda x: x.clone())):
        assert (td == other).all()
        assert (other == td).all()
        assert not (td != other).any()
        assert (td + other == td * 2).all()
        assert (other - td == td * 0).all()
        assert_close(td, other)
    longer = torch.nested.nested_tensor([torch.ones(3), rows[0]], layout=torch.jagged)
    with pytest.raises(RuntimeError, match="shapes"):
        _ = td == TensorDict(j=longer, k=longer, batch_size=[2])
