"""Several collections as one."""

import pytest
import torch

from tensordict import TensorDict, dense_stack_tds, stack


@pytest.fixture
def td() -> TensorDict:
    """A leaf and a nested container."""
    return TensorDict({"a": torch.zeros(3, 2), "n": {"b": torch.ones(3)}}, [3])


def test_stack_takes_the_order_of_the_first(td) -> None:
    other = TensorDict({"n": td["n"], "a": td["a"]}, [3])
    assert list(torch.stack([td, other]).keys()) == ["a", "n"]


def test_stack_needs_the_same_entries_and_sizes(td) -> None:
    with pytest.raises(RuntimeError, match="exclusive"):
        torch.stack([td, td.select("a")])
    with pytest.raises(RuntimeError, match="congruent"):
        torch.stack([td, td[:1]])
    with pytest.raises(RuntimeError, match="for key a"):
        torch.stack([td, TensorDict({"a": torch.zeros(3), "n": td["n"]}, [3])])


def test_stack_out_writes_the_storage_of_out(td) -> None:
    out = torch.stack([td, td])
    leaf = out["a"]
    assert torch.stack([td + 1, td + 2], out=out) is out
    assert out["a"] is leaf
    assert leaf[:, 0, 0].tolist() == [1, 2]


def test_stack_dim_must_be_a_batch_dim(td) -> None:
    for dim in (2, -3):
        with pytest.raises(IndexError):
            stack([td, td], dim)
    with pytest.raises(ValueError, match="stack_dim"):
        dense_stack_tds([td, td])


def test_cat_needs_the_same_entries(td) -> None:
    assert torch.cat([td, td[:1]]).batch_size == torch.Size([4])
    with pytest.raises(KeyError, match="must have the same keys"):
        torch.cat([td, td.select("a")])
    with pytest.raises(RuntimeError):
        torch.cat([td, td], 1)


def test_cat_tensors_that_do_not_fit_stay(td) -> None:
    with pytest.raises(RuntimeError, match="batch dimension mismatch"):
        td.cat_tensors("a", "a", out_key="q", keep_entries=True)
    with pytest.raises(RuntimeError, match="batch dimension mismatch"):
        td.stack_tensors("a", out_key="q")
    assert list(td.keys()) == ["a", "n"]


def test_stack_tensors_replaces_its_inputs() -> None:
    td = TensorDict(a=torch.zeros(3), b=torch.ones(3), c=torch.ones(3), batch_size=[3])
    assert td.stack_tensors("a", "b", out_key="a", dim=1) is td
    assert list(td.keys()) == ["c", "a"]
    assert td["a"].shape == (3, 2)


def test_a_stack_is_written_onto_the_leaves_that_are_there():
    target = TensorDict({"a": torch.zeros(2, 3), "n": {"b": torch.zeros(2, 3)}}, [2, 3])
    leaf = target["n", "b"]
    ones = TensorDict({"a": torch.ones(3), "n": {"b": torch.ones(3)}}, [3])
    assert target._stack_onto_([ones, ones * 2], 0) is target
    assert target["n", "b"] is leaf
    assert leaf[:, 0].tolist() == [1.0, 2.0]
    assert target["a"][:, 0].tolist() == [1.0, 2.0]
