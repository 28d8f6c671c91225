"""Laws of shapes, indexing and joining: what undoes what, and what torch says."""

from __future__ import annotations

import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from tensordict import TensorDict

SIZES = st.lists(st.integers(1, 3), min_size=1, max_size=3)


@st.composite
def trees(draw: st.DrawFn) -> TensorDict:
    """A tree of two levels, whose nested container may have further batch dims."""
    batch = draw(SIZES)
    extra = draw(st.lists(st.integers(1, 3), max_size=1))
    features = draw(st.lists(st.integers(1, 2), max_size=1))
    names = draw(st.none() | st.just([f"d{dim}" for dim in range(len(batch))]))
    total = torch.Size([*batch, *extra, *features])
    leaf = torch.arange(total.numel()).reshape(total)
    nested = TensorDict({"b": leaf + 1}, [*batch, *extra])
    return TensorDict({"a": leaf, "n": nested}, batch, names=names)


def equal(first: TensorDict, second: TensorDict) -> bool:
    """Return whether two trees agree in everything but their names."""
    return (
        first.batch_size == second.batch_size
        and first["n"].batch_size == second["n"].batch_size
        and bool((first == second).all())
    )


def dims(td: TensorDict) -> st.SearchStrategy[int]:
    """A batch dim, counted from either end."""
    return st.integers(-td.ndim, td.ndim - 1)


@given(trees())
def test_view_and_back(td: TensorDict) -> None:
    assert equal(td.view(-1).view(td.shape), td)
    assert equal(td.reshape(-1).reshape(td.shape), td)


@given(trees(), st.data())
def test_permute_has_an_inverse(td: TensorDict, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(td.ndim)))
    back = sorted(range(td.ndim), key=order.__getitem__)
    result = td.permute(order)
    assert equal(result.permute(back), td)
    assert result.permute(back).names == td.names
    assert result.names == [td.names[dim] for dim in order]


@given(trees(), st.data())
def test_movedim_is_torchs(td: TensorDict, data: st.DataObject) -> None:
    source, target = data.draw(dims(td)), data.draw(dims(td))
    expected = torch.empty(td.shape).movedim(source, target).shape
    assert td.movedim(source, target).batch_size == expected
    assert equal(td.movedim(source, target).movedim(target, source), td)


@given(trees(), st.data())
def test_unsqueeze_then_squeeze(td: TensorDict, data: st.DataObject) -> None:
    dim = data.draw(st.integers(-td.ndim - 1, td.ndim))
    result = td.unsqueeze(dim)
    assert result.batch_size == torch.empty(td.shape).unsqueeze(dim).shape
    back = result.squeeze(dim)
    assert equal(back, td)
    assert back.names == td.names


@given(trees(), st.data())
def test_flatten_then_unflatten(td: TensorDict, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, td.ndim - 1))
    end = data.draw(st.integers(start, td.ndim - 1))
    sizes = td.shape[start : end + 1]
    assert equal(td.flatten(start, end).unflatten(start, sizes), td)


@given(trees(), st.data(), st.integers(1, 4))
def test_split_then_cat(td: TensorDict, data: st.DataObject, size: int) -> None:
    dim = data.draw(dims(td))
    parts = td.split(size, dim)
    assert [part.shape[dim] for part in parts] == [
        part.shape[dim] for part in torch.empty(td.shape).split(size, dim)
    ]
    assert equal(torch.cat(parts, dim), td)
    assert equal(torch.cat(td.chunk(size, dim), dim), td)
    assert equal(torch.cat(td.tensor_split(size, dim), dim), td)


@given(trees(), st.data())
def test_unbind_then_stack(td: TensorDict, data: st.DataObject) -> None:
    dim = data.draw(dims(td))
    parts = td.unbind(dim)
    assert equal(torch.stack(parts, dim), td)
    position = dim % td.ndim
    for number, part in enumerate(parts):
        index = (slice(None),) * position + (number,)
        assert equal(part, td[index])
        assert part.names == td[index].names


@given(trees(), st.data())
def test_roll_and_flip_undo_themselves(td: TensorDict, data: st.DataObject) -> None:
    dim, shift = data.draw(dims(td)), data.draw(st.integers(-3, 3))
    assert equal(td.roll(shift, dim).roll(-shift, dim), td)
    assert equal(td.roll(shift).roll(-shift), td)
    assert equal(td.flip(dim).flip(dim), td)


@given(trees())
def test_pack_then_unpack(td: TensorDict) -> None:
    flat, layout = td.pack()
    assert equal(layout.unpack(flat), td)


@st.composite
def indices(draw: st.DrawFn, shape: torch.Size) -> object:
    """An index that torch takes for a tensor of ``shape``, or nearly so."""
    items: list[object] = []
    dim = 0
    while dim < len(shape) and draw(st.integers(0, 5)):
        length = shape[dim]
        kind = draw(st.sampled_from("int slice list tensor mask none range".split()))
        if kind == "none":
            items.append(None)
            continue
        if kind == "int":
            items.append(draw(st.integers(-length, length - 1)))
        elif kind == "slice":
            start = draw(st.none() | st.integers(-length, length))
            stop = draw(st.none() | st.integers(-length, length))
            items.append(slice(start, stop, draw(st.sampled_from([None, 1, 2]))))
        elif kind == "range":
            items.append(range(length))
        elif kind == "mask":
            bits = draw(st.lists(st.booleans(), min_size=length, max_size=length))
            items.append(torch.tensor(bits))
        else:
            chosen = draw(st.lists(st.integers(0, length - 1), min_size=1, max_size=2))
            value = torch.tensor(chosen)
            items.append(value if kind == "tensor" else chosen)
        dim += 1
    if draw(st.booleans()):
        items.insert(draw(st.integers(0, len(items))), ...)
    return items[0] if len(items) == 1 else tuple(items)


def as_torch(index: object, shape: torch.Size) -> object:
    """The same index without an ellipsis, for a tensor that begins with ``shape``."""
    items = list(index) if isinstance(index, tuple) else [index]
    items = [torch.tensor(item) if isinstance(item, range) else item for item in items]
    items = [torch.tensor(item) if isinstance(item, list) else item for item in items]
    used = sum(1 for item in items if item is not None and item is not ...)
    out: list[object] = []
    for item in items:
        out += [slice(None)] * (len(shape) - used) if item is ... else [item]
    return tuple(out)


@given(trees(), st.data())
def test_index_is_torchs_on_every_leaf(td: TensorDict, data: st.DataObject) -> None:
    index = data.draw(indices(td.shape))
    plain = as_torch(index, td.shape)
    try:
        expected = td["a"][plain]
    except IndexError:
        assume(False)
    size = torch.empty(td.shape)[plain].shape
    result = td[index]
    assert result.batch_size == size
    assert torch.equal(result["a"], expected)
    assert torch.equal(result["n", "b"], td["n", "b"][plain])
    assert len(result.names) == len(size)


@given(trees(), st.data())
def test_set_index_is_torchs_on_every_leaf(td: TensorDict, data: st.DataObject) -> None:
    index = data.draw(indices(td.shape))
    plain = as_torch(index, td.shape)
    expected = td.clone()
    try:
        part = td[index].clone()
        for value, source in zip(
            expected.values(True, True), part.values(True, True), strict=True
        ):
            value[plain] = source * 0 - 1
    except IndexError:
        assume(False)
    td[index] = part * 0 - 1
    assert equal(td, expected)
    td[index] = part
    empty = TensorDict(batch_size=td.shape)
    empty[index] = part
    assert torch.equal(empty["a"][plain], part["a"])


@given(trees(), st.data())
def test_a_part_is_what_the_index_gives(td: TensorDict, data: st.DataObject) -> None:
    index = data.draw(indices(td.shape))
    assume(not isinstance(index, list))
    try:
        expected = td[index]
    except IndexError:
        assume(False)
    part = td._get_sub_tensordict(index)
    assert equal(part.to_tensordict(), expected)
    assert part.names == expected.names
    part.zero_()
    assert not td[index]["n", "b"].any()


@given(trees(), st.data())
def test_gather_is_torchs_on_every_leaf(td: TensorDict, data: st.DataObject) -> None:
    dim = data.draw(dims(td))
    shape = list(td.shape)
    shape[dim] = data.draw(st.integers(1, 3))
    high = td.shape[dim] - 1
    index = torch.full(shape, data.draw(st.integers(0, high)))
    result = td.gather(dim, index)
    assert result.batch_size == torch.Size(shape)
    for value, source in zip(
        result.values(True, True), td.values(True, True), strict=True
    ):
        wide = index.reshape(*shape, *[1] * (source.dim() - len(shape)))
        wide = wide.expand(*shape, *source.shape[len(shape) :])
        position = dim % td.ndim
        assert torch.equal(value, source.gather(position, wide))
