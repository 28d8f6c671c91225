"""Batch sizes and dimension names."""

import pytest
import torch

from tensordict import TensorDict


@pytest.fixture
def td() -> TensorDict:
    """Two batch dims, a nested container with a third."""
    deep = TensorDict({"b": torch.zeros(2, 3, 4, 5)}, [2, 3, 4])
    return TensorDict({"a": torch.zeros(2, 3), "n": deep}, [2, 3])


def test_batch_size_is_checked_before_anything_changes(td: TensorDict) -> None:
    td["n"].batch_size = [2]
    with pytest.raises(RuntimeError, match="incompatible with the batch-size"):
        td.batch_size = [2, 3, 4]
    assert td.batch_size == torch.Size([2, 3])
    assert td["n"].batch_size == torch.Size([2])


def test_batch_size_reaches_nested_containers_that_are_too_short() -> None:
    td = TensorDict({"n": TensorDict({"b": torch.zeros(2, 3)}, [])}, [])
    td.batch_size = [2, 3]
    assert td["n"].batch_size == torch.Size([2, 3])


def test_batch_size_of_deeper_containers_stays(td: TensorDict) -> None:
    td.batch_size = [2]
    assert td["n"].batch_size == torch.Size([2, 3, 4])


def test_auto_batch_size_is_the_longest_shared_shape(td: TensorDict) -> None:
    td.batch_size = []
    assert td.auto_batch_size_() is td
    assert td.batch_size == torch.Size([2, 3])
    assert td["n"].batch_size == torch.Size([2, 3, 4, 5])


def test_auto_batch_size_keeps_what_complies(td: TensorDict) -> None:
    td.auto_batch_size_(1, keep_compliant_size=True)
    assert td.batch_size == torch.Size([2])
    assert td["n"].batch_size == torch.Size([2, 3, 4])


def test_names_reach_nested_containers(td: TensorDict) -> None:
    td.names = ["x", "y"]
    td["n"].names = ["x", "y", "z"]
    td.names = ["u", None]
    assert td["n"].names == ["u", None, "z"]


def test_names_that_repeat_below_change_nothing(td: TensorDict) -> None:
    td["n"].names = ["x", "y", "z"]
    with pytest.raises(ValueError, match="non-unique"):
        td.names = ["z", "y"]
    assert td.names == [None, None]
    assert td["n"].names == ["x", "y", "z"]


@pytest.mark.parametrize(
    ("operation", "names"),
    [
        (lambda td: td[0], ["y"]),
        (lambda td: td[:, 0], ["x"]),
        (lambda td: td[None], [None, "x", "y"]),
        (lambda td: td[[0, 1]], ["x", "y"]),
        (lambda td: td[[0, 1], [0, 1]], [None]),
        (lambda td: td[[0, 1], 0], ["x"]),
        (lambda td: td[[[0], [1]], [[0, 1]]], ["x", "y"]),
        (lambda td: td.permute(1, 0), ["y", "x"]),
        (lambda td: td.unsqueeze(1), ["x", None, "y"]),
        (lambda td: td.flatten(0, 1), [None]),
        (lambda td: td.unflatten(0, (1, 2)), [None, "x", "y"]),
        (lambda td: td.expand(4, 2, 3), [None, "x", "y"]),
        (lambda td: td.view(6), [None]),
        (lambda td: td.tile((2, 1)), [None, None]),
        (lambda td: td.repeat(2, 1), ["x", "y"]),
        (lambda td: torch.stack([td, td], 1), ["x", None, "y"]),
        (lambda td: torch.cat([td, td], 1), ["x", "y"]),
    ],
)
def test_names_follow_their_dims(td: TensorDict, operation, names) -> None:
    td.names = ["x", "y"]
    result = operation(td)
    assert result.names == names
    assert result["n"].names == [*names, None]
