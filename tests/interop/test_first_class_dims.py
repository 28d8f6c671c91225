"""First-class dims (``functorch.dim``) as indices of collections."""

from __future__ import annotations

import pytest
import torch
from functorch.dim import dims

from tensordict import NonTensorStack, TensorDict, lazy_stack, tensorclass


@tensorclass
class Row:
    a: torch.Tensor


def test_index_names_batch_dims():
    i, j = dims(2)
    td = TensorDict(
        a=torch.arange(6.0).view(2, 3), n=TensorDict(b=torch.arange(2), batch_size=[2])
    ).auto_batch_size_(1)
    part = td[i]
    assert part.batch_size == ()
    assert part["n"].batch_size == ()
    assert part["a"].shape == (3,)
    assert part["n", "b"].dims == (i,)
    assert i.size == 2
    # The same dims in another tensor are matched by name.
    total = (part["a"] * part["n", "b"]).sum(i)
    assert total.tolist() == [3, 4, 5]
    grid = TensorDict(a=td["a"], batch_size=[2, 3])
    assert torch.equal(grid[i, j]["a"].order(j, i), td["a"].T)
    k = dims(1)
    assert grid[:, k].batch_size == (2,)
    assert grid[..., k]["a"].dims == (k,)
    assert td[i, None].batch_size == (1,)


def test_index_of_a_tensorclass():
    i = dims(1)
    row = Row(a=torch.ones(2, 3), batch_size=[2])[i]
    assert type(row) is Row
    assert row.a.sum(i).tolist() == [2, 2, 2]


def test_assignment_at_a_first_class_dim():
    i = dims(1)
    td = TensorDict(a=torch.ones(2, 3), batch_size=[2])
    td[i] = TensorDict(a=torch.zeros(3))
    assert td["a"].sum() == 0


def test_index_of_a_stack():
    members = [TensorDict(a=torch.arange(3), batch_size=[3]) for _ in range(2)]
    i = dims(1)
    with pytest.raises(ValueError, match="first-class"):
        lazy_stack(members)[i]
    with pytest.raises(ValueError, match="first-class"):
        TensorDict(t=NonTensorStack("a", "b"), batch_size=[2])[i]
    j = dims(1)
    part = lazy_stack(members)[:, j]
    assert part.batch_size == (2,)
    assert part[0]["a"].dims == (j,)
