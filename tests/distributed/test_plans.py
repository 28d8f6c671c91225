"""The order of leaves, and what is packed, without a process."""

from __future__ import annotations

import pytest
import torch

from tensordict import LazyStackedTensorDict, TensorDict, _rust
from tensordict.distributed.plans import (
    Packing,
    difference,
    pack_leaves,
    parts_of,
    unpack_leaves,
)


def _keys(td: object) -> list[tuple[str, ...]]:
    return [key for key, *_ in parts_of(td).plan.specs]


def test_leaves_are_in_the_order_of_keys() -> None:
    nested = {"z": torch.ones(1), "a": torch.ones(1)}
    td = TensorDict({"b": torch.ones(1), "a": nested, "10": torch.ones(1)})
    order = [("10",), ("a", "a"), ("a", "z"), ("b",)]
    assert _keys(td) == order
    parts = parts_of(td)
    assert parts.leaves[1] is td["a", "a"]
    turned = TensorDict({key: td[key] for key in reversed(list(td.keys()))})
    assert _keys(turned) == order
    assert parts_of(turned).plan.digest == parts.plan.digest
    assert parts_of(turned).leaves[3] is td["b"]
    stack = LazyStackedTensorDict(td, td)
    assert _keys(stack) == [(n, *key) for n in "01" for key in order]


def test_a_plan_is_made_once_for_each_structure() -> None:
    first = parts_of(TensorDict(a=torch.ones(2))).plan
    assert parts_of(TensorDict(a=torch.zeros(2))).plan is first
    for other in (torch.ones(3), torch.ones(2, 1), torch.ones(2, dtype=torch.int32)):
        assert parts_of(TensorDict(a=other)).plan.digest != first.digest


def test_a_tensor_under_two_keys() -> None:
    both = torch.arange(3)
    parts = parts_of(TensorDict(b=both, a=both))
    assert [leaf is both for leaf in parts.leaves] == [True, True]
    other = TensorDict(b=torch.ones(3).long(), a=torch.zeros(3).long())
    parts = parts_of(other)
    assert parts.leaves[0] is other["a"]


MIXED = {
    "plain": lambda: [
        torch.arange(3),
        torch.ones(2, 2),
        torch.zeros(0),
        torch.tensor(2.5),
    ],
    "gaps": lambda: [torch.arange(6.0).view(2, 3).t(), torch.ones(4)[::2]],
    "signs": lambda: [torch.tensor([1 + 2j]).conj(), torch.tensor([3j]).conj().imag],
    "dtypes": lambda: [torch.ones(3, dtype=torch.bfloat16), torch.ones(1).bool()],
}


@pytest.mark.parametrize("name", MIXED)
def test_packed_leaves_come_back(name: str) -> None:
    leaves = MIXED[name]()
    td = TensorDict({str(number): leaf for number, leaf in enumerate(leaves)})
    parts = parts_of(td)
    assert parts.plan.large == []
    flat = torch.empty(parts.plan.flat_bytes, dtype=torch.uint8)
    pack_leaves(parts, flat)
    expected = [leaf.clone() for leaf in leaves]
    others = [torch.zeros_like(leaf) for leaf in leaves]
    unpack_leaves(parts._replace(found=others), flat)
    for other, value in zip(others, expected, strict=True):
        assert torch.equal(other, value)
    for leaf in leaves:
        leaf.zero_()
    unpack_leaves(parts, flat)
    for leaf, value in zip(leaves, expected, strict=True):
        assert torch.equal(leaf, value)


@pytest.mark.skipif(
    not _rust.shortcuts()["tensors"], reason="leaves are then copied by torch"
)
def test_a_packing_copies_nothing_that_does_not_fit() -> None:
    flat = torch.zeros(2)
    leaves = [torch.ones(1), torch.full((1,), 2.0)]
    assert not Packing([0, 1], [0, 8]).copy(leaves, flat, False)
    assert flat.tolist() == [0, 0]
    assert Packing([1, 0], [0, 4]).copy(leaves, flat, False)
    assert flat.tolist() == [2, 1]
    assert Packing([1], [4]).copy(leaves, flat, False)
    assert flat.tolist() == [2, 2]
    assert Packing([], []).copy(leaves, flat, False)


def test_large_leaves_are_not_packed() -> None:
    plan = parts_of(TensorDict(a=torch.ones(3), b=torch.ones(100_000))).plan
    assert plan.small == [0]
    assert plan.large == [1]


def test_what_differs_first_is_named() -> None:
    mine = parts_of(TensorDict({"a": torch.ones(2), "n": {"b": torch.ones(2)}})).plan
    other = parts_of(TensorDict({"a": torch.ones(2), "n": {"b": torch.ones(3)}})).plan
    text = difference(mine.text, other.text, "rank 7")
    assert text == (
        "the entry ('n', 'b') is float32 of the shape [2] here, and float32 of the "
        "shape [3] in rank 7"
    )
    fewer = parts_of(TensorDict(a=torch.ones(2))).plan
    assert "and missing in rank 7" in difference(mine.text, fewer.text, "rank 7")


def test_jagged_leaves_go_by_their_values_and_have_offsets_in_the_structure() -> None:
    def jagged(*lengths: int) -> TensorDict:
        rows = [torch.ones(length) for length in lengths]
        leaf = torch.nested.nested_tensor(rows, layout=torch.jagged)
        return TensorDict(j=leaf, batch_size=[2])

    parts = parts_of(jagged(2, 3))
    assert parts.leaves[0].shape == (5,)
    assert parts_of(jagged(2, 3)).plan is parts.plan
    other = parts_of(jagged(3, 2)).plan
    assert other.digest != parts.plan.digest
    assert "the entry 'j'" in difference(parts.plan.text, other.text, "rank 1")


def test_a_sparse_leaf_is_refused_by_its_key() -> None:
    with pytest.raises(TypeError, match=r"'s'.*sparse"):
        parts_of(TensorDict(s=torch.eye(2).to_sparse()))
