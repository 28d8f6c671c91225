"""Writes to a lazy stack from a value that shares its members or their memory."""

import pytest
import torch

from tensordict import NonTensorData, TensorDict, lazy_stack


def stack():
    return lazy_stack(
        [
            TensorDict(
                a=torch.tensor([i, i]),
                n=TensorDict(b=torch.tensor(i)),
                text=NonTensorData(str(i)),
            )
            for i in range(3)
        ]
    )


def check(td, expected):
    assert td["a"].tolist() == [[i, i] for i in expected]
    assert td["n", "b"].tolist() == expected
    assert list(td["text"]) == [str(i) for i in expected]


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        ([1, 2, 0], [2, 0, 1]),
        (torch.tensor([1, 2, 0]), [2, 0, 1]),
        (torch.tensor([True, True, True]), [0, 1, 2]),
        (slice(None), [0, 1, 2]),
    ],
)
def test_a_stack_is_written_into_itself(index, expected):
    td = stack()
    td[index] = td
    check(td, expected)


@pytest.mark.parametrize("nested", [False, True])
def test_rows_move_within_a_stack(nested):
    td = lazy_stack([stack(), stack()]) if nested else stack()
    rows = (slice(None), slice(1, 3)) if nested else slice(1, 3)
    sources = (slice(None), slice(0, 2)) if nested else slice(0, 2)
    td[rows] = td[sources]
    for part in td.unbind(0) if nested else [td]:
        check(part, [0, 0, 1])


def test_members_are_written_in_reversed_order():
    for index in (slice(None), ...):
        td = stack()
        td[index] = lazy_stack(td.tensordicts[::-1])
        check(td, [2, 1, 0])
    td = stack()
    td.update_at_(td[:-1], slice(1, 3))
    check(td, [0, 0, 1])


def test_members_that_are_rows_of_one_tensordict():
    rows = TensorDict(a=torch.arange(3), batch_size=[3])
    td = lazy_stack(list(rows.unbind(0)))
    td[1:] = rows[:-1]
    assert rows["a"].tolist() == [0, 0, 1]


COPIES = {
    "update_": lambda td, source: td.update_(source),
    "update": lambda td, source: td.update(source, inplace=True),
    "copy_": lambda td, source: td.copy_(source),
}


@pytest.mark.parametrize("copy", COPIES.values(), ids=COPIES)
@pytest.mark.parametrize("order", [[2, 1, 0], [1, 2, 0], [0, 0, 1]], ids=str)
def test_members_in_another_order_are_read_before_they_are_written(copy, order):
    members = [
        TensorDict(a=torch.full((2,), at), s=NonTensorData(f"v{at}")) for at in range(3)
    ]
    stack = lazy_stack(members)
    copy(stack, lazy_stack([members[at] for at in order]))
    assert [member["a"].tolist() for member in members] == [[at] * 2 for at in order]
    assert [member["s"] for member in members] == [f"v{at}" for at in order]


@pytest.mark.parametrize("copy", COPIES.values(), ids=COPIES)
@pytest.mark.parametrize("has_value", [False, True])
def test_entries_that_change_places_are_read_before_they_are_written(copy, has_value):
    td = TensorDict(a=torch.zeros(2), n=TensorDict(b=torch.ones(2)))
    source = TensorDict(a=td["n", "b"], n=TensorDict(b=td["a"]))
    if has_value:
        td["s"], source["s"] = "old", "new"
    copy(td, source)
    assert td["a"].tolist() == [1, 1]
    assert td["n", "b"].tolist() == [0, 0]
