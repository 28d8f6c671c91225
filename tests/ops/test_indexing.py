"""Parts by index or mask."""

import warnings

import numpy as np
import pytest
import torch

from tensordict import TensorDict


@pytest.fixture
def td() -> TensorDict:
    """Two batch dims, a nested container with a third."""
    deep = TensorDict({"b": torch.arange(24).reshape(2, 3, 4)}, [2, 3, 4])
    return TensorDict({"a": torch.arange(12).reshape(2, 3, 2), "n": deep}, [2, 3])


@pytest.mark.parametrize("index", [..., (), slice(None), (slice(None), ...)])
def test_an_index_of_everything_gives_the_container_itself(td, index) -> None:
    assert td[index] is td


@pytest.mark.parametrize(
    "index",
    [[0, 1], range(2), np.array([0, 1]), torch.tensor([0, 1]), [True, True]],
    ids=str,
)
def test_sequences_and_arrays_index_as_tensors(td, index) -> None:
    result = td[index]
    assert result.batch_size == torch.Size([2, 3])
    assert result["a"].data_ptr() != td["a"].data_ptr()


def test_an_ellipsis_stands_for_batch_dims_only(td) -> None:
    assert td[..., 0]["a"].shape == (2, 2)
    assert td[..., 0]["n", "b"].shape == (2, 4)


@pytest.mark.parametrize(
    ("index", "error"),
    [
        (2, IndexError),
        ((0, 0, 0), IndexError),
        ([5], IndexError),
        (1.0, IndexError),
        (np.bool_(True), IndexError),
        (torch.ones(3, dtype=torch.bool), IndexError),
        ((..., ...), RuntimeError),
        (slice(None, None, -1), ValueError),
        (("a", 0), TypeError),
    ],
    ids=str,
)
def test_a_bad_index_is_refused(td, index, error) -> None:
    with pytest.raises(error):
        td[index]


def test_a_container_without_batch_dims_cannot_be_indexed() -> None:
    with pytest.raises(RuntimeError, match="batch_dims==0"):
        TensorDict({"a": torch.zeros(3)})[0]


def test_setting_an_index_preallocates_an_empty_container() -> None:
    td = TensorDict(batch_size=[3])
    td[1] = TensorDict({"a": torch.ones(2), "n": {"b": 5}})
    assert td["a"].tolist() == [[0, 0], [1, 1], [0, 0]]
    assert td["n", "b"].tolist() == [0, 5, 0]
    assert td["n"].batch_size == torch.Size([3])


def test_setting_an_index_leaves_other_entries(td) -> None:
    td[0] = {"a": torch.zeros(3, 2)}
    assert not td["a"][0].any()
    assert td["n", "b"][0].any()


def test_a_failed_write_changes_nothing(td) -> None:
    before = td.clone()
    bad = TensorDict({"a": torch.ones(3, 2), "n": {"b": torch.ones(3, 7)}}, [3])
    with pytest.raises(RuntimeError):
        td[0] = bad
    with pytest.raises(RuntimeError):
        td[0] = torch.ones(2)
    assert (td == before).all()


def test_a_locked_container_takes_writes_but_no_entries(td) -> None:
    td.lock_()
    td[0] = 0
    with pytest.raises(RuntimeError, match="locked"):
        td[0] = {"a": torch.ones(3, 2), "new": torch.ones(3)}
    assert not td["a"][0].any()
    assert "new" not in td


def test_masked_fill_leaves_the_source(td) -> None:
    mask = torch.tensor([True, False])
    assert not td.masked_fill(mask, 0)["a"][0].any()
    assert td["a"][0].any()
    assert td.masked_fill_(mask, 0) is td
    assert not td["a"][0].any()


def test_where_needs_both_entries_or_a_pad(td) -> None:
    mask = torch.tensor([True, False])
    with pytest.raises(KeyError, match="no pad value"):
        td.where(mask, td.select("a"))
    assert td.where(mask, td.select("a"), pad=-1)["n", "b"][1].eq(-1).all()


def test_gather_follows_torch(td) -> None:
    index = torch.tensor([[2, 0], [1, 1]])
    result = td.gather(1, index)
    assert result.batch_size == torch.Size([2, 2])
    assert (result["a"][0, 0] == td["a"][0, 2]).all()


def test_a_part_writes_through(td) -> None:
    part = td._get_sub_tensordict(torch.tensor([1]))
    part["a"] = torch.zeros(1, 3, 2, dtype=torch.int64)
    part["n", "b"] = torch.zeros(1, 3, 4, dtype=torch.int64)
    part["new"] = torch.ones(1, 3)
    part[0, 0] = {"new": torch.tensor(7.0)}
    assert not td["a"][1].any()
    assert not td["n", "b"][1].any()
    assert td["new"].tolist() == [[0, 0, 0], [7, 1, 1]]


def test_a_part_follows_the_lock_of_its_parent(td) -> None:
    part = td._get_sub_tensordict(0)
    td.lock_()
    assert part.is_locked
    part["a"] = torch.zeros(3, 2)
    assert not td["a"][0].any()
    with pytest.raises(RuntimeError, match="locked"):
        part["new"] = torch.zeros(3)
    with pytest.raises(RuntimeError, match="parent"):
        part.unlock_()


def test_where_fills_a_dict_and_returns_it() -> None:
    out: dict[str, torch.Tensor] = {}
    td = TensorDict(a=torch.arange(3), batch_size=[3])
    assert td.where(td["a"] > 0, -1, out=out) is out
    assert out["a"].tolist() == [-1, 1, 2]


def test_where_of_a_part_leaves_the_parent(td) -> None:
    before = td.clone()
    part = td._get_sub_tensordict(0)
    part.where(torch.zeros(3, dtype=torch.bool), part + 1)
    assert (td == before).all()


def test_an_update_in_place_of_a_part_that_reads_copies_reaches_the_parent():
    td = TensorDict({"a": torch.zeros(3)}, [3])
    part = td._get_sub_tensordict(torch.tensor([0, 2]))
    part.update({"a": torch.ones(2)}, inplace=True)
    assert td["a"].tolist() == [1, 0, 1]


def test_an_index_beyond_the_batch_dims_takes_features_and_warns() -> None:
    td = TensorDict(
        {"a": torch.arange(12).view(3, 4), "n": {"b": torch.ones(3, 2)}}, [3]
    )
    with pytest.warns(FutureWarning, match="runs past the batch dims"):
        part = td[:, 1]
    assert part.batch_size == (3,)
    assert part["a"].tolist() == [1, 5, 9]
    with pytest.warns(FutureWarning, match="runs past the batch dims"):
        td[0, 0] = 7
    assert td["a"][0].tolist() == [7, 1, 2, 3]
    assert td["n", "b"][0].tolist() == [7, 1]


def test_a_warning_names_the_line_that_indexes() -> None:
    td = TensorDict({"a": torch.zeros(3, 4), "s": "x"}, [3])
    part = td._get_sub_tensordict(slice(2))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        td[:, 0]
        part.exclude("s")[:, 0] = 1
        td[0] = 1
        td.set_at_("s", 1, 0)
    assert [each.filename for each in seen] == [__file__] * 4


def test_features_that_one_leaf_lacks_are_written_in_none() -> None:
    td = TensorDict({"a": torch.zeros(3, 4), "b": torch.zeros(3)}, [3])
    with pytest.raises(IndexError, match="too many indices"):
        td[:, 0] = 1
    assert not td["a"].any()


def test_a_number_of_another_dtype_is_written_at_a_mask_beside_a_tensor_without_dims():
    leaf = torch.zeros(2, 1, dtype=torch.bool)
    td = TensorDict(a=leaf, batch_size=[2, 1])
    td[torch.tensor(1), [True]] = torch.tensor(2.0)
    assert leaf.tolist() == [[False], [True]]
