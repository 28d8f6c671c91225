"""The messages of tensordict 0.15: one for each leaf, here written out by hand."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import distributed

from collections_of_ranks import COLLECTIONS, dense, state
from ranks import Raised
from tensordict import LazyStackedTensorDict, NonTensorData, TensorDict
from tensordict.distributed.tags import published_tags

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


# Broadcasts -------------------------------------------------------------------------------


def _broadcast(rank: int, way: str) -> Any:
    td = TensorDict(b=torch.arange(4.0), text="q", batch_size=[4])
    if way == "sent":
        if rank == 0:
            td.init_remote(use_broadcast=True, wire="0.15")
            return None
        box: list[Any] = [None]
        distributed.broadcast_object_list(box, src=0)
        metadata = box[0]
        storage = torch.empty(metadata["_total_bytes"], dtype=torch.uint8)
        distributed.broadcast(storage, src=0)
        values = storage.view(torch.float32).tolist()
        return values, metadata["_storage_device"], metadata["non_tensors"]
    if rank == 0:
        metadata = {
            "cls": _Program() if way == "code" else "TensorDict",
            "non_tensors": {"text": ("q", [4], None)},
            "leaves": {"b": ("torch.float32", [4], 0, 16, 0)},
            "cls_metadata": {
                "device": None,
                "names": [None],
                "batch_size": [4],
                "is_locked": False,
            },
            "_total_bytes": 16,
            "_storage_device": "cpu",
        }
        distributed.broadcast_object_list([metadata], src=0)
        if way != "code":
            distributed.broadcast(torch.arange(4.0).view(torch.uint8), src=0)
        return None
    made = TensorDict.from_remote_init(src=0, use_broadcast=True, wire="0.15")
    return state(made), made.is_consolidated(), made.batch_size


def test_broadcasts_are_a_description_and_a_buffer(pair: Ranks) -> None:
    values, device, texts = pair.all(_broadcast, "sent")[1]
    assert (values, device) == ([0.0, 1.0, 2.0, 3.0], "cpu")
    assert texts["text"][0] == "q"
    content, is_consolidated, shape = pair.all(_broadcast, "received")[1]
    assert content == {"b": [0.0, 1.0, 2.0, 3.0], "text": "q"}
    assert (is_consolidated, shape) == (True, (4,))
    refused = pair.try_all(_broadcast, "code")[1]
    assert isinstance(refused, Raised)
    assert "getenv" in refused.text


def _described(rank: int, name: str, use_broadcast: bool) -> Any:
    td = COLLECTIONS[name](1)
    if rank == 0:
        td.init_remote(dst=1, use_broadcast=use_broadcast, wire="0.15")
        return None
    box: list[Any] = [None]
    if use_broadcast:
        distributed.broadcast_object_list(box, src=0)
    else:
        distributed.recv_object_list(box, src=0)
    storage = torch.empty(box[0]["_total_bytes"], dtype=torch.uint8)
    if use_broadcast:
        distributed.broadcast(storage, src=0)
    else:
        distributed.recv(storage, src=0)
    members = [box[0][key]["cls"] for key in ("0", "1") if key in box[0]]
    return box[0]["cls"], members, box[0].get("_tensorclass_type")


@pytest.mark.parametrize("use_broadcast", [False, True])
def test_a_tensorclass_is_described_as_what_it_is_over(
    pair: Ranks, use_broadcast: bool
) -> None:
    found = pair.all(_described, "class", use_broadcast)[1]
    assert found == ("TensorDict", [], "collections_of_ranks.Sent")
    found = pair.all(_described, "stack of classes", use_broadcast)[1]
    expected = ["TensorDict", "TensorDict"]
    assert found == ("LazyStackedTensorDict", expected, "collections_of_ranks.Sent")


# Tags -------------------------------------------------------------------------------------

RANDOM_TAGS = {
    0: [9651, 3450, 3834, 3840],
    5: [1262, 841, 4077, 6859, 90, 8792, 2923],
    7: [1728, 3415, 307, 1039],
}
"""The tags that release 0.15.3 gave to ``torch.distributed`` with ``pseudo_rand=True``."""


@pytest.mark.parametrize("first", RANDOM_TAGS)
def test_random_tags_are_those_of_the_release(first: int) -> None:
    recorded = RANDOM_TAGS[first]
    assert published_tags(first, len(recorded), is_random=True) == recorded
    assert published_tags(first, 2, is_random=False) == [first, first + 1]
    assert published_tags(first, 0, is_random=True) == []


def _random(rank: int, sender: int) -> Any:
    options = {"init_tag": 5, "pseudo_rand": True, "wire": "0.15"}
    if rank == 0 and sender == 0:
        return dense(3).isend(dst=1, **options)
    if rank == 1 and sender == 1:
        td = dense(0)
        return td.recv(src=0, **options), state(td)
    td = dense(3 * (sender == 1))
    call = distributed.send if sender == 1 else distributed.recv
    for key, tag in zip(ORDER, RANDOM_TAGS[5], strict=False):
        call(td[key], 1 - rank, tag=tag)
    return state(td)


def test_leaves_have_random_tags(pair: Ranks) -> None:
    last = RANDOM_TAGS[5][3]
    assert pair.all(_random, 0) == [last, state(dense(3))]
    assert pair.all(_random, 1)[1] == (last, state(dense(3)))
