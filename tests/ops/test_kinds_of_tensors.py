"""Tensors of every kind are compared with the batch size, however their shape is read."""

from __future__ import annotations

import pytest
import torch

from tensordict import TensorDict

KINDS = {
    "ordinary": lambda: torch.zeros(3, 4),
    "one dim": lambda: torch.zeros(3),
    "many dims": lambda: torch.zeros(3, 1, 2, 1, 2, 1, 2, 1),
    "without elements": lambda: torch.zeros(3, 0),
    "view": lambda: torch.zeros(4, 6).t()[1:4],
    "expanded": lambda: torch.zeros(1).expand(3, 4),
    "resized": lambda: torch.zeros(2).resize_(3, 2).zero_(),
    "parameter": lambda: torch.nn.Parameter(torch.zeros(3, 4)),
    "integers": lambda: torch.zeros(3, 4, dtype=torch.uint8),
    "meta": lambda: torch.zeros(3, 4, device="meta"),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "conjugated": lambda: torch.zeros(3, 4, dtype=torch.complex64).conj(),
    "efficient zeros": lambda: torch._efficientzerotensor((3, 4)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_tensor_is_stored_where_it_fits_and_refused_elsewhere(kind):
    tensor = KINDS[kind]()
    td = TensorDict({"a": tensor}, [3])
    assert td["a"] is tensor
    td["b"] = tensor
    td.set("c", tensor).update({"d": tensor})
    assert all(value is tensor for value in td.values())
    other = TensorDict(batch_size=[2])
    for store in (other.__setitem__, other.set):
        with pytest.raises(RuntimeError, match="batch dimension mismatch"):
            store("a", tensor)
    with pytest.raises(RuntimeError, match="batch dimension mismatch"):
        TensorDict({"a": tensor}, [2])
    assert other.is_empty()


def test_a_tensor_of_a_batch_of_a_transform_is_stored():
    def store(row):
        td = TensorDict({"a": row}, [4])
        td["b"] = row
        with pytest.raises(RuntimeError, match="batch dimension mismatch"):
            td["c"] = row[:2]
        return td["a"] + td["b"]

    found = torch.vmap(store)(torch.ones(3, 4))
    torch.testing.assert_close(found, torch.full((3, 4), 2.0))
    assert (
        torch.func.grad(lambda x: store(x).sum())(torch.ones(4)).tolist() == [2.0] * 4
    )
    found = torch.func.functionalize(store)(torch.ones(4))
    torch.testing.assert_close(found, torch.full((4,), 2.0))


def test_a_copy_is_refused_before_anything_is_written():
    td = TensorDict({"a": torch.zeros(3), "n": {"b": torch.zeros(3, 2)}}, [3])
    with pytest.raises(RuntimeError):
        td.update_({"a": torch.ones(3), "n": {"b": torch.ones(3, 4)}})
    assert td["a"].sum() == 0
    td.update_({"a": torch.ones(3), "n": {"b": torch.ones(3, 2)}})
    assert td["a"].sum() == 3
    assert td["n", "b"].sum() == 6
