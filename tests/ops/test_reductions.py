"""Reductions over batch dims, feature dims and everything."""

from __future__ import annotations

import pytest
import torch

from tensordict import TensorDict


def tree(container, **options):
    """Two batch dims; the nested collection has a third."""
    nested = container({"b": torch.arange(24.0).reshape(2, 3, 4)}, [2, 3, 4])
    return container(
        {"a": torch.arange(12.0).reshape(2, 3, 2), "n": nested}, [2, 3], **options
    )


def test_a_dim_goes_with_its_name_and_nested_dims_stay(container) -> None:
    result = tree(container, names=["x", "y"]).sum(0)
    assert result.batch_size == torch.Size([3])
    assert result.names == ["y"]
    assert result["n"].batch_size == torch.Size([3, 4])
    assert type(result) is container


def test_keepdim_leaves_ones(container) -> None:
    result = tree(container, names=["x", "y"]).mean(-1, keepdim=True)
    assert result.batch_size == torch.Size([2, 1])
    assert result.names == ["x", "y"]
    assert result["n", "b"].shape == torch.Size([2, 1, 4])


def test_without_a_dim_every_leaf_becomes_a_number(container) -> None:
    result = tree(container).sum()
    assert result.batch_size == result["n"].batch_size == torch.Size([])
    assert result["n", "b"].item() == 276
    kept = tree(container).sum(keepdim=True)
    assert kept["a"].shape == torch.Size([1, 1, 1])
    assert kept["n"].batch_size == torch.Size([1, 1, 1])


def test_feature_dims_are_those_behind_the_own_batch_dims(container) -> None:
    result = tree(container).sum(dim="feature")
    assert result["a"].tolist() == [[1, 5, 9], [13, 17, 21]]
    assert torch.equal(result["n", "b"], tree(container)["n", "b"])
    with pytest.raises(TypeError, match="keepdim"):
        tree(container).sum(dim="feature", keepdim=True)


@pytest.mark.parametrize("name", ["sum", "mean", "prod", "amax", "amin", "nansum"])
def test_a_tuple_reduces_all_its_dims(container, name) -> None:
    td = tree(container) + 1
    result = getattr(td, name)((0, -1))
    expected = getattr(getattr(td, name)(0), name)(0)
    assert torch.allclose(result["a"], expected["a"])
    assert result.batch_size == torch.Size([])


@pytest.mark.parametrize("name", ["sum", "mean", "prod", "amax", "amin", "nansum"])
@pytest.mark.parametrize("dim", [(), None])
def test_a_result_has_memory_of_its_own(container, name, dim) -> None:
    td = container(a=torch.tensor(2.0), batch_size=[])
    getattr(td, name)(dim, keepdim=True).zero_()
    assert td["a"] == 2


def test_reduce_joins_the_leaves(container) -> None:
    td = container(a=torch.ones(2, 3), b=torch.full((2, 2), 3.0), batch_size=[2])
    assert td.sum(reduce=True).item() == 18
    assert td.mean(dim="feature", reduce=True).tolist() == pytest.approx([1.8, 1.8])
    with pytest.raises(ValueError, match="no tensor leaves"):
        container({}, [2]).sum(reduce=True)


def test_a_dim_beyond_the_batch_is_an_error(container) -> None:
    for dim in (2, -3, (0, 2)):
        with pytest.raises(IndexError, match="Incompatible dim"):
            tree(container).sum(dim)
    with pytest.raises(RuntimeError, match="batch_dims"):
        tree(container).all(2)


def test_results_are_not_locked(container) -> None:
    td = tree(container).lock_()
    assert not td.sum().is_locked
    assert not td.max(0).values.is_locked
    assert td.norm().is_locked


def test_key_transform_renames_level_by_level(container) -> None:
    result = tree(container).sum(key_transform=lambda key: (key, "sum"))
    assert result["a", "sum"].item() == 66
    assert result["n", "sum", "b", "sum"].item() == 276


def test_extrema_tell_where_they_are(container) -> None:
    found = tree(container).max(1)
    assert isinstance(found, torch.return_types.max)
    assert found.indices["a"].unique().tolist() == [2]
    assert found.values["n"].batch_size == torch.Size([2, 4])
    assert torch.equal(tree(container).max(1, return_indices=False)["a"], found[0]["a"])
    with pytest.raises(TypeError, match="one dim"):
        tree(container).max((0, 1))


def test_cummax_keeps_the_shape(container) -> None:
    found = tree(container).cummax(0)
    assert found.values.batch_size == torch.Size([2, 3])
    assert torch.equal(found.values["a"], tree(container)["a"])


def test_all_and_any_answer_with_bools(container) -> None:
    td = container(
        a=torch.tensor([True, False]), b=torch.tensor([True, True]), batch_size=[2]
    )
    assert td.all() is False
    assert td.any() is True
    assert container({}, [2]).all() is True
    assert container({}, [2]).any() is False
    assert type(td.all(0)) is TensorDict
    assert td.all(0)["b"].item() is True


def test_quantiles_put_their_dim_first(container) -> None:
    td = tree(container, names=["x", "y"])
    result = td.quantile(torch.tensor([0.0, 0.5, 1.0]), 0)
    assert result.batch_size == torch.Size([3, 3])
    assert result.names == [None, "y"]
    assert torch.equal(result["a"][2], td["a"][1])
    both = td.quantile(0.5, (0, 1))
    assert torch.allclose(both["a"], td["a"].flatten(0, 1).quantile(0.5, 0))


def test_norm_and_logsumexp_take_out(container) -> None:
    td = container(a=torch.tensor([3.0, 4.0]), batch_size=[2])
    out = container({}, [])
    assert td.norm(out=out) is out
    assert out["a"].item() == 5
    expected = torch.logsumexp(td["a"], 0)
    assert torch.equal(td.logsumexp(0)["a"], expected)


def test_logsumexp_reduces_any_batch_dims(container) -> None:
    td = tree(container)
    for dim, dims in ((None, (0, 1)), ((1, -2), (0, 1)), (-1, (1,)), ((0,), (0,))):
        for keepdim in (False, True):
            result = td.logsumexp(dim, keepdim)
            expected = torch.logsumexp(td["a"], dims, keepdim)
            assert torch.allclose(result["a"], expected)
            assert result.batch_size == expected.shape[: result.ndim]
    for dim in (2, (0, -3)):
        with pytest.raises(ValueError, match="incompatible"):
            td.logsumexp(dim)
