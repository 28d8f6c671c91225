"""The messages of tensordict 0.15: one for each leaf, here written out by hand."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import distributed

from collections_of_ranks import dense, state
from ranks import Raised
from tensordict import LazyStackedTensorDict, NonTensorData, TensorDict

if TYPE_CHECKING:
    from ranks import Ranks

ORDER = [("a", "y"), ("a", "z"), "b", "c"]
"""The order of the leaves of ``dense``: by keys, level by level."""


def _send(rank: int, method: str) -> Any:
    if rank == 0:
        td = dense(3)
        answer = getattr(td, method)(dst=1, init_tag=5, wire="0.15")
        return answer if method == "isend" else state(td)
    td = dense(0)
    for number, key in enumerate(ORDER):
        distributed.recv(td[key], src=0, tag=5 + number)
    return state(td)


@pytest.mark.parametrize("method", ["send", "isend"])
def test_leaves_are_sent_one_by_one(pair: Ranks, method: str) -> None:
    answer, received = pair.all(_send, method)
    assert received == state(dense(3))
    assert answer == (8 if method == "isend" else state(dense(3)))


def _receive(rank: int, is_later: bool) -> Any:
    if rank == 0:
        td = dense(3)
        for number, key in enumerate(ORDER):
            distributed.send(td[key], dst=1, tag=number)
        return None
    td = dense(0)
    if is_later:
        works = td.irecv(src=0, return_premature=True, wire="0.15")
        for work in works:
            work.wait()
        return len(works), state(td)
    return td.recv(src=0, wire="0.15"), state(td)


def test_leaves_are_received_one_by_one(pair: Ranks) -> None:
    assert pair.all(_receive, False)[1] == (3, state(dense(3)))
    assert pair.all(_receive, True)[1] == (4, state(dense(3)))


def _stack(rank: int) -> Any:
    td = LazyStackedTensorDict(
        TensorDict(a=torch.zeros(1)), TensorDict(a=torch.zeros(2))
    )
    if rank == 0:
        for number in range(2):
            leaf = torch.full((number + 1,), number + 1.0)
            distributed.send(leaf, dst=1, tag=number)
        return None
    td.recv(src=0, wire="0.15")
    return state(td)


def test_members_of_a_stack_follow_one_another(pair: Ranks) -> None:
    assert pair.all(_stack)[1] == [{"a": [1.0]}, {"a": [2.0, 2.0]}]


def _gaps(rank: int) -> Any:
    td = TensorDict(a=torch.zeros(3, 2).t())
    if rank == 0:
        distributed.send(torch.arange(6.0).view(2, 3), dst=1)
        return None
    td.recv(src=0, wire="0.15")
    return state(td)


def test_a_leaf_with_gaps(pair: Ranks) -> None:
    assert pair.all(_gaps)[1] == {"a": [[0, 1, 2], [3, 4, 5]]}


class _Program:
    """Asks the reader of a pickle to call something."""

    def __reduce__(self) -> Any:
        return os.getenv, ("HOME",)


def _whole(rank: int, way: str) -> Any:
    td = dense(3)
    td["text"] = NonTensorData(("one", 2))
    metadata = {
        "cls": "TensorDict",
        "non_tensors": {"text": (["one", 2], [3], None)},
        "leaves": {"b": ("torch.float32", [3], 0, 16, 4)},
        "cls_metadata": {
            "device": None,
            "names": [None],
            "batch_size": [3],
            "is_locked": False,
        },
        "_total_bytes": 16,
    }
    if way == "sent":
        if rank == 0:
            td.init_remote(dst=1, wire="0.15")
            td.consolidate().send(dst=1, consolidated=True, wire="0.15")
            return None
        box: list[Any] = [None]
        distributed.recv_object_list(box, src=0)
        storage = torch.empty(box[0]["_total_bytes"], dtype=torch.uint8)
        again = torch.empty_like(storage)
        distributed.recv(storage, src=0)
        distributed.recv(again, src=0)
        assert torch.equal(storage, again)
        return box[0]["cls"], box[0]["non_tensors"]["text"][0], sorted(box[0]["leaves"])
    if rank == 0:
        if way == "code":
            metadata["cls"] = _Program()
        distributed.send_object_list([metadata], dst=1)
        if way != "code":
            distributed.send(torch.arange(4.0).view(torch.uint8), dst=1)
        return None
    made = TensorDict.from_remote_init(src=0, wire="0.15")
    return state(made), made.is_consolidated()


def test_whole_collections_have_a_description(pair: Ranks) -> None:
    sent = pair.all(_whole, "sent")[1]
    assert sent == ("TensorDict", ("one", 2), ["b", "c"])
    received = pair.all(_whole, "received")[1]
    assert received == ({"text": ["one", 2], "b": [0.0, 1.0, 2.0]}, True)


def test_a_description_that_names_code_is_refused(pair: Ranks) -> None:
    answer = pair.try_all(_whole, "code")[1]
    assert isinstance(answer, Raised)
    assert "refused" in answer.text
    assert "getenv" in answer.text


def _random(rank: int) -> None:
    dense(0).send(dst=1 - rank, pseudo_rand=True, wire="0.15")


def test_random_tags_are_not_those_of_the_release(pair: Ranks) -> None:
    for answer in pair.try_all(_random):
        assert answer.name == "NotImplementedError"
        assert "init_tag" in answer.text
