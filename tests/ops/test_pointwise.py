"""Elementwise functions, arithmetic and comparisons."""

from __future__ import annotations

import inspect

import pytest
import torch

from tensordict import TensorDict, assert_close


def pair(container):
    """Floats and integers, with a nested collection."""
    nested = container({"b": torch.tensor([1, -2])}, [2])
    return container({"a": torch.arange(6.0).reshape(2, 3), "n": nested}, [2])


def test_a_filled_method_has_the_signature_and_name_of_its_stub() -> None:
    assert str(inspect.signature(TensorDict.abs)) == "(self) -> 'Self'"
    parameters = inspect.signature(TensorDict.add).parameters
    assert list(parameters) == ["self", "other", "alpha", "default"]
    assert parameters["alpha"].kind is inspect.Parameter.KEYWORD_ONLY
    assert TensorDict.add.__name__ == "add"
    assert TensorDict.add.__qualname__ == "TensorDictBase.add"
    assert TensorDict.add.__doc__.startswith("Add ``alpha * other``")


def test_a_filled_method_refuses_what_its_signature_lacks(container) -> None:
    td = pair(container)
    with pytest.raises(TypeError):
        td.abs(1)
    with pytest.raises(TypeError):
        td.add(1, 2)
    with pytest.raises(TypeError):
        td.mod(td, default=1)


def test_unary_keeps_class_names_device_and_lock(container) -> None:
    td = container({"a": -torch.ones(2)}, [2], names=["x"], device="cpu", lock=True)
    result = td.abs()
    assert type(result) is container
    assert result.names == ["x"]
    assert result.device == torch.device("cpu")
    assert result.is_locked
    assert not td.abs().unlock_().is_locked


def test_inplace_returns_the_collection_and_keeps_the_leaves(container) -> None:
    td = pair(container).lock_()
    leaf = td["a"]
    assert td.neg_() is td
    assert td["a"] is leaf
    assert td["n", "b"].tolist() == [-1, 2]


def test_inplace_on_a_gathered_part_reaches_the_parent() -> None:
    td = TensorDict({"a": torch.zeros(4), "n": {"b": torch.zeros(4, 2)}}, [4])
    part = td._get_sub_tensordict(torch.tensor([0, 2]))
    part.add_(1)
    part += 1
    assert td["a"].tolist() == [2, 0, 2, 0]
    assert td["n", "b"].sum(1).tolist() == [4, 0, 4, 0]


def test_a_tensor_broadcasts_from_the_left(container) -> None:
    td = pair(container)
    result = td + torch.tensor([10, 20])
    assert result["a"].tolist() == [[10, 11, 12], [23, 24, 25]]
    assert result["n", "b"].tolist() == [11, 18]


def test_a_tensor_of_more_dims_grows_the_batch(container) -> None:
    td = container({"a": torch.zeros(2, 3)}, [2], names=["x"])
    result = td + torch.ones(4, 2)
    assert result.batch_size == torch.Size([4, 2])
    assert result["a"].shape == torch.Size([4, 2, 3])
    assert result.names == [None, "x"]


def test_a_tensor_that_does_not_broadcast_is_an_error(container) -> None:
    with pytest.raises(RuntimeError, match="broadcast"):
        pair(container) + torch.ones(3)


def test_collections_are_matched_by_key_not_by_order(container) -> None:
    td = container(a=torch.ones(2), b=torch.zeros(2), batch_size=[2])
    other = container(b=torch.full((2,), 5.0), a=torch.full((2,), 3.0), batch_size=[2])
    result = td + other
    assert list(result.keys()) == ["a", "b"]
    assert result["a"].tolist() == [4, 4]
    assert result["b"].tolist() == [5, 5]


def test_different_keys_are_an_error_that_names_them(container) -> None:
    td = container(a=torch.ones(2), b=torch.ones(2), batch_size=[2])
    other = container(a=torch.ones(2), c=torch.ones(2), batch_size=[2])
    with pytest.raises(KeyError, match=r"\{'b'\}.*\{'c'\}"):
        td + other
    with pytest.raises(KeyError, match=r"\{'b'\}.*\{'c'\}"):
        _ = td == other
    with pytest.raises(KeyError, match=r"not found: \{'b'\}"):
        td.select("a") + td


def test_default_fills_what_is_missing(container) -> None:
    td = container(a=torch.ones(2), b=torch.ones(2), batch_size=[2])
    other = container(a=torch.ones(2), n={"c": torch.ones(2)}, batch_size=[2])
    result = td.sub(other, default=10.0)
    assert list(result.keys(include_nested=True, leaves_only=True)) == [
        "a",
        "b",
        ("n", "c"),
    ]
    assert result["b"].tolist() == [-9, -9]
    assert result["n", "c"].tolist() == [9, 9]
    common = td.sub(other, default="intersection")
    assert list(common.keys()) == ["a"]


def test_default_on_a_locked_collection_gives_a_locked_one(container) -> None:
    td = container(a=torch.ones(2), batch_size=[2]).lock_()
    other = container(b=torch.ones(2), batch_size=[2])
    result = td.add(other, default=torch.tensor(0.0))
    assert result.is_locked
    assert sorted(result.keys()) == ["a", "b"]


def test_default_never_replaces_a_collection_by_a_tensor(container) -> None:
    td = container({"n": {"b": torch.ones(2)}}, [2])
    other = container({"n": torch.ones(2)}, [2])
    with pytest.raises(KeyError):
        td.add(other, default=0.0)


def test_integers_promote_as_torch_promotes_them(container) -> None:
    td = pair(container)
    assert (td + 1)["n", "b"].dtype == torch.int64
    assert (td + 1.5)["n", "b"].dtype == torch.float32
    assert (td / 2)["n", "b"].dtype == torch.float32
    assert (td > 0)["a"].dtype == torch.bool


def test_one_minus_one_is_positive_zero(container) -> None:
    td = container(a=torch.ones(1), batch_size=[1])
    assert (1 / (1 - td))["a"].item() == float("inf")


def test_empty_collections_take_part(container) -> None:
    td = container({}, [2])
    assert (td + 1).batch_size == torch.Size([2])
    assert td.abs_() is td
    assert (td == td).all()
    nested = container({"a": torch.ones(2), "e": {}}, [2])
    assert list((-nested).keys()) == ["a", "e"]
    assert list((nested + nested).keys()) == ["a"]


def test_clamp_takes_bounds_of_one_kind(container) -> None:
    td = pair(container)
    with pytest.raises(ValueError, match="Mixed"):
        td.clamp(td, 1)
    assert td.clamp(0, 1)["n", "b"].tolist() == [1, 0]
    assert td.clamp(td - 1, td - 1)["n", "b"].tolist() == [0, -3]


def test_clamp_out_writes_into_the_leaves(container) -> None:
    td, out = pair(container), pair(container)
    leaf = out["a"]
    assert td.clamp(0, 1, out=out) is out
    assert out["a"] is leaf
    assert leaf.max() == 1
    with pytest.raises(KeyError, match="lacks"):
        td.clamp(0, 1, out=container({}, [2]))


def test_comparison_is_plain_unlocked_and_without_names() -> None:
    class User(TensorDict):
        pass

    td = User({"a": torch.ones(2)}, [2], names=["x"], lock=True)
    result = td == td
    assert type(result) is TensorDict
    assert result.names == [None]
    assert not result.is_locked


def test_comparison_takes_dictionaries_in_any_order(container) -> None:
    td = pair(container)
    other = {"n": {"b": torch.tensor([1, -2])}, "a": td["a"]}
    assert (td == other).all()


def test_comparison_with_anything_else_is_unequal(container) -> None:
    td = pair(container)
    assert (td == "x") is False
    assert (td != None) is True  # noqa: E711
    assert (td < [1]) is False


def test_a_collection_has_no_truth_value_and_no_hash(container) -> None:
    td = pair(container)
    with pytest.raises(RuntimeError, match="not permitted"):
        bool(td)
    with pytest.raises(TypeError, match="unhashable"):
        hash(td)


def test_power_of_a_number_is_refused(container) -> None:
    with pytest.raises(NotImplementedError, match="rpow"):
        2 ** pair(container)


def test_assert_close_names_the_key_and_the_distance(container) -> None:
    td = pair(container)
    assert assert_close(td, td.clone())
    other = td.clone()
    other["n", "b"] += 1
    with pytest.raises(AssertionError, match=r"\('n', 'b'\).*mse = 1\.0000") as error:
        assert_close(td, other, msg="after the step")
    assert "after the step" in str(error.value)
    with pytest.raises(KeyError):
        assert_close(td, td.select("a"))
    assert assert_close(td, td.select("a"), intersection=True)


def test_operators_between_a_collection_and_a_tensor_compile(container) -> None:
    td, operand = pair(container), torch.tensor([2.0, 3.0])

    def function(td: TensorDict, operand: torch.Tensor) -> tuple[TensorDict, ...]:
        return (
            td + operand,
            td - operand,
            operand / (td + 1),
            td == operand,
            td % operand,
        )

    compiled = torch.compile(function, fullgraph=True, backend="eager")
    for found, expected in zip(
        compiled(td, operand), function(td, operand), strict=True
    ):
        assert (found == expected).all()
