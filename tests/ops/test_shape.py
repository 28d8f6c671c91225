"""The same elements in another shape."""

import pytest
import torch

from tensordict import TensorDict, lazy_stack


class Sub(TensorDict):
    """A user's subclass."""


@pytest.fixture
def td() -> TensorDict:
    """Two batch dims, a nested container with a third."""
    deep = TensorDict({"b": torch.arange(24).reshape(2, 3, 4)}, [2, 3, 4])
    return TensorDict({"a": torch.arange(12).reshape(2, 3, 2), "n": deep}, [2, 3])


@pytest.mark.parametrize(
    "operation",
    [
        lambda td: td.view(2, 3),
        lambda td: td.view(2, -1),
        lambda td: td.reshape(2, 3),
        lambda td: td.permute(0, 1),
        lambda td: td.transpose(1, 1),
        lambda td: td.movedim(0, 0),
        lambda td: td.squeeze(),
        lambda td: td.squeeze(0),
        lambda td: td.rot90(4),
        lambda td: td.atleast_2d(),
        lambda td: td.densify(),
    ],
)
def test_a_shape_that_is_the_same_gives_the_container_itself(td, operation) -> None:
    assert operation(td) is td


@pytest.mark.parametrize(
    "operation",
    [
        lambda td: td.view(6),
        lambda td: td.permute(1, 0),
        lambda td: td.transpose(0, 1),
        lambda td: td.unsqueeze(0),
        lambda td: td.expand(4, 2, 3),
        lambda td: td.flatten(0, 1),
        lambda td: td.split(1)[0],
        lambda td: td.unbind(0)[0],
        lambda td: td.narrow(0, 0, 1),
    ],
)
def test_results_share_memory_with_their_source(td, operation) -> None:
    operation(td).zero_()
    assert not td["a"][0].any()


@pytest.mark.parametrize(
    ("operation", "locked"),
    [
        (lambda td: td.view(6), True),
        (lambda td: td.reshape(6), True),
        (lambda td: td.split(1)[0], True),
        (lambda td: td.roll(1), True),
        (lambda td: td.unbind(0)[0], False),
        (lambda td: td[0], False),
        (lambda td: td.contiguous(), False),
        (lambda td: td.pad([0, 1]), False),
        (lambda td: torch.stack([td, td]), False),
    ],
)
def test_lock_of_the_result(td, operation, locked) -> None:
    result = operation(td.lock_())
    assert result.is_locked == result["n"].is_locked == locked


def test_deeper_nested_containers_keep_their_further_dims(td) -> None:
    assert td.view(6)["n"].batch_size == torch.Size([6, 4])
    assert td.permute(1, 0)["n"].batch_size == torch.Size([3, 2, 4])
    assert td.squeeze()["n"].batch_size == torch.Size([2, 3, 4])
    assert td.split([1, 2], 1)[1]["n"].batch_size == torch.Size([2, 2, 4])


def test_results_have_the_type_of_their_source() -> None:
    td = Sub({"n": Sub({"a": torch.zeros(2, 3)}, [2])}, [2])
    assert type(td.view(1, 2)) is type(td[0]) is type(td.unbind(0)[0]) is Sub
    assert type(td.view(1, 2)["n"]) is Sub


def test_view_of_a_dtype_must_keep_the_batch_dims() -> None:
    td = TensorDict({"a": torch.zeros(3, 4)}, [3])
    assert td.view(torch.int32)["a"].dtype == torch.int32
    with pytest.raises(RuntimeError, match="batch dimension mismatch"):
        TensorDict({"a": torch.zeros(3)}, [3]).view(torch.int16)


def test_inplace_keeps_the_containers_and_refuses_a_lock(td) -> None:
    nested = td["n"]
    assert td.flatten(0, 1, inplace=True) is td
    assert td["n"] is nested
    assert nested.batch_size == torch.Size([6, 4])
    with pytest.raises(RuntimeError, match="locked"):
        td.lock_().unflatten(0, (2, 3), inplace=True)
    assert td.batch_size == torch.Size([6])


def test_pack_and_unpack_with_another_batch_size(td) -> None:
    flat, layout = td.pack()
    assert flat.shape == (2, 3, 6)
    assert (layout.unpack(flat) == td).all()
    part = layout.unpack(flat[:1] * 2)
    assert part.batch_size == torch.Size([1, 3])
    assert part["n"].batch_size == torch.Size([1, 3, 4])


def test_pack_refuses_other_dtypes_and_other_keys(td) -> None:
    with pytest.raises(TypeError, match="Cast the tensordict"):
        td.apply(lambda x: x.float() if x.dim() == 3 and x.shape[2] == 2 else x).pack()
    with pytest.raises(KeyError, match="differ from the keys"):
        td.pack(layout=td.select("a").pack()[1])


def test_pad_counts_from_the_first_dim() -> None:
    td = TensorDict({"a": torch.ones(2, 3)}, [2, 3])
    assert td.pad([1, 0])["a"].tolist() == [[0, 0, 0], [1, 1, 1], [1, 1, 1]]


def test_with_view_writes_back(td) -> None:
    with td.view(-1) as flat:
        flat["c"] = torch.arange(6)
    assert td["c"].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_view_as_a_dtype_sets_the_batch_size_of_all(td):
    viewed = td.view(torch.int32, batch_size=[2])
    assert (viewed.batch_size, viewed["n"].batch_size) == ((2,), (2,))
    assert (viewed["a"].shape, viewed["n", "b"].shape) == ((2, 3, 4), (2, 3, 8))
    assert td.batch_size == (2, 3)
    with pytest.raises(RuntimeError, match=r"batch dimension mismatch.*for key 'a'"):
        td.view(torch.int32, batch_size=[2, 3, 4, 5])


def test_view_as_a_dtype_of_a_stack(td):
    stack = lazy_stack([td, td.clone()])
    viewed = stack.view(torch.int32, batch_size=[2, 2])
    assert type(viewed) is type(stack)
    assert viewed["n", "b"].shape == (2, 2, 3, 8)
    assert stack.view(torch.int32, batch_size=[])["a"].shape == (2, 2, 3, 4)


def test_tile_with_fewer_numbers_repeats_the_last_dims(container) -> None:
    td = container({"a": torch.arange(6).view(2, 3)}, batch_size=[2, 3])
    tiled = td.tile(2)
    assert tiled.batch_size == torch.Size([2, 6])
    assert torch.equal(tiled["a"], td["a"].tile(2))
