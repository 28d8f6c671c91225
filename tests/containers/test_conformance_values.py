"""The law of columns of values: they follow the tensors, whatever holds both.

Every container here has the leaf ``a``, whose elements are numbers, and beside it the
column ``s``, whose elements are their texts; the same below ``n``. ``one`` and ``meta``
are one value for all elements.
"""

import copy
import io
import pickle
import tempfile
import weakref

import pytest
import torch

from tensordict import (
    LazyStackedTensorDict,
    NonTensorStack,
    TensorClass,
    TensorDict,
    lazy_stack,
    pad,
)
from tensordict.tensorclass import MetaData, NonTensorData

SIZE = torch.Size([2, 3])


class UserTensorDict(TensorDict):
    """A user's subclass."""


class Fields(TensorClass["nocast"]):
    a: torch.Tensor
    s: object
    n: TensorDict
    one: str
    meta: object


def texts(numbers):
    if numbers.dim():
        return [texts(row) for row in numbers]
    return f"{numbers.item():g}"


def entries():
    numbers = torch.arange(6.0).view(SIZE)
    column = NonTensorStack.from_list(texts(numbers))
    nested = TensorDict(a=numbers + 10, s=texts(numbers + 10), batch_size=SIZE)
    return {"a": numbers, "s": column, "n": nested, "one": "x", "meta": MetaData(7)}


def dense(kind=TensorDict):
    return kind(entries(), batch_size=SIZE)


def mapped(**options):
    directory = tempfile.TemporaryDirectory()
    td = dense().memmap_(directory.name, **options)
    weakref.finalize(td, directory.cleanup)
    return td


def loaded():
    directory = tempfile.TemporaryDirectory()
    dense().save(directory.name)
    td = TensorDict.load_memmap(directory.name)
    weakref.finalize(td, directory.cleanup)
    return td


def view():
    return torch.cat([dense(), dense()])._get_sub_tensordict(slice(1, 3))


def lazy(dim):
    return lazy_stack(list(dense().unbind(dim)), dim)


def nested_lazy():
    td = dense()
    td["n"] = lazy_stack(list(td["n"].unbind(1)), 1)
    return td


CONTAINERS = {
    "dense": dense,
    "subclass": lambda: dense(UserTensorDict),
    "locked": lambda: dense().lock_(),
    "named": lambda: dense().refine_names("x", "y"),
    "shared": lambda: dense().share_memory_(),
    "mapped": mapped,
    "mapped and shared": lambda: mapped(share_non_tensor=True),
    "loaded": loaded,
    "view": view,
    "lazy": lambda: lazy(0),
    "lazy_last": lambda: lazy(1),
    "nested_lazy": nested_lazy,
    "tensorclass": lambda: Fields(**entries(), batch_size=SIZE),
}


@pytest.fixture(params=CONTAINERS)
def td(request):
    return CONTAINERS[request.param]()


def column(td, key="s"):
    """The values of a column in nested lists."""
    if isinstance(td, TensorClass):
        td = td._tensordict
    found = td.get(key)
    return found.tolist()


def check(td, like=None):
    """The law: values are the texts of the numbers, and one value has all dims."""
    if isinstance(td, TensorClass):
        td = td._tensordict
    assert column(td) == texts(td["a"])
    assert column(td["n"]) == texts(td["n"]["a"])
    size = td.batch_size
    assert td.get("one").batch_size == td.get("meta").batch_size == size
    assert td.get("s").batch_size[: len(size)] == size
    if size.numel():
        flat = td.get("one").reshape(-1).tolist() if size else [td["one"]]
        assert set(flat) == {"x"}
    return True


def test_the_law_holds_at_first(td):
    check(td)


@pytest.mark.parametrize(
    "index",
    [
        0, -1, (0, 1), slice(1, None), slice(None, None, 2), (slice(None), 0), ..., None,
        (..., slice(0, 2)), torch.tensor([1, 0]), (slice(None), torch.tensor([[0, 2]])),
        [0, 1], torch.tensor([True, False]), (torch.tensor([0, 1]), torch.tensor([2, 0])),
        torch.tensor([[True, False, True], [False, True, True]]), (0, slice(1, 3)),
        (None, 1, ..., 0),
    ],
    ids=str,
)  # fmt: skip
def test_an_index(td, index):
    check(td[index])


MOVES = {
    "reshape": lambda td: td.reshape(-1),
    "reshape 3, 2": lambda td: td.reshape(3, 2),
    "view": lambda td: td.view(6),
    "expand": lambda td: td.expand(2, 2, 3),
    "gather": lambda td: td.gather(0, torch.tensor([[1, 0, 1]])),
    "flatten": lambda td: td.flatten(0, 1),
    "unflatten": lambda td: td.unflatten(1, (3, 1)),
    "repeat": lambda td: td.repeat(2, 1),
    "tile": lambda td: td.tile((1, 2)),
    "repeat_interleave": lambda td: td.repeat_interleave(2, dim=1),
    "flip": lambda td: td.flip(0),
    "roll": lambda td: td.roll(1, 1),
    "rot90": lambda td: td.rot90(1, (0, 1)),
    "permute": lambda td: td.permute(1, 0),
    "transpose": lambda td: td.transpose(0, 1),
    "unsqueeze": lambda td: td.unsqueeze(1),
    "squeeze": lambda td: td[:1].squeeze(0),
    "narrow": lambda td: td.narrow(1, 1, 2),
    "movedim": lambda td: td.movedim(0, 1),
    "split": lambda td: td.split(1, 1)[2],
    "split sizes": lambda td: td.split([1, 2], 1)[1],
    "chunk": lambda td: td.chunk(2, 1)[1],
    "tensor_split": lambda td: td.tensor_split(2, 1)[1],
    "unbind": lambda td: td.unbind(1)[-1],
    "stack": lambda td: torch.stack([td, td.clone()], 1),
    "cat": lambda td: torch.cat([td, td.clone()], 1),
    "lazy stack": lambda td: lazy_stack([td, td.clone()], 0),
    "masked_select": lambda td: td[torch.arange(6).view(SIZE) > 2],
    "atleast_3d": lambda td: td.atleast_3d(),
    "clone": lambda td: td.clone(),
    "clone(False)": lambda td: td.clone(False),
    "contiguous": lambda td: td.contiguous(),
    "to_tensordict": lambda td: td.to_tensordict(),
    "to": lambda td: td.to("cpu"),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda td: pickle.loads(pickle.dumps(td)),
    "apply": lambda td: td.apply(lambda leaf: leaf),
    "lock_": lambda td: td.clone().lock_(),
    "vmap": lambda td: torch.vmap(lambda row: row, in_dims=1, out_dims=1)(td),
}


def movable(td, *moves):
    """The container, or an ordinary one where a view of one has no such move."""
    is_view = type(td).__name__ == "_SubTensorDict"
    turns = {
        "permute",
        "transpose",
        "unsqueeze",
        "movedim",
        "squeeze",
        "view",
        "atleast_3d",
    }
    return td.to_tensordict() if is_view and turns & set(moves) else td


@pytest.mark.parametrize("move", MOVES)
def test_a_move(td, move):
    check(MOVES[move](movable(td, move)))


@pytest.mark.parametrize("first", ["permute", "flip", "unsqueeze", "repeat", "narrow"])
@pytest.mark.parametrize("second", ["reshape", "unbind", "transpose", "cat", "pickle"])
def test_two_moves(td, first, second):
    check(MOVES[second](MOVES[first](movable(td, first, second))))


def test_torch_save(td):
    stream = io.BytesIO()
    torch.save(td.to_tensordict(), stream)
    stream.seek(0)
    check(torch.load(stream, weights_only=False))


@pytest.mark.parametrize("name", ["tree", "archive.tdz"])
def test_files(td, tmp_path, name):
    made = td.to_tensordict()
    made.save(tmp_path / name)
    check(type(made).load(tmp_path / name))


def test_padding_has_no_value(td):
    padded = pad(td.to_tensordict(), [0, 1, 1, 0])
    found = column(padded)
    assert found[2] == [None] * 4
    assert [row[0] for row in found] == [None] * 3
    assert [row[1:] for row in found[:2]] == column(td)


def fresh(size, start=100.0):
    numbers = torch.arange(start, start + size.numel()).view(size)
    made = TensorDict(
        a=numbers, s=NonTensorStack.from_list(texts(numbers)), batch_size=size
    )
    made["n"] = TensorDict(a=numbers, s=NonTensorStack.from_list(texts(numbers)))
    made["n"].batch_size = size
    return made


@pytest.mark.parametrize(
    "index",
    [0, (slice(None), 1), slice(0, 1), torch.tensor([1, 0]), (0, slice(1, 3)),
     torch.tensor([[True, False, True], [False, True, True]])],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("how", ["[]", "update_at_"])
def test_a_write_at_an_index(td, index, how):
    if how == "update_at_" and isinstance(td, TensorClass):
        td = td._tensordict
    size = torch.zeros(SIZE)[index].shape
    given = fresh(size)
    if how == "[]":
        td[index] = Fields(a=given["a"], s=given.get("s"), n=given["n"], one="x",
                           meta=MetaData(7), batch_size=size) if isinstance(
            td, TensorClass) else given  # fmt: skip
    else:
        td.update_at_(given, index)
    assert (
        td[index]["a"] if not isinstance(td, TensorClass) else td[index].a
    ).max() >= 100
    check(td)


def test_an_element_writes_what_the_index_says(td):
    if isinstance(td, TensorClass):
        td = td._tensordict
    td[1, 2] = TensorDict(a=torch.tensor(50.0), s=NonTensorData("50"))
    td.get(("n", "s"))[0, 0] = "60"
    td["n"]["a"][0, 0] = 60.0
    assert column(td) == texts(td["a"])
    if not isinstance(td["n"], LazyStackedTensorDict):
        assert column(td["n"])[0][0] == "60"


def test_where(td):
    mask = torch.tensor([[True, False, True], [False, True, True]])
    if isinstance(td, TensorClass):
        td = td._tensordict
    other = td.to_tensordict().flip(1)
    check(td.where(mask, other))


def test_all_is_updated(td):
    if isinstance(td, TensorClass):
        td = td._tensordict
    td.update_(fresh(SIZE))
    check(td)
    assert td["a"].min() >= 100


def test_a_failed_write_changes_nothing(td):
    if isinstance(td, TensorClass):
        td = td._tensordict
    with pytest.raises((RuntimeError, ValueError, KeyError)):
        td.update_(
            {
                "a": torch.full(SIZE, 200.0),
                "s": NonTensorStack("too", "few", "or", "many"),
            }
        )
    check(td)
    assert td["a"].max() < 100
