"""Stacks of values without elements: each row keeps its value, as in the release."""

import copy
import pickle

import pytest
import torch

from tensordict import (
    LazyStackedTensorDict,
    MetaData,
    NonTensorData,
    NonTensorStack,
    TensorDict,
    lazy_stack,
)


def one(value, *size):
    return NonTensorData(value, batch_size=size)


@pytest.fixture
def stack():
    return torch.stack([one("x", 0), one("y", 0)])


@pytest.fixture
def members():
    return [
        TensorDict(s=NonTensorData(value), a=torch.zeros(0, 2), batch_size=[0])
        for value in "xy"
    ]


def is_value(found, value, *size):
    return (
        type(found) is NonTensorData
        and found.data == value
        and found.batch_size == torch.Size(size)
    )


@pytest.mark.parametrize(
    "make",
    [
        torch.stack,
        lazy_stack,
        LazyStackedTensorDict.lazy_stack,
        LazyStackedTensorDict.maybe_dense_stack,
        lambda values: NonTensorStack(*values),
    ],
)
def test_each_route_to_a_stack_keeps_the_values(make):
    made = make([one("x", 0), one("y", 0)])

    assert isinstance(made, NonTensorStack)
    assert made.batch_size == torch.Size([2, 0])
    assert made.tolist() == [[], []]
    assert is_value(made[0], "x", 0)
    assert is_value(made[1], "y", 0)
    assert [row.data for row in made.tensordicts] == ["x", "y"]


@pytest.mark.parametrize(
    "copied",
    [
        lambda td: td,
        lambda td: td.clone(),
        lambda td: td.contiguous(),
        lambda td: td.densify(),
        lambda td: td.to_tensordict(),
        lambda td: td.apply(lambda leaf: leaf + 1),
        lambda td: td.to("cpu"),
        lambda td: td.consolidate(),
        lambda td: td.to_lazystack(0),
        lambda td: td.unsqueeze(0)[0],
        lambda td: torch.cat([td, td])[2:],
        lambda td: td[:, :0],
        lambda td: td.lock_(),
        copy.deepcopy,
        lambda td: pickle.loads(pickle.dumps(td)),
    ],
)
@pytest.mark.parametrize("join", [torch.stack, lazy_stack])
def test_rows_of_containers_have_their_values(join, copied, members):
    td = copied(join(members))

    assert [td[row]["s"] for row in range(2)] == ["x", "y"]
    assert is_value(td[1].get("s"), "y", 0)
    assert td[1].to_dict()["s"] == "y"


@pytest.mark.parametrize(
    ("move", "expected"),
    [
        (lambda n: n[torch.tensor([1, 0])], "yx"),
        (lambda n: n[[1]], "y"),
        (lambda n: n[torch.tensor([False, True])], "y"),
        (lambda n: n[::2], "x"),
        (lambda n: n[:, torch.zeros(0, dtype=torch.long)], "xy"),
        (lambda n: n.transpose(0, 1).unbind(1), "xy"),
        (lambda n: n.permute(1, 0).permute(1, 0), "xy"),
        (lambda n: n.expand(3, 2, 0)[2], "xy"),
        (lambda n: n.repeat(2, 1), "xyxy"),
        (lambda n: n.repeat_interleave(2, dim=0), "xxyy"),
        (lambda n: n.flip(0), "yx"),
        (lambda n: n.roll(1, 0), "yx"),
        (lambda n: n.split(1)[1], "y"),
        (lambda n: n.split([0, 0], 1)[1], "xy"),
        (lambda n: n.chunk(2)[0], "x"),
        (lambda n: n.narrow(0, 1, 1), "y"),
        (lambda n: torch.stack([n, n])[1], "xy"),
        (lambda n: torch.stack([n, n], 1)[1], "yy"),
        (lambda n: torch.stack([n, n], 2)[:, :, 1], "xy"),
        (lambda n: torch.stack([n, one("z", 2, 0)])[1], "zz"),
        (lambda n: torch.cat([n, one("z", 2, 0)]), "xyzz"),
        (lambda n: torch.cat([n, n], 1), "xy"),
        (lambda n: n.where(torch.tensor([True, False]), n.flip(0)), "xx"),
    ],
)
def test_operations_move_the_values_of_rows(move, expected, stack):
    rows = move(stack)

    assert len(rows) == len(expected)
    pairs = zip(rows, expected, strict=True)
    assert all(is_value(row, value, 0) for row, value in pairs)


def test_rows_are_written(stack):
    stack[0] = one("z", 0)
    assert [row.data for row in stack] == ["z", "y"]
    stack[1].data = 8
    assert [row.data for row in stack] == ["z", 8]
    stack.update_(NonTensorStack(one("p", 0), one("q", 0)))
    assert [row.data for row in stack] == ["p", "q"]
    stack.update_at_(one("r", 0), 1)
    assert [row.data for row in stack] == ["p", "r"]
    stack.set("data", "all")
    assert [row.data for row in stack] == ["all", "all"]
    with pytest.raises(RuntimeError, match="differs from the source batch size"):
        stack[1] = "w"
    assert [row.data for row in stack] == ["all", "all"]


def test_a_copy_has_rows_of_its_own(stack):
    copied = stack.clone()
    copied[0] = one("z", 0)

    assert stack[0].data == "x"


def test_a_lazy_stack_shows_the_values_of_its_members(members):
    td = lazy_stack(members)

    assert [row.data for row in td.get("s")] == ["x", "y"]
    assert td["s"] == [[], []]


@pytest.mark.parametrize("values", [("x", "y"), ((1, 2), None), ({1}, 2j)])
def test_files_keep_the_values(values, tmp_path):
    stack = torch.stack([one(value, 0) for value in values])
    TensorDict(s=stack, batch_size=[2, 0]).save(tmp_path)

    loaded = TensorDict.load(tmp_path, allow_pickle=True)

    assert loaded.get("s").batch_size == torch.Size([2, 0])
    assert [row.data for row in loaded.get("s")] == list(values)
    assert loaded[1]["s"] == values[1]


def test_a_write_to_saved_rows_reaches_the_files(stack, tmp_path):
    stack.memmap_(tmp_path)
    stack.update_at_(one("z", 0), 0)

    assert [row.data for row in NonTensorStack.load_memmap(tmp_path)] == ["z", "y"]
    with pytest.raises(RuntimeError, match="memmaped parent"):
        stack[0].update_(one("w", 0))


def test_a_row_without_a_value_stays_one():
    stack = torch.stack([one("x", 0), NonTensorStack()])

    assert is_value(stack[0], "x", 0)
    assert isinstance(stack[1], NonTensorStack)
    again = pickle.loads(pickle.dumps(stack))
    assert is_value(again[0], "x", 0)
    assert isinstance(copy.deepcopy(stack)[1], NonTensorStack)


def test_rows_of_metadata_are_metadata():
    stack = torch.stack([MetaData("x", batch_size=[0]), MetaData("y", batch_size=[0])])

    assert type(stack[1]) is MetaData
    assert stack[1].data == "y"


def test_concatenating_values_without_elements_keeps_the_first():
    assert is_value(torch.cat([one("x", 0), one("y", 0)]), "x", 0)
    assert is_value(torch.cat([one("x", 2, 0), one("y", 2, 0)], 1), "x", 2, 0)


def test_rows_cut_to_no_elements_keep_their_values():
    stack = torch.stack([one("x", 3), one("y", 3)])

    assert is_value(stack[:, :0][1], "y", 0)
    assert is_value(stack[:, 3:][1], "y", 0)
    assert stack[:0, :0].tolist() == []


def test_new_rows_join_the_others(stack):
    stack.append(NonTensorStack())

    assert stack.batch_size == torch.Size([3, 0])
    assert [row.data for row in stack[:2]] == ["x", "y"]
