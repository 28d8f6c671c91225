"""Tensors that a container holds whole, whatever its batch size."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch

from tensordict import (
    MemoryMappedTensor,
    TensorDict,
    UnbatchedTensor,
    _rust,
    from_safetensors,
    lazy_stack,
    to_safetensors,
)
from tensordict.primitives import (
    apply as apply_primitives,
)
from tensordict.primitives import (
    index as index_primitives,
)
from tensordict.primitives import (
    join as join_primitives,
)
from tensordict.primitives import (
    lazy as lazy_primitives,
)
from tensordict.primitives import (
    map_leaves as map_leaves_primitives,
)
from tensordict.primitives import set as set_primitives
from tensordict.primitives import (
    split as split_primitives,
)
from torch_versions import OLDER

SIZES = [(3,), (3, 2), ()]


def make(batch_size: tuple[int, ...] = (3, 2)) -> TensorDict:
    nested = TensorDict(
        {"v": UnbatchedTensor(torch.ones(2, 2)), "b": torch.zeros(*batch_size, 1)},
        batch_size=[*batch_size, 1],
    )
    return TensorDict(
        {
            "a": torch.arange(12.0).view(3, 2, 2),
            "u": UnbatchedTensor(torch.arange(4.0)),
            "n": nested,
        },
        batch_size=batch_size,
    )


def same(first: Any, second: Any) -> bool:
    """Return whether keys, sizes, kinds of leaves and values are equal."""
    if isinstance(first, (list, tuple)):
        return len(first) == len(second) and all(map(same, first, second))
    if first.batch_size != second.batch_size or list(first.keys()) != list(
        second.keys()
    ):
        return False
    for key, value in first.items():
        other = second.get(key)
        if isinstance(value, TensorDict):
            if not same(value, other):
                return False
        elif isinstance(value, UnbatchedTensor):
            if type(other) is not UnbatchedTensor:
                return False
            if value.batch_size != other.batch_size or not torch.equal(
                value._data, other._data
            ):
                return False
        elif type(other) is UnbatchedTensor or not torch.equal(value, other):
            return False
    return True


SHAPED = {
    "view": lambda td: td.view(6),
    "permute": lambda td: td.permute(1, 0),
    "index": lambda td: td[0],
    "mask": lambda td: td[torch.tensor([True, False, True])],
    "expand": lambda td: td.expand(4, 3, 2),
    "split": lambda td: td.split(2)[1],
    "unbind": lambda td: td.unbind(1)[0],
    "stack": lambda td: torch.stack([td, td]),
    "cat": lambda td: torch.cat([td, td]),
    "lazy": lambda td: lazy_stack([td, td]),
    "contiguous": lambda td: lazy_stack([td, td]).contiguous(),
    "sum": lambda td: td.sum(0),
    "reshape": lambda td: td.reshape(2, 3),
    "repeat": lambda td: td.repeat(2, 1),
}


@pytest.mark.parametrize("name", SHAPED)
def test_what_changes_the_batch_size_leaves_the_data(name: str) -> None:
    """The entry has the batch size of its container, and the memory of the original."""
    td = make()
    result = SHAPED[name](td)
    entry = result["u"]
    assert type(entry) is UnbatchedTensor
    assert entry.batch_size == result.batch_size
    assert entry.data_ptr() == td["u"].data_ptr()
    nested = result["n"]
    assert nested["v"].batch_size == nested.batch_size
    assert torch.equal(nested["v"]._data, torch.ones(2, 2))


def test_what_changes_values_changes_the_data() -> None:
    """Arithmetic, casts and functions treat it as any leaf."""
    td = make()
    for result in (td + 1, td.apply(lambda x: x + 1), td.clone().add_(1)):
        assert result["u"].tolist() == [1.0, 2.0, 3.0, 4.0]
        assert type(result["u"]) is UnbatchedTensor
        assert type(result["a"]) is torch.Tensor
        assert result["u"].batch_size == (3, 2)
    assert td.to(torch.float64)["u"].dtype == torch.float64


@pytest.mark.parametrize("index", [7, (0, 0, 0), [5], torch.ones(4).bool(), object()])
def test_a_write_at_an_index_of_no_row_is_refused(index: Any) -> None:
    """It is written whole, but where the batch has nothing there is nothing to write."""
    td = make()
    with pytest.raises(IndexError):
        td.set_at_("u", torch.zeros(4), index)
    with pytest.raises(IndexError):
        td.update_at_({"u": torch.zeros(4)}, index)
    assert td["u"].tolist() == [0.0, 1.0, 2.0, 3.0]
    assert not td.set_at_("u", torch.zeros(4), (2, 1))["u"].any()


def test_apply_with_a_batch_size_skips_it_unless_asked() -> None:
    """The function, which is for batched leaves, is not tried with it."""
    td = make()
    result = td.apply(lambda x: x[0], batch_size=[2])
    assert result["u"].shape == (4,)
    assert result["u"].batch_size == (2,)
    asked = td._fast_apply(lambda x: x[0], batch_size=[2], call_on_unbatched=True)
    assert asked["u"].shape == ()


def test_setting_stores_an_alias_with_the_size_of_the_container() -> None:
    """The tensor that is set keeps its batch size; the memory is shared."""
    given = UnbatchedTensor(torch.zeros(4), batch_size=[7])
    td = TensorDict({"u": given}, batch_size=[3])
    assert td["u"] is not given
    assert (given.batch_size, td["u"].batch_size) == ((7,), (3,))
    td["u"].fill_(2)
    assert given.tolist() == [2.0] * 4
    td.batch_size = []
    assert td["u"].batch_size == ()


def test_writing_at_an_index_writes_it_whole() -> None:
    """All elements share it: there is no part of it that belongs to one."""
    td = make()
    td[0] = td[1] * 2
    assert td["u"].tolist() == [0.0, 2.0, 4.0, 6.0]
    td[1] = 5.0
    assert td["u"].tolist() == [5.0] * 4
    before = td.clone()
    with pytest.raises(RuntimeError):
        td[0] = TensorDict(
            {"a": torch.zeros(2, 2), "u": UnbatchedTensor(torch.zeros(3))}, [2]
        )
    assert same(td, before)


def test_mixed_entries_are_joined_as_tensors() -> None:
    """No value is lost if only some containers hold it whole."""
    whole = TensorDict(u=UnbatchedTensor(torch.zeros(3)), batch_size=[3])
    plain = TensorDict(u=torch.ones(3), batch_size=[3])
    for pair in ([whole, plain], [plain, whole]):
        stacked = torch.stack(pair)
        assert type(stacked["u"]) is torch.Tensor
        assert stacked["u"].sum() == 3
        assert torch.cat(pair)["u"].shape == (6,)


def test_gradients_reach_the_data() -> None:
    """The wrapper is an alias to autograd, too."""
    data = torch.ones(2, requires_grad=True)
    td = TensorDict(u=UnbatchedTensor(data), batch_size=[3])
    (td[0] * 2)["u"].sum().backward()
    assert data.grad is not None
    assert data.grad.tolist() == [2.0, 2.0]


def test_copies_and_pickles_keep_data_and_batch_size() -> None:
    """So does a container of such entries."""
    u = UnbatchedTensor(torch.arange(4.0), batch_size=[3])
    for other in (copy.deepcopy(u), copy.copy(u), pickle.loads(pickle.dumps(u))):
        assert type(other) is UnbatchedTensor
        assert other.batch_size == (3,)
        assert torch.equal(other._data, u._data)
    td = make()
    assert same(pickle.loads(pickle.dumps(td)), td)
    assert same(copy.deepcopy(td), td)
    assert copy.deepcopy(u).data_ptr() != u.data_ptr()


def test_lists_of_tensors_stay_what_they_were() -> None:
    """A torch function of a whole list wraps only what came wrapped."""
    plain, whole = torch.ones(2), UnbatchedTensor(torch.ones(2), [3])
    results = torch._foreach_add([plain, whole], 1)
    assert [type(result) for result in results] == [torch.Tensor, UnbatchedTensor]
    assert results[1].batch_size == (3,)


def test_saving_says_what_it_has_no_word_for(tmp_path: Any) -> None:
    """Directories and consolidated memory refuse it, and make no file."""
    td = make()
    message = "cannot be memory-mapped yet, but 'u' is one"
    with pytest.raises(NotImplementedError, match=message):
        td.memmap(tmp_path / "td")
    with pytest.raises(NotImplementedError, match=message):
        td.memmap()
    with pytest.raises(NotImplementedError, match="cannot be consolidated yet"):
        td.consolidate(tmp_path / "file")
    assert not list(tmp_path.iterdir())
    assert not td.is_locked


def test_memmap_like_makes_an_ordinary_tensor_of_it(tmp_path: Any) -> None:
    """It has the batch dims then, so it must be of that shape."""
    td = TensorDict(u=UnbatchedTensor(torch.ones(3, 4)), n={}, batch_size=[3])
    td["n", "u"] = td["u"]
    for made in (td.memmap_like(tmp_path / "td"), td.memmap_like()):
        for key in ("u", ("n", "u")):
            assert type(made.get(key)) is MemoryMappedTensor
            assert made.get(key).tolist() == torch.zeros(3, 4).tolist()
    assert isinstance(td["u"], UnbatchedTensor)
    with pytest.raises(RuntimeError, match="batch dimension mismatch"):
        make().memmap_like(tmp_path / "other")


def test_safetensors_keep_it(tmp_path: Any) -> None:
    """Its entry is marked in the description."""
    td = make()
    path = tmp_path / "td.safetensors"
    to_safetensors(td, path)
    assert b'"unbatched' in path.read_bytes()
    assert same(from_safetensors(path), td)


def test_lazy_stacks_set_and_get_it() -> None:
    """Each member holds it whole."""
    stack = lazy_stack([make(), make()])
    stack.set("w", UnbatchedTensor(torch.ones(5)))
    assert stack.get("w").shape == (5,)
    assert stack.get("w").batch_size == (2, 3, 2)
    assert stack[0]["w"].batch_size == (3, 2)


@pytest.mark.parametrize("size", [(3,), (3, 2)])
def test_primitives_and_twins_agree(size: tuple[int, ...]) -> None:
    """Each walk knows such leaves in both forms."""
    td = make(size)
    prefix = torch.Size([1, *size])
    args = (td, "unsqueeze", (0,), prefix, None)
    assert same(_rust.map_leaves(*args), map_leaves_primitives.map_leaves(*args))
    parts = (
        td,
        "split",
        (2, 0),
        [torch.Size([2, *size[1:]]), torch.Size([1, *size[1:]])],
    )
    assert same(_rust.split_leaves(*parts), split_primitives.split_leaves(*parts))
    for at in (0, slice(1), torch.tensor([True, False, True]), None):
        assert same(_rust.index(td, at), index_primitives.index(td, at))
    assert same(_rust.stack([td, td], 0), join_primitives.stack([td, td], 0))
    assert same(_rust.cat([td, td], 0), join_primitives.cat([td, td], 0))
    assert _rust.stacked_members([td, td], 0, TensorDict) is None
    assert lazy_primitives.stacked_members([td, td], 0, TensorDict) is None
    for on_unbatched in (False, True):

        def apply(module: Any, asked: bool = on_unbatched) -> Any:
            return module.apply_nest(
                td, lambda x: x * 2, batch_size=torch.Size([]), on_unbatched=asked
            )

        assert same(apply(_rust), apply(apply_primitives))
    given = UnbatchedTensor(torch.ones(4))
    stored = [
        module.validate(td, "k", given).batch_size for module in (_rust, set_primitives)
    ]
    assert stored == [td.batch_size, td.batch_size]


@pytest.mark.parametrize("name", ["view", "permute", "index", "expand", "unbind"])
def test_traced(name: str) -> None:
    """Compiled code gives the same entries."""
    pytest.importorskip("torch._dynamo")
    torch._dynamo.reset()
    td = make()
    traced = torch.compile(SHAPED[name], backend="eager", fullgraph=True)
    assert same(traced(td), SHAPED[name](td))


COMPUTED = {
    "then an index": lambda td: (td + 1)[0],
    "then a view": lambda td: (td * td).view(6),
    "then a sum": lambda td: td.sin().sum(0),
    "in vmap": torch.vmap(lambda td: td + 1),
    "in vmap, nested": torch.vmap(
        lambda td: TensorDict({"n": td}, td.batch_size).neg()
    ),
}


@pytest.mark.parametrize("name", COMPUTED)
def test_a_result_of_a_traced_computation_is_unbatched(name):
    torch._dynamo.reset()
    td = make()
    # An older torch refuses tensor subclasses in the graphs of aot_eager.
    backend = "eager" if OLDER else "aot_eager"
    traced = torch.compile(COMPUTED[name], backend=backend, fullgraph=True)
    assert same(traced(td), COMPUTED[name](td))


@pytest.mark.parametrize("join", [torch.stack, torch.cat])
@pytest.mark.parametrize("nested", [False, True])
def test_out_of_a_join_gets_the_tensor_and_leaves_the_sources(join, nested):
    def make(start):
        entries = {
            "a": torch.zeros(2, 3),
            "u": UnbatchedTensor(torch.full((5,), start)),
        }
        td = TensorDict(entries, [2, 3])
        return TensorDict({"n": td}, [2, 3]) if nested else td

    key = ("n", "u") if nested else "u"
    first, second = make(1.0), make(2.0)
    out = join([first, first])
    assert join([second, second], out=out) is out
    assert (out.get(key).data == 2).all()
    assert out.get(key).data.shape == (5,)
    assert (first.get(key).data == 1).all()
    if not nested:
        bare = join([second, second], out=TensorDict({}, out.batch_size))
        assert bare["u"].data.shape == (5,)
