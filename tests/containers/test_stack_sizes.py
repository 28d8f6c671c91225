"""Stacks that change their size, and what names and shapes their results have."""

from __future__ import annotations

import pytest
import torch

from tensordict import TensorDict, lazy_stack, set_lazy_legacy, tensorclass


def stack_of(count, size=(2,), start=0, dim=0):
    members = [
        TensorDict(a=torch.full(size, start + at), batch_size=size)
        for at in range(count)
    ]
    return lazy_stack(members, dim)


def values(td):
    return [member["a"].tolist() for member in td.tensordicts]


# Updates -----------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("form", ["stack", "dense", "along another dim"])
def test_an_update_resizes_a_stack(count, form):
    td, source = stack_of(2), stack_of(count, start=10)
    if form == "dense":
        source = source.contiguous()
    elif form == "along another dim":
        source = lazy_stack(list(source.unbind(1)), 1)
    members = list(td.tensordicts)
    assert td.update(source, update_batch_size=True) is td
    assert td.batch_size == (count, 2)
    assert values(td) == [[10 + at] * 2 for at in range(count)]
    kept = zip(td.tensordicts, members, strict=False)
    assert all(member is before for member, before in kept)


def test_a_resized_stack_shares_leaves_and_no_members():
    td, source = stack_of(2), stack_of(3, start=10)
    td.update(source, update_batch_size=True)
    assert td[2] is not source[2]
    assert td[2]["a"] is source[2]["a"]
    td.update(source, clone=True, update_batch_size=True)
    assert td[2]["a"] is not source[2]["a"]


def test_an_update_resizes_members():
    td = stack_of(2)
    td.update(stack_of(3, (4,), 10), update_batch_size=True)
    assert td.batch_size == (3, 4)
    ragged = lazy_stack([TensorDict(a=torch.ones(n), batch_size=[n]) for n in (2, 3)])
    td.update(ragged, update_batch_size=True)
    assert td.batch_size == (2, -1)


def test_an_update_resizes_stacks_below():
    td = TensorDict(n=stack_of(2), x=torch.zeros(2), batch_size=[2])
    source = TensorDict(n=stack_of(3, start=10), x=torch.ones(3), batch_size=[3])
    td.update(source, update_batch_size=True)
    assert td.batch_size == (3,)
    assert values(td["n"]) == [[10] * 2, [11] * 2, [12] * 2]
    td.update({"n": stack_of(3, start=20)}, update_batch_size=True)
    assert values(td["n"]) == [[20] * 2, [21] * 2, [22] * 2]
    outer = lazy_stack([stack_of(2), stack_of(2)])
    outer.update(lazy_stack([stack_of(3), stack_of(3)]), update_batch_size=True)
    assert outer.batch_size == (2, 3, 2)


def test_an_update_resizes_a_class_over_a_stack():
    @tensorclass
    class Row:
        a: torch.Tensor

    rows = [Row(torch.full((2,), at), batch_size=[2]) for at in range(3)]
    td = lazy_stack(rows[:2])
    td.update(lazy_stack(rows), update_batch_size=True)
    assert type(td) is Row
    assert td.a.tolist() == [[0, 0], [1, 1], [2, 2]]


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("dense", [False, True])
def test_an_update_in_place_resizes_nothing(nested, dense):
    td, source = stack_of(2), stack_of(3, start=10)
    if dense:
        td, source = td.contiguous(), source.contiguous()
    root = TensorDict(n=td) if nested else td
    other = TensorDict(n=source) if nested else source
    with pytest.raises(RuntimeError, match="shapes mismatch, but update was called"):
        root.update(other, update_batch_size=True, inplace=True)
    assert td.batch_size == (2, 2)
    assert td["a"].tolist() == [[0, 0], [1, 1]]


@pytest.mark.parametrize(
    ("source", "match"),
    [
        (lambda: TensorDict(b=torch.ones(3, 2), batch_size=[3, 2]), "not present"),
        (lambda: lazy_stack([TensorDict(a=1)] * 3), "Batch sizes in tensordicts"),
        (lambda: TensorDict(a=torch.ones(3, 2), b=1j), "different shapes"),
    ],
)
def test_an_update_that_fails_leaves_the_stack(source, match):
    td = stack_of(2)
    members = list(td.tensordicts)
    with pytest.raises((RuntimeError, ValueError), match=match):
        td.update(source(), update_batch_size=True)
    assert td.batch_size == (2, 2)
    assert values(td) == [[0, 0], [1, 1]]
    pairs = zip(td.tensordicts, members, strict=True)
    assert all(member is before for member, before in pairs)


def test_some_keys_alone_resize_nothing():
    for td in (stack_of(2), stack_of(2).contiguous()):
        with pytest.raises(RuntimeError, match="with keys_to_update"):
            td.update(stack_of(3), keys_to_update=["a"], update_batch_size=True)


# Names --------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [0, 1])
def test_the_stack_dim_keeps_its_name(dim):
    td = stack_of(2, dim=dim)
    td.names = ["s", "t"]
    assert torch.stack([td, td]).names == [None, "s", "t"]
    assert torch.stack([td, td], 2).names == ["s", "t", None]
    for along in (0, 1):
        assert torch.cat([td, td], along).names == ["s", "t"]
        assert td.unbind(along)[0].names == ["t" if along == 0 else "s"]
    mask = torch.tensor([True, False])
    assert td.masked_select(mask).names == ["s", "t"]
    assert td.masked_select(torch.ones(2, 2, dtype=torch.bool)).names == [None]


@pytest.mark.parametrize("lazy", [False, True])
def test_the_dims_that_one_is_split_into_have_no_name(lazy):
    td = stack_of(4)
    td.names = ["s", "t"]
    if not lazy:
        td = td.contiguous()
    assert td.unflatten(0, (2, 2)).names == [None, None, "t"]
    assert td.unflatten(1, (1, 2)).names[-1] == "t"
    assert td.names == ["s", "t"]


# Members that differ --------------------------------------------------------------------


def test_a_dictionary_of_a_ragged_stack_has_lists():
    td = lazy_stack([TensorDict(a=torch.zeros(n), b=n) for n in (1, 2)])
    found = TensorDict(n=td).to_dict(convert_tensors=True)
    assert found == {"n": {"a": [[0.0], [0.0, 0.0]], "b": [1, 2]}}
    assert td.to_dict()["a"][1] is td[1]["a"]
    outer = lazy_stack([td, td]).to_dict(convert_tensors=True)
    assert outer["a"] == [[[0.0], [0.0, 0.0]]] * 2


@pytest.mark.parametrize("lazy", [False, True])
def test_padding_fills_ragged_batch_dims(lazy):
    td = lazy_stack([TensorDict(a=torch.ones(n, 2), batch_size=[n]) for n in (1, 2)])
    if not lazy:
        td = td.densify(layout=torch.jagged)
    padded = td.to_padded_tensor(padding=-1, mask_key=("n", "mask"))
    assert padded.batch_size == padded["n"].batch_size == (2, 2)
    assert padded["n", "mask"].tolist() == [[True, False], [True, True]]
    assert padded["a"][0].tolist() == [[1.0, 1.0], [-1.0, -1.0]]


def test_values_are_filtered_from_a_ragged_stack_below():
    td = lazy_stack([TensorDict(a=torch.zeros(n), s="x") for n in (1, 2)])
    found = TensorDict(n=td, t="y").filter_non_tensor_data()
    assert set(found.keys(True)) == {"n", ("n", "a")}
    assert len(found.keys(True)) == len(list(found.keys(True))) == 2
    assert list(td.keys()) == ["a", "s"]


IN_PLACE = {
    "add_": lambda td, other: td.add_(other),
    "lerp_": lambda td, other: td.lerp_(other, 0.5),
    "addcmul_": lambda td, other: td.addcmul_(other, other),
    "minimum_": lambda td, other: td.minimum_(other),
    "iadd": lambda td, other: td.__iadd__(other),
}


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("size", [(2, 1), (1,)])
@pytest.mark.parametrize("name", IN_PLACE)
def test_nothing_is_written_in_place_into_what_would_have_to_grow(name, size, lazy):
    members = [TensorDict(a=torch.ones(size[1:]), batch_size=size[1:])] * size[0]
    td = lazy_stack(members) if lazy else lazy_stack(members).contiguous()
    other = TensorDict(a=torch.full((2, 3), 5.0), batch_size=[2, 3])
    with pytest.raises(RuntimeError, match="output with shape"):
        IN_PLACE[name](td, other)
    assert (td == 1).all()
    larger = TensorDict(a=torch.ones(1, 2, 3), batch_size=[1, 2, 3])
    with pytest.raises(RuntimeError, match="output with shape"):
        IN_PLACE[name](other, larger)
    assert (other == 5).all()
    IN_PLACE[name](other, td)
    assert not (other == 5).any()


@pytest.mark.filterwarnings("ignore:The legacy lazy mode:DeprecationWarning")
def test_a_part_has_views_in_the_lazy_mode():
    td = TensorDict(a=torch.arange(6).view(3, 2), batch_size=[3, 2])
    part = td._get_sub_tensordict(slice(0, 2))
    with set_lazy_legacy(True):
        views = part.view(-1), part.permute(1, 0), part[:, :1].squeeze()
        for view, expected in zip(
            views, ([0, 1, 2, 3], [[0, 2], [1, 3]], [0, 2]), strict=True
        ):
            assert view["a"].tolist() == expected
        views[0]["a"] = torch.zeros(4, dtype=torch.int64)
    assert td["a"].tolist() == [[0, 0], [0, 0], [4, 5]]
    with (
        set_lazy_legacy(False),
        pytest.raises(RuntimeError, match="Cannot call `permute`"),
    ):
        part.permute(1, 0)
