"""A write that torch refuses for one leaf leaves all of them as they were."""

from __future__ import annotations

import pytest
import torch

from tensordict import TensorDict, UnbatchedTensor


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
