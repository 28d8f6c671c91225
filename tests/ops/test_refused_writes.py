"""A write that torch refuses for one leaf leaves all of them as they were."""

from __future__ import annotations

import pytest
import torch

from tensordict import TensorDict, UnbatchedTensor, lazy_stack


def mixed(other: torch.Tensor) -> TensorDict:
    """Plain leaves before and behind one that refuses."""
    return TensorDict(
        {"a": torch.zeros(3), "b": other, "c": torch.zeros(3, 2)}, batch_size=[3]
    )


def trained() -> TensorDict:
    return mixed(torch.nn.Parameter(torch.zeros(3)))


WRITES = {
    "a number": lambda td: td.__setitem__(0, 1),
    "a number behind a mask": lambda td: td.__setitem__(torch.tensor([True] * 3), 1),
    "a collection": lambda td: td.__setitem__(0, (td.detach() + 1)[0]),
    "a mapping": lambda td: td.__setitem__(0, {k: torch.ones(()) for k in "ab"}),
    "a tensor": lambda td: td.__setitem__([0, 1], torch.ones(2)),
    "masked_fill_": lambda td: td.masked_fill_(torch.tensor([True] * 3), 1),
    "update_at_": lambda td: td.update_at_((td.detach() + 1)[0], 0),
    "copy_at_": lambda td: td.copy_at_((td.detach() + 1)[0], 0),
    "update_": lambda td: td.update_(td.detach() + 1),
    "zero_": lambda td: (td.data.fill_("a", 1), td.zero_()),
    "add_": lambda td: td.add_(1),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_parameters_among_the_leaves(write) -> None:
    td = trained()
    with pytest.raises(RuntimeError, match="leaf Variable"):
        write(td)
    changed = td["a"].sum() + td["c"].sum() + td["b"].sum()
    assert changed == (3 if write is WRITES["zero_"] else 0)


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_parameters_are_written_without_autograd(write) -> None:
    td = trained()
    with torch.no_grad():
        write(td)


def test_a_mask_that_does_not_fit_an_unbatched_tensor() -> None:
    td = TensorDict(
        {"a": torch.zeros(4), "u": UnbatchedTensor(torch.zeros(5))}, batch_size=[4]
    )
    with pytest.raises(RuntimeError, match="size of tensor"):
        td.masked_fill_(torch.tensor([True] * 4), 1)
    assert td["a"].sum() == 0


@pytest.mark.parametrize("join", [torch.stack, torch.cat])
@pytest.mark.parametrize(
    "spoil",
    [
        lambda td: td.exclude("c"),
        lambda td: td.set("c", torch.ones(3)),
        lambda td: td.set("z", torch.ones(3)),
        lambda td: td.set("c", torch.ones(3, 2, dtype=torch.complex64)),
        lambda td: td.set("n", TensorDict(batch_size=[3])),
        lambda td: td.set(("n", "y"), torch.ones(3)),
        lambda td: td.set("n", torch.ones(3)),
    ],
)
def test_joining_into_a_collection(join, spoil) -> None:
    td = mixed(torch.ones(3))
    td["n", "x"] = torch.ones(3)
    out = join([td, td]).zero_()
    with pytest.raises((RuntimeError, KeyError, TypeError)):
        join([td, spoil(td.clone())], out=out)
    assert all(not leaf.any() for leaf in out.values(True, True))


def ragged() -> TensorDict:
    """A stack of three members whose entries differ in shape, and in what they are."""
    return lazy_stack(
        [
            TensorDict(
                {"a": torch.zeros(2), "r": torch.zeros(2, length), "s": "text"},
                batch_size=[2],
            )
            for length in (1, 2, 3)
        ],
        1,
    )


def changed(td: TensorDict) -> TensorDict:
    """Values of which only those of the last member do not fit."""
    other = td + 1
    other.tensordicts[0]["z"] = torch.ones(2)
    other.tensordicts[-1]["r"] = torch.ones(2, 7)
    return other


STACK_WRITES = {
    "a number": lambda td, other: td.__setitem__((slice(None), [0, 1, 9]), 1),
    "rows": lambda td, other: td.__setitem__(0, other[0]),
    "members": lambda td, other: td.__setitem__((slice(None), slice(1, None)), other),
    "positions": lambda td, other: td.__setitem__([0, 1], other[[0, 1]]),
    "everything": lambda td, other: td.__setitem__(slice(None), other),
    "a mask": lambda td, other: td.__setitem__(
        torch.ones(2, 3, dtype=torch.bool), other[torch.ones(2, 3, dtype=torch.bool)]
    ),
    "a tensor": lambda td, other: td.__setitem__([0, 1], torch.ones(2, 3, 2)),
    "update_at_": lambda td, other: td.update_at_(other[0], 0),
    "copy_at_": lambda td, other: td.copy_at_(other[0], 0, fast=False),
}


@pytest.mark.parametrize("write", STACK_WRITES.values(), ids=STACK_WRITES)
@pytest.mark.parametrize("is_trained", [False, True])
def test_members_of_which_one_refuses(write, is_trained) -> None:
    td = ragged()
    if is_trained:
        td.tensordicts[-1]["a"] = torch.nn.Parameter(torch.zeros(2))
    leaves = [member["r"] for member in td.tensordicts]
    with pytest.raises((RuntimeError, IndexError, KeyError, ValueError)):
        write(td, changed(td.detach()))
    for member, leaf in zip(td.tensordicts, leaves, strict=True):
        assert list(member.keys()) == ["a", "r", "s"]
        assert member["r"] is leaf
        assert not leaf.any()
        assert not member["a"].any()
        assert member["s"] == "text"


def test_a_number_of_a_tensor_is_cast_at_a_mask() -> None:
    td = lazy_stack(
        [TensorDict({"a": torch.zeros(2, dtype=torch.int64)}, [2]) for _ in range(2)], 1
    )
    td[[True, False]] = torch.tensor(2.0)
    assert td["a"].tolist() == [[2, 2], [0, 0]]
