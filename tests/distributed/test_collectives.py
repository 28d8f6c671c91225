"""Collective calls of two and three processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import distributed

from collections_of_ranks import COLLECTIONS, Sent, dense, state
from ranks import Raised
from tensordict import LazyStackedTensorDict, NonTensorData, TensorDict

if TYPE_CHECKING:
    from ranks import Ranks

WHOLE = [name for name in COLLECTIONS if name not in ("unbatched", "view")]


def _remote(rank: int, name: str, use_broadcast: bool) -> Any:
    td = COLLECTIONS[name](1)
    if rank == 0:
        td.init_remote(dst=1, use_broadcast=use_broadcast)
        return type(td).__name__, td.is_locked and name != "consolidated", state(td)
    made = TensorDict.from_remote_init(src=0, use_broadcast=use_broadcast)
    assert made.is_consolidated()
    is_kept = name in ("locked", "shared", "mapped") and not use_broadcast
    locked = made.is_locked if is_kept else td.is_locked and name != "consolidated"
    return type(made).__name__, locked, state(made)


@pytest.mark.parametrize("name", WHOLE)
def test_a_collection_arrives_where_nothing_is_known_of_it(
    pair: Ranks, name: str
) -> None:
    sent, received = pair.all(_remote, name, False)
    assert sent == received


@pytest.mark.parametrize("name", ["dense", "stack", "class", "texts", "large", "empty"])
def test_a_collection_arrives_by_a_broadcast(pair: Ranks, name: str) -> None:
    sent, received = pair.all(_remote, name, True)
    assert sent == received


def _refused(rank: int, how: str) -> None:
    bad = TensorDict(n={"v": NonTensorData(object())})
    td = bad if rank == 0 else TensorDict()
    if how == "remote" and rank == 0:
        td.init_remote(dst=1)
    elif how == "remote":
        TensorDict.from_remote_init(src=0)
    elif how == "broadcast":
        td.broadcast(src=0)
    elif how == "scatter":
        td.scatter(0, [TensorDict(), bad] if rank == 0 else None)
    elif how == "no list":
        td.scatter(0, None)
    elif how == "all_gather":
        td.all_gather()
    else:
        rows = TensorDict(a=torch.zeros(1, 2), batch_size=[1])
        (rows if rank else bad).gather_and_stack(dst=1)


@pytest.mark.parametrize(
    "how", ["remote", "broadcast", "scatter", "no list", "all_gather", "gather"]
)
def test_what_one_cannot_send_is_an_error_in_all(pair: Ranks, how: str) -> None:
    sender, receiver = pair.try_all(_refused, how)
    assert isinstance(sender, Raised)
    assert isinstance(receiver, Raised)
    if how == "no list":
        assert sender.name == "ValueError"
        assert "one tensordict for each of the 2" in sender.text
    else:
        assert sender.name == "TypeError"
        assert "('n', 'v')" in sender.text
    assert receiver.name == "WireError"
    assert sender.text in receiver.text


def _broadcast(rank: int, kind: str) -> Any:
    td = COLLECTIONS[kind](7) if rank == 1 else TensorDict()
    made = td.broadcast(src=1)
    assert made.is_consolidated()
    return type(made).__name__, state(made)


@pytest.mark.parametrize("kind", ["dense", "class", "texts"])
def test_broadcast(three: Ranks, kind: str) -> None:
    answers = three.all(_broadcast, kind)
    expected = COLLECTIONS[kind](7)
    assert answers == [(type(expected).__name__, state(expected))] * 3


def _scatter(rank: int) -> Any:
    shares = None
    if rank == 2:
        shares = [
            dense(0),
            Sent(x=torch.ones(1), text="q"),
            TensorDict(a=torch.ones(5)),
        ]
    made = TensorDict().scatter(2, shares)
    assert made.is_consolidated()
    return type(made).__name__, state(made)


def test_scatter_gives_each_its_own(three: Ranks) -> None:
    assert three.all(_scatter) == [
        ("TensorDict", state(dense(0))),
        ("Sent", {"x": [1.0], "text": "q"}),
        ("TensorDict", {"a": [1.0] * 5}),
    ]


def _all_gather(rank: int, is_alike: bool) -> Any:
    td = dense(rank)
    if not is_alike:
        td = TensorDict({f"of {rank}": torch.arange(rank), "text": f"t{rank}"})
    return [state(each) for each in td.all_gather()]


def test_all_gather(three: Ranks) -> None:
    alike = [state(dense(rank)) for rank in range(3)]
    assert three.all(_all_gather, True) == [alike] * 3
    unlike = [
        {f"of {rank}": list(range(rank)), "text": f"t{rank}"} for rank in range(3)
    ]
    assert three.all(_all_gather, False) == [unlike] * 3


def _gather(rank: int, kind: str) -> Any:
    if rank != 1:
        return dense(rank).gather_and_stack(dst=1)
    if kind == "lazy":
        td = LazyStackedTensorDict(dense(9), dense(9))
    else:
        td = torch.stack([dense(9), dense(9)])
    leaf = td["b"] if kind == "dense" else td.tensordicts[0]["b"]
    if kind == "misfit":
        td["b"] = torch.zeros(2, 3, 7)
    made = td.gather_and_stack(dst=1)
    assert made is td
    now = td["b"] if kind == "dense" else td.tensordicts[0]["b"]
    assert now is leaf
    return state(td)


def test_gather_and_stack_writes_the_rows_in_place(three: Ranks) -> None:
    rows = torch.stack([dense(0), dense(2)])
    assert three.all(_gather, "dense") == [None, state(rows), None]
    members = [state(dense(0)), state(dense(2))]
    assert three.all(_gather, "lazy") == [None, members, None]


def _misfit(rank: int) -> Any:
    if rank != 1:
        return dense(rank).gather_and_stack(dst=1)
    td = torch.stack([dense(9), dense(9)])
    td["b"] = torch.zeros(2, 3, 7)
    return td.gather_and_stack(dst=1)


def test_rows_that_do_not_fit_are_an_error_in_all(three: Ranks) -> None:
    for answer in three.try_all(_misfit):
        assert isinstance(answer, Raised)
        assert "'b'" in answer.text


# Reducing -----------------------------------------------------------------------------

REDUCED = [
    name
    for name in COLLECTIONS
    # Bools and complex numbers are not summed.
    if name in ("empty", "large", "gaps", "large gaps", "one element", "ragged stack")
    or name in ("class", "stack of classes", "parameters", "view", "texts")
]


def _all_reduce(rank: int, name: str, options: dict[str, Any]) -> Any:
    td = COLLECTIONS[name](rank + 1)
    works = td.all_reduce(**options)
    for work in works or ():
        work.wait()
        assert work.is_completed()
    return state(td), None if works is None else len(works)


@pytest.mark.parametrize("name", REDUCED)
def test_all_reduce_sums_every_leaf(pair: Ranks, name: str) -> None:
    answers = pair.all(_all_reduce, name, {})
    both = [COLLECTIONS[name](rank + 1) for rank in range(2)]
    for rank, (found, works) in enumerate(answers):
        assert works is None
        if name == "view":
            expected = state(both[0].to_tensordict() + both[1].to_tensordict())
        elif name in ("texts", "class"):
            # Values that are no tensors stay.
            expected = state(both[rank]) | {"x": [3, 3]}
        else:
            expected = state(both[0].detach() + both[1].detach())
        assert found == expected


@pytest.mark.parametrize("bucket_bytes", [None, 0, 20, 1 << 20])
@pytest.mark.parametrize("op", ["SUM", "MAX", "MIN", "PRODUCT"])
def test_operations_and_buckets(pair: Ranks, op: str, bucket_bytes: int | None) -> None:
    answers = pair.all(_reduce_numbers, op, bucket_bytes)
    expected = {"SUM": 5, "MAX": 3, "MIN": 2, "PRODUCT": 6}[op]
    for number, values in enumerate(answers):
        assert values["all"] == [expected] * 9
        assert values["later"] == [expected] * 9
        if number == 1:
            assert values["one"] == [expected] * 9


def _numbers(rank: int) -> TensorDict:
    value = rank + 2
    return TensorDict(
        a=torch.full((2,), float(value)),
        b=torch.full((2,), value),
        c={"d": torch.full((4,), float(value))},
        e=torch.tensor(float(value)),
    )


def _listed(td: TensorDict) -> list[float]:
    return [
        float(each) for leaf in td.flatten_keys().values() for each in leaf.view(-1)
    ]


def _reduce_numbers(rank: int, op: str, bucket_bytes: int | None) -> dict[str, Any]:
    operation = getattr(distributed.ReduceOp, op)
    td = _numbers(rank)
    assert td.all_reduce(operation, bucket_bytes=bucket_bytes) is None
    later = _numbers(rank)
    works = later.all_reduce(operation, async_op=True, bucket_bytes=bucket_bytes)
    for work in works:
        work.wait()
    one = _numbers(rank)
    assert one.reduce(1, operation, bucket_bytes=bucket_bytes) is None
    early = _numbers(rank)
    works = early.reduce(
        1, operation, async_op=True, return_premature=True, bucket_bytes=bucket_bytes
    )
    for work in works:
        work.wait()
    assert early.reduce(1, async_op=True) is None
    return {"all": _listed(td), "later": _listed(later), "one": _listed(one)}


def _different(rank: int, method: str) -> None:
    td = TensorDict({"a": torch.ones(2), "n": {"b": torch.ones(2 + rank % 2)}})
    before = state(td)
    try:
        if method == "reduce":
            td.reduce(0)
        else:
            td.all_reduce(async_op=method == "later")
    finally:
        assert state(td) == before


@pytest.mark.parametrize("method", ["reduce", "all", "later"])
def test_structures_that_differ_are_an_error_in_all(three: Ranks, method: str) -> None:
    for answer in three.try_all(_different, method):
        assert isinstance(answer, Raised)
        assert answer.name == "ValueError"
        assert "('n', 'b')" in answer.text
        assert "Nothing was reduced" in answer.text
    total = three.all(_sum_of_three)
    assert total == [6.0] * 3


def _sum_of_three(rank: int) -> float:
    td = TensorDict(a=torch.full((1,), rank + 1.0))
    td.all_reduce()
    return float(td["a"])


def _in_a_group(rank: int) -> Any:
    group = distributed.new_group([0, 2])
    td = TensorDict(a=torch.full((1,), rank + 1.0))
    if rank != 1:
        td.all_reduce(group=group)
        found = [float(each["a"]) for each in td.all_gather(group=group)]
        made = (td if rank == 2 else TensorDict()).broadcast(src=2, group=group)
        return found, float(made["a"])
    return None


def test_a_group_of_some_ranks(three: Ranks) -> None:
    assert three.all(_in_a_group) == [([4.0, 4.0], 4.0), None, ([4.0, 4.0], 4.0)]
