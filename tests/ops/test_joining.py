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


def test_torch_joins_plain_containers_as_any_sequence_of_them(td) -> None:
    for join, dims in ((torch.stack, (0, 1, -1, -2)), (torch.cat, (0, -1))):
        for dim in dims:
            of_list = join([td, td + 1], dim)
            of_keyword = join((td, td + 1), dim=dim)
            # Batch dims are counted, where torch counts those of a leaf.
            at = dim if dim >= 0 else dim + 1 + (join is torch.stack)
            expected = join([td["a"], td["a"] + 1], at)
            assert of_list.batch_size == of_keyword.batch_size
            assert torch.equal(of_list["a"], expected)
            assert torch.equal(of_keyword["a"], expected)
    for join, dim, error in (
        (torch.stack, 2, IndexError),
        (torch.stack, -3, IndexError),
        (torch.cat, 1, RuntimeError),
        (torch.cat, -2, RuntimeError),
    ):
        with pytest.raises(error):
            join([td, td], dim)


def test_a_handler_that_is_replaced_is_what_torch_calls(td, monkeypatch) -> None:
    from tensordict.interop.torch_functions import TD_HANDLED_FUNCTIONS

    for function in (torch.stack, torch.cat, torch.zeros_like):
        monkeypatch.setitem(TD_HANDLED_FUNCTIONS, function, lambda *_: "replaced")
    assert torch.stack([td, td]) == "replaced"
    assert torch.cat([td, td]) == "replaced"
    assert torch.zeros_like(td) == "replaced"


def test_torch_stack_is_lazy_where_the_process_was_told_so(td) -> None:
    from tensordict import LazyStackedTensorDict, set_lazy_legacy

    with pytest.warns(DeprecationWarning, match="legacy lazy mode"):
        lazily = set_lazy_legacy(True)
    with lazily:
        assert isinstance(torch.stack([td, td]), LazyStackedTensorDict)
        assert type(torch.cat([td, td])) is TensorDict
    assert type(torch.stack([td, td])) is TensorDict


def test_zeros_like_of_a_locked_container_is_locked(td) -> None:
    zeros = torch.zeros_like(td.lock_())
    assert zeros.is_locked
    assert zeros["n"].is_locked
    assert not zeros["n", "b"].any()
