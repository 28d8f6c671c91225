"""The table of operations, walked: each operation on each kind of collection.

An operation that is added to the table needs its line in ``CALLS``; what a collection
answers is compared with the answer of a dense one of the same entries.
"""

import pytest
import torch

from tensordict import LazyStackedTensorDict, NonTensorStack, TensorDict, tensorclass
from tensordict.primitives.operations import (
    MOVES_DIMS,
    MOVES_ELEMENTS,
    OPERATIONS,
    SUMS,
    bounds_of_parts,
    rows_moved,
)

INDEX = torch.tensor([[1, 0, 1], [0, 0, 1]])

CALLS = {
    "clone": lambda td: td.clone(),
    "contiguous": lambda td: td.contiguous(),
    "softmax": lambda td: td.softmax(0),
    "flip": lambda td: td.flip(1),
    "roll": lambda td: td.roll(1, 0),
    "_roll_flat": lambda td: td.roll(1),
    "rot90": lambda td: td.rot90(),
    "_pad_leaf": lambda td: td.pad([0, 1, 1, 0]),
    "movedim": lambda td: td.movedim(0, 1),
    "permute": lambda td: td.permute(1, 0),
    "squeeze": lambda td: td[:, None].squeeze(1),
    "transpose": lambda td: td.transpose(0, 1),
    "unsqueeze": lambda td: td.unsqueeze(1),
    "flatten": lambda td: td.flatten(0, 1),
    "reshape": lambda td: td.reshape(3, 2),
    "unflatten": lambda td: td.unflatten(0, (1, 2)),
    "view": lambda td: td.to_tensordict().view(6),
    "broadcast_to": lambda td: torch.broadcast_to(td, (4, 2, 3)),
    "expand": lambda td: td.expand(4, 2, 3),
    "diagonal": lambda td: torch.diagonal(td.to_tensordict().get("a")),
    "gather": lambda td: td.gather(0, INDEX),
    "_gather": lambda td: torch.gather(td, 0, INDEX),
    "index_select": lambda td: td[torch.tensor([1, 1, 0])],
    "masked_select": lambda td: td.masked_select(INDEX.bool()),
    "narrow": lambda td: td.narrow(1, 1, 2),
    "repeat": lambda td: td.repeat(2, 1),
    "repeat_interleave": lambda td: td.repeat_interleave(2, dim=0),
    "_interleave_leaf": lambda td: td.repeat_interleave(torch.tensor([2, 1]), dim=0),
    "tile": lambda td: td.tile((1, 2)),
    "chunk": lambda td: td.chunk(2, 1),
    "split": lambda td: td.split(1, 0),
    "split_with_sizes": lambda td: td.split([1, 2], 1),
    "tensor_split": lambda td: torch.tensor_split(td, [1], 1),
    "unbind": lambda td: td.unbind(1),
    **{
        name: lambda td, name=name: getattr(td, name)(dim=0)
        for name in ("amax", "amin", "cummax", "cummin", "max", "mean", "min")
    },
    **{
        name: lambda td, name=name: getattr(td, name)(dim=1)
        for name in ("nanmean", "nansum", "prod", "std", "sum", "var")
    },
    "quantile": lambda td: td.quantile(0.5, dim=0),
}


def dense(text=False):
    entries = {
        "a": torch.arange(6.0).reshape(2, 3),
        "n": {"b": torch.arange(12.0).reshape(2, 3, 2)},
    }
    if text:
        entries["t"] = NonTensorStack.from_list(
            [["00", "01", "02"], ["10", "11", "12"]]
        )
    return TensorDict(entries, batch_size=[2, 3], names=["x", "y"])


@tensorclass
class Record:
    a: torch.Tensor
    n: TensorDict


def lazy(dim, text=False):
    members = [part.clone() for part in dense(text).unbind(dim)]
    return LazyStackedTensorDict(*members, stack_dim=dim)


COLLECTIONS = {
    "stack of rows": lambda: lazy(0),
    "stack of columns": lambda: lazy(1),
    "view": lambda: torch.stack([dense(), dense()])._get_sub_tensordict(1),
    "tensorclass": lambda: Record.from_tensordict(dense()),
    "locked": lambda: dense().lock_(),
}


def described(result):
    """The size and the values of a result, whatever collection it is."""
    if isinstance(result, torch.Tensor):
        return result.tolist()
    if isinstance(result, (tuple, list)):
        return [described(part) for part in result]
    if not hasattr(result, "to_tensordict"):
        return {name: described(part) for name, part in vars(result).items()}
    plain = result.to_tensordict()
    return (
        tuple(result.batch_size),
        plain["a"].tolist(),
        plain["n", "b"].tolist(),
        plain["t"] if "t" in plain.keys() else None,  # noqa: SIM118
    )


def test_every_operation_is_called():
    assert CALLS.keys() == OPERATIONS.keys()


@pytest.mark.parametrize("kind", COLLECTIONS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_collection_answers_as_a_dense_one(name, kind):
    td = COLLECTIONS[kind]()
    if kind == "view" and name in MOVES_DIMS:
        with pytest.raises(RuntimeError, match="to_tensordict"):
            CALLS[name](td)
        return
    assert described(CALLS[name](td)) == described(CALLS[name](dense()))


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("name", sorted(MOVES_ELEMENTS - {"masked_select"}))
def test_text_follows_elements_that_move(name, dim):
    expected = described(CALLS[name](dense(text=True)))
    assert described(CALLS[name](lazy(dim, text=True))) == expected


@pytest.mark.parametrize("name", sorted(SUMS - {"quantile"}))
def test_texts_of_rows_are_not_summed(name):
    td = TensorDict(a=torch.ones(2, 3), t=["one", "two"], batch_size=[2])
    with pytest.raises(RuntimeError, match="cast to a regular TensorDict"):
        getattr(td, name)(dim=0)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("flip", (0,)),
        ("roll", (2, 0)),
        ("repeat", ((2, 1),)),
        ("repeat_interleave", (3, 0)),
    ],
)
def test_rows_move_as_torch_moves_them(name, args, count):
    rows = torch.rand(count, 2)
    moved = getattr(rows, name)(*args)
    assert torch.equal(rows[rows_moved(name, args, count)], moved)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("unbind", ()),
        ("split_with_sizes", ([1, 0, 3],)),
        ("tensor_split", ([1, 3],)),
        ("tensor_split", ([3, 2, 9],)),
        ("tensor_split", ([-1],)),
    ],
)
def test_parts_are_those_of_torch(name, args):
    rows = torch.arange(4)
    parts = [
        rows[start:stop].tolist() for start, stop in bounds_of_parts(name, args, 4)
    ]
    found = [part.reshape(-1).tolist() for part in getattr(rows, name)(*args)]
    assert parts == found
